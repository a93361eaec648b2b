"""Arrays as users hand them over, read cell by cell: no cell decides what another one is.

Rows are numbers, float32 where that holds every value of the array's declared type, else float64.
A gap is NaN, whatever the form calls it. Labels and owners stay the objects that they are. What
rows and labels mean belongs to `raydpzv.data.own_data`.
"""

# D rows

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from raydpzv.data.files import one_line
from raydpzv.data.table import MOST_WHOLE
from raydpzv.errors import DataError

_WANTED = "wanted numbers; encode text and categories first"


def numbers_of(value: Any, name: str, row: int | None = None) -> np.ndarray:
    """Return an array's numbers, float32 or float64; of a table those of its columns, [D, F].

    Each cell is read alone: true is 1, a gap is NaN, and a text is refused, also that of a number.
    name: what it is, for errors; row: which row of that, None: it is all rows. Raises DataError.
    """
    return _floats(_cells(value, name), name, row)


def objects_of(value: Any, name: str) -> np.ndarray:
    """Return labels or owners as the objects that were handed over, [D] or [D, T].

    An array of one type keeps it; values of several types are an array of objects. A gap is None or
    NaN. Raises DataError.
    """
    if _is_table(value):
        columns = [objects_of(column, name) for column in _columns_of(value)]
        found = stacked(columns, name, axis=1)
    elif _is_list(value):
        found = _object_array([_plain(item, name) for item in value], name)
    elif hasattr(value, "to_pylist"):  # Arrow's own array would be one of floats for a gap
        found = _object_array(value.to_pylist(), name)
    else:
        found = _cells(value, name)
    return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found


def items_of(value: Any, name: str) -> list[Any]:
    """Return owners or ids as the objects that were handed over. Raises DataError, or TypeError for
    what is no list.
    """
    if _is_list(value):
        return [_plain(item, name) for item in value]
    return list(objects_of(value, name).tolist())


def is_gap(cell: Any) -> bool:
    """Return whether a cell is none: None, NaN, NaT, pandas' NA, or masked."""
    try:
        return cell is None or cell is np.ma.masked or bool(cell != cell)
    except ValueError:  # an array
        return False
    except (TypeError, ArithmeticError):  # NA is neither true nor false
        return True


def columns_of(value: Any) -> tuple[str, ...]:
    """Return the names of a table's columns, () of an array."""
    names = getattr(value, "column_names", None)
    names = getattr(value, "columns", None) if names is None else names
    return () if names is None else tuple(map(str, names))


def stacked(arrays: list[np.ndarray], name: str, axis: int = 0) -> np.ndarray:
    """Return arrays of one shape as one. Raises DataError."""
    try:
        return np.stack(arrays, axis=axis)
    except ValueError as error:
        raise DataError(
            f"data: {name} is no array ({error}): wanted rows of the same shape"
        ) from None


def _cells(value: Any, name: str) -> np.ndarray:
    """Return an array's cells before they are numbers. Raises DataError."""
    read = next(read for fits, read in FORMS.values() if fits(value))
    try:
        return read(value, name)
    except DataError:
        raise
    except Exception as error:  # each library has its own for arrays that it cannot convert
        raise DataError(
            f"data: {name} is no array ({one_line(error)}): wanted rows of the same shape"
        ) from None


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_table(value: Any) -> bool:
    return hasattr(value, "columns") or hasattr(value, "column_names")


def _list(value: Any, name: str) -> np.ndarray:
    """Read a list of numbers, or of arrays of numbers."""
    if _holds_arrays(value):
        return stacked([numbers_of(item, name, row) for row, item in enumerate(value)], name)
    found = np.asarray(value)
    # beside a fraction, a whole number has already lost the digits that floats do not hold
    whole = found.dtype.kind != "f" or not (np.abs(found) >= MOST_WHOLE).any()
    return found if found.dtype.kind in "fiub" and whole else _object_array(value, name)


def _holds_arrays(value: Any) -> bool:
    """Return whether an item of a list, or of a list in it, is an array of any form."""
    kinds = set(map(type, value))
    if any(_is_array(kind) for kind in kinds):
        return True
    return any(map(_holds_arrays, filter(_is_list, value))) if kinds & {list, tuple} else False


def _is_array(kind: type) -> bool:
    return hasattr(kind, "__array__") and not issubclass(kind, np.generic)


def _object_array(value: Any, name: str) -> np.ndarray:
    found = np.array(value, dtype=object)
    if any(map(_is_list, found.flat)):
        raise DataError(
            f"data: {name} is no array (its rows differ in length): wanted rows of the same shape"
        )
    return found


