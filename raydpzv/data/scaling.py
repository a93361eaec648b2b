"""Features as numbers of like size: categories one-hot, missing values filled, columns scaled.

By public lists and constants, or by what the training rows have. Test rows decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from raydpzv.data.files import one_line
from raydpzv.data.table import Split, Table, blocks, narrow
from raydpzv.errors import DataError, SpecError, suggest

Constants = float | tuple[float, ...] | Mapping[str, float]
"""One number for all columns, one for each, or one for each column that is named."""
_LISTED = 8
_LEAST_KEPT = 1e-3
"""Rounding beside a column's deviation that changes nothing."""
_NOISE = 1e-9
"""Deviation beside the size of a column's fractions that may be their own rounding."""


def encoded(split: Split) -> Split:
    """Return the same with every column of numbers filled and every column of categories one-hot.

    A missing number becomes the mean of the training rows. A category has a column of 0 and 1 for
    each level that training rows have, under its own name; a level that they do not have, or none,
    is 0 in all of them. Levels that are public have a column each, whatever rows have. Tables whose
    columns are plain numbers are returned as they are. Raises DataError for a column without a
    value in any training row.
    """
    levels = split.train.levels
    if levels is None:
        return split
    known = [_known(split.train, place, level) for place, level in enumerate(levels)]

    def of(table: Table) -> Table:
        columns = [
            x_D[:, None] == values if level else np.where(np.isnan(x_D), values, x_D)[:, None]
            for x_D, values, level in zip(table.x.T, known, levels, strict=True)
        ]
        widths = [column.shape[1] for column in columns]
        features = [
            n for n, width in zip(table.features, widths, strict=True) for _ in range(width)
        ]
        x = np.concatenate([column.astype(table.x.dtype) for column in columns], axis=1)
        return replace(table, x=x, features=tuple(features), levels=None)

    return Split(of(split.train), of(split.test), split.validation and of(split.validation))


def _known(train: Table, place: int, levels: int) -> np.ndarray:
    """Return a column's levels, public or those of the training rows, ascending; of numbers their
    mean.
    """
    if levels and train.public_levels:
        return np.arange(levels)
    values = train.x[:, place]
    values = values[~np.isnan(values)]
    if not len(values):
        raise DataError(
            f'column "{train.features[place]}" of "{train.name}" has no value in any training row: '
            "drop it"
        )
    return np.unique(values) if levels else values.mean(dtype=np.float64)


def standardise(split: Split) -> Split:
    """Scale features to mean 0 and deviation 1 on the training rows, and move all others alike.

    Flat features ([D, F], [D, V, F]) by column; images ([D, C, H, W], [D, V, C, H, W]) by channel,
    over all their pixels and views. What is constant on the training rows becomes 0 on all.
    """
    train = split.train.x
    centre = train.mean(axis=_pooled(train), dtype=np.float64, keepdims=True)
    squares = sum(
        np.square(block - centre).sum(axis=_pooled(train), keepdims=True) for block in blocks(train)
    )
    width = np.sqrt(squares / (train.size / centre.size))
    return _rescale(split, centre, _unless_rounding(width, centre, train))


