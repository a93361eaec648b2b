"""Every door for a user's own rows, and records that differ by one odd cell before they come in.

Doors are found in the code: forms of arrays, forms of whole data, and the functions that take them.
"""

# D records, F numbers of each

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from scipy import sparse

import raydpzv
import scenarios
from raydpzv.config.scenario import AnyScenario
from raydpzv.data.own_arrays import FORMS
from raydpzv.data.own_data import CONTAINERS
from tests.helpers.proved_modes import MODES, USER_MODES, USERS
from tests.helpers.raw_tables import CHANGED, LABELS, PLAIN, raw


@dataclass
class Cells:
    """Records as a user has them: rows of whole numbers [D][F], and labels [D], true for ill."""

    x: list[list[Any]] = field(default_factory=lambda: np.rint(8 * raw().x).astype(int).tolist())
    y: list[Any] = field(default_factory=lambda: [label == LABELS[0] for label in raw().labels])

    def changed(self, change: str) -> Cells:
        """Return the same with one record changed; "": none."""
        found = copy.deepcopy(self)
        if change:
            ODD[change](found)
        return found


def _cell(value: Any) -> Callable[[Cells], None]:
    return lambda cells: cells.x[CHANGED].__setitem__(1, value)


def _label(value: Any) -> Callable[[Cells], None]:
    return lambda cells: cells.y.__setitem__(CHANGED, value)


ODD: dict[str, Callable[[Cells], None]] = {
    "another type": _cell(3.5),
    "boolean": _cell(True),
    "value": lambda cells: cells.x.__setitem__(CHANGED, [-50 * n for n in cells.x[CHANGED]]),
    "huge": _cell(1e30),
    "text": _cell("3"),
    "missing": _cell(None),
    "label": lambda cells: cells.y.__setitem__(CHANGED, not cells.y[CHANGED]),
    "label of another type": _label("well"),
    "new label": _label(9),
    "label between two": _label(0.5),
    "no label": _label(None),
}
"""What one record may have otherwise."""
REFUSED = {"text", "missing", "label between two", "no label"}
"""Odd cells that no table may have. All others are read, if a form of arrays can hold them."""


class Frame:
    """A table in the way of pandas, whose columns have types of their own."""

    def __init__(self, rows: list[list[Any]]) -> None:
        self._columns = [Series(list(column)) for column in zip(*rows, strict=True)]
        self.columns = [f"x{n}" for n in range(len(self._columns))]
        self.shape = len(rows), len(self.columns)

    @property
    def iloc(self) -> Any:
        return _Places(self)

    def column(self, place: int) -> Any:
        return self._columns[place]

    def __len__(self) -> int:
        return self.shape[0]


@dataclass
class _Places:
    frame: Frame

    def __getitem__(self, place: tuple[slice, int]) -> Any:
        return self.frame.column(place[1])


class Series:
    """A column in the way of pandas: of objects where no other type holds all values."""

    def __init__(self, values: list[Any]) -> None:
        kinds = {type(value) for value in values}
        self._values = np.array(
            values, None if len(kinds) == 1 or kinds == {int, float} else object
        )

    @property
    def iloc(self) -> Any:
        return self._values

    def to_numpy(self) -> np.ndarray:
        return self._values

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._values

    def __len__(self) -> int:
        return len(self._values)


def masked(values: list[Any]) -> Any:
    """Return a masked array, of which a cell without a value hides a number."""
    gaps = np.frompyfunc(lambda value: value is None, 1, 1)(np.array(values, object)).astype(bool)
    filled = np.array(values, object)
    filled[gaps] = 9999
    return np.ma.masked_array(np.array(filled.tolist()), mask=gaps)


def arrow(rows: list[list[Any]]) -> pa.Table:
    return pa.table({f"x{n}": list(column) for n, column in enumerate(zip(*rows, strict=True))})


