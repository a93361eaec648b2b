"""A labelled table, its division into training and test rows, and the scaling of its features.

D rows, F features of a flat table, C channels, V views, H x W pixels, L tokens. `x` is [D, F], [D, C, H, W],
[D, V, F], [D, V, C, H, W] or [D, L]; `y` is [D] with the classes 0..classes-1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raydpzv.data.files import one_line
from raydpzv.data.stratified import grouped_rows, stratified_rows
from raydpzv.errors import DataError, SpecError, suggest
from raydpzv.keys import Key

MOST_TOKENS = 2**24
"""Largest vocabulary: up to here float32, in which features travel, holds every whole number exactly."""
Constants = float | tuple[float, ...] | Mapping[str, float]
"""One number for all columns, one for each, or one for each column that is named."""
_LISTED = 8
_BLOCK_ROWS = 1024  # scaling works on float64 blocks: 25 MB at CIFAR-10's width, where a whole copy is 1.2 GB


@dataclass(frozen=True)
class View:
    """One of several arrays that make up a row: its name, the shape of its part of a row, whether it is whole numbers.

    Whole numbers up to 2^24 survive the table's float32.
    """

    name: str
    shape: tuple[int, ...]
    integers: bool = False


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of features and their labels; whole and checked from the moment it exists.

    `x` [D, ...features] is brought to float32 and `y` [D] (any integer type) to int64; `features` names the columns of
    a flat table and may be empty. Rows with equal `groups` (whole numbers [D]) belong together, as one person's do: a
    split has them on one side. `users` and `silos` (whole numbers [D], from 0) say whose a row is and where it lies.
    With `times` (float [D]) a row is a survival time: class 1 is an event then, class 0 a row censored then.
    `levels` belong to a table that `raydpzv.data.encoding` has yet to make numbers of: 0 for a column of numbers, of
    which some may be missing (NaN), else how many levels the column's codes 0, 1, ... stand for. With `public_levels`
    these are known without the data, and each has a column whether a row has it or not. With a `vocabulary`
    (at most 2^24, so exact in float32) x holds token ids 0..vocabulary-1: names, not quantities, which no scaling
    touches. `unused` names columns that the file has beside these. With `integers` x stays whole numbers, int64. With
    `views` a row is several arrays side by side, each of its own shape. `numbers` [D] says which row of the table as it
    was read each row is, None: that in its place. Raises DataError for lengths that disagree, no rows, values that are
    NaN or infinite, ids outside the vocabulary, labels outside 0..classes-1 and fewer than 2 classes.
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
    unused: tuple[str, ...] = ()
    integers: bool = False
    views: tuple[View, ...] = ()

    def __post_init__(self) -> None:
        self._check_shapes()
        with np.errstate(over="ignore"):  # too large for float32: becomes infinite, which is refused below
            kind = np.int64 if self.integers else np.float32
            object.__setattr__(self, "x", np.ascontiguousarray(self.x, dtype=kind))
        object.__setattr__(self, "y", np.ascontiguousarray(self.y, dtype=np.int64))
        self._check_finite()
        self._check_labels()
        if self.vocabulary is not None:
            self._check_ids(self.vocabulary)
        if self.times is not None:
            self._check_times(self.times)

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
        """Whether numbers of the table are names, such as token ids, rather than quantities."""
        return self.vocabulary is not None or self.integers or any(view.integers for view in self.views)

    @property
    def nbytes(self) -> int:
        """Bytes of features and labels."""
        return self.x.nbytes + self.y.nbytes

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """What a digest of the data is over: features and labels."""
        return self.x, self.targets

    @property
    def targets(self) -> np.ndarray:
        """What a model is trained on: classes, int64 [D]; of survival times these and events, float64 [D, 2]."""
        return self.y if self.times is None else np.stack([self.times, self.y], axis=1).astype(np.float64)

    def select(self, ids: np.ndarray) -> Table:
        """Return the rows `ids` [d] (numbers in 0..D-1), in that order; DataError for a number outside."""
        ids = np.asarray(ids, dtype=np.int64)
        outside = ids[(ids < 0) | (ids >= self.rows)]
        if outside.size:
            raise DataError(
                f'table "{self.name}" has no row {outside[0]}: choose row numbers in 0..{self.rows - 1}'
            )
        numbers = ids if self.numbers is None else self.numbers[ids]
        names = ("groups", "users", "silos", "times")
        columns = {name: getattr(self, name) for name in names}
        chosen: dict[str, Any] = {
            name: None if column is None else column[ids] for name, column in columns.items()
        }
        return replace(self, x=self.x[ids], y=self.y[ids], numbers=numbers, **chosen)

    def _check_shapes(self) -> None:
        x, y = self.x, self.y
        if y.ndim != 1 or y.dtype.kind not in "iu":
            raise DataError(
                f'table "{self.name}" wants one whole-number label a row, y [D]; y is {y.dtype} of shape '
                f"{y.shape}: number the classes from 0 and give one number a row"
            )
        if x.ndim < 2 or x.dtype.kind not in "fiub":
            raise DataError(
                f'table "{self.name}" wants numeric features, x [D, ...]; x is {x.dtype} of shape {x.shape}: '
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
        finite = np.isfinite(self.x) if self.levels is None else ~np.isinf(self.x)
        if finite.all():
            return
        row, *place = (int(i) for i in np.unravel_index(int(np.argmin(finite)), finite.shape))
        where = f"feature {tuple(place)}" if len(place) > 1 else f"column {self._column(place[0])}"
        raise DataError(
            f'table "{self.name}" has {self.x[(row, *place)]} as float32 in row {row} (counted from 0), '
            f"{where}: fill in a number or drop the row"
        )

    def _check_labels(self) -> None:
        if self.classes < 2:
            raise DataError(
                f'table "{self.name}" has classes = {self.classes}: at least 2 are needed to learn from'
            )
        outside = np.flatnonzero((self.y < 0) | (self.y >= self.classes))
        if outside.size:
            raise DataError(
                f'table "{self.name}" has label {self.y[outside[0]]} in row {outside[0]} (counted from 0), '
                f"outside 0..{self.classes - 1}: number the classes from 0"
            )

    def _check_times(self, times: np.ndarray) -> None:
        if times.shape != self.y.shape or self.classes != 2:
            raise DataError(
                f'table "{self.name}" wants one time and one event (1, or 0 for censored) a row; times are '
                f"{times.shape}, rows {self.y.shape}, classes {self.classes}: pair them"
            )
        if wrong := np.flatnonzero(~np.isfinite(times)).tolist():
            raise DataError(
                f'table "{self.name}" has the time {times[wrong[0]]} in row {wrong[0]} (counted from 0): fill in a '
                "number or drop the row"
            )

    def _check_ids(self, vocabulary: int) -> None:
        for block in _blocks(self.x):
            wrong = (block < 0) | (block >= min(vocabulary, MOST_TOKENS)) | (block != np.floor(block))
            if wrong.any():
                raise DataError(
                    f'table "{self.name}" has the token id {block[wrong][0]:.9g}, wanted whole numbers in '
                    f"0..{vocabulary - 1}: raise data.vocabulary or make the ids again"
                )

    def _column(self, i: int) -> str:
        return f'"{one_line(self.features[i])}"' if self.features else str(i)


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test rows of one table, and validation rows if some are held out of the training rows.

    DataError if features or classes of training and test rows differ.
    """

    train: Table
    test: Table
    validation: Table | None = None

    def __post_init__(self) -> None:
        train, test = ((part.shape, part.classes) for part in (self.train, self.test))
        if train != test:
            raise DataError(
                f'"{self.train.name}": a training row is {train[0]} with {train[1]} classes, a test row '
                f"{test[0]} with {test[1]}: give both the same shape and classes"
            )

    @property
    def validated(self) -> int:
        """The number of validation rows."""
        return self.validation.rows if self.validation else 0

    @property
    def held_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Features [N, ...] and `Table.targets` of the test rows and, after them, the validation rows."""
        if self.validation is None:
            return self.test.x, self.test.targets
        pairs = ((self.test.x, self.validation.x), (self.test.targets, self.validation.targets))
        x, y = (np.concatenate(pair) for pair in pairs)
        return x, y


def stratified_split(table: Table, test_fraction: float, key: Key) -> Split:
    """Divide the rows at random, every class in (nearly) the same proportion on both sides.

    Groups stay whole (`grouped_rows`), and the fraction is then one of groups. Raises SpecError for a fraction outside
    (0, 1) and DataError where a class has too few rows or groups to appear on both sides.
    """
    if not 0 < test_fraction < 1:
        raise SpecError(f"test_fraction is {test_fraction}: choose a number between 0 and 1, such as 0.2")
    return Split(*_divided(table, test_fraction, key, "test"))


def with_validation(split: Split, fraction: float, key: Key, how: str = "stratified") -> Split:
    """Return the same with a fraction of the training rows, or of their groups, held out for validation; 0: none.

    They are drawn as test rows are, `how` as in SPLITS. Raises DataError where a class has too few rows or groups to
    appear on both sides.
    """
    if fraction == 0:
        return split
    divide = _divided if how == "stratified" else _divided_plainly
    train, validation = divide(split.train, fraction, key, "validation")
    return Split(train, split.test, validation)


def _divided(table: Table, fraction: float, key: Key, part: str) -> tuple[Table, Table]:
    seed = (key / "stratified split").seed64() % 2**32  # scikit-learn takes 32-bit seeds
    if table.groups is None:
        drawn = stratified_rows(table.y, fraction, seed)
    else:
        drawn = grouped_rows(table.y, table.groups, fraction, seed)
    if drawn is None:
        raise _too_few(table, fraction, part)
    return table.select(drawn[0]), table.select(drawn[1])


def _divided_plainly(table: Table, fraction: float, key: Key, part: str) -> tuple[Table, Table]:
    """Divide by a permutation of the rows' numbers, or of the groups', whatever the labels are."""
    units = table.rows if table.groups is None else len(np.unique(table.groups))
    held_out = math.ceil(fraction * units)
    if held_out == units:
        what = "rows" if table.groups is None else "groups"
        raise DataError(
            f'"{table.name}" has {units} {what}, and {part}_fraction {fraction} leaves none to train on: add {what} or '
            "change it"
        )
    order = (key / "plain split").generator().permutation(units)
    if table.groups is None:
        return table.select(order[held_out:]), table.select(order[:held_out])
    tested = np.isin(np.unique(table.groups, return_inverse=True)[1], order[:held_out])
    return table.select(np.flatnonzero(~tested)), table.select(np.flatnonzero(tested))


def check_both_classes(split: Split) -> None:
    """Raise DataError for test or validation rows of one class where there are two.

    They have no AUC, and a constant is always right.
    """
    for part, table, settings in (
        ("test", split.test, "data.test_rows, data.test_fraction"),
        ("validation", split.validation, "data.validation_fraction"),
    ):
        survives = table is not None and table.times is not None  # no class: all may be events
        if (
            table is not None
            and not survives
            and table.classes == 2
            and len(found := np.unique(table.y)) == 1
        ):
            raise DataError(
                f'the {table.rows} {part} rows of "{table.name}" hold class {found[0]} alone of two: wanted both, '
                "without which there is no AUC and a constant prediction is always right; give more of them "
                f"({settings}) or others"
            )


def plain_split(table: Table, test_fraction: float, key: Key) -> Split:
    """Divide the rows by a permutation of their numbers, or their groups', whatever their labels are.

    Raises SpecError for a fraction outside (0, 1) and DataError where no row is left to train on.
    """
    if not 0 < test_fraction < 1:
        raise SpecError(f"test_fraction is {test_fraction}: choose a number between 0 and 1, such as 0.2")
    return Split(*_divided_plainly(table, test_fraction, key, "test"))


SPLITS: dict[str, Callable[[Table, float, Key], Split]] = {
    "stratified": stratified_split,
    "plain": plain_split,
}
"""How rows are divided: by class, or without a look at labels."""


@dataclass(frozen=True)
class Limits:
    """At most so many training and test rows (None: all), drawn at random, stratified or ("plain") not.

    Stratified, every class keeps its proportional share within one row; every row has the same chance. The draw needs
    the labels alone, so that a source with many rows can choose before it reads their features.
    """

    train_rows: int | None
    test_rows: int | None
    key: Key
    how: str = "stratified"

    def train(self, labels: np.ndarray, classes: int, name: str) -> np.ndarray | None:
        """Return the training rows to keep, ascending, None for all; SpecError for fewer than classes."""
        return self._chosen(labels, classes, name, "train")

    def test(self, labels: np.ndarray, classes: int, name: str) -> np.ndarray | None:
        """Return the test rows to keep, ascending, None for all; SpecError for fewer than classes."""
        return self._chosen(labels, classes, name, "test")

    def _chosen(self, labels: np.ndarray, classes: int, name: str, part: str) -> np.ndarray | None:
        rows, key = self.train_rows if part == "train" else self.test_rows, self.key / "limit" / part
        if rows is None or rows >= len(labels):
            return None
        if self.how == "plain":
            return np.sort(key.generator().permutation(len(labels))[:rows])
        return _by_class(labels, classes, name, rows, f"{part}_rows", key)


def limit(
    split: Split, train_rows: int | None, test_rows: int | None, key: Key, how: str = "stratified"
) -> Split:
    """Return at most so many training and test rows in the table's order; see `Limits`."""
    limits, train, test = Limits(train_rows, test_rows, key, how), split.train, split.test
    keep_train = limits.train(train.y, train.classes, train.name)
    keep_test = limits.test(test.y, test.classes, test.name)
    return Split(
        train if keep_train is None else train.select(keep_train),
        test if keep_test is None else test.select(keep_test),
    )


