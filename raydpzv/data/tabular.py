"""Reader for one's own tables: CSV and Parquet through pyarrow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from pyarrow import types

from raydpzv.data.files import one_line
from raydpzv.data.given_cells import days_since, filled_numbers, filled_texts, is_date
from raydpzv.data.names import lookalikes, numbers_of, texts_of
from raydpzv.data.public_list import PublicList
from raydpzv.data.sources import Request
from raydpzv.data.spelling import fraction, in_order, toml_table, whole
from raydpzv.data.table import MOST_WHOLE, Table, check_times
from raydpzv.data.table_files import (
    CsvForm,
    csv_columns,
    has_comma,
    other_form,
    parquet_columns,
    read_file,
)
from raydpzv.errors import DataError, suggest

if TYPE_CHECKING:
    from raydpzv.settings.sections_data import DataSection

_LISTED = 8
_NAMELESS = re.compile(r"\s*|Unnamed: [0-9]+|__index_level_[0-9]+__")
"""Headings of a frame's row numbers in CSV, read and written once more, and in Parquet."""
_NUMBER = re.compile(r"(?a:[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)|[+-]?(nan|inf|infinity)", re.I)
_UNKNOWN = ("other", "unknown", "none", "missing", "n/a")
"""Categories that a cell without a value may count as."""
_NOT_A_GAP = '; if words such as "NA" are values, list them in data.categories'
_STRANGER = "!a label that no other row has"
_SETTINGS = {"groups": "data.groups", "times": "data.time"}
"""Settings that name columns apart, but for those of users.columns."""


def read_csv(request: Request) -> Table:
    """Return a CSV file with a heading line as a table; see `_to_table`. Empty cells count as
    missing.

    data.skip_lines: lines before the heading, which are not looked at.
    """
    file, form = request.file, CsvForm.of(request.data)
    names = read_file(
        file, lambda: pyarrow.csv.open_csv(file, *form.options()).schema.empty_table(), form
    ).column_names
    if not set(names) >= set(request.data.target_columns) and (cure := other_form(file, form)):
        raise DataError(f'data.target: "{one_line(file.name)}" has no such column{cure}')
    only, named = _only(request, names), _named(request)
    if targets := _undecided(request, names):
        # by the type of labels alone it is known whether they are numbers
        (kind,) = csv_columns(file, form, only=targets).schema.types
        named |= {} if types.is_floating(kind) else dict.fromkeys(targets, frozenset())
    texts = {column: known for column, known in named.items() if names.count(column) == 1}
    return _to_table(csv_columns(file, form, texts, only), request, names)


def read_parquet(request: Request) -> Table:
    """Return a Parquet file as a table; see `_to_table`."""
    file = request.file
    names = read_file(file, lambda: pyarrow.parquet.read_schema(file).empty_table()).column_names
    return _to_table(parquet_columns(file, _only(request, names)), request, names)


def read_survival(request: Request) -> Table:
    """Return survival times of a Parquet file, or of a CSV file whatever else its suffix is; see
    `_to_table`.
    """
    return read_parquet(request) if request.file.suffix == ".parquet" else read_csv(request)


def _named(request: Request) -> dict[str, frozenset[str]]:
    """Return the columns whose cells are names, each with the words that its public list has.

    A name is text: read as a number, "7" and "007" would be one, and so would ids of 20 digits.
    """
    columns = [
        *_apart(request, "groups", "users", "silos").values(),
        *request.data.category_columns,
        *(request.data.dates or ()),
    ]
    classes = request.numbers is False and not request.data.time
    labels = request.data.target_columns if classes else ()
    lists: dict[str, PublicList | None] = dict.fromkeys((*columns, *labels))
    lists |= request.lists | dict.fromkeys(labels, request.labels)
    return {
        column: frozenset(map(str, known.values)) if known else frozenset()
        for column, known in lists.items()
    }