ROWS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "lists": (list, list),
    "arrays": (np.array, np.array),
    "arrays of objects": (lambda v: np.array(v, object), lambda v: np.array(v, object)),
    "lists of arrays": (lambda rows: [np.array(row) for row in rows], lambda v: [np.array(y) for y in v]),
    "masked arrays": (masked, masked),
    "tensors": (torch.tensor, torch.tensor),
    "lists of tensors": (lambda rows: [torch.tensor(row) for row in rows], lambda v: [torch.tensor(y) for y in v]),
    "frames": (Frame, Series),
    "Arrow tables": (arrow, pa.array),
    "Arrow columns": (arrow, lambda v: pa.chunked_array([v])),
    "sparse matrices": (lambda rows: sparse.csr_matrix(np.array(rows)), np.array),
}  # fmt: skip
"""Forms of rows and labels."""
WHOLE: dict[str, Callable[[Any, Any], Any]] = {
    "a pair": lambda x, y: (x, y),
    "a table of names": lambda x, y: {"x": x, "y": y},
    "a data set of pairs": lambda x, y: list(zip(x, y, strict=True)),
    "a data set of named rows": lambda x, y: [
        {"input": row, "label": label} for row, label in zip(x, y, strict=True)
    ],
    "a data set of named numbers": lambda x, y: [
        {**{f"x{n}": cell for n, cell in enumerate(row)}, "label": label}
        for row, label in zip(x, y, strict=True)
    ],
}
"""Forms of whole data."""
HANDED: list[Any] = []
"""What `handed` returns: an attribute of a module, as a scenario file names it."""


def handed() -> Any:
    return HANDED[-1]


def by_module(data: Any) -> str:
    HANDED[:] = [data]
    return f"{__name__}:handed"


def by_horizontal(data: Any) -> str:
    return str(raydpzv.horizontal("logistic", data, clients=2, updates=1).data.source)


def by_vertical(data: Any) -> str:
    views, labels = data
    return str(raydpzv.vertical("linear", views, labels, updates=1).data.source)


ENTRIES: dict[str, Callable[[Any], str]] = {
    "horizontal": by_horizontal,
    "vertical": by_vertical,
    "module:attribute": by_module,
}
"""Functions that take a user's rows, and the name that a scenario has for them then."""


@dataclass(frozen=True)
class Door:
    """A way in: a form of rows, a form of whole data, and who takes it."""

    rows: str
    whole: str
    entry: str

    def __str__(self) -> str:
        return f"{self.rows}, {self.whole}, {self.entry}"

    def hand_over(self, cells: Cells) -> str:
        """Return a scenario's name for the records. Raises what a form raises that cannot hold
        them, in `CannotHold`.
        """
        return ENTRIES[self.entry](self.made(cells))

    def made(self, cells: Cells) -> Any:
        rows, labels = ROWS[self.rows]
        try:
            if self.entry == "vertical":
                halves = slice(0, 2), slice(2, None)
                return [rows([row[half] for row in cells.x]) for half in halves], labels(cells.y)
            return WHOLE[self.whole](rows(cells.x), labels(cells.y))
        except Exception as error:
            raise CannotHold(str(error)) from error


class CannotHold(Exception):
    """A form of arrays that has no such cell."""


def doors() -> dict[str, list[Door]]:
    """Return the doors of vertical learning, and those of learning by users: every form of rows
    once, every form of whole data once, and every entry with the first of each.
    """
    first, whole = next(iter(ROWS)), next(iter(WHOLE))
    found = {"vertical": [Door(rows, whole, "vertical") for rows in ROWS]}
    found["vertical"] += [Door(first, name, "module:attribute") for name in WHOLE]
    found["users"] = [Door(rows, whole, "horizontal") for rows in ROWS]
    found["users"] += [Door(first, name, "horizontal") for name in WHOLE]
    found["users"].append(Door(first, whole, "module:attribute"))
    return found


def form_of(value: Any) -> str:
    return next(name for name, (fits, _) in FORMS.items() if fits(value))


def container_of(value: Any) -> str:
    return next(name for name, (fits, _) in CONTAINERS.items() if fits(value))


OWN = ("data.classes=[0, 1, 2]", "data.other=2")
"""True is the class 1, false 0, and all else the class 2."""


def vertical_spec(door: Door, method: str, mode: str, source: str) -> AnyScenario:
    scenario, given = MODES[method][mode]
    how = "views" if door.entry == "vertical" else "columns"
    width = "model.embedding=4" if mode == "discriminant" else "model.embedding=3"
    own = [f"data.source={source}", *OWN, *PLAIN, f"split.how={how}", width]
    return scenarios.load(scenario, [*given, *own])


def users_spec(method: str, mode: str, source: str) -> AnyScenario:
    own = [f"data.source={source}", *OWN, *PLAIN, "users={count=8}"]
    name = f"method={{name='{method}'}}"
    return scenarios.load("digits_users", [name, *USERS, *own, *USER_MODES[method][mode]])