def standardise(split: Split) -> Split:
    """Bring features to mean 0 and deviation 1 on the training rows, and move all others alike.

    Flat features ([D, F], [D, V, F]) by column; images ([D, C, H, W], [D, V, C, H, W]) by channel, over all
    their pixels and views. What is constant on the training rows becomes 0 on all.
    """
    train = split.train.x
    centre = train.mean(axis=_pooled(train), dtype=np.float64, keepdims=True)
    squares = sum(
        np.square(block - centre).sum(axis=_pooled(train), keepdims=True) for block in _blocks(train)
    )
    return _rescale(split, centre, np.sqrt(squares / (train.size / centre.size)))


def scale(split: Split, how: str) -> Split:
    """Scale the features: "standard", "unit" or "none"; SpecError for another word.

    "unit" maps the training rows' smallest and largest value to 0 and 1 by the same groups as `standardise`;
    test values may lie outside. Token ids stay as they are, whatever the word.
    """
    if how not in SCALINGS:
        raise SpecError(f'scaling "{how}" is unknown. {suggest(how, SCALINGS)}Choose {", ".join(SCALINGS)}')
    return split if split.train.unscalable else SCALINGS[how](split)


def scale_by(split: Split, centre: Constants, spread: Constants) -> Split:
    """Return (x - centre) / spread, constants that were known without the data: one number, or one per column.

    Columns are what `standardise` takes statistics of: of images, channels; these may have one number per pixel too.
    Token ids stay as they are, and so do columns that a table of names lacks. Raises SpecError for another count of
    numbers, and for a name that no feature has.
    """
    train = split.train
    if train.unscalable:
        return split
    return _rescale(split, _constants(centre, train, "centre"), _constants(spread, train, "spread"))