def _plain(item: Any, name: str) -> Any:
    """Return an item of a list as it is; of an array its own items."""
    if _is_list(item):
        parts = [_plain(each, name) for each in item]
        return tuple(parts) if isinstance(item, tuple) else parts
    return _cells(item, name).tolist() if _is_array(type(item)) else item


def _masked(value: Any, name: str) -> np.ndarray:
    found, gaps = np.asarray(value), np.ma.getmaskarray(value)
    if not gaps.any():
        return found
    found = found.astype(np.float64 if found.dtype.kind in "fiub" else object)
    found[gaps] = np.nan
    return found


def _tensor(value: Any, name: str) -> np.ndarray:
    found = value.detach().cpu()
    found = found.dequantize() if found.is_quantized else found.to_dense()
    if found.is_floating_point() and found.element_size() < 4:
        found = found.float()  # numpy knows one kind of halves, torch several
    array: np.ndarray = found.resolve_conj().resolve_neg().numpy()
    return array


def _table(value: Any, name: str) -> np.ndarray:
    """Read each column alone: of all together, one column's type would be the others' too."""
    columns = [
        _floats(_cells(column, name), f'column "{title}" of {name}')
        for title, column in zip(columns_of(value), _columns_of(value), strict=True)
    ]
    return stacked(columns, name, axis=1)


def _columns_of(value: Any) -> list[Any]:
    """Return a table's columns, of pandas, polars or Arrow; of others those of its one array."""
    if hasattr(value, "iloc"):
        return [value.iloc[:, place] for place in range(value.shape[1])]
    found = list(value.get_columns() if hasattr(value, "get_columns") else value.columns)
    return found if any(map(_is_array, map(type, found))) else list(value.to_numpy().T)


Fits = Callable[[Any], bool]
Read = Callable[[Any, str], np.ndarray]
FORMS: dict[str, tuple[Fits, Read]] = {
    "masked array": (lambda value: isinstance(value, np.ma.MaskedArray), _masked),
    "list": (_is_list, _list),
    "tensor": (lambda value: hasattr(value, "detach"), _tensor),
    "table": (_is_table, _table),
    "series": (lambda value: hasattr(value, "iloc"), lambda value, name: value.to_numpy()),
    "sparse matrix": (lambda value: hasattr(value, "toarray"), lambda value, name: value.toarray()),
    "array": (lambda value: True, lambda value, name: np.asarray(value)),
}
"""Forms of arrays: whether a value is of one, and how its cells are read. The first that fits is
its form.
"""


def _floats(cells: np.ndarray, name: str, row: int | None = None) -> np.ndarray:
    """Return cells as numbers. Raises DataError for one that is none."""
    kind = cells.dtype.kind
    if kind in "OUT":
        found = np.empty(cells.shape)
        for place, cell in enumerate(cells.flat):
            if fault := _fault(cell):
                raise DataError(
                    f"data: {name} holds {fault[0]}{_where(cells, place, row)}, {fault[1]}"
                )
            found.flat[place] = np.nan if is_gap(cell) else float(cell)
        return found
    if kind not in "fiub":
        raise DataError(f"data: {name} is {cells.dtype} of shape {cells.shape}: {_WANTED}")
    if kind in "iu" and cells.size and max(int(cells.max()), -int(cells.min())) > MOST_WHOLE:
        return _floats(cells.astype(object), name, row)  # which says which cell is too large
    exact = np.float32 if np.can_cast(cells.dtype, np.float32) else np.float64
    return cells.astype(exact, copy=False)


def _fault(cell: Any) -> tuple[str, str] | None:
    """Return what is wrong with a cell that floats cannot be, in words; None: nothing."""
    if is_gap(cell):
        return None
    if not isinstance(cell, Real | Decimal | np.bool_):
        return f'"{one_line(cell):.80}"', f"which is no number: {_WANTED}"
    cure = "which floats round: subtract a constant, or leave out ids"
    endless = isinstance(cell, Decimal) and not cell.is_finite()
    if endless or isinstance(cell, float | np.floating):  # it has no more digits than it shows
        return None
    whole: Any = cell
    if whole % 1 == 0 and abs(whole) > MOST_WHOLE:
        return "a whole number beyond 2^53", cure
    try:
        float(cell)
    except OverflowError:
        return "a number beyond all floats", cure
    return None


def _where(cells: np.ndarray, place: int, row: int | None) -> str:
    """Return where a cell is, in words; row: of which row the cells are, None: of all."""
    places = [int(n) for n in np.unravel_index(place, cells.shape)] if cells.ndim else []
    if row is not None or not places:
        places = [row or 0, *places]
    row, *rest = places
    column = f", column {rest[0]}" if len(rest) == 1 else f", feature {tuple(rest)}"
    return f" in row {row} (counted from 0){column if rest else ''}"
