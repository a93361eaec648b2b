"""Generated data: tables, survival times, time series, reviews, and training rows that are made
client by client.

Of the last kind nothing is kept, so there may be millions of clients. The mixture is that of
"synthetic": points about their class's centre, c_y + N(0, I). A client's rows depend on the key and
the client's number alone: first the labels, from its class shares q, then the points.

iid          q = p, equal shares
dirichlet    q ~ Dir(α p): Hsu, Qi, Brown (2019), Section 3, as `horizontal.dirichlet` with "equal"
sizes draws it, but
             classes that are generated never run out

"standard" scaling is by the mixture's own moments, to which those of many rows tend: mean_c c and 1
+ Var_c c.
"""

# M clients, n rows of one of them, B rows asked for, D rows, F features, T time steps, L tokens, C
# classes

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raydpzv.data.horizontal import EvenParts, check_alpha, check_enough
from raydpzv.data.scaling import per_column
from raydpzv.data.sources import Request, Source
from raydpzv.data.table import Table, narrow
from raydpzv.errors import InputError, SpecError
from raydpzv.keys import Key
from raydpzv.registry import DATA_SOURCES

if TYPE_CHECKING:
    from raydpzv.settings.sections_data import DataSection
    from raydpzv.settings.sections_horizontal import HorizontalSplitSection

MOST_CELLS = 1 << 28
"""Numbers that generated data may have."""
_HAZARDS = 1.5
"""Norm of the coefficients of synthetic survival times, of which the concordance of the true scores
follows.
"""
_TELLING_WORDS = 8
"""Words of each class in the generated reviews."""


def check_cells(rows: int, width: int) -> None:
    """Raise SpecError for generated data of more than 2^28 numbers: they are drawn anew at every
    start, in memory.
    """
    if rows * width > MOST_CELLS:
        raise SpecError(
            f"synthetic data: wanted at most {MOST_CELLS:,} numbers (2 GiB), got {rows:,} rows of "
            f"{width:,}; lower data.rows, or what makes a row wide (data.columns, data.steps, "
            "data.tokens)"
        )


def _check_rows(data: DataSection) -> None:
    if data.rows < (least := 2 * data.generated_classes):
        raise SpecError(
            f"synthetic data with {data.rows} rows is too small for {data.generated_classes} "
            f"classes: choose at least {least} rows"
        )


def synthetic(request: Request) -> Table:
    """Return points x [D, F] of a Gaussian mixture: unit covariance, as equal classes as the rows
    allow.
    """
    data, key = request.data, request.draws / "synthetic"
    check_cells(data.generated_classes, data.columns)
    y = _shuffled_labels(data, key, data.columns)
    centres = (key / "centres").generator().standard_normal((data.generated_classes, data.columns))
    noise = (key / "points").generator().standard_normal((data.rows, data.columns))
    return Table("synthetic", narrow(centres[y] + noise), y, data.generated_classes)


def synthetic_survival(request: Request) -> Table:
    """Return survival times under proportional hazards: x ~ N(0, I), T ~ Exp(e^<x, β>), ‖β‖ = 1.5.

    A record is censored at a time that is Exp(1/2) whatever x is. x [D, F].
    """
    data, key = request.data, request.draws / "synthetic_survival"
    _check_rows(data)
    check_cells(data.rows, data.columns)
    x_DF = (key / "points").generator().standard_normal((data.rows, data.columns))
    beta_F = (key / "hazards").generator().standard_normal(data.columns)
    beta_F *= _HAZARDS / np.linalg.norm(beta_F)
    unit_D2 = (key / "times").generator().standard_exponential((data.rows, 2))
    event_D, censored_D = unit_D2[:, 0] * np.exp(-x_DF @ beta_F), 2 * unit_D2[:, 1]
    happened_D = event_D <= censored_D
    times_D = np.minimum(event_D, censored_D)
    return Table("synthetic_survival", narrow(x_DF), happened_D.astype(int), 2, times=times_D)


