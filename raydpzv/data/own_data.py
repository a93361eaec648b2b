"""A user's own data: arrays, tensors, frames, Arrow tables, data sets, or a function that returns
them.
"""

# D rows, M clients, V views

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raydpzv.data.arrays import numbered_labels
from raydpzv.data.sources import Request, Source
from raydpzv.data.table import MOST_TOKENS, Split, Table, View, check_times
from raydpzv.errors import DataError
from raydpzv.foreign import call, is_handle, resolve

_Y = ""
"""The labels among the parts that ids join."""
_OWNED = ("clients", "users")
"""Parts of a table that say whose each row is."""
_FORMS = "(x, y), (x, y, x_test, y_test), a table with these names, or a data set of pairs"


@dataclass(frozen=True, eq=False)
class OwnData:
    """Rows and labels, whole and of plain types.

    x: numbers [D, ...], or with `views` the arrays of several parties side by side [D, ΣF]; y:
    whole numbers or texts [D], or numbers for labels, float64 [D, T].
    owners: whose each row of x is, int64 [D] in 0..M-1; features: the names of flat columns; users:
    the user that each row is about, int64 [D] in 0..U-1, where that is not its owner.
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

    return Source("your own data", "your own program", read, takes=("other",), listed=True)


def own_data(given: Any, *, numbers: bool | None = False) -> OwnData:
    """Return a user's rows and labels as arrays. Raises DataError for what is none of the forms.

    numbers: whether labels are numbers rather than classes; None: as their type says.
    """
    if isinstance(given, Mapping):
        parts = dict(given)
    elif isinstance(given, tuple) and len(given) in (2, 4):
        parts = dict(zip(("x", "y", "x_test", "y_test"), given, strict=False))
    elif (
        hasattr(given, "__len__")
        and hasattr(given, "__getitem__")
        and not isinstance(given, np.ndarray)
    ):
        parts = _pairs(given)
    else:
        raise DataError(f"data: wanted {_FORMS}, got {type(given).__name__}")
    if strange := parts.keys() - {"x", "y", "x_test", "y_test", *_OWNED}:
        raise DataError(f'data: wanted {_FORMS}, got the name "{min(strange)}"')
    if not {"x", "y"} <= parts.keys() or ("x_test" in parts) != ("y_test" in parts):
        raise DataError(
            f"data: wanted x and y, and both or none of x_test and y_test, got {', '.join(parts)}"
        )
    features = _columns(parts["x"])
    arrays = {name: as_array(value, name) for name, value in parts.items() if name not in _OWNED}
    owners, users = (
        numbered_owners(parts[name], len(arrays["x"]), name)
        if parts.get(name) is not None
        else None
        for name in _OWNED
    )
    return OwnData(
        arrays["x"],
        labels(arrays["y"], "y", numbers=numbers),
        arrays.get("x_test"),
        labels(arrays["y_test"], "y_test", numbers=numbers) if "y_test" in arrays else None,
        owners,
        features,
        users=users,
    )


def as_array(value: Any, name: str) -> np.ndarray:
    """Return an array; of a frame or an Arrow table its columns. Raises DataError for x that are no
    numbers.
    """
    if hasattr(value, "to_pylist") and hasattr(value, "column_names"):
        value = np.stack([np.asarray(column) for column in value.columns], axis=1)
    elif hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    elif hasattr(value, "to_numpy"):
        value = value.to_numpy()
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(
            f"data: {name} is no array ({error}): wanted rows of the same shape"
        ) from None
    if array.dtype.kind not in "fiub" and not name.startswith("y"):
        raise DataError(
            f"data: {name} is {array.dtype} of shape {array.shape}: wanted numbers; encode text "
            "and categories first"
        )
    return array


def labels(array: np.ndarray, name: str, *, numbers: bool | None) -> np.ndarray:
    """Return labels as whole numbers or texts [D], or as numbers float64 [D, T]; as in `own_data`.
    Raises DataError.
    """
    if array.ndim and not len(array):
        raise DataError(f"data: {name} has no rows; give at least one record")
    several = array.ndim == 2 and array.shape[1] > 1
    if numbers or (numbers is None and (several or array.dtype.kind == "f")):
        if array.ndim not in (1, 2) or array.dtype.kind not in "fiub" or not array.size:
            raise DataError(
                f"data: {name} is {array.dtype} of shape {array.shape}: wanted numbers, one a row "
                "or several, [D, T]"
            )
        return array.reshape(len(array), -1).astype(np.float64)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    array = array.astype(str) if array.dtype.kind == "O" else array
    if array.ndim != 1 or array.dtype.kind not in "iubU" or not array.size:
        raise DataError(
            f"data: {name} is {array.dtype} of shape {array.shape}: wanted one class a row, a "
            "whole number from 0 or a "
            "text of data.classes; convert it to integers, or learn numbers with "
            'loss="squared_error" (model.loss)'
        )
    if array.dtype.kind == "u" and int(array.max()) > MOST_TOKENS:
        raise DataError(
            f"data: {name} has whole numbers above {MOST_TOKENS}: number the classes from 0"
        )
    return array if array.dtype.kind == "U" else array.astype(np.int64)


def side_by_side(views: Mapping[str, Any]) -> tuple[np.ndarray, tuple[View, ...]]:
    """Return the parties' arrays as one [D, ΣF], and what each is. Raises DataError."""
    arrays = {name: as_array(value, f"the view of {name}") for name, value in views.items()}
    lengths = {name: len(array) if array.ndim else 1 for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"data: the views have {', '.join(f'{n} ({name})' for name, n in lengths.items())} "
            "rows: wanted the same records in the same order in each"
        )
    found = []
    for name, array in arrays.items():
        whole = array.dtype.kind in "iu"
        if array.ndim < 2:
            raise DataError(
                f"data: the view of {name} has the shape {array.shape}: wanted one row a record, "
                "[D, ...]"
            )
        if whole and array.size and max(abs(int(array.min())), abs(int(array.max()))) > MOST_TOKENS:
            raise DataError(
                f"data: the view of {name} has whole numbers above {MOST_TOKENS}: wanted smaller "
                "ones"
            )
        found.append(View(name, array.shape[1:], whole))
    if not found:
        raise DataError("data: wanted the view of at least one party, got none")
    flat = [array.reshape(len(array), -1).astype(np.float32) for array in arrays.values()]
    return np.concatenate(flat, axis=1), tuple(found)


