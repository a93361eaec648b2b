"""Reader for one's own tables: CSV and Parquet through pyarrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
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


def read_csv(file: Path, target: str, groups: str | None = None, skip_lines: int = 0) -> Table:
    """Return a CSV file with a heading line as a table; see `to_table`. Empty cells count as missing.

    skip_lines: lines before the heading, which are not looked at.
    """
    convert = pyarrow.csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
    skip = pyarrow.csv.ReadOptions(skip_rows=skip_lines)
    data = _read(file, lambda: pyarrow.csv.read_csv(file, read_options=skip, convert_options=convert))
    return to_table(data, one_line(file.name), target, groups)


def read_parquet(file: Path, target: str, groups: str | None = None) -> Table:
    """Return a Parquet file as a table; see `to_table`."""
    data = _read(file, lambda: pyarrow.parquet.read_table(file))
    return to_table(data, one_line(file.name), target, groups)


def to_table(data: pa.Table, name: str, target: str, groups: str | None = None) -> Table:
    """Return the column `target` as labels, `groups` as what rows belong to, all others as features, x [D, F].

    Features are numbers or true/false; labels are strings, whole numbers or true/false, numbered 0..classes-1
    in sorted order; groups are any values. Raises DataError for anything else, naming the columns.
    """
    names = data.column_names
    _check_column(names, name, target, "to predict")
    if groups is not None:
        _check_column(names, name, groups, "of groups")
    twice = sorted(column for column, times in Counter(names).items() if times > 1)
    if twice:
        raise DataError(
            f'"{name}" has the columns {_listed(twice)} more than once: rename or drop the others'
        )
    if groups == target:
        raise DataError(
            f'data.groups: "{groups}" of "{name}" is the column to predict, and a group is not; name another column'
        )
    if data.num_rows == 0:
        raise DataError(f'"{name}" has a heading and no rows: give it data')
    y, classes = _labels(data.column(target), name, target)
    features = data.drop_columns([target] if groups is None else [target, groups])
    return Table(
        *(name, _features(features, name), y, classes, tuple(features.column_names)),
        groups=None if groups is None else _groups(data.column(groups), name, groups),
    )


def _check_column(names: list[str], name: str, column: str, what: str) -> None:
    if column not in names:
        raise DataError(
            f'"{name}" has no column "{column}" {what}. {suggest(column, names)}Its columns: {_listed(names)}; where '
            "they stand in another line of a CSV file, set data.skip_lines"
        )


def _groups(column: pa.ChunkedArray, name: str, groups: str) -> np.ndarray:
    """Return the groups' numbers, counted from 0 in order of appearance, int32 [D]."""
    if column.null_count:
        raise DataError(
            f'column "{groups}" of "{name}" names no group in row {_first_missing(column)} (counted from 0): fill it '
            "in or drop the row"
        )
    found = column.combine_chunks()
    found = found if types.is_dictionary(found.type) else found.dictionary_encode()
    if len(np.unique(numbers := found.indices.to_numpy())) < 2:
        raise DataError(
            f'column "{groups}" of "{name}" holds one group, which leaves no test group: choose another column for '
            "data.groups or leave it out"
        )
    return numbers


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


def _features(data: pa.Table, name: str) -> np.ndarray:
    if not data.num_columns:
        raise DataError(f'"{name}" has a target column and no features: add columns of numbers')
    wrong = [f"{field.name} ({field.type})" for field in data.schema if not _numeric(field.type)]
    if wrong:
        raise DataError(
            f'"{name}" has features that are not numbers: {_listed(wrong)}: encode them as numbers or drop '
            "them"
        )
    # missing values become NaN, which the table refuses with row and column
    columns = [column.cast(pa.float64(), safe=False).to_numpy() for column in data.columns]
    return np.stack(columns, axis=1)


def _numeric(kind: pa.DataType) -> bool:
    return any(f(kind) for f in (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return one_line(", ".join(names[:_LISTED]) + more)
