"""A user's own data: arrays, tensors, frames, Arrow tables, data sets, or a function that returns
them.
"""

# D rows, M clients, V views

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from raydpzv.data.arrays import numbered_labels
from raydpzv.data.files import one_line
from raydpzv.data.given_cells import filled_numbers
from raydpzv.data.own_arrays import columns_of, is_gap, numbers_of, objects_of, stacked
from raydpzv.data.own_rows import in_one_order, numbered_owners
from raydpzv.data.sources import Request, Source
from raydpzv.data.table import Split, Table, View, check_times
from raydpzv.errors import DataError, SpecError, suggest
from raydpzv.foreign import call, is_handle, resolve

if TYPE_CHECKING:
    from raydpzv.settings.sections_data import DataSection

_OWNED = ("clients", "users")
"""Parts of a table that say whose each row is."""
_LABELS = ("label", "labels", "target", "y")
"""Names of the label in rows that are tables of named values."""
_LARGEST = 2**63 - 1
AS_NAMED: Any = object()
"""Owners as the data name them."""
_WANTED = "(x, y), (x, y, x_test, y_test), a table with these names, or a data set of pairs"
_ONE_CLASS = (
    "wanted one class a row, a whole number from 0, true or false, or a text of data.classes; "
    'convert it to integers, or learn numbers with loss="squared_error" (model.loss)'
)


@dataclass(frozen=True)
class _Columns:
    """Columns with names."""

    column_names: Sequence[str]
    columns: Sequence[np.ndarray]