def by_ids(views: Any, y: Any, ids: Any) -> tuple[Any, np.ndarray]:
    """Return the records that all views have, in the order of the first view: views in their form,
    and labels.

    ids: of each view's records, by the views' names or in order, then those of the labels
    ("labels"); without the last the labels are in the order of the first view. A warning says how
    many records are left out. Raises DataError for ids that are missing or that a view has twice.
    """
    named = isinstance(views, Mapping)
    parts = {name: as_array(view, f"the view of {name}") for name, view in _numbered(views)} | {
        _Y: as_array(y, "y")
    }
    given: dict[Any, Any] = dict(_numbered(ids))
    if len(given) == len(parts):
        given[_Y] = given.pop("labels" if isinstance(ids, Mapping) else str(len(parts) - 1), None)
    given.setdefault(_Y, next(iter(given.values()), None))
    if given.keys() != parts.keys() or any(value is None for value in given.values()):
        listed = ", ".join(name for name in parts if name is not _Y)
        got = ", ".join(
            str(name) for name, value in given.items() if name is not _Y and value is not None
        )
        raise DataError(
            f"ids: wanted an entry for each view, {listed}, in the form of views, got {got}; the "
            "labels' own come last "
            'in a list, in a table as "labels"'
        )
    rows = {
        name: _rows_of(given[name], len(array), name or "labels") for name, array in parts.items()
    }
    first = next(iter(rows.values()))
    common = [each for each in first if all(each in found for found in rows.values())]
    if not common:
        raise DataError(
            "ids: no record is in every view; give ids of one kind in each, all numbers or all "
            "texts"
        )
    if lost := len(set().union(*rows.values())) - len(common):
        warnings.warn(
            f"ids: {lost} records are not in every view and are left out", UserWarning, stacklevel=3
        )
    arrays = {name: array[[rows[name][each] for each in common]] for name, array in parts.items()}
    labelled = arrays.pop(_Y)
    return arrays if named else list(arrays.values()), labelled