def synthetic_series(request: Request) -> Table:
    """Return x [D, T, F]: in every variable a wave of random phase, of a frequency that is the
    class', and noise.

    The mean of every value is 0 in every class, so that only the course of time distinguishes
    classes.
    """
    data, key = request.data, request.draws / "synthetic series"
    y = _shuffled_labels(data, key, data.steps * data.columns)
    phase = 2 * np.pi * (key / "phases").generator().random((data.rows, 1, data.columns))
    cycles = (1.0 + y)[:, None, None] / data.generated_classes * data.steps / 4
    time = np.arange(data.steps)[None, :, None] / data.steps
    waves = np.sin(2 * np.pi * cycles * time + phase)
    noise = (key / "noise").generator().standard_normal((data.rows, data.steps, data.columns))
    return Table("synthetic_series", narrow(waves + noise / 2), y, data.generated_classes)


def synthetic_reviews(request: Request) -> Table:
    """Return x [D, L] of L/2 to L words a text: 15 % tell its class, 10 % tell a random class, the
    rest nothing.

    The words 1..8 tell class 0, the next eight class 1, and so on; order says nothing, a bag of
    words learns it. Raises SpecError for a vocabulary without room.
    """
    data, key = request.data, request.draws / "synthetic reviews"
    telling = data.generated_classes * _TELLING_WORDS
    if data.vocabulary < telling + 2:
        raise SpecError(
            f"data.vocabulary is {data.vocabulary}: generated reviews of {data.generated_classes} "
            f"classes want at least {telling + 2}"
        )
    y, shape = _shuffled_labels(data, key, data.tokens), (data.rows, data.tokens)
    draws = (key / "words").generator()
    own = 1 + y[:, None] * _TELLING_WORDS + draws.integers(_TELLING_WORDS, size=shape)
    any_class = 1 + draws.integers(telling, size=shape)
    plain = draws.integers(telling + 1, data.vocabulary, size=shape)
    kind = draws.random(shape)
    x = np.where(kind < 0.15, own, np.where(kind < 0.25, any_class, plain))
    shortest = -(-data.tokens // 2)
    lengths = (key / "lengths").generator().integers(shortest, data.tokens + 1, size=data.rows)
    x[np.arange(data.tokens) >= lengths[:, None]] = 0
    return Table("synthetic_reviews", x, y, data.generated_classes, vocabulary=data.vocabulary)


def _shuffled_labels(data: DataSection, key: Key, width: int) -> np.ndarray:
    """Return labels, int64 [D], as equal classes as the rows allow. width: numbers in a row. Raises
    SpecError.
    """
    _check_rows(data)
    check_cells(data.rows, width)
    return (key / "labels").generator().permutation(np.arange(data.rows) % data.generated_classes)


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Points about their classes' centres. centres: float64 [C, F]; width: deviation about them,
    float64 [F].
    """

    centres: np.ndarray
    width: np.ndarray

    def points(self, y_n: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Draw a point of each of these classes, float32 [n, F]."""
        noise_nF = generator.standard_normal((len(y_n), len(self.width)))
        return (self.centres[y_n] + self.width * noise_nF).astype(np.float32)


@dataclass(frozen=True, eq=False)
class GeneratedTable:
    """Training rows that nobody keeps. parts: which are whose; alpha: α of the class shares, None:
    equal shares.
    """

    name: str
    gaussians: Gaussians
    parts: EvenParts
    alpha: float | None
    key: Key

    @property
    def classes(self) -> int:
        """The number of classes C."""
        return len(self.gaussians.centres)

    width = classes
    classed = True

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
        """The arrays of the data's digest: all that rows follow from, and the rows of the first and
        the last client.

        The rows tell a generator that draws otherwise (another version of numpy).
        """
        ends = [self.of_client(client) for client in (0, self.parts.clients - 1)]
        settled = [self.parts.clients, self.parts.total, -1.0 if self.alpha is None else self.alpha]
        seed = np.frombuffer(self.key.digest(), np.uint8)
        gaussians = (self.gaussians.centres, self.gaussians.width)
        return *gaussians, np.array(settled), seed, *(array for rows in ends for array in rows)

    def rows_at(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return features, float32 [B, F], and labels, int64 [B], of rows with numbers in 0..N-1.

        Each client among them makes all of its rows. Raises InputError for a number outside.
        """
        if len(outside := rows[(rows < 0) | (rows >= self.parts.total)]):
            raise InputError(
                f"there is no row {outside[0]}: choose row numbers in 0..{self.parts.total - 1}"
            )
        owners_B, places_B = self.parts.owners(np.asarray(rows, np.int64))
        x_BF, y_B = np.empty((len(rows), *self.shape), np.float32), np.empty(len(rows), np.int64)
        for client in dict.fromkeys(owners_B.tolist()):
            mine = owners_B == client
            x_nF, y_n = self.of_client(client)
            x_BF[mine], y_B[mine] = x_nF[places_B[mine]], y_n[places_B[mine]]
        return x_BF, y_B

    def of_client(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the features, float32 [n, F], and labels, int64 [n], of a client's rows in their
        order.
        """
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
    """Training rows that are made when asked for, and test rows that are kept; none are for
    validation.
    """

    train: GeneratedTable
    test: Table

    validated = 0

    @property
    def held_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Features [N, F] and labels [N] of the test rows."""
        return self.test.x, self.test.y


def synthetic_clients(data: DataSection, split: HorizontalSplitSection, key: Key) -> GeneratedSplit:
    """Return the mixture's rows, shared out among clients before there is any.

    data.rows counts those of all clients and the held-out ones. Raises SpecError for sizes that
    make no data, and for settings that would need all rows at once.
    """
    source: Source = DATA_SOURCES[data.source]
    source.check(data)
    _check_rows(data)
    tested = math.ceil(data.test_fraction * data.rows)
    trained = min(data.rows - tested, data.train_rows or data.rows)
    tested = min(tested, data.test_rows or tested)
    _check(data, split, trained, tested)
    here = key / data.source
    gaussians = _scaled_centres(data, here / "centres")
    alpha = split.alpha if split.how == "dirichlet" else None
    generator = (here / "test").generator()
    labels = generator.permutation(np.arange(tested) % data.generated_classes)
    return GeneratedSplit(
        GeneratedTable(
            data.source, gaussians, EvenParts(split.clients, trained), alpha, here / "client"
        ),
        Table(data.source, gaussians.points(labels, generator), labels, data.generated_classes),
    )


def _scaled_centres(data: DataSection, key: Key) -> Gaussians:
    centres_CF = key.generator().standard_normal((data.generated_classes, data.columns))
    if data.scale == "none":
        return Gaussians(centres_CF, np.ones(data.columns))
    if data.centre is not None and data.spread is not None:
        width_F = 1 / per_column(data.spread, data.columns, "spread")
        return Gaussians(
            (centres_CF - per_column(data.centre, data.columns, "centre")) * width_F, width_F
        )
    width_F = 1 / np.sqrt(1 + centres_CF.var(0))
    return Gaussians((centres_CF - centres_CF.mean(0)) * width_F, width_F)


def _check(data: DataSection, split: HorizontalSplitSection, trained: int, tested: int) -> None:
    if split.how not in ("iid", "dirichlet") or (
        split.how == "dirichlet" and split.sizes != "equal"
    ):
        raise SpecError(
            f'split: data.source "{data.source}" makes rows client by client, equally many each; '
            f'use how = "iid", or "dirichlet" with sizes = "equal", in place of "{split.how}" with '
            f'"{split.sizes}"'
        )
    if data.scale == "unit":
        raise SpecError(
            f'data.scale: "unit" needs the range of all rows, and data.source "{data.source}" '
            'never has them at once; use "standard" or "none"'
        )
    if data.validation_fraction:
        raise SpecError(
            f'data.validation_fraction: wanted none, since data.source "{data.source}" never has '
            f"all training rows at once to hold some out, got {data.validation_fraction:g}; leave "
            'it out or use "synthetic"'
        )
    check_alpha(split.alpha)
    check_enough(trained, split.clients, split.least)
    check_cells(data.generated_classes, data.columns)
    check_cells(-(-trained // split.clients), data.columns)
    most = MOST_CELLS // data.columns
    if not data.generated_classes <= tested <= most:
        raise SpecError(
            f"data.test_fraction: wanted {data.generated_classes:,} (data.classes) to {most:,} "
            f"held-out rows, which are kept in memory, got {tested:,}; change it or set "
            "data.test_rows"
        )