def _constants(values: Constants, table: Table, name: str) -> np.ndarray:
    """Return one number, one per column or one per pixel in a shape that goes with the features, float64."""
    x = table.x
    if isinstance(values, Mapping):
        return _by_name(values, table.features, name)
    if np.size(values) == x[0].size:
        return np.reshape(values, (1, *x.shape[1:])).astype(np.float64)
    shape = tuple(1 if axis in _pooled(x) else size for axis, size in enumerate(x.shape))
    return per_column(values, math.prod(shape), name, pixels=x[0].size).reshape(shape)


def _by_name(values: Mapping[str, float], features: Sequence[str], name: str) -> np.ndarray:
    """Return one number for each feature, float64 [F]; 0 to subtract and 1 to divide by where none is given."""
    if strange := [column for column in values if column not in features]:
        known = list(dict.fromkeys(features)) or ["no column with a name"]
        raise SpecError(
            f'data.{name}: wanted names of features, got "{strange[0]}". {suggest(strange[0], known)}The data have '
            f"{one_line(', '.join(known[:_LISTED]))}"
        )
    return np.array([values.get(feature, float(name == "spread")) for feature in features])


def per_column(values: Constants, columns: int, name: str, pixels: int = 0) -> np.ndarray:
    """Return one number for each column, float64 [columns]; SpecError for neither one number nor so many.

    pixels: how many numbers could be given too, for the error's words.
    """
    if isinstance(values, Mapping):
        return np.broadcast_to(_by_name(values, (), name), columns)
    given = np.array(values, np.float64).ravel()
    if given.size not in (1, columns):
        many = f" or {columns}, one per column (of images: per channel)" if columns > 1 else ""
        many += f" or {pixels}, one per pixel" if pixels > columns else ""
        raise SpecError(f"data.{name}: wanted one number{many}, got {given.size}")
    return np.broadcast_to(given, columns)


