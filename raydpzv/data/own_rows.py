"""Rows of several arrays that belong together: joined by ids or by an index, and whose they are."""

# D rows, M clients

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from raydpzv.data.own_arrays import is_gap, items_of, numbers_of, objects_of
from raydpzv.errors import DataError

_Y = ""
"""The labels among the parts that ids join."""


def in_one_order(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return parts by name whose rows are in the order of the first part that has an index.

    Frames and series are joined by an index that holds the same values in another order, and a
    warning says so. Parts without an index, or of which each has other values, are paired by
    place; a warning says which, but for an index that merely counts the rows.
    """
    indexed = {name: part.index for name, part in parts.items() if _has_index(part)}
    found, joined, apart = dict(parts), list[str](), list[str]()
    first, *others = indexed or [""]
    for name in others:
        one, other = indexed[first], indexed[name]
        if other.equals(one):
            continue
        if (places := _places(one, other)) is not None:
            found[name] = parts[name].iloc[places]
            joined.append(name)
        elif not (_counts(one) or _counts(other)):
            apart.append(name)
    if joined:
        _warn(
            f"data: {', '.join(joined)} has the index of {first} in another order: rows are joined "
            "by it; call reset_index(drop=True) on both to pair them by place"
        )
    if apart:
        _warn(
            f"data: {', '.join(apart)} has another index than {first}: rows are paired by place; "
            "give both the same index, or ids"
        )
    return found


def _has_index(part: Any) -> bool:
    return hasattr(part, "iloc") and hasattr(getattr(part, "index", None), "get_indexer")


def _places(one: Any, other: Any) -> np.ndarray | None:
    """Return where the rows of one index are in another, None if they are not the same rows."""
    if len(one) != len(other) or not (one.is_unique and other.is_unique):
        return None
    places: np.ndarray = other.get_indexer(one)
    return places if (places >= 0).all() else None


def _counts(index: Any) -> bool:
    """Return whether an index is 0, 1, ..., as pandas makes one where none is given."""
    values = np.asarray(index)
    return values.dtype.kind in "iu" and np.array_equal(values, np.arange(len(values)))


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=5)


def by_ids(views: Any, y: Any, ids: Any) -> tuple[Any, np.ndarray]:
    """Return the records that all views have, in the order of the first view: views in their form,
    and labels.

    ids: of each view's records, by the views' names or in order, then those of the labels
    ("labels"); without the last the labels are in the order of the first view. A warning says how
    many records are left out. Raises DataError for ids that are missing or that a view has twice.
    """
    named = isinstance(views, Mapping)
    parts = {name: numbers_of(view, f"the view of {name}") for name, view in _numbered(views)}
    parts[_Y] = objects_of(y, "y")
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
    listed = items_of(ids, "ids") if isinstance(ids, list | tuple) or np.ndim(ids) else ()
    if len(listed) != many:
        raise DataError(
            f"ids: wanted one for each of the {many} records of {name}, got {len(listed)}"
        )
    if absent := sum(_is_nameless(each) for each in listed):
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
    their part's. Raises DataError.
    """
    number: dict[Hashable, int] = {}
    try:
        listed = items_of(owners, name)
        if absent := [row for row, owner in enumerate(listed) if _is_nameless(owner)]:
            raise DataError(
                f"{name}: row {absent[0]} (counted from 0) and {len(absent)} of {len(listed)} rows "
                "have no owner; drop them or name one"
            )
        found = [number.setdefault(owner, len(number)) for owner in listed]
    except TypeError as error:
        raise DataError(
            "clients: wanted how many there are, or the owner of each row, a number or a text "
            f"({error})"
        ) from None
    if len(found) != rows:
        raise DataError(f"{name}: wanted one owner a row, {rows}, got {len(found)}")
    return np.array(found, np.int64)


def _is_nameless(name: Any) -> bool:
    return is_gap(name) or (isinstance(name, str) and not name.strip())
