"""Rows that are whole numbers, such as token ids, since a model or a setting says so.

Their values decide nothing: of two tables that differ in one cell, one would be scaled and one not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from raydpzv.data.table import MOST_TOKENS, Split, Table, blocks
from raydpzv.data.vertical import Part
from raydpzv.errors import DataError, SpecError

_MOST = 2**53
_CURE = "correct the row, or set model.integers = false for a model of quantities"


@dataclass(frozen=True)
class WholeRows:
    """Why rows are whole numbers, in words."""

    why: str

    def check_scale(self, scale: str) -> None:
        """Refuse scaling, which has no meaning for ids. Raises SpecError."""
        if scale != "none":
            raise SpecError(
                f'data.scale: wanted "none" for rows that are whole numbers ({self.why}), got '
                f'"{scale}"; set that, or model.integers = false for a model of quantities'
            )

    def rows(self, split: Split) -> Split:
        """Return the same with rows of whole numbers, int64. Raises DataError for another value."""
        return Split(
            self._whole(split.train),
            self._whole(split.test),
            split.validation and self._whole(split.validation),
        )

    def check_part(self, split: Split, part: Part, title: str) -> None:
        """Refuse a value of a client's share that is no whole number of up to 2^24, which float32
        holds. Raises DataError.
        """
        for table in filter(None, (split.train, split.test, split.validation)):
            self._check(table, part.block(table.x), MOST_TOKENS, f"the rows of {title}")

    def _whole(self, table: Table) -> Table:
        self._check(table, table.x, _MOST, f'"{table.name}"')
        return replace(table, x=table.x.astype(np.int64), integers=True)

    def _check(self, table: Table, x: np.ndarray, most: int, title: str) -> None:
        first = 0
        for block in blocks(x):
            wrong = (block != np.rint(block)) | (np.abs(block) > most)
            if wrong.any():
                row, *place = (int(n) for n in np.argwhere(wrong)[0])
                raise DataError(
                    f"{title}: wanted whole numbers up to {most} ({self.why}), got "
                    f"{block[(row, *place)]:.17g} in row {table.number(first + row)} (counted from "
                    f"0), {_place(place)}; {_CURE}"
                )
            first += len(block)


def _place(place: Sequence[int]) -> str:
    return f"column {place[0]}" if len(place) == 1 else f"feature {tuple(place)}"
