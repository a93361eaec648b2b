"""Synthetic training rows that are made when they are asked for, client by client: of millions of clients none is kept.

The mixture is that of the source "synthetic": points about their class's centre, c_y + N(0, I). A client's rows are a
function of the key and its number, whoever asks: first the labels, from its class shares q, then the points.

iid          q = p, equal shares
dirichlet    q ~ Dir(α p): Hsu, Qi, Brown (2019), Section 3, as `horizontal.dirichlet` with "equal" sizes draws it, but
             classes that are generated never run out

"standard" scaling is by the mixture's own moments, to which those of many rows tend: mean_c c and 1 + Var_c c.
"""

# M clients, n rows of one of them, B rows asked for, F features, C classes

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raydpzv.data.builtin import MOST_CELLS, Mixture, check_cells
from raydpzv.data.horizontal import EvenParts, check_alpha, check_enough
from raydpzv.data.table import Table, per_column
from raydpzv.errors import InputError, SpecError
from raydpzv.keys import Key

if TYPE_CHECKING:
    from raydpzv.settings.sections import DataSection
    from raydpzv.settings.sections_horizontal import HorizontalSplitSection


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Points about their classes' centres. centres: float64 [C, F]; width: deviation about them, float64 [F]."""

    centres: np.ndarray
    width: np.ndarray

    def points(self, y_n: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Draw a point of each of these classes, float32 [n, F]."""
        noise_nF = generator.standard_normal((len(y_n), len(self.width)))
        return (self.centres[y_n] + self.width * noise_nF).astype(np.float32)


@dataclass(frozen=True, eq=False)
class GeneratedTable:
    """Training rows that nobody keeps. parts: which are whose; alpha: α of the class shares, None: equal shares."""

    name: str
    gaussians: Gaussians
    parts: EvenParts
    alpha: float | None
    key: Key

    @property
    def classes(self) -> int:
        """C."""
        return len(self.gaussians.centres)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a record."""
        return self.gaussians.width.shape

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.gaussians.centres.nbytes + self.gaussians.width.nbytes

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """What a digest of the data is over: all that rows follow from, and those of the first and the last client.

        The rows tell a generator that draws otherwise (another version of numpy).
        """
        ends = [self.of_client(client) for client in (0, self.parts.clients - 1)]
        settled = [self.parts.clients, self.parts.total, -1.0 if self.alpha is None else self.alpha]
        seed = np.frombuffer(self.key.digest(), np.uint8)
        gaussians = (self.gaussians.centres, self.gaussians.width)
        return *gaussians, np.array(settled), seed, *(array for rows in ends for array in rows)

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return features, float32 [B, F], and labels, int64 [B], of rows with numbers in 0..N-1.

        Each client among them makes all of its rows. Raises InputError for a number outside.
        """
        if len(outside := rows[(rows < 0) | (rows >= self.parts.total)]):
            raise InputError(f"there is no row {outside[0]}: choose row numbers in 0..{self.parts.total - 1}")
        owners_B, places_B = self.parts.owners(np.asarray(rows, np.int64))
        x_BF, y_B = np.empty((len(rows), *self.shape), np.float32), np.empty(len(rows), np.int64)
        for client in dict.fromkeys(owners_B.tolist()):
            mine = owners_B == client
            x_nF, y_n = self.of_client(client)
            x_BF[mine], y_B[mine] = x_nF[places_B[mine]], y_n[places_B[mine]]
        return x_BF, y_B

    def of_client(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the features, float32 [n, F], and labels, int64 [n], of a client's rows in their order."""
        generator = (self.key / client).generator()
        y_n = self._labels(len(self.parts.rows(client)), generator)
        return self.gaussians.points(y_n, generator), y_n

    def _labels(self, rows: int, generator: np.random.Generator) -> np.ndarray:
        if self.alpha is None:
            return generator.integers(self.classes, size=rows)
        shares_C = generator.dirichlet(np.full(self.classes, self.alpha / self.classes))
        return generator.choice(self.classes, rows, p=shares_C)


@dataclass(frozen=True)
class GeneratedSplit:
    """Training rows that are made when asked for, and test rows that are kept; none are for validation."""

    train: GeneratedTable
    test: Table

    validated = 0

    @property
    def held_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Features [N, F] and labels [N] of the test rows."""
        return self.test.x, self.test.y


def synthetic_clients(
    name: str, data: DataSection, split: HorizontalSplitSection, key: Key
) -> GeneratedSplit:
    """Return the mixture's rows, shared out among clients before there is any.

    data.rows counts those of all clients and the held-out ones. Raises SpecError for sizes that make no data, and for
    settings that would need all rows at once.
    """
    mixture = Mixture(data.rows, data.columns, data.generated_classes)
    tested = math.ceil(data.test_fraction * data.rows)
    trained = min(data.rows - tested, data.train_rows or data.rows)
    tested = min(tested, data.test_rows or tested)
    _check(data, split, trained, tested)
    here = key / name
    gaussians = _scaled(mixture, data, here / "centres")
    alpha = split.alpha if split.how == "dirichlet" else None
    generator = (here / "test").generator()
    labels = generator.permutation(np.arange(tested) % mixture.classes)
    return GeneratedSplit(
        GeneratedTable(name, gaussians, EvenParts(split.clients, trained), alpha, here / "client"),
        Table(name, gaussians.points(labels, generator), labels, mixture.classes),
    )


def _scaled(mixture: Mixture, data: DataSection, key: Key) -> Gaussians:
    shape = (mixture.classes, mixture.columns)
    centres_CF = mixture.separation * key.generator().standard_normal(shape)
    if data.scale == "none":
        return Gaussians(centres_CF, np.ones(mixture.columns))
    if data.centre is not None and data.spread is not None:
        width_F = 1 / per_column(data.spread, mixture.columns, "spread")
        return Gaussians((centres_CF - per_column(data.centre, mixture.columns, "centre")) * width_F, width_F)
    width_F = 1 / np.sqrt(1 + centres_CF.var(0))
    return Gaussians((centres_CF - centres_CF.mean(0)) * width_F, width_F)


def _check(data: DataSection, split: HorizontalSplitSection, trained: int, tested: int) -> None:
    if split.how not in ("iid", "dirichlet") or (split.how == "dirichlet" and split.sizes != "equal"):
        raise SpecError(
            f'split: data.source "{data.source}" makes rows client by client, equally many each; use how = "iid", or '
            f'"dirichlet" with sizes = "equal", in place of "{split.how}" with "{split.sizes}"'
        )
    if data.scale == "unit":
        raise SpecError(
            f'data.scale: "unit" needs the range of all rows, and data.source "{data.source}" never has them at once; '
            'use "standard" or "none"'
        )
    if data.validation_fraction:
        raise SpecError(
            f'data.validation_fraction: wanted none, since data.source "{data.source}" never has all training rows at '
            f'once to hold some out, got {data.validation_fraction:g}; leave it out or use "synthetic"'
        )
    check_alpha(split.alpha)
    check_enough(trained, split.clients, split.least)
    check_cells(data.generated_classes, data.columns)
    check_cells(-(-trained // split.clients), data.columns)
    most = MOST_CELLS // data.columns
    if not data.generated_classes <= tested <= most:
        raise SpecError(
            f"data.test_fraction: wanted {data.generated_classes:,} (data.classes) to {most:,} held-out rows, which "
            f"are kept in memory, got {tested:,}; change it or set data.test_rows"
        )
