"""Own tables as files: CSV however it is written, and Parquet, as columns of Arrow.

What cells mean belongs to `raydpzv.data.tabular`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from pyarrow import types

from raydpzv.data.files import no_file, one_line
from raydpzv.errors import DataError

if TYPE_CHECKING:
    from raydpzv.settings.sections_data import DataSection

_LONGEST = 2**16
"""Characters of a line that are looked at for separators."""
_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_GAPS = frozenset(pyarrow.csv.ConvertOptions().null_values)
"""Words of a cell that mean that there is no value."""


class CsvForm(NamedTuple):
    """How a CSV file is written."""

    separator: str = ","
    decimal: str = "."
    skip_lines: int = 0
    """Before the heading."""

    @classmethod
    def of(cls, data: DataSection) -> CsvForm:
        """Return what a scenario says of it."""
        return cls(data.separator or ",", data.decimal or ".", data.skip_lines or 0)

    def options(self, **convert: Any) -> tuple[Any, Any, Any]:
        """Return Arrow's options to read, parse and convert; convert: others of the last."""
        return (
            pyarrow.csv.ReadOptions(skip_rows=self.skip_lines),
            pyarrow.csv.ParseOptions(delimiter=self.separator),
            pyarrow.csv.ConvertOptions(decimal_point=self.decimal, **convert),
        )


def read_columns(file: Path, form: CsvForm) -> pa.Table:
    """Return the columns of a Parquet file, or of a CSV file whatever else its suffix is, as they
    are.
    """
    return parquet_columns(file) if file.suffix == ".parquet" else csv_columns(file, form)


def written_cells(file: Path, form: CsvForm) -> pa.Table | None:
    """Return the columns of a CSV file as texts, each cell as it is written; None for Parquet."""
    if file.suffix == ".parquet":
        return None
    return csv_columns(file, form, texts=dict.fromkeys(csv_columns(file, form).column_names, _GAPS))


def likely_form(file: Path) -> CsvForm:
    """Return how a file seems to be written; of a Parquet file nothing is to be said."""
    form = CsvForm()
    if file.suffix == ".parquet":
        return form
    if separator := _other_separator(file, form):
        form = form._replace(separator=separator)
    texts = (
        c.unique().drop_null() for c in csv_columns(file, form).columns if types.is_string(c.type)
    )
    if any(_of_commas(c.to_pylist()) for c in texts):
        form = form._replace(decimal=",")
    return form


def csv_columns(
    file: Path,
    form: CsvForm,
    texts: Mapping[str, frozenset[str]] | None = None,
    only: Sequence[str] | None = None,
) -> pa.Table:
    """Return a CSV file's columns. only: those to read, None: all.

    texts: columns that are not parsed, by name, each with the words that are values there though
    they mean a gap elsewhere, such as "NA".
    """
    texts = texts or {}

    def columns(only: Sequence[str] | None, values: frozenset[str]) -> pa.Table:
        read, parse, convert = form.options(
            null_values=[word for word in _GAPS if word not in values],
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,  # databases and pandas quote empty cells too
            column_types=dict.fromkeys(texts, pa.string()),
            include_columns=only,
        )
        return read_file(
            file,
            lambda: pyarrow.csv.read_csv(file, read, parse, convert),
            form,
        )

    found = columns(only, frozenset())
    words = {column: known & _GAPS for column, known in texts.items() if known & _GAPS}
    for values in set(words.values()):
        apart = columns([column for column in words if words[column] == values], values)
        for column in apart.column_names:
            place = found.column_names.index(column)
            found = found.set_column(place, column, apart.column(column))
    return found


def parquet_columns(file: Path, only: Sequence[str] | None = None) -> pa.Table:
    """Return a Parquet file's columns. only: those to read, None: all."""
    return read_file(file, lambda: pyarrow.parquet.read_table(file, columns=only))


def read_file(file: Path, read: Callable[[], pa.Table], form: CsvForm | None = None) -> pa.Table:
    """Return what `read` returns. form: of a CSV file. Raises DataError for a file that is none."""
    if not file.is_file():
        raise no_file(file)
    try:
        table = read()
        table.column_names  # noqa: B018  (decodes the heading, which fails where it is not UTF-8)
        return table
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        cure = ": save it as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        cure = cure or (form and other_form(file, form)) or ": mend or re-export it"
        raise DataError(one_line(f'"{file}" cannot be read: {error}{cure}')) from error


def other_form(file: Path, form: CsvForm) -> str:
    """Return which setting may be wrong where a file cannot be read, or lacks a column."""
    if separator := _other_separator(file, form):
        return (
            f". The heading is one column with {json.dumps(separator)} in it: set data.separator = "
            f"{json.dumps(separator)}, and data.decimal if numbers have a comma"
        )
    return ""


def _other_separator(file: Path, form: CsvForm) -> str:
    """Return what seems to separate the names of a heading that is one name as it is read; "" for
    none.
    """
    if not file.is_file():
        return ""
    with file.open(encoding="utf-8", errors="replace", newline="") as lines:
        heading = [lines.readline(_LONGEST) for _ in range(form.skip_lines + 1)][-1]
    others = "" if form.separator in heading else ";\t|,"
    return next((character for character in others if character in heading), "")


def _of_commas(texts: Sequence[str]) -> bool:
    """Return whether texts are numbers, of which some have a comma before their fraction."""
    fractions = set(filter(has_comma, texts))
    return bool(fractions) and all(map(_WHOLE.fullmatch, set(texts) - fractions))


def has_comma(text: str) -> bool:
    """Return whether a text is a number with a comma before its fraction."""
    return _COMMA.fullmatch(text.strip()) is not None