@dataclass(frozen=True, eq=False)
class OwnData:
    """Rows and labels, whole and of plain types.

    x: float32 or float64 [D, ...], or with `views` the arrays of several parties side by side [D,
    ΣF]; y: as `labels` has them.
    owners: whose each row of x is, int64 [D] in 0..M-1; features: the names of the columns of x, ()
    where they have none; users: the user that each row is about, int64 [D] in 0..U-1, where that is
    not its owner.
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray | None = None
    y_test: np.ndarray | None = None
    owners: np.ndarray | None = None
    features: tuple[str, ...] = ()
    views: tuple[View, ...] = ()
    users: np.ndarray | None = None


def source(name: str) -> Source:
    """Return a user's object as a data set: what `own_data` takes, or a function that returns it.

    The object is looked up when it is read: a report of a finished run needs no data.
    """

    def read(request: Request) -> Table | Split:
        given = resolve(name, "data.source")
        if callable(given) and not hasattr(given, "__len__"):
            given = call(given, request.data.options or {}, {}, "data.options")
        data = given if isinstance(given, OwnData) else own_data(given, numbers=request.numbers)
        return _tables(data, "your data" if is_handle(name) else name, request)

    return Source(
        "your own data", "your own program", read, takes=("missing", "other"), listed=True
    )


def own_data(given: Any, *, numbers: bool | None = False, owners: Any = AS_NAMED) -> OwnData:
    """Return a user's rows and labels as arrays. Raises DataError for what is none of the forms.

    numbers: whether labels are numbers rather than classes; None: as their type says. owners: each
    row's, None for none, in place of those that the data name.
    """
    parts = _parts(given)
    if owners is not AS_NAMED:
        parts["clients"] = owners
    if strange := parts.keys() - {"x", "y", "x_test", "y_test", *_OWNED}:
        raise DataError(f'data: wanted {_WANTED}, got the name "{min(strange)}"')
    if not {"x", "y"} <= parts.keys() or ("x_test" in parts) != ("y_test" in parts):
        raise DataError(
            f"data: wanted x and y, and both or none of x_test and y_test, got {', '.join(parts)}"
        )
    test = ("x_test", "y_test")
    parts = in_one_order({name: part for name, part in parts.items() if name not in test}) | (
        in_one_order({name: parts[name] for name in test if name in parts})
    )
    x = numbers_of(parts["x"], "x")
    whose = {
        name: numbered_owners(parts[name], len(x), name)
        for name in _OWNED
        if parts.get(name) is not None
    }
    return OwnData(
        x,
        labels(parts["y"], "y", numbers=numbers),
        numbers_of(parts["x_test"], "x_test") if "x_test" in parts else None,
        labels(parts["y_test"], "y_test", numbers=numbers) if "y_test" in parts else None,
        whose.get("clients"),
        columns_of(parts["x"]),
        users=whose.get("users"),
    )


def _parts(given: Any) -> dict[str, Any]:
    """Return the parts of data by name, in whatever form they come."""
    return next(read(given) for fits, read in CONTAINERS.values() if fits(given))


def _unknown(given: Any) -> dict[str, Any]:
    raise DataError(f"data: wanted {_WANTED}, got {type(given).__name__}")


def _is_data_set(given: Any) -> bool:
    indexed = hasattr(given, "__len__") and hasattr(given, "__getitem__")
    return indexed and not isinstance(given, np.ndarray)


def labels(given: Any, name: str, *, numbers: bool | None) -> np.ndarray:
    """Return labels as the objects that they are, texts, whole numbers or booleans [D]; or as
    numbers, float64 [D, T], as in `own_data`. Raises DataError.

    Labels of several kinds are an array of objects: none decides what another one is.
    """
    array = objects_of(given, name)
    if array.ndim and not len(array):
        raise DataError(f"data: {name} has no rows; give at least one record")
    kind, fractions = array.dtype.kind, _has_fractions(array)
    if numbers or (numbers is None and (array.ndim == 2 or fractions)):
        found = numbers_of(given, name)
        if found.ndim not in (1, 2) or not found.size:
            raise DataError(
                f"data: {name} is {array.dtype} of shape {found.shape}: wanted numbers, one a row "
                "or several, [D, T]"
            )
        return found.reshape(len(found), -1).astype(np.float64)
    if (
        array.ndim == 1
        and kind in "fO"
        and (gaps := [is_gap(label) for label in array]).count(True)
    ):
        raise DataError(
            f"data: {name} has no label in row {gaps.index(True)} (counted from 0), and in "
            f"{gaps.count(True)} of {len(gaps)} rows: fill it in or drop the row"
        )
    if array.ndim != 1 or kind not in "iubUTO" or not array.size:
        raise DataError(f"data: {name} is {array.dtype} of shape {array.shape}: {_ONE_CLASS}")
    return _classes(array, name)


def _has_fractions(array: np.ndarray) -> bool:
    """Return whether numbers, and these alone, are there, and one is no whole number by its type."""
    if array.dtype.kind != "O":
        return array.dtype.kind == "f"
    kinds = [type(label) for label in array.flat if not is_gap(label)]
    return all(issubclass(kind, Real | np.bool_) for kind in kinds) and not all(
        issubclass(kind, int | np.integer | np.bool_) for kind in kinds
    )


def _classes(array: np.ndarray, name: str) -> np.ndarray:
    """Return classes [D], each checked alone. Raises DataError for one that can be no class."""
    plain = array.tolist()
    for row, label in enumerate(plain if array.dtype.kind == "O" else ()):
        if not isinstance(label, str | int | np.integer | np.bool_):
            raise DataError(
                f'data: {name} has the label "{one_line(label):.80}" in row {row} (counted from '
                f"0), {type(label).__name__}: {_ONE_CLASS}"
            )
    plain = [label.item() if isinstance(label, np.generic) else label for label in plain]
    if any(isinstance(label, int) and abs(label) > _LARGEST for label in plain):
        raise DataError(
            f"data: {name} has whole numbers above {_LARGEST}: number the classes from 0"
        )
    kinds = set(map(type, plain))
    if len(kinds) > 1:
        return np.array(plain, dtype=object)
    return np.array(plain, np.int64) if kinds == {int} else np.array(plain)


def side_by_side(views: Mapping[str, Any]) -> tuple[np.ndarray, tuple[View, ...]]:
    """Return the parties' arrays as one [D, ΣF], and what each is. Raises DataError."""
    arrays = {name: numbers_of(value, f"the view of {name}") for name, value in views.items()}
    lengths = {name: len(array) if array.ndim else 1 for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"data: the views have {', '.join(f'{n} ({name})' for name, n in lengths.items())} "
            "rows: wanted the same records in the same order in each"
        )
    if not arrays:
        raise DataError("data: wanted the view of at least one party, got none")
    for name, array in arrays.items():
        if array.ndim < 2:
            raise DataError(
                f"data: the view of {name} has the shape {array.shape}: wanted one row a record, "
                "[D, ...]"
            )
    flat = [array.reshape(len(array), -1) for array in arrays.values()]
    return np.concatenate(flat, axis=1), tuple(
        View(name, array.shape[1:]) for name, array in arrays.items()
    )


def _pairs(data: Any) -> dict[str, Any]:
    """Read a map-style data set of (features, label) pairs whole, or of rows as named values."""
    try:
        rows = [data[i] for i in range(len(data))]
        if rows and isinstance(rows[0], Mapping):
            return _named_rows(rows)
        x, y = zip(*rows, strict=True)
        return {
            "x": stacked([numbers_of(row, "x", n) for n, row in enumerate(x)], "x"),
            "y": list(y),
        }
    except DataError:
        raise
    except Exception as error:  # a data set is the user's code
        text = f"{type(error).__name__}: {one_line(error)}"
        raise DataError(f"data: wanted {_WANTED}, got a {type(data).__name__} ({text})") from None