def _unit(split: Split) -> Split:
    x = split.train.x
    low, high = (f(axis=_pooled(x), keepdims=True).astype(np.float64) for f in (x.min, x.max))
    return _rescale(split, low, high - low)


SCALINGS: dict[str, Callable[[Split], Split]] = {
    "standard": standardise,
    "unit": _unit,
    "none": lambda split: split,
}
"""The choices of `scale`."""


def _pooled(x: np.ndarray) -> tuple[int, ...]:
    """The axes over which a statistic is taken: rows, and for images all but the channel."""
    return (0,) if x.ndim < 4 else tuple(axis for axis in range(x.ndim) if axis != x.ndim - 3)


def _rescale(split: Split, centre: np.ndarray, width: np.ndarray) -> Split:
    """Return (x - centre) / width, and 0 where the training rows hold one value only."""
    constant = width == 0  # exactly: float64 sums of equal float32 values do not round
    gain = np.where(constant, 0.0, 1.0 / np.where(constant, 1.0, width))

    def moved(table: Table) -> Table:
        out = np.empty_like(table.x)
        for source, target in zip(_blocks(table.x), _blocks(out), strict=True):
            target[...] = (source - centre) * gain
        return replace(table, x=out)

    return Split(moved(split.train), moved(split.test), split.validation and moved(split.validation))


