"""Reader for one's own tables: CSV and Parquet through pyarrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from pyarrow import types

from raydpzv.data.files import no_file, one_line
from raydpzv.data.public_list import PublicList
from raydpzv.data.sources import Request
from raydpzv.data.table import Table, check_times
from raydpzv.errors import DataError, suggest

_LISTED = 8
_STRANGER = "!a label that no other row has"
_SETTINGS = {"groups": "data.groups", "times": "data.time"}
"""Settings that name columns apart, but for those of users.columns."""


def read_csv(request: Request) -> Table:
    """Return a CSV file with a heading line as a table; see `_to_table`. Empty cells count as
    missing.

    data.skip_lines: lines before the heading, which are not looked at.
    """
    file, skip = request.file, request.data.skip_lines or 0
    reading = pyarrow.csv.ReadOptions(skip_rows=skip)
    names = _read(
        file, lambda: pyarrow.csv.open_csv(file, reading).schema.empty_table()
    ).column_names
    # texts are read as they are written, so that no cell moves the type of the others
    texts = (*request.lists, *(request.data.target_columns if request.labels else ()))
    return _to_table(_csv(file, skip, texts, _only(request, names)), request, names)


def read_parquet(request: Request) -> Table:
    """Return a Parquet file as a table; see `_to_table`."""
    file = request.file
    names = _read(file, lambda: pyarrow.parquet.read_schema(file).empty_table()).column_names
    return _to_table(_parquet(file, _only(request, names)), request, names)


def read_survival(request: Request) -> Table:
    """Return survival times of a Parquet file, or of a CSV file whatever else its suffix is; see
    `_to_table`.
    """
    return read_parquet(request) if request.file.suffix == ".parquet" else read_csv(request)


def read_columns(file: Path) -> pa.Table:
    """Return the columns of a Parquet file, or of a CSV file whatever else its suffix is, as they
    are.
    """
    return _parquet(file) if file.suffix == ".parquet" else _csv(file)


def _csv(
    file: Path, skip_lines: int = 0, texts: Sequence[str] = (), only: Sequence[str] | None = None
) -> pa.Table:
    """Return a CSV file's columns. texts: those that are not parsed; only: those to read, None:
    all.
    """
    convert = pyarrow.csv.ConvertOptions(
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        column_types=dict.fromkeys(texts, pa.string()),
        include_columns=only,
    )
    skip = pyarrow.csv.ReadOptions(skip_rows=skip_lines)
    return _read(
        file, lambda: pyarrow.csv.read_csv(file, read_options=skip, convert_options=convert)
    )


def _parquet(file: Path, only: Sequence[str] | None = None) -> pa.Table:
    return _read(file, lambda: pyarrow.parquet.read_table(file, columns=only))


def _apart(request: Request) -> dict[str, str]:
    """Return the columns that are neither features nor the target, by what they are of."""
    user, silo = request.owners or ("", "")
    named = {
        "groups": request.data.groups,
        "users": user,
        "silos": silo,
        "times": request.data.time,
    }
    return {role: column for role, column in named.items() if column}


def _only(request: Request, names: list[str]) -> list[str] | None:
    """Return which columns of a file are read; None: all, also where a complaint about their names
    will follow.
    """
    used = {
        *request.data.target_columns,
        *request.data.category_columns,
        *_apart(request).values(),
        *request.holders,
    }
    once = len(set(names)) == len(names) and used <= set(names)
    return [name for name in names if name in used] if request.holders and once else None


def _to_table(data: pa.Table, request: Request, names: list[str]) -> Table:
    """Return the columns as labels, as what rows belong to, and as features, x [D, F].

    Features are numbers, true/false or categories; labels are strings, whole numbers or true/false,
    numbered 0..classes-1 as their public list has them, else in sorted order; groups, users and
    silos are any values, numbered in sorted order; survival times are numbers, and their labels 0
    or 1. Raises DataError for anything else, naming the
    columns. names: the file's columns, of which `data` may be some.
    """
    name, apart, time = one_line(request.file.name), _apart(request), request.data.time
    targets = request.data.target_columns
    for target in targets:
        _check_column(names, name, target, "data.target", "to predict")
    for role, column in apart.items():
        _check_column(names, name, column, _SETTINGS.get(role, "users.columns"), f"of {role}")
    for category in request.data.category_columns:
        others = (*targets, *apart.values())
        _check_column(
            [n for n in names if n not in others],
            name,
            category,
            "data.categories",
            "of categories",
        )
    twice = sorted(column for column, times in Counter(names).items() if times > 1)
    if twice:
        raise DataError(
            f'"{name}" has the columns {_listed(twice)} more than once: rename or drop the others'
        )
    if twin := next((role for role, column in apart.items() if column in targets), None):
        raise DataError(
            f'{_SETTINGS.get(twin, "users.columns")}: "{apart[twin]}" of "{name}" is the column to '
            f"predict, and no column of {twin}; name another column"
        )
    if data.num_rows == 0:
        raise DataError(f'"{name}" has a heading and no rows: give it data')
    values = None if time else _label_numbers(data, name, request)
    if values is not None:
        y, classes = np.zeros(len(values), np.int64), 1
    else:
        y, classes = (
            _events(data.column(targets[0]), name, targets[0])
            if time
            else _labels(data, names, request)
        )
    left = [n for n in names if n not in (*targets, *apart.values())]
    unused = _unused(left, name, request.holders) if request.holders else ()
    features = data.select([n for n in left if n not in unused])
    owners = {role: column for role, column in apart.items() if role != "times"}
    numbers = {
        role: _owners(data.column(column), name, column, role) for role, column in owners.items()
    }
    if "groups" in numbers:
        _check_groups(numbers["groups"], name, apart["groups"])
    x, levels = _features(features, name, request)
    return Table(
        name,
        x,
        y,
        classes,
        tuple(features.column_names),
        levels=levels,
        public_levels=bool(request.lists),
        groups=numbers.get("groups"),
        users=numbers.get("users"),
        silos=numbers.get("silos"),
        times=_times(data.column(time), name, time) if time else None,
        values=values,
        unused=unused,
    )


def _unused(features: list[str], name: str, held: Mapping[str, str]) -> tuple[str, ...]:
    """Return the features that nobody holds. Raises DataError for one that is held and not
    there.
    """
    for column, party in held.items():
        if column not in features:
            raise DataError(
                f'{party} wants column "{one_line(column)}", which "{name}" does not have as a '
                "feature. "
                f"{suggest(column, features)}Its features: {_listed(features)}"
            )
    return tuple(feature for feature in features if feature not in held)


def _check_column(names: list[str], name: str, column: str, setting: str, role: str) -> None:
    if column not in names:
        raise DataError(
            f'{setting}: "{name}" has no column "{column}" {role}. {suggest(column, names)}Its '
            "columns: "
            f"{_listed(names)}. If the first line of a CSV file does not name them, set "
            "data.skip_lines"
        )


def _owners(column: pa.ChunkedArray, name: str, title: str, role: str) -> np.ndarray:
    """Return the numbers of groups, users or silos, counted from 0 in sorted order, int32 [D].

    They depend on which values there are, and not on the rows that have them.
    """
    if column.null_count:
        raise DataError(
            f'column "{title}" of "{name}" names no {role[:-1]} in row {_first_missing(column)} '
            "(counted from 0): fill "
            "it in or drop the row"
        )
    return _ranked(column)[0].astype(np.int32)


def _check_groups(numbers: np.ndarray, name: str, groups: str) -> None:
    if len(np.unique(numbers)) < 2:
        raise DataError(
            f'column "{groups}" of "{name}" holds one group, which leaves no test group: choose '
            "another column for "
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
        raise DataError(
            one_line(f'"{file}" cannot be read: {error}: mend or re-export it')
        ) from error


def _label_numbers(data: pa.Table, name: str, request: Request) -> np.ndarray | None:
    """Return numbers for labels, float64 [D, T]; None where labels are classes."""
    targets = request.data.target_columns
    typed = len(targets) > 1 or types.is_floating(data.column(targets[0]).type)
    if not (typed if request.numbers is None else request.numbers):
        if len(targets) > 1:
            raise DataError(
                f"data.target: wanted one column of classes, got {_listed(list(targets))}; several "
                "are numbers, for "
                'model.loss = "squared_error" or "multi_label"'
            )
        return None
    return np.stack([_filled(data.column(column), name, column) for column in targets], axis=1)


def _labels(data: pa.Table, names: list[str], request: Request) -> tuple[np.ndarray, int]:
    """Return each label's number, int [D], and how many classes there are. names: the file's
    columns.
    """
    (target,), name = request.data.target_columns, one_line(request.file.name)
    column = data.column(target)
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    column = _with_strangers(column, request.strangers)
    kind = column.type
    allowed = (types.is_string, types.is_large_string, types.is_integer, types.is_boolean)
    if not any(is_kind(kind) for is_kind in allowed):
        raise DataError(
            f'column "{target}" of "{name}" has the type {kind}; a target of classes is strings, '
            "whole "
            "numbers or true/false: choose another column, convert it, or learn numbers with "
            "model.loss = "
            '"squared_error"'
        )
    if column.null_count:
        raise DataError(
            f'column "{target}" of "{name}" has no label in row {_first_missing(column)} (counted '
            "from 0): fill it in "
            "or drop the row"
        )
    if known := request.labels:
        if all(place < 0 for place in known.places(column.cast(pa.string()).unique().to_pylist())):
            raise DataError(
                f'data.target: column "{target}" of "{name}" holds none of {known.setting}; name '
                "the column to "
                f"predict, or list its classes. The columns: {_listed(names)}"
            )
        return _placed(column, known, target, name).astype(np.int64), len(known)
    values, y = np.unique(column.to_numpy(), return_inverse=True)
    if len(values) < 2:
        raise DataError(
            f'column "{target}" of "{name}" holds the one value "{one_line(values[0])}": '
            "at least 2 classes are needed"
        )
    return y, len(values)


def _with_strangers(column: pa.ChunkedArray, rows: Sequence[int]) -> pa.ChunkedArray:
    """Return a column of labels in which these rows have one that no other row has, sorted before
    all others.
    """
    if not rows:
        return column
    labels = column.to_pylist()
    known = [label for label in labels if label is not None]
    if types.is_integer(column.type):
        stranger: object = min(known) - 1
    else:
        labels, stranger = [None if label is None else str(label) for label in labels], _STRANGER
    for row in rows:
        labels[row] = stranger
    return pa.chunked_array([pa.array(labels)])


def _placed(column: pa.ChunkedArray, known: PublicList, title: str, name: str) -> np.ndarray:
    """Return each value's place in the public list, float64 [D], NaN for none. Raises DataError for
    one outside.
    """
    texts = column.cast(pa.string()).combine_chunks().dictionary_encode()
    places = np.array([*known.places(texts.dictionary.to_pylist()), np.nan])
    found: np.ndarray = places[texts.indices.fill_null(-1).to_numpy()]
    if (outside := np.flatnonzero(found < 0)).size:
        row = int(outside[0])
        raise known.refusal(texts[row].as_py(), row, f'column "{title}"', name)
    return found


def _events(column: pa.ChunkedArray, name: str, target: str) -> tuple[np.ndarray, int]:
    found = _filled(column, name, target) if is_numeric(column.type) else np.full(1, np.nan)
    if not np.isin(found, (0, 1)).all():
        raise DataError(
            f'column "{target}" of "{name}" says whether times are events: wanted 1 or 0 '
            "(censored), or true or false, "
            "and something else is there; convert it or name another column as data.target"
        )
    return found.astype(np.int64), 2


def _times(column: pa.ChunkedArray, name: str, title: str) -> np.ndarray:
    found = _filled(column, name, title)
    check_times(found, f'column "{title}" of "{name}"')
    return found


def _filled(column: pa.ChunkedArray, name: str, title: str) -> np.ndarray:
    found = _numbers(column, name, title)
    if (gaps := np.isnan(found)).any():
        raise DataError(
            f'column "{title}" of "{name}" has no value in row {int(np.argmax(gaps))} (counted '
            "from 0): fill it in or "
            "drop the row"
        )
    return found


def _features(
    data: pa.Table, name: str, request: Request
) -> tuple[np.ndarray, tuple[int, ...] | None]:
    """Return features [D, F], and how many levels each column of categories has where the table
    wants encoding.
    """
    if not data.num_columns:
        raise DataError(f'"{name}" has a target column and no features: add columns of numbers')
    found, levels = [], []
    lists, categories = request.lists, request.data.category_columns
    refused = request.data.missing != "mean"
    for column, values in zip(data.column_names, data.columns, strict=True):
        if known := lists.get(column):
            codes, count = _placed(values, known, column, name), len(known)
        elif column in categories:
            codes, count = _ranked(values.cast(pa.string()))
        else:
            codes, count = _numbers(values, name, column), 0
        gaps = np.isnan(codes)
        if gaps.any() and refused:
            raise DataError(
                f'column "{column}" of "{name}" has no value (nan) in row {int(np.argmax(gaps))} '
                "(counted from 0), and "
                f"in {int(gaps.sum())} of {len(gaps)} rows: fill them in or drop the "
                'rows; without privacy.mode = "proved" also: data.missing = "mean"'
            )
        found.append(codes)
        levels.append(count)
    plain = not categories and refused
    return np.stack(found, axis=1), None if plain else tuple(levels)


def _ranked(column: pa.ChunkedArray) -> tuple[np.ndarray, int]:
    """Return each value's place among the column's values in sorted order, NaN for none, and how
    many there are.
    """
    found = column.combine_chunks()
    texts = found if types.is_dictionary(found.type) else found.dictionary_encode()
    order = pc.rank(texts.dictionary, "ascending", tiebreaker="dense").to_numpy() - 1
    places = texts.indices.fill_null(-1).to_numpy()
    return np.where(places < 0, np.nan, order[places].astype(np.float64)), len(order)


def _numbers(column: pa.ChunkedArray, name: str, heading: str) -> np.ndarray:
    kind = column.type
    if is_numeric(kind):
        return column.cast(pa.float64(), safe=False).to_numpy()  # missing values become NaN
    if types.is_null(kind):
        raise DataError(f'column "{heading}" of "{name}" is empty: fill it in or drop it')
    row, value = _least_number_like(column)
    shown = f'such as "{one_line(value)}" in row {row} (counted from 0)'
    if types.is_temporal(kind):
        raise DataError(
            f'column "{heading}" of "{name}" holds dates or times, {shown}: write them as numbers '
            "(days since one day; "
            "year, month and day in columns of their own) or drop the column"
        )
    raise DataError(
        f'column "{heading}" of "{name}" holds what is no number, {shown}: correct it, drop the '
        "column, or "
        "list its values in data.categories (column = [values]); without "
        'privacy.mode = "proved" also: name the column alone in data.categories, or leave the cell '
        'empty with data.missing = "mean"'
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


def is_numeric(kind: pa.DataType) -> bool:
    """Return whether a column of this type is one of numbers; true and false are 1 and 0."""
    return any(
        f(kind) for f in (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return one_line(", ".join(names[:_LISTED]) + more)