def _named_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parts of rows that are tables of named values, as Hugging Face's data sets have
    them: a label, and one array or several numbers.
    """
    names = list(rows[0])
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or set(row) != set(names):
            raise DataError(
                f"data: row {number} (counted from 0) has other names than row 0, "
                f"{', '.join(map(str, names))}: give each row the same"
            )
    y = [name for name in names if name in _LABELS]
    x = [name for name in names if name not in _LABELS]
    if len(y) != 1 or not x:
        raise DataError(
            f"data: rows have the names {', '.join(map(str, names))}: wanted one of "
            f"{', '.join(_LABELS)}, and the features"
        )
    columns = [
        stacked([numbers_of(row[name], f'"{name}"', n) for n, row in enumerate(rows)], name)
        for name in x
    ]
    wide = [name for name, column in zip(x, columns, strict=True) if column.ndim > 1]
    if wide and len(x) > 1:
        raise DataError(
            f'data: rows have several features, of which "{wide[0]}" is an array: wanted numbers '
            f"alone, or one array; keep it and {y[0]}"
        )
    labelled = [row[y[0]] for row in rows]
    return {"x": columns[0] if wide else _Columns(x, columns), "y": labelled}


CONTAINERS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], dict[str, Any]]]] = {
    "named parts": (lambda given: isinstance(given, Mapping), dict),
    "tuple": (
        lambda given: isinstance(given, tuple) and len(given) in (2, 4),
        lambda given: dict(zip(("x", "y", "x_test", "y_test"), given, strict=False)),
    ),
    "data set": (_is_data_set, _pairs),
    "none": (lambda given: True, _unknown),
}
"""Forms of whole data: whether something is of one, and how its parts are read. The first that fits
is its form.
"""


def _filled(x: np.ndarray, features: Sequence[str], data: DataSection) -> np.ndarray:
    """Return features with public constants in place of gaps. Raises SpecError for one that does
    not fit.
    """
    if data.missing == "mean":
        raise SpecError(
            'data.missing: wanted a table of constants by column for your own data, got "mean"'
        )
    x = x.copy() if data.constants else x
    for column, constant in data.constants.items():
        if column not in features:
            raise SpecError(
                f'data.missing: your data have no column "{column}". {suggest(column, features)}'
                "Constants are for columns with names, as frames have them"
            )
        for place in (n for n, feature in enumerate(features) if feature == column):
            x[:, place] = filled_numbers(x[:, place], constant, column)
    return x


def _tables(data: OwnData, name: str, request: Request) -> Table | Split:
    parts = {"y": data.y} | ({} if data.y_test is None else {"y_test": data.y_test})
    facts: dict[str, Any] = {"views": data.views} if data.views else {"features": data.features}
    x = _filled(data.x, data.features, request.data)
    x_test = None if data.x_test is None else _filled(data.x_test, data.features, request.data)
    owned: dict[str, Any] = {"silos": data.owners, "users": data.users}
    test_name, nobody = f"{name}, test rows", dict[str, Any]()
    if data.y.dtype.kind == "f":
        of = _of_times if request.loss == "cox" else _of_numbers
        tables = [
            Table(title, rows, **of(y, part), **whose, **facts)
            for title, part, rows, y, whose in (
                (name, "y", x, data.y, owned),
                (test_name, "y_test", x_test, data.y_test, nobody),
            )
            if rows is not None and y is not None
        ]
        return tables[0] if len(tables) == 1 else Split(*tables)
    if request.labels is None and any(isinstance(label, str) for label in data.y.tolist()):
        raise DataError(
            'data: y holds text: list the classes, such as classes=["ill", "well"] (data.classes)'
        )
    y, classes = numbered_labels(parts, request, name)
    train = Table(name, x, y["y"], classes, **owned, **facts)
    if x_test is None:
        return train
    return Split(train, Table(test_name, x_test, y["y_test"], classes, **facts))


def _of_numbers(y_DT: np.ndarray, part: str) -> dict[str, Any]:
    return {"y": np.zeros(len(y_DT), np.int64), "classes": 1, "values": y_DT}


def _of_times(y_DT: np.ndarray, part: str) -> dict[str, Any]:
    """Return survival times and events as a table has them; part: their name among the data. Raises
    DataError.
    """
    if y_DT.shape[1] != 2 or not np.isin(y_DT[:, 1], (0, 1)).all():
        raise DataError(
            f'data: model.loss = "cox" wants {part} of a time and an event a row, [{len(y_DT)}, '
            "2], an event "
            f"being 1, or 0 for censored, got {list(y_DT.shape)}{_wrong_event(y_DT)}"
        )
    check_times(y_DT[:, 0], f"data: column 0 of {part}")
    return {"y": y_DT[:, 1].astype(np.int64), "classes": 2, "times": y_DT[:, 0]}


def _wrong_event(y_DT: np.ndarray) -> str:
    if y_DT.shape[1] != 2:
        return ""
    row = int(np.flatnonzero(~np.isin(y_DT[:, 1], (0, 1)))[0])
    return f" with the event {y_DT[row, 1]:g} in row {row} (counted from 0)"
