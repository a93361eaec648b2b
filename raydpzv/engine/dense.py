"""Dense networks as numbers: widths, layout and parameters before the first update, as `FlatModel`
has them.
"""

# M clients, E embedding width, K classes

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from raydpzv.keys import Key
from raydpzv.models.orthogonal import orthonormal
from raydpzv.zo.spans import Shapes, layout_of

Start = Literal["random", "zero_last", "orthogonal_last"]
"""Parameters of a bottom before the first update."""
LAWS = {"gaussian": 0, "sphere": 1, "rademacher": 2}
"""Laws of directions as the kernels know them."""


@dataclass(frozen=True)
class DenseNetwork:
    """Linear layers with ReLU between; or, with no layers, the sum of the clients' embeddings with
    a bias.

    widths: from the input on; of the sum, the number of classes alone. paths: each layer's place in
    the torch module that the same names of a scenario give, by which its first parameters are drawn
    and its layout is found. start: of the last layer, drawn as those before it ("random"), zeros,
    or orthonormal weights and no bias.
    """

    widths: tuple[int, ...]
    paths: tuple[str, ...]
    start: Start = "random"

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(math.prod(shape) for _, shape in self.shapes)

    @property
    def sizes(self) -> np.ndarray:
        """Widths as the kernels want them, int64."""
        return np.array(self.widths, np.int64)

    @property
    def layout(self) -> str:
        """Return the digest of the parameters' names and shapes in order, that of the torch
        module.
        """
        return layout_of(self.shapes)

    def initial(self, key: Key) -> np.ndarray:
        """Return the parameters before the first update, float32 [d]: the bits of
        `raydpzv.models.flat.FlatModel`.
        """
        if not self.paths:
            return np.zeros(self.size, np.float32)
        parts = []
        for path, (before, after) in zip(self.paths, pairwise(self.widths), strict=True):
            bound = np.float32(1 / math.sqrt(before))
            for name, count in (("weight", before * after), ("bias", after)):
                draws = (key / "initial" / path / name).generator().random(count, dtype=np.float32)
                parts.append((draws * 2 - 1) * bound)
        if self.start == "orthogonal_last":
            parts[-2] = orthonormal(parts[-2].reshape(self.widths[:-3:-1])).ravel()
        for part in {"random": [], "zero_last": parts[-2:], "orthogonal_last": parts[-1:]}[
            self.start
        ]:
            part[:] = 0
        return np.concatenate(parts)

    @property
    def shapes(self) -> Shapes:
        """Return the parameters' names and shapes, in the order of the vector."""
        if not self.paths:
            return (("bias", self.widths),)
        found: list[tuple[str, tuple[int, ...]]] = []
        for path, (before, after) in zip(self.paths, pairwise(self.widths), strict=True):
            prefix = f"{path}." if path else ""
            found += [(f"{prefix}weight", (after, before)), (f"{prefix}bias", (after,))]
        return tuple(found)


def dense_bottom(
    name: str, shape: Sequence[int], hidden: Sequence[int], width: int, start: Start = "random"
) -> DenseNetwork | None:
    """Return the bottom model of that name for records of `shape`; None if it is none of dense
    layers.
    """
    if name not in ("mlp", "linear"):
        return None
    inner = tuple(hidden) if name == "mlp" else ()
    layers = len(inner) + 1
    return DenseNetwork(
        (math.prod(shape), *inner, width), tuple(str(1 + 2 * n) for n in range(layers)), start
    )


def dense_whole(
    kind: str, shape: Sequence[int], hidden: Sequence[int], outputs: int
) -> DenseNetwork | None:
    """Return the whole model of that kind for records of `shape`; None if it is none of dense
    layers.
    """
    return dense_bottom("linear" if kind == "logistic" else kind, shape, hidden, outputs)


def dense_head(
    name: str, clients: int, width: int, hidden: Sequence[int], classes: int
) -> DenseNetwork | None:
    """Return the head of that name; None if it is none of dense layers."""
    if name == "mlp":
        layers = range(len(hidden) + 1)
        return DenseNetwork((clients * width, *hidden, classes), tuple(str(2 * n) for n in layers))
    if name == "linear":
        return DenseNetwork((clients * width, classes), ("",))
    return DenseNetwork((classes,), ()) if name == "sum" else None