def _numbered(values: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(values, Mapping):
        return values.items()
    if not isinstance(values, list | tuple):
        raise DataError(
            f"ids: wanted a list or a table, one entry for each view, got {type(values).__name__}"
        )
    return ((str(number), value) for number, value in enumerate(values))


def _rows_of(ids: Any, many: int, name: str) -> dict[Hashable, int]:
    """Return the row of each id. Raises DataError."""
    listed = list(ids.tolist() if hasattr(ids, "tolist") else ids)
    if len(listed) != many:
        raise DataError(
            f"ids: wanted one for each of the {many} records of {name}, got {len(listed)}"
        )
    if absent := sum(each is None or each != each or each == "" for each in listed):
        raise DataError(
            f"ids: {absent} of the {many} records of {name} have none; delete them or give them ids"
        )
    try:
        found = {each: row for row, each in enumerate(listed)}
    except TypeError as error:
        raise DataError(
            f"ids: wanted a number or a text for each record of {name} ({error})"
        ) from None
    if twice := many - len(found):
        raise DataError(
            f"ids: {twice} of the {many} records of {name} repeat an id; keep one record for each "
            "id"
        )
    return found


def numbered_owners(
    owners: Sequence[Hashable] | np.ndarray, rows: int, name: str = "clients"
) -> np.ndarray:
    """Return each row's owner, int64 [D], numbered in the order in which owners first appear. name:
    their part's.
    """
    number: dict[Hashable, int] = {}
    try:
        listed = list(owners.tolist() if hasattr(owners, "tolist") else owners)
        found = [number.setdefault(owner, len(number)) for owner in listed]
    except TypeError as error:
        raise DataError(
            "clients: wanted how many there are, or the owner of each row, a number or a text "
            f"({error})"
        ) from None
    if len(found) != rows:
        raise DataError(f"{name}: wanted one owner a row, {rows}, got {len(found)}")
    return np.array(found, np.int64)


def _columns(x: Any) -> tuple[str, ...]:
    names = getattr(x, "column_names", None)
    names = getattr(x, "columns", None) if names is None else names
    return () if names is None else tuple(map(str, names))


def _pairs(data: Any) -> dict[str, Any]:
    """Read a map-style data set of (features, label) pairs whole."""
    try:
        pairs = [data[i] for i in range(len(data))]
        x, y = zip(*pairs, strict=True)
        rows = [as_array(row, "x") for row in x]
        return {"x": np.stack(rows), "y": np.stack([as_array(label, "y") for label in y])}
    except DataError:
        raise
    except Exception as error:  # a data set is the user's code
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise DataError(f"data: wanted {_FORMS}, got a {type(data).__name__} ({text})") from None


def _tables(data: OwnData, name: str, request: Request) -> Table | Split:
    parts = {"y": data.y} | ({} if data.y_test is None else {"y_test": data.y_test})
    whole = data.x.dtype.kind in "iu"
    facts: dict[str, Any] = {"features": data.features, "integers": whole, "views": data.views}
    owned: dict[str, Any] = {"silos": data.owners, "users": data.users}
    test_name, nobody = f"{name}, test rows", dict[str, Any]()
    if data.y.dtype.kind == "f":
        of = _of_times if request.loss == "cox" else _of_numbers
        tables = [
            Table(title, x, **of(y, part), **whose, **facts)
            for title, part, x, y, whose in (
                (name, "y", data.x, data.y, owned),
                (test_name, "y_test", data.x_test, data.y_test, nobody),
            )
            if x is not None and y is not None
        ]
        return tables[0] if len(tables) == 1 else Split(*tables)
    if data.y.dtype.kind == "U" and request.labels is None:
        raise DataError(
            'data: y holds text: list the classes, such as classes=["ill", "well"] (data.classes)'
        )
    y, classes = numbered_labels(parts, request, name)
    train = Table(name, data.x, y["y"], classes, **owned, **facts)
    if data.x_test is None:
        return train
    return Split(train, Table(test_name, data.x_test, y["y_test"], classes, **facts))


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