def _undecided(request: Request, names: list[str]) -> tuple[str, ...]:
    """Return the column of labels whose type decides whether they are numbers; () for none."""
    data, targets = request.data, request.data.target_columns
    decided = request.numbers is not None or len(targets) > 1 or bool(data.time)
    return () if decided or names.count(targets[0]) != 1 else targets


def _apart(request: Request, *roles: str) -> dict[str, str]:
    """Return the columns that are neither features nor the target, by what they are of.

    roles: what is asked for; none: all.
    """
    user, silo = request.owners or ("", "")
    named = {
        "groups": request.data.groups,
        "users": user,
        "silos": silo,
        "times": request.data.time,
    }
    return {role: column for role, column in named.items() if column and role in (roles or named)}


def _only(request: Request, names: list[str]) -> list[str] | None:
    """Return which columns of a file are read; None: all, also where a complaint about their names
    will follow.
    """
    used = {
        *request.data.target_columns,
        *request.data.category_columns,
        *(request.data.dates or ()),
        *request.data.constants,
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
    left = [n for n in names if n not in (*targets, *apart.values())]
    for setting, role, columns in (
        ("data.categories", "of categories", request.data.category_columns),
        ("data.dates", "of dates", request.data.dates or ()),
        ("data.missing", "of features", request.data.constants),
    ):
        for column in columns:
            _check_column(left, name, column, setting, role)
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
    remarks = list[str]()
    if values is not None:
        y, classes = np.zeros(len(values), np.int64), 1
    else:
        y, classes = (
            _events(data.column(targets[0]), name, targets[0])
            if time
            else _labels(data, names, request, remarks)
        )
    unused = _unused(left, name, request.holders) if request.holders else ()
    features = data.select([n for n in left if n not in unused])
    numbers = {
        role: _owners(data.column(column), f'column "{column}" of "{name}"', role, remarks)
        for role, column in apart.items()
        if role != "times"
    }
    if "groups" in numbers:
        _check_groups(numbers["groups"], name, apart["groups"])
    x, levels = _features(features, name, request, remarks)
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
        remarks=tuple(filter(None, remarks)),
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


def _owners(column: pa.ChunkedArray, where: str, role: str, remarks: list[str]) -> np.ndarray:
    """Return the numbers of groups, users or silos, counted from 0 in sorted order, int32 [D].

    They depend on which values there are, and not on the rows that have them.
    """
    texts = texts_of(column, where, owners=True)
    if texts.null_count:
        raise DataError(
            f"{where} names no {role[:-1]} in row {_first_missing(texts)} (counted from 0): fill "
            "it in or drop the row"
        )
    remarks.append(lookalikes(texts, where))
    return numbers_of(texts, natural=True)[0].astype(np.int32)


def _check_groups(numbers: np.ndarray, name: str, groups: str) -> None:
    if len(np.unique(numbers)) < 2:
        raise DataError(
            f'column "{groups}" of "{name}" holds one group, which leaves no test group: choose '
            "another column for "
            "data.groups or leave it out"
        )


def _first_missing(column: pa.ChunkedArray | pa.Array) -> int:
    return int(pc.index(column.is_null(), True).as_py())


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


def _labels(
    data: pa.Table, names: list[str], request: Request, remarks: list[str]
) -> tuple[np.ndarray, int]:
    """Return each label's number, int [D], and how many classes there are. names: the file's
    columns.
    """
    (target,), name = request.data.target_columns, one_line(request.file.name)
    column, where = data.column(target), f'column "{target}" of "{name}"'
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    allowed = (types.is_string, types.is_large_string, types.is_integer, types.is_boolean)
    if not any(is_kind(kind) for is_kind in allowed):
        raise _no_class(where, f"the type {kind}")
    texts = texts_of(column, where)
    if texts.null_count:
        raise DataError(
            f"{where} has no label in row {_first_missing(texts)} (counted from 0): fill it in "
            "or drop the row"
        )
    texts = _with_strangers(texts, request.strangers)
    remarks.append(lookalikes(texts, where))
    values, known = texts.dictionary.to_pylist(), request.labels
    if known is None and (number := fraction(values)):
        raise _no_class(where, f'numbers such as "{number}" (double)')
    if known is not None:
        if all(place < 0 for place in known.places(values)):
            raise DataError(
                f"data.target: {where} holds none of {known.setting}; name the column to "
                f"predict, or list its classes. The columns: {_listed(names)}"
            )
        return _placed(texts, known, where, remarks).astype(np.int64), len(known)
    if len(values) < 2:
        raise DataError(
            f'{where} holds the one value "{one_line(values[0])}": at least 2 classes are needed'
        )
    y, classes = numbers_of(texts, natural=True)
    return y.astype(np.int64), classes


def _no_class(where: str, what: str) -> DataError:
    return DataError(
        f"{where} has {what}; a target of classes is strings, whole numbers or true/false: choose "
        'another column, convert it, or learn numbers with model.loss = "squared_error"'
    )


def _with_strangers(labels: pa.DictionaryArray, rows: Sequence[int]) -> pa.DictionaryArray:
    """Return labels of which these rows have one that no other row has, sorted before all
    others.
    """
    if not rows:
        return labels
    texts = labels.to_pylist()
    stranger = str(int(in_order(set(texts))[0]) - 1) if whole(set(texts)) else _STRANGER
    for row in rows:
        texts[row] = stranger
    return pa.array(texts).dictionary_encode()


def _placed(
    texts: pa.DictionaryArray, known: PublicList, where: str, remarks: list[str]
) -> np.ndarray:
    """Return each value's place in the public list, float64 [D], NaN for none. Raises DataError for
    one outside.
    """
    values = texts.dictionary.to_pylist()
    places = np.array([*known.places(values), np.nan])
    found: np.ndarray = places[texts.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
    if (outside := np.flatnonzero(found < 0)).size:
        row = int(outside[0])
        raise known.refusal(texts[row].as_py(), row, where)
    remarks.append(known.remark(values, where))
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
    data: pa.Table, name: str, request: Request, remarks: list[str]
) -> tuple[np.ndarray, tuple[int, ...] | None]:
    """Return features [D, F], and how many levels each column of categories has where the table
    wants encoding.
    """
    if not data.num_columns:
        raise DataError(f'"{name}" has a target column and no features: add columns of numbers')
    found, levels, gaps = [], [], dict[str, np.ndarray]()
    lists, constants = request.lists, request.data.constants
    categories, dates = request.data.category_columns, request.data.dates or {}
    refused = request.data.missing != "mean"
    for place, (column, values) in enumerate(zip(data.column_names, data.columns, strict=True)):
        _check_heading(column, place, name)
        where, count, constant = f'column "{column}" of "{name}"', 0, constants.get(column)

        # names are filled as names: a category's place follows from its text
        if column in categories:
            texts = texts_of(values, where)
            remarks.append(lookalikes(texts, where))
            texts = texts if constant is None else filled_texts(texts, constant)
        if known := lists.get(column):
            codes, count = _placed(texts, known, where, remarks), len(known)
        elif column in categories:
            codes, count = numbers_of(texts, natural=False)
        else:
            day = dates.get(column)
            if types.is_null(values.type) and constant is not None:
                values = values.cast(pa.float64())
            codes = days_since(day, values, where) if day else _numbers(values, name, column)
            if constant is not None:
                codes = filled_numbers(codes, constant, column, day)

        if (empty := np.isnan(codes)).any():
            gaps[column] = empty
        found.append(codes)
        levels.append(count)

    if gaps and refused:
        raise _gaps_refusal(gaps, name, request)
    plain = not categories and refused
    return np.stack(found, axis=1), None if plain else tuple(levels)


def _gaps_refusal(gaps: Mapping[str, np.ndarray], name: str, request: Request) -> DataError:
    """The error for empty cells, with all columns that have some and the line to paste."""
    counts = [
        f'"{one_line(column)}" in {int(empty.sum())} of {len(empty)} rows (first in row '
        f"{int(np.argmax(empty))}, counted from 0)"
        for column, empty in gaps.items()
    ]
    found = {column: _likely_constant(column, request.data) for column in gaps}
    line = toml_table({**request.data.constants, **found})
    of_words = not gaps.keys().isdisjoint(request.data.category_columns)
    return DataError(
        f'"{name}" has cells without a value: {", ".join(counts)}; fill them in, drop the rows, or '
        f"say under [data] what such cells count as, by public constants: missing = {line}; without "
        f'privacy.mode = "proved" also: missing = "mean"{_NOT_A_GAP if of_words else ""}'
    )


def _likely_constant(column: str, data: DataSection) -> object:
    """Return a constant that follows from the scenario alone: a column's centre, or one of its
    list.
    """
    if column in data.category_columns:
        listed = data.public_categories.get(column, ())
        usual = (value for value in listed if str(value).lower() in _UNKNOWN)
        return data.other if data.other in listed else next(usual, "none")
    if column in (data.dates or {}):
        return (data.dates or {})[column]
    centre = data.centre.get(column, 0) if isinstance(data.centre, Mapping) else data.centre
    return centre if isinstance(centre, int | float) else 0


def nameless(heading: str) -> bool:
    """Return whether a column has no name but the one that a frame gives its row numbers."""
    return _NAMELESS.fullmatch(heading) is not None


def _check_heading(column: str, place: int, name: str) -> None:
    """Refuse the row numbers of a frame, which it writes without a name: they may tell the label."""
    if nameless(column):
        raise DataError(
            f'column {place} of "{name}" has no name ("{column}"), as a frame writes its row '
            "numbers, from which a model would learn: delete the column (to_csv(index=False)), "
            "give it a name, or leave it out of split.parties"
        )


def _numbers(column: pa.ChunkedArray, name: str, heading: str) -> np.ndarray:
    kind = column.type
    if types.is_integer(kind) and max(map(abs, _ends(column))) > MOST_WHOLE:
        raise DataError(
            f'column "{heading}" of "{name}" has whole numbers beyond 2^53, which floats round: '
            "leave out ids, or list values in data.categories"
        )
    if types.is_decimal(kind):  # by its text: the scale of the column is no matter of the cell
        column = column.cast(pa.string())
    if is_numeric(kind):
        return column.cast(pa.float64(), safe=False).to_numpy()  # missing values become NaN
    if types.is_null(kind):
        raise DataError(f'column "{heading}" of "{name}" is empty: fill it in or drop it')
    row, value = _least_number_like(column)
    such = f'such as "{one_line(value)}" in row {row} (counted from 0)'
    if types.is_temporal(kind):
        raise DataError(
            f'column "{heading}" of "{name}" holds dates or times, {such}: set data.dates, such '
            f"as {toml_table({heading: '2020-01-01'})} (days since that day), or drop the column"
        )
    hint = ', set data.decimal = ","' if has_comma(str(value)) else ""
    if is_date(str(value)):
        hint = f", or set data.dates, such as {toml_table({heading: '2020-01-01'})}"
    raise DataError(
        f'column "{heading}" of "{name}" holds what is no number, {such}: correct it{hint}, drop the '
        "column, or "
        "list its values in data.categories (column = [values]), or leave the cell empty and say "
        'what that counts as in data.missing; without privacy.mode = "proved" also: name the '
        "column alone in data.categories"
    )


def _ends(column: pa.ChunkedArray) -> tuple[int, int]:
    """Return the least and the largest whole number, 0 and 0 of gaps alone."""
    found = pc.min_max(column).as_py()
    return found["min"] or 0, found["max"] or 0


def _least_number_like(column: pa.ChunkedArray) -> tuple[int, object]:
    """Return row and value of the first text that is no number; where all are, of the first."""
    there = [(row, value) for row, value in enumerate(column.to_pylist()) if value is not None]
    for row, value in there:
        if not isinstance(value, str) or not _NUMBER.fullmatch(value.strip()):
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