def _blocks(x: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(x), _BLOCK_ROWS):
        yield x[start : start + _BLOCK_ROWS]


def _by_class(labels: np.ndarray, classes: int, name: str, rows: int, setting: str, key: Key) -> np.ndarray:
    """Systematic sampling along the rows sorted by class: equally spaced places from a random start."""
    if rows < classes:
        raise SpecError(
            f'{setting} is {rows}, fewer than the {classes} classes of "{name}": ask for at least {classes} rows, or '
            "none for all"
        )
    generator = key.generator()
    order = generator.permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    places = (np.arange(rows) + generator.random()) * (len(labels) / rows)
    return np.sort(by_class[places.astype(np.int64)])


def _too_few(table: Table, fraction: float, part: str) -> DataError:
    labels, counts = np.unique(table.y, return_counts=True)
    unit, total = "rows", table.rows
    if table.groups is not None:
        unit, total = "groups", len(np.unique(table.groups))
        counts = np.array([len(np.unique(table.groups[table.y == label])) for label in labels])
    least = int(np.argmin(counts))
    return DataError(
        f'class {labels[least]} of "{table.name}" has {counts[least]} of {total} {unit} ({len(labels)} '
        f"classes), too few to appear in training and {part} rows with {part}_fraction {fraction}: add "
        f"{unit}, drop the class or change {part}_fraction"
    )
