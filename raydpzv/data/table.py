"""A labelled table, and its training and test rows.

D rows, F features of a flat table, C channels, V views, H x W pixels, L tokens. `x` is [D, F], [D,
C, H, W], [D, V, F], [D, V, C, H, W] or [D, L]; `y` is [D] with the classes 0..classes-1. T numbers
for labels are [D, T].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from typing import Any

import numpy as np

from raydpzv.data.files import one_line
from raydpzv.errors import DataError

MOST_TOKENS = 2**24
"""Largest vocabulary: up to here float32, in which features travel, holds every whole number
exactly.
"""
MOST_WHOLE = 2**53
"""Up to here float64 holds every whole number."""
_LARGEST = float(np.finfo(np.float32).max)
_BLOCK_ROWS = (
    1024  # scaling works on float64 blocks: 25 MB at CIFAR-10's width, where a whole copy is 1.2 GB
)


@dataclass(frozen=True)
class View:
    """One of several arrays that make up a row: its name, and the shape of its part of a row."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of features and their labels; whole and checked from the moment it exists.

    `x` [D, ...features] is cast to float32, or to float64 if its type holds values that float32
    rounds: scaling returns float32. `y` [D] (any integer type) is cast to int64; `features`
    names the columns of a flat table and may be empty. Rows with equal `groups` (whole numbers [D])
    belong together, as one person's do: a split has them on one side. `users` and `silos` (whole
    numbers [D], from 0) say whose a row is and where it lies. With `times` (float [D]) a row is a
    survival time: class 1 is an event then, class 0 a row censored then. With `values` (float [D,
    T]) its labels are numbers, all rows are of class 0, and `classes` is 1. `levels` belong to a
    table that `raydpzv.data.scaling` has yet to make numbers of: 0 for a column of numbers, of
    which some may be missing (NaN), else how many levels the column's codes 0, 1, ... stand for.
    With `public_levels` these are known without the data, and each has a column whether a row has
    it or not. With a `vocabulary` (at most 2^24, so exact in float32) x holds token ids
    0..vocabulary-1: names, not quantities, which no scaling touches. `unused` names columns that
    the file has beside these. With `integers` x stays whole numbers, int64. With `views` a row is
    several arrays side by side, each of its own shape. `remarks` are sentences on what its user
    should look at in the file. `numbers` [D] says which row of the table as
    it
    was read each row is, None: that in its place. Raises DataError for lengths that disagree, no
    rows, values that are NaN or infinite, negative times, ids outside the vocabulary, labels
    outside 0..classes-1 and fewer than 2 classes.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    classes: int
    features: tuple[str, ...] = ()
    vocabulary: int | None = None
    groups: np.ndarray | None = None
    levels: tuple[int, ...] | None = None
    public_levels: bool = False
    numbers: np.ndarray | None = None
    users: np.ndarray | None = None
    silos: np.ndarray | None = None
    times: np.ndarray | None = None
    values: np.ndarray | None = None
    unused: tuple[str, ...] = ()
    integers: bool = False
    views: tuple[View, ...] = ()
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_shapes()
        object.__setattr__(self, "x", np.ascontiguousarray(self.x, dtype=self._kind))
        object.__setattr__(self, "y", np.ascontiguousarray(self.y, dtype=np.int64))
        self._check_finite()
        if self.values is None:
            self._check_labels()
        else:
            self._check_values(self.values)
        if self.vocabulary is not None:
            self._check_ids(self.vocabulary)
        if self.times is not None:
            self._check_times(self.times)

    @property
    def _kind(self) -> type[np.generic]:
        """The type of features."""
        if self.integers:
            return np.int64
        exact = self.vocabulary is not None or np.can_cast(self.x.dtype, np.float32)
        return np.float32 if exact else np.float64

    @property
    def rows(self) -> int:
        """D, the number of rows."""
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a record."""
        return self.x.shape[1:]

    @property
    def unscalable(self) -> bool:
        """Whether rows are names, such as token ids, rather than quantities."""
        return self.vocabulary is not None or self.integers

    @property
    def nbytes(self) -> int:
        """Bytes of features and labels."""
        return self.x.nbytes + self.y.nbytes

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The arrays of the data's digest: features and labels."""
        return self.x, self.targets

    @property
    def targets(self) -> np.ndarray:
        """The targets of training: classes, int64 [D]; float64 survival times and events [D, 2], or
        numbers [D, T].
        """
        if self.values is not None:
            return self.values.astype(np.float64)
        return (
            self.y
            if self.times is None
            else np.stack([self.times, self.y], axis=1).astype(np.float64)
        )

    @property
    def classed(self) -> bool:
        """Whether labels are classes, of which a share can be predicted right."""
        return self.times is None and self.values is None

    @property
    def width(self) -> int:
        """How many classes there are, or numbers for labels."""
        return self.classes if self.values is None else self.values.shape[1]

    def select(self, ids: np.ndarray) -> Table:
        """Return the rows `ids` [d] (numbers in 0..D-1), in that order; DataError for a number
        outside.
        """
        ids = np.asarray(ids, dtype=np.int64)
        outside = ids[(ids < 0) | (ids >= self.rows)]
        if outside.size:
            raise DataError(
                f'table "{self.name}" has no row {outside[0]}: choose row numbers in '
                f"0..{self.rows - 1}"
            )
        numbers = ids if self.numbers is None else self.numbers[ids]
        names = ("groups", "users", "silos", "times", "values")
        columns = {name: getattr(self, name) for name in names}
        chosen: dict[str, Any] = {
            name: None if column is None else column[ids] for name, column in columns.items()
        }
        return replace(self, x=self.x[ids], y=self.y[ids], numbers=numbers, **chosen)

    def number(self, row: int) -> int:
        """Return which row of the table as it was read a row is."""
        return row if self.numbers is None else int(self.numbers[row])

    def _check_shapes(self) -> None:
        x, y = self.x, self.y
        if y.ndim != 1 or y.dtype.kind not in "iu":
            raise DataError(
                f'table "{self.name}" wants one whole-number label a row, y [D]; y is {y.dtype} of '
                "shape "
                f"{y.shape}: number the classes from 0 and give one number a row"
            )
        if x.ndim < 2 or x.dtype.kind not in "fiub":
            raise DataError(
                f'table "{self.name}" wants numeric features, x [D, ...]; x is {x.dtype} of shape '
                f"{x.shape}: "
                "give one row of numbers a record"
            )
        if len(x) != len(y):
            raise DataError(
                f'table "{self.name}" has {len(x)} rows of features and {len(y)} labels: pair them'
            )
        if x.size == 0:
            raise DataError(
                f'table "{self.name}" is empty: its features have the shape {x.shape}; give it rows'
            )
        if self.features and x.shape[1:] != (len(self.features),):
            raise DataError(
                f'table "{self.name}" names {len(self.features)} features, a row has the shape '
                f"{x.shape[1:]}: give one name a column or none"
            )

    def _check_finite(self) -> None:
        """Refuse gaps, but of columns that are filled later, and what float32 cannot hold."""
        for first, block in zip(count(0, _BLOCK_ROWS), blocks(self.x)):
            wrong = ~(np.abs(block) <= _LARGEST)
            if self.levels is not None:
                wrong &= ~np.isnan(block)
            if not wrong.any():
                continue
            row, *place = (int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
            value = narrow(block[(row, *place)])
            raise DataError(
                f'table "{self.name}" has {value} as float32 in row {self.number(first + row)} '
                f"(counted from 0), {self.place(place)}: fill in a number, drop the row, or give a public constant "
                "for the column (data.missing)"
            )

    def _check_labels(self) -> None:
        outside = np.flatnonzero((self.y < 0) | (self.y >= self.classes))
        if outside.size:
            raise DataError(
                f'table "{self.name}" has label {self.y[outside[0]]} in row {outside[0]} (counted '
                "from 0), "
                f"outside 0..{self.classes - 1}: number the classes from 0"
            )
        if self.classes < 2:
            raise DataError(
                f'table "{self.name}" has classes = {self.classes}: at least 2 are needed to learn '
                "from"
            )

    def _check_values(self, values: np.ndarray) -> None:
        if (
            values.ndim != 2
            or len(values) != self.rows
            or not values.shape[1]
            or values.dtype.kind not in "fiub"
        ):
            raise DataError(
                f'table "{self.name}" wants numbers [{self.rows}, T] for labels; they are '
                f"{values.dtype} of shape "
                f"{values.shape}: give each row as many numbers"
            )
        if not (finite := np.isfinite(values)).all():
            row, place = np.argwhere(~finite)[0]
            raise DataError(
                f'table "{self.name}" has the label {values[row, place]} in row {row} (counted '
                "from 0): fill in a "
                "number or drop the row"
            )

    def _check_times(self, times: np.ndarray) -> None:
        if times.shape != self.y.shape or self.classes != 2:
            raise DataError(
                f'table "{self.name}" wants one time and one event (1, or 0 for censored) a row; '
                "times are "
                f"{times.shape}, rows {self.y.shape}, classes {self.classes}: pair them"
            )
        check_times(times, f'table "{self.name}"')

    def _check_ids(self, vocabulary: int) -> None:
        for block in blocks(self.x):
            wrong = (
                (block < 0) | (block >= min(vocabulary, MOST_TOKENS)) | (block != np.floor(block))
            )
            if wrong.any():
                raise DataError(
                    f'table "{self.name}" has the token id {block[wrong][0]:.9g}, wanted whole '
                    "numbers in "
                    f"0..{vocabulary - 1}: raise data.vocabulary or make the ids again"
                )

    def place(self, place: Sequence[int]) -> str:
        """Name a feature by its place in a record."""
        return f"feature {tuple(place)}" if len(place) > 1 else self._column(place[0])

    def _column(self, i: int) -> str:
        """Name a column as its user does: by its heading, or by its place in a party's own
        array.
        """
        if self.features:
            return f'column "{one_line(self.features[i])}"'
        for view in self.views:
            if i < (width := prod(view.shape)):
                place = tuple(int(n) for n in np.unravel_index(i, view.shape))
                inside = f"column {i}" if len(place) == 1 else f"feature {place}"
                return f"{inside} of the view of {one_line(view.name)}"
            i -= width
        return f"column {i}"


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test rows of one table, and validation rows if some are held out of the training
    rows.

    DataError if features or classes of training and test rows differ.
    """

    train: Table
    test: Table
    validation: Table | None = None

    def __post_init__(self) -> None:
        train, test = ((part.shape, part.width) for part in (self.train, self.test))
        labels = "classes" if self.train.values is None else "numbers for labels"
        if train != test:
            raise DataError(
                f'"{self.train.name}": a training row is {train[0]} with {train[1]} {labels}, a '
                "test row "
                f"{test[0]} with {test[1]}: give both the same shape and {labels}"
            )

    @property
    def validated(self) -> int:
        """The number of validation rows."""
        return self.validation.rows if self.validation else 0

    @property
    def held_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Features [N, ...] and `Table.targets` of the test rows and, after them, the validation
        rows.
        """
        if self.validation is None:
            return self.test.x, self.test.targets
        pairs = ((self.test.x, self.validation.x), (self.test.targets, self.validation.targets))
        x, y = (np.concatenate(pair) for pair in pairs)
        return x, y


def check_times(times: np.ndarray, owner: str) -> None:
    """Raise DataError for the first survival time that is negative or not finite; owner: the
    column, in words.
    """
    for row in np.flatnonzero(~(np.isfinite(times) & (times >= 0)))[:1].tolist():
        raise DataError(
            f"{owner} has the time {times[row]:g} in row {row} (counted from 0): wanted a number "
            "that is 0 or more; correct it or drop the row"
        )


def narrow(x: np.ndarray) -> np.ndarray:
    """Return numbers as float32; what that cannot hold becomes infinite, which a table refuses."""
    with np.errstate(over="ignore"):
        return x.astype(np.float32)


def blocks(x: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of an array, so many at a time that their float64 copies stay small."""
    for start in range(0, len(x), _BLOCK_ROWS):
        yield x[start : start + _BLOCK_ROWS]
