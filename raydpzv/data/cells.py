"""Tables of text files as they are published: cells as text, and numbers with line and column of
what is none.
"""

# D rows, F columns

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from raydpzv.data.files import missing, one_line, unreadable
from raydpzv.data.sources import Request
from raydpzv.errors import DataError


@dataclass(frozen=True, eq=False)
class Cells:
    """A file's cells as text, by column. first: the line of the first row; home: where the file
    comes from.
    """

    path: Path
    columns: dict[str, pa.Array]
    first: int
    home: str

    @property
    def rows(self) -> int:
        """D."""
        return len(next(iter(self.columns.values())))

    def texts(self, column: str) -> np.ndarray:
        """Return a column without the blanks about its cells, str [D]."""
        found: np.ndarray = pc.utf8_trim_whitespace(self.columns[column]).to_numpy(
            zero_copy_only=False
        )
        return found.astype(str)

    def numbers(self, columns: Sequence[str], *, gap: str | None = None) -> np.ndarray:
        """Return columns of finite numbers, float64 [D, F]; NaN where a cell is `gap`. Raises
        DataError.
        """
        return np.stack([self._numbers(column, gap) for column in columns], axis=1)

    def codes(
        self, column: str, names: Mapping[str, float], *, gap: str | None = None
    ) -> np.ndarray:
        """Return a column's texts by the numbers that they stand for, float64 [D]; NaN for a gap.
        Raises DataError.
        """
        known = names if gap is None else {**names, gap: np.nan}
        texts = self.texts(column)
        if (wrong := np.flatnonzero(~np.isin(texts, list(known)))).size:
            raise self.wrong(int(wrong[0]), column, f"one of {', '.join(names)}")
        return np.array([known[text] for text in texts])

    def wrong(self, row: int, column: str, wanted: str) -> DataError:
        """The error for a cell that is not what was wanted."""
        return DataError(
            one_line(
                f'"{self.path}", line {self.first + row}, column "{column}": wanted {wanted}, got '
                f'"{self.columns[column][row].as_py()}"; mend it, or get the file again from '
                f"{self.home}"
            )
        )

    def _numbers(self, column: str, gap: str | None) -> np.ndarray:
        cells = pc.utf8_trim_whitespace(self.columns[column])
        if gap is not None:
            cells = pc.if_else(pc.equal(cells, gap), pa.scalar(None, pa.string()), cells)
        try:
            found: np.ndarray = pc.cast(cells, pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            row = next(row for row, cell in enumerate(cells.to_pylist()) if not _is_number(cell))
            raise self.wrong(row, column, "a number") from None
        infinite = ~np.isfinite(found) & cells.is_valid().to_numpy(zero_copy_only=False)
        if infinite.any():
            raise self.wrong(int(np.argmax(infinite)), column, "a finite number")
        return found


def _is_number(cell: str | None) -> bool:
    try:
        return cell is None or pc.cast(pa.array([cell]), pa.float64()) is not None
    except pa.ArrowInvalid:
        return False


def read_cells(
    request: Request, name: str, columns: Sequence[str], *, headed: bool = True
) -> Cells:
    """Return the cells of the file `name` in the data set's folder.

    columns: those that it must have, which name them where there is no heading. Raises DataError
    for a missing file and other columns.
    """
    path, home = request.folder / name, request.home
    if not path.is_file():
        raise missing(f'data set "{request.data.source}"', [name], request.folder, home)
    try:
        heading = _heading(path) if headed else list(columns)
        options = pyarrow.csv.ReadOptions(
            column_names=heading, skip_rows=int(headed), use_threads=False
        )
        kinds = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(heading, pa.string()))
        table = pyarrow.csv.read_csv(path, read_options=options, convert_options=kinds)
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error) as error:
        raise unreadable(path, error, home) from error
    if lacking := [column for column in columns if column not in heading]:
        raise DataError(
            one_line(
                f'"{path}" has no column {", ".join(lacking)}; its columns: {", ".join(heading)}: '
                "get it again from "
                f"{home}"
            )
        )
    return Cells(path, {c: table.column(c).combine_chunks() for c in heading}, 1 + headed, home)


def _heading(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file), [])