def _unless_rounding(width: np.ndarray, centre: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return deviations, 0 for those that may be the rounding of a sum of equal float64 values.

    Sums of equal float32 values do not round in float64. The bound is scikit-learn's.
    """
    if x.dtype == np.float32:
        return width
    noise = len(x) * np.finfo(np.float64).eps * np.abs(centre)
    return np.where(width > noise, width, 0.0)


def scale(split: Split, how: str) -> Split:
    """Scale the features: "standard", "unit" or "none"; SpecError for another word.

    "unit" maps the training rows' smallest and largest value to 0 and 1 by the same groups as
    `standardise`; test values may lie outside. Token ids stay as they are, whatever the word.
    """
    if how not in SCALINGS:
        raise SpecError(
            f'scaling "{how}" is unknown. {suggest(how, SCALINGS)}Choose {", ".join(SCALINGS)}'
        )
    return split if split.train.unscalable else SCALINGS[how](split)


def scale_by(split: Split, centre: Constants, spread: Constants) -> Split:
    """Return (x - centre) / spread, constants that were known without the data: one number, or one
    per column.

    Columns are what `standardise` takes statistics of: of images, channels; these may have one
    number per pixel too. Token ids stay as they are, and so do columns that a table of names lacks.
    Raises SpecError for another count of numbers, and for a name that no feature has.
    """
    train = split.train
    if train.unscalable:
        return split
    return _rescale(split, _constants(centre, train, "centre"), _constants(spread, train, "spread"))


def _constants(values: Constants, table: Table, name: str) -> np.ndarray:
    """Return one number, one per column or one per pixel in a shape that goes with the features,
    float64.
    """
    x = table.x
    if isinstance(values, Mapping):
        return _by_name(values, table.features, name)
    if np.size(values) == x[0].size:
        return np.reshape(values, (1, *x.shape[1:])).astype(np.float64)
    shape = tuple(1 if axis in _pooled(x) else size for axis, size in enumerate(x.shape))
    return per_column(values, math.prod(shape), name, pixels=x[0].size).reshape(shape)


def _by_name(values: Mapping[str, float], features: Sequence[str], name: str) -> np.ndarray:
    """Return one number for each feature, float64 [F]; 0 to subtract and 1 to divide by where none
    is given.
    """
    if strange := [column for column in values if column not in features]:
        known = list(dict.fromkeys(features)) or ["no column with a name"]
        raise SpecError(
            f'data.{name}: wanted names of features, got "{strange[0]}". '
            f"{suggest(strange[0], known)}The data have "
            f"{one_line(', '.join(known[:_LISTED]))}"
        )
    return np.array([values.get(feature, float(name == "spread")) for feature in features])


def per_column(values: Constants, columns: int, name: str, pixels: int = 0) -> np.ndarray:
    """Return one number for each column, float64 [columns]; SpecError for neither one number nor so
    many.

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


def _is_narrow(split: Split) -> bool:
    """Return whether features are float32 already."""
    parts = (split.train, split.test, split.validation or split.train)
    return all(part.x.dtype == np.float32 for part in parts)


_AS_IS = np.zeros(1), np.ones(1)
SCALINGS: dict[str, Callable[[Split], Split]] = {
    "standard": standardise,
    "unit": _unit,
    "none": lambda split: split if _is_narrow(split) else _rescale(split, *_AS_IS),
}
"""The choices of `scale`."""


def _pooled(x: np.ndarray) -> tuple[int, ...]:
    """The axes over which a statistic is taken: rows, and for images all but the channel."""
    return (0,) if x.ndim < 4 else tuple(axis for axis in range(x.ndim) if axis != x.ndim - 3)


def _rescale(split: Split, centre: np.ndarray, width: np.ndarray) -> Split:
    """Return (x - centre) / width as float32, and 0 where the training rows hold one value only.

    Raises DataError for a column whose values differ by less than float32 holds.
    """
    constant = width == 0
    gain = np.where(constant, 0.0, 1.0 / np.where(constant, 1.0, width))

    def moved(table: Table) -> Table:
        out, narrowing = np.empty(table.x.shape, np.float32), _Narrowing(table)
        for source, target in zip(blocks(table.x), blocks(out), strict=True):
            exact = (source - centre) * gain
            target[...] = narrow(exact)
            narrowing.note(exact, target)
        scaled = replace(table, x=out)
        if table is split.train:
            narrowing.check()
        return scaled

    return Split(
        moved(split.train), moved(split.test), split.validation and moved(split.validation)
    )


class _Narrowing:
    """What float32 keeps of columns that are float64: their largest rounding beside their spread."""

    def __init__(self, table: Table) -> None:
        self._table, self._rows = table, 0
        self._sums = np.zeros((2, math.prod(table.shape)))
        self._lost, self._largest = np.zeros((2, math.prod(table.shape)))
        self._first: np.ndarray | None = None
        self._whole = np.ones(math.prod(table.shape), bool)

    def note(self, exact: np.ndarray, kept: np.ndarray) -> None:
        """Compare rows [B, ...] before and after they are float32."""
        if self._table.x.dtype == np.float32:
            return
        exact = exact.reshape(len(exact), -1)
        self._first = exact[0] if self._first is None else self._first
        moved = exact - self._first
        self._sums += moved.sum(0), np.square(moved).sum(0)
        self._rows += len(exact)
        rounding = np.abs(kept.reshape(exact.shape) - exact)
        np.maximum(self._lost, rounding.max(0), out=self._lost)
        np.maximum(self._largest, np.abs(exact).max(0), out=self._largest)
        self._whole &= (exact == np.rint(exact)).all(0)

    def check(self) -> None:
        """Raise DataError for a column of which float32 loses what tells its rows apart."""
        mean, squares = self._sums / max(self._rows, 1)
        spread = np.sqrt(np.maximum(squares - mean * mean, 0))
        told = self._whole | (spread > _NOISE * self._largest)
        lost = np.flatnonzero(told & (spread > 0) & (self._lost > _LEAST_KEPT * spread))
        if not lost.size:
            return
        place = [int(n) for n in np.unravel_index(int(lost[0]), self._table.shape)]
        value = float(self._table.x[(0, *place)])
        raise DataError(
            f'{self._table.place(place)} of "{self._table.name}" has values near {value:.10g} that '
            "differ by less than float32 holds, in which models compute: scale it by data.scale = "
            '"standard", or "public" with data.centre near these values'
        )
