"""Cells of which public constants make numbers: gaps, and dates.

What a cell becomes depends on that cell and on the scenario alone, as proofs need. Nothing that is
read off other rows may enter.
"""

# D rows

from __future__ import annotations

import re
from datetime import UTC, datetime
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from raydpzv.data.files import one_line
from raydpzv.data.names import first_row, texts_of
from raydpzv.data.spelling import shown
from raydpzv.errors import DataError, SpecError

if TYPE_CHECKING:
    from raydpzv.settings.fields import Label

_ISO = re.compile(r"\d{4}-\d\d-\d\d(?:[T ].*)?")
_DAY_FIRST = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})")
_DAY = 86_400.0
"""Seconds."""


def days_since(day: str, column: pa.ChunkedArray, where: str) -> np.ndarray:
    """Return the days from midnight of a public day to each cell, float64 [D], NaN for a gap.

    day: such as "2020-01-01". Cells are dates or times of Arrow, or texts such as 2020-12-31,
    "2020-12-31 18:30" and 31.12.2020. Times with a zone count as of UTC. where: the column in
    words. Raises DataError for a cell that is none of these.
    """
    if types.is_timestamp(column.type):
        column = column.cast(pa.string())
    texts, since = texts_of(column, where), datetime.fromisoformat(day)
    days = []
    for text in texts.dictionary.to_pylist():
        if (moment := _moment(text.strip())) is None:
            raise DataError(
                f"{where} has {shown(text)} in row {first_row(texts, text)} (counted "
                "from 0), which is no date: write it as 2020-12-31 or 31.12.2020"
            )
        days.append((moment - since).total_seconds() / _DAY)

    found: np.ndarray = np.array([*days, np.nan])
    return found[texts.indices.fill_null(-1).to_numpy(zero_copy_only=False)]


def is_date(text: str) -> bool:
    """Return whether a text is a date as `days_since` reads it."""
    return _moment(text.strip()) is not None


def _moment(text: str) -> datetime | None:
    try:
        if found := _DAY_FIRST.fullmatch(text):
            day, month, year = map(int, found.groups())
            return datetime(year, month, day)
        if not _ISO.fullmatch(text):
            return None
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
    except (ValueError, OverflowError):  # the 31st of a short month; the last day, in a zone
        return None


def filled_texts(texts: pa.DictionaryArray, constant: Label | float) -> pa.DictionaryArray:
    """Return names with a public constant in place of each gap."""
    text = str(constant).lower() if isinstance(constant, bool) else str(constant)
    return pc.fill_null(texts.dictionary_decode(), text).dictionary_encode()


def filled_numbers(
    x_D: np.ndarray, constant: Label | float, column: str, day: str | None = None
) -> np.ndarray:
    """Return numbers with a public constant in place of each gap.

    day: since when the numbers are days, whose constant may be a date. Raises SpecError for a
    constant that is no number.
    """
    if day is not None and isinstance(constant, str) and is_date(constant):
        constant = float(days_since(day, pa.chunked_array([[constant]]), column)[0])
    if isinstance(constant, bool) or not isinstance(constant, Real):
        raise SpecError(
            f"data.missing: wanted {'a date, or days,' if day else 'a number'} for "
            f'"{one_line(column)}", got {constant!r}'
        )
    return np.where(np.isnan(x_D), float(constant), x_D)
