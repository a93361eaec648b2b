"""Reader for one's own tables: CSV and Parquet through pyarrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from pyarrow import types

from raydpzv.data.files import no_file, one_line
from raydpzv.data.table import Table
from raydpzv.errors import DataError, suggest

_LISTED = 8
_SETTINGS = {"groups": "data.groups", "times": "data.time"}
"""Settings that name columns apart, but for those of users.columns."""


@dataclass(frozen=True)
class Columns:
    """What a table's columns are: the one to predict, the one of groups, those of categories; the rest are numbers.

    missing: "refuse" rows without a value, or leave the gaps for `raydpzv.data.encoding` to fill ("mean"). user, silo:
    the columns of each record's user and silo, no features; "" for none. time: that of survival times, of which
    `target` says whether they are events (1, true) or censored (0, false); "" for classes. used: the features that
    anybody uses, None: all columns that nothing else names.
    """

    target: str
    groups: str | None = None
    categories: tuple[str, ...] = ()
    missing: str = "refuse"
    user: str = ""
    silo: str = ""
    time: str = ""
    used: tuple[str, ...] | None = None

    def read_from(self, names: list[str]) -> list[str] | None:
        """Return which columns of a file are read; None: all, also where a complaint about their names will follow."""
        wanted = {self.target, *self.categories, *self.apart.values(), *(self.used or ())}
        once = len(set(names)) == len(names) and wanted <= set(names)
        return [name for name in names if name in wanted] if self.used and once else None

    @property
    def apart(self) -> dict[str, str]:
        """The columns that are neither features nor the target, and what each is of."""
        named = {"groups": self.groups, "users": self.user, "silos": self.silo, "times": self.time}
        return {what: column for what, column in named.items() if column}


def read_csv(file: Path, columns: Columns, skip_lines: int = 0) -> Table:
    """Return a CSV file with a heading line as a table; see `to_table`. Empty cells count as missing.

    skip_lines: lines before the heading, which are not looked at.
    """
    skip = pyarrow.csv.ReadOptions(skip_rows=skip_lines)
    names = _read(file, lambda: pyarrow.csv.open_csv(file, skip).schema.empty_table()).column_names
    convert = pyarrow.csv.ConvertOptions(
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        include_columns=columns.read_from(names),
    )
    data = _read(file, lambda: pyarrow.csv.read_csv(file, read_options=skip, convert_options=convert))
    return to_table(data, one_line(file.name), columns, names)


def read_parquet(file: Path, columns: Columns) -> Table:
    """Return a Parquet file as a table; see `to_table`."""
    names = _read(file, lambda: pyarrow.parquet.read_schema(file).empty_table()).column_names
    data = _read(file, lambda: pyarrow.parquet.read_table(file, columns=columns.read_from(names)))
    return to_table(data, one_line(file.name), columns, names)


def read_survival(file: Path, columns: Columns, skip_lines: int = 0) -> Table:
    """Return survival times of a Parquet file, or of a CSV file whatever else its suffix is; see `to_table`."""
    return read_parquet(file, columns) if file.suffix == ".parquet" else read_csv(file, columns, skip_lines)


def to_table(data: pa.Table, name: str, columns: Columns, names: list[str] | None = None) -> Table:
    """Return the columns as labels, as what rows belong to, and as features, x [D, F].

    Features are numbers, true/false or categories; labels are strings, whole numbers or true/false, numbered
    0..classes-1 in sorted order; groups are any values; survival times are numbers, and their labels 0 or 1. Raises
    DataError for anything else, naming the columns. names: the file's columns, where `data` are some of them.
    """
    names, target, apart = names or data.column_names, columns.target, columns.apart
    _check_column(names, name, target, "to predict")
    for what, column in apart.items():
        _check_column(names, name, column, f"of {what}")
    for category in columns.categories:
        others = (target, *apart.values())
        _check_column([n for n in names if n not in others], name, category, "of categories")
    for column in columns.used or ():
        _check_column(names, name, column, "for a client")
    twice = sorted(column for column, times in Counter(names).items() if times > 1)
    if twice:
        raise DataError(
            f'"{name}" has the columns {_listed(twice)} more than once: rename or drop the others'
        )
    if twin := next((what for what, column in apart.items() if column == target), None):
        raise DataError(
            f'{_SETTINGS.get(twin, "users.columns")}: "{target}" of "{name}" is the column to '
            f"predict, and no column of {twin}; name another column"
        )
    if data.num_rows == 0:
        raise DataError(f'"{name}" has a heading and no rows: give it data')
    y, classes = (_events if columns.time else _labels)(data.column(target), name, target)
    left = [n for n in names if n not in (target, *apart.values())]
    unused = [n for n in left if columns.used and n not in columns.used]
    features = data.select([n for n in left if n not in unused])
    times = _filled(data.column(columns.time), name, columns.time) if columns.time else None
    owners = {what: column for what, column in apart.items() if what != "times"}
    numbers = {what: _owners(data.column(column), name, column, what) for what, column in owners.items()}
    if "groups" in numbers:
        _check_groups(numbers["groups"], name, apart["groups"])
    x, levels = _features(features, name, columns)
    return Table(
        *(name, x, y, classes, tuple(features.column_names)),
        levels=levels,
        groups=numbers.get("groups"),
        users=numbers.get("users"),
        silos=numbers.get("silos"),
        times=times,
        unused=tuple(unused),
    )


def _check_column(names: list[str], name: str, column: str, what: str) -> None:
    if column not in names:
        raise DataError(
            f'"{name}" has no column "{column}" {what}. {suggest(column, names)}Its columns: {_listed(names)}; where '
            "they stand in another line of a CSV file, set data.skip_lines"
        )


def _owners(column: pa.ChunkedArray, name: str, title: str, what: str) -> np.ndarray:
    """Return the numbers of groups, users or silos, counted from 0 in order of appearance, int32 [D]."""
    if column.null_count:
        raise DataError(
            f'column "{title}" of "{name}" names no {what[:-1]} in row {_first_missing(column)} (counted from 0): fill '
            "it in or drop the row"
        )
    found = column.combine_chunks()
    found = found if types.is_dictionary(found.type) else found.dictionary_encode()
    numbers: np.ndarray = found.indices.to_numpy()
    return numbers


def _check_groups(numbers: np.ndarray, name: str, groups: str) -> None:
    if len(np.unique(numbers)) < 2:
        raise DataError(
            f'column "{groups}" of "{name}" holds one group, which leaves no test group: choose another column for '
            "data.groups or leave it out"
        )


def _first_missing(column: pa.ChunkedArray) -> int:
    return int(pc.index(column.is_null(), True).as_py())


def _read(file: Path, read: Callable[[], pa.Table]) -> pa.Table:
    if not file.is_file():
        raise no_file(file)
    try:
        table = read()
        table.column_names  # noqa: B018  (decodes the heading, which fails where it is not UTF-8)
        return table
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(one_line(f'"{file}" cannot be read: {error}: mend or re-export it')) from error


def _labels(column: pa.ChunkedArray, name: str, target: str) -> tuple[np.ndarray, int]:
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    allowed = (types.is_string, types.is_large_string, types.is_integer, types.is_boolean)
    if not any(is_kind(kind) for is_kind in allowed):
        raise DataError(
            f'column "{target}" of "{name}" has the type {kind}; a target of classes is strings, whole '
            "numbers or true/false: choose another column or convert it"
        )
    if column.null_count:
        raise DataError(
            f'column "{target}" of "{name}" has no label in row {_first_missing(column)} (counted from 0): fill it in '
            "or drop the row"
        )
    values, y = np.unique(column.to_numpy(), return_inverse=True)
    if len(values) < 2:
        raise DataError(
            f'column "{target}" of "{name}" holds the one value "{one_line(values[0])}": '
            "at least 2 classes are needed"
        )
    return y, len(values)


def _events(column: pa.ChunkedArray, name: str, target: str) -> tuple[np.ndarray, int]:
    found = _filled(column, name, target) if _numeric(column.type) else np.full(1, np.nan)
    if not np.isin(found, (0, 1)).all():
        raise DataError(
            f'column "{target}" of "{name}" says whether times are events: wanted 1 or 0 (censored), or true or false, '
            "and something else is there; convert it or name another column as data.target"
        )
    return found.astype(np.int64), 2


def _filled(column: pa.ChunkedArray, name: str, title: str) -> np.ndarray:
    found = _numbers(column, name, title)
    if (gaps := np.isnan(found)).any():
        raise DataError(
            f'column "{title}" of "{name}" has no value in row {int(np.argmax(gaps))} (counted from 0): fill it in or '
            "drop the row"
        )
    return found


def _features(data: pa.Table, name: str, columns: Columns) -> tuple[np.ndarray, tuple[int, ...] | None]:
    """Return features [D, F], and how many levels each column of categories has where the table wants encoding."""
    if not data.num_columns:
        raise DataError(f'"{name}" has a target column and no features: add columns of numbers')
    found, levels = [], []
    for column, values in zip(data.column_names, data.columns, strict=True):
        if column in columns.categories:
            codes, count = _codes(values)
        else:
            codes, count = _numbers(values, name, column), 0
        gaps = np.isnan(codes)
        if gaps.any() and columns.missing == "refuse":
            raise DataError(
                f'column "{column}" of "{name}" has no value (nan) in row {int(np.argmax(gaps))} (counted from 0), and '
                f"in {int(gaps.sum())} of {len(gaps)} rows: fill them in or drop the "
                'rows; without privacy.mode = "sound" also: data.missing = "mean"'
            )
        found.append(codes)
        levels.append(count)
    plain = not columns.categories and columns.missing == "refuse"
    return np.stack(found, axis=1), None if plain else tuple(levels)


def _codes(column: pa.ChunkedArray) -> tuple[np.ndarray, int]:
    """Return each value's place among the column's values in sorted order, NaN for none, and how many there are."""
    texts = column.cast(pa.string()).combine_chunks().dictionary_encode()
    order = pc.rank(texts.dictionary, "ascending", tiebreaker="dense").to_numpy() - 1
    places = texts.indices.fill_null(-1).to_numpy()
    return np.where(places < 0, np.nan, order[places].astype(np.float64)), len(order)


def _numbers(column: pa.ChunkedArray, name: str, heading: str) -> np.ndarray:
    kind = column.type
    if _numeric(kind):
        return column.cast(pa.float64(), safe=False).to_numpy()  # missing values become NaN
    if types.is_null(kind):
        raise DataError(f'column "{heading}" of "{name}" is empty: fill it in or drop it')
    row, value = _least_number_like(column)
    shown = f'such as "{one_line(value)}" in row {row} (counted from 0)'
    if types.is_temporal(kind):
        raise DataError(
            f'column "{heading}" of "{name}" holds dates or times, {shown}: write them as numbers (days since one day; '
            "year, month and day in columns of their own) or drop the column"
        )
    raise DataError(
        f'column "{heading}" of "{name}" holds what is no number, {shown}: correct it or drop the column; without '
        'privacy.mode = "sound" also: name the column in data.categories to have one column of 0 and 1 for each of its '
        'values, or leave the cell empty with data.missing = "mean"'
    )


def _least_number_like(column: pa.ChunkedArray) -> tuple[int, object]:
    """Return row and value of the first text that is no number; where all are, of the first."""
    there = [(row, value) for row, value in enumerate(column.to_pylist()) if value is not None]
    for row, value in there:
        try:
            float(value)
        except (TypeError, ValueError):
            return row, value
    return there[0]


def _numeric(kind: pa.DataType) -> bool:
    return any(f(kind) for f in (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return one_line(", ".join(names[:_LISTED]) + more)
