"""Messages between server and clients, and their exact size on the wire.

A body is a small dataclass of numpy arrays. Its size is the sum of its arrays' bytes (DPZV journal
Eq. 23 counts tensors), a function of their shapes alone; `encode` writes exactly that many bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, dataclass_transform

import numpy as np

Packed = tuple[str, tuple[tuple[str, tuple[int, ...]], ...], bytes]
"""A body's class name, its arrays' dtypes and shapes, and its wire bytes."""

_BODIES: dict[str, type[Body]] = {}


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Body:
    """Base of all message bodies: subclasses become frozen dataclasses without a decorator; fields
    are numpy arrays.

    An unmetered body (evaluation) belongs to the simulator, not to the method: it costs no wire
    bytes.
    """

    metered: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclass(frozen=True)(cls)
        _BODIES[cls.__name__] = cls

    @property
    def wire_bytes(self) -> int:
        """Bytes on the wire."""
        total = 0
        if self.metered:
            for array in self.__dict__.values():
                total += array.nbytes
        return total

    @property
    def numbers(self) -> int:
        """Numbers on the wire, whatever their width: what DeComFL calls the length of a
        communication vector.
        """
        total = 0
        if self.metered:
            for array in self.__dict__.values():
                total += array.size
        return total

    def encode(self) -> bytes:
        """Return the arrays' bytes, one after the other."""
        return b"".join(np.ascontiguousarray(array).tobytes() for array in self.arrays())

    def arrays(self) -> list[np.ndarray]:
        """Return the arrays, in the order in which they travel."""
        return list(vars(self).values())


def pack(body: Body) -> Packed:
    """Return a body in the form in which it travels between processes: one `bytes`, no arrays to
    pickle.
    """
    layout = tuple((array.dtype.str, array.shape) for array in body.arrays())
    return type(body).__name__, layout, body.encode()


def unpack(packed: Packed) -> Body:
    """Return the body that was packed; its arrays are read-only views."""
    name, layout, data = packed
    arrays, place = [], 0
    for dtype, shape in layout:
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(data, dtype, count, place).reshape(shape))
        place += arrays[-1].nbytes
    return body_class(name)(*arrays)


def body_class(name: str) -> type[Body]:
    """Return the class of bodies with that name; KeyError if there is none."""
    return _BODIES[name]


class Start(Body):
    """Begin; the first order a client gets. Empty."""


class Acknowledged(Body):
    """The upload was used; nothing to apply. Empty."""


class Evaluate(Body):
    """Send the test embeddings of the current model."""

    metered: ClassVar[bool] = False


class TestEmbeddings(Body):
    """Embeddings of the held-out rows, float32 [N, E]."""

    metered: ClassVar[bool] = False
    values: np.ndarray


class SaveState(Body):
    """Send what another process needs to be where you are (for a checkpoint)."""

    metered: ClassVar[bool] = False


class ClientState(Body):
    """A client's counts, int64 [n], and its model's parameters and what goes with them, float32 [1
    + V, d].

    From a client, what a checkpoint keeps of it; to a client that has done nothing yet, where it is
    to continue.
    """

    metered: ClassVar[bool] = False
    counts: np.ndarray
    vectors: np.ndarray


class ClientModels(Body):
    """What a checkpoint keeps of n clients of a host whose models nobody can rebuild.

    Their numbers int32 [n], the updates they have caught up with int64 [n], parameters and what
    goes with them float32 [n, 1 + V, d]; how many directional derivatives of their own last round
    each has, int64 [n], and these, float32 [s].
    """

    metered: ClassVar[bool] = False
    clients: np.ndarray
    versions: np.ndarray
    models: np.ndarray
    counts: np.ndarray
    values: np.ndarray


class LedgerHistory(Body):
    """To a client that has done nothing yet: its updates of the ledger, N entries, from which it
    continues.

    place: the slice's first and last update and the client's uploads, int64 [3]; the others: the
    columns of `raydpzv.ledger.entries.Slice`.
    """

    metered: ClassVar[bool] = False
    place: np.ndarray
    round: np.ndarray
    party: np.ndarray
    read: np.ndarray
    step: np.ndarray
    perturbation: np.ndarray
    seed: np.ndarray
    scalar: np.ndarray
    lr: np.ndarray


class Embeddings(Body):
    """Row ids int32 [B] and their embeddings float32 [B, E]."""

    ids: np.ndarray
    values: np.ndarray


class EmbeddingsAndMore(Embeddings):
    """The same with rows beside the batch: their ids int32 [R] and embeddings float32 [R, E], for
    the cache alone.
    """

    more_ids: np.ndarray
    more_values: np.ndarray


class PerturbedEmbeddings(Body):
    """Row ids int32 [B]; embeddings at w + λu_p and at w - λu_p, float32 [P, B, E] each."""

    ids: np.ndarray
    plus: np.ndarray
    minus: np.ndarray


class Query(Body):
    """Send fresh embeddings of these rows: ids int32 [R] (VAFL's bounded delay)."""

    ids: np.ndarray


class GradientRequest(Body):
    """Send the gradient for what I uploaded last: that upload's number, int64 [1] (VAFL, steps 6,
    7, 4, 5).
    """

    upload: np.ndarray


class FreshEmbeddings(Body):
    """The answer to a query: the row ids int32 [R] and their embeddings float32 [R, E]."""

    ids: np.ndarray
    values: np.ndarray


class EmbeddingPair(Body):
    """Row ids int32 [B]; embeddings at w and at w + λu, float32 [B, E] each (ZOO-VFL)."""

    ids: np.ndarray
    values: np.ndarray
    ahead: np.ndarray


class Gradient(Body):
    """Gradient of the batch's mean loss by the uploaded embeddings, float32 [B, E]."""

    values: np.ndarray


class LossDifference(Body):
    """Mean loss at w + λu minus mean loss at w, float32 [1]."""

    value: np.ndarray


class LossDifferences(Body):
    """Mean loss at h + λv_k minus mean loss at h for every perturbation of the batch, float32 [n]
    (VFL-CZOFO).
    """

    values: np.ndarray


class CompressedEmbeddings(Body):
    """Row ids int32 [B]; levels of their embeddings [B, E], packed, uint8; limits float32 [2]
    (uniform scale).
    """

    ids: np.ndarray
    levels: np.ndarray
    limits: np.ndarray


class CompressedAnswer(Body):
    """Levels of what a `LossDifferences` or `Gradient` holds, packed, uint8; limits float32 [2]
    (uniform scale).
    """

    levels: np.ndarray
    limits: np.ndarray


class Slopes(Body):
    """The released scalars Δ_p, float32 [P]."""

    values: np.ndarray


class Rows(Body):
    """Row ids int32 [B] the client is to embed."""

    ids: np.ndarray


class GradientAndRows(Body):
    """Loss gradient of the last embeddings, float32 [B, E], and the next row ids int32 [B]."""

    gradient: np.ndarray
    ids: np.ndarray
