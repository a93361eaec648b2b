"""Categories and missing values of a table as numbers, by public lists or by what the training rows have.

Test rows decide nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from raydpzv.data.table import Split, Table
from raydpzv.errors import DataError


def encoded(split: Split) -> Split:
    """Return the same with every column of numbers filled and every column of categories one-hot.

    A missing number becomes the mean of the training rows. A category has a column of 0 and 1 for each level that
    training rows have, under its own name; a level that they do not have, or none, is 0 in all of them. Levels that are
    public have a column each, whatever rows have. Tables whose columns are plain numbers are returned as they are.
    Raises DataError for a column without a value in any training row.
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
        features = [n for n, width in zip(table.features, widths, strict=True) for _ in range(width)]
        x = np.concatenate([column.astype(np.float32) for column in columns], axis=1)
        return replace(table, x=x, features=tuple(features), levels=None)

    return Split(of(split.train), of(split.test), split.validation and of(split.validation))


def _known(train: Table, place: int, levels: int) -> np.ndarray:
    """Return a column's levels, public or those of the training rows, ascending; of numbers their mean."""
    if levels and train.public_levels:
        return np.arange(levels)
    values = train.x[:, place]
    values = values[~np.isnan(values)]
    if not len(values):
        raise DataError(
            f'column "{train.features[place]}" of "{train.name}" has no value in any training row: drop it'
        )
    return np.unique(values) if levels else values.mean(dtype=np.float64)
