"""Shares of the features of aligned rows among clients (vertical learning).

D rows, M clients, F columns, C channels, H x W pixels, V views, L tokens. The shares of one
partition are disjoint; unless explicit columns leave some out, together they are everything. They
are as even as possible: where M does not divide, the first clients have one more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from raydpzv.data.files import one_line
from raydpzv.data.table import View
from raydpzv.errors import DataError, SpecError, suggest
from raydpzv.registry import VERTICAL_SPLITS
from raydpzv.settings.party_names import label

if TYPE_CHECKING:
    from raydpzv.settings.sections import SplitSection

_LISTED = 8

Span = tuple[int, int]
"""First place and the place after the last."""


@dataclass(frozen=True)
class Part:
    """One client's share of a row of shape `whole`.

    `columns` are places in the flattened row; where there are none, `spans` holds one Span for each
    axis. `form`: the shape of the columns, () for [f]; integers: they are whole numbers.
    """

    how: str
    whole: tuple[int, ...]
    spans: tuple[Span, ...] = ()
    columns: tuple[int, ...] = ()
    form: tuple[int, ...] = ()
    integers: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row of this share, without D."""
        if self.columns:
            return self.form or (len(self.columns),)
        return tuple(stop - start for start, stop in self.spans)

    def describe(self) -> str:
        """Return the share in words, such as "image rows 2..3"."""
        if self.how == "parties":
            return f"an array of shape {self.form}"
        if self.how == "columns":
            return _several("column", _runs(self.columns))
        if self.how in ("views", "variables", "tokens"):
            return _several(self.how[:-1], [self.spans[-1 if self.how == "variables" else 0]])
        rows = "image " + _several("row", [self.spans[1]])
        return rows if self.how == "rows" else rows + ", " + _several("column", [self.spans[2]])

    def select(self, x: np.ndarray) -> np.ndarray:
        """Return this share of x [D, ...whole]: contiguous float32 [D, ...shape], or int64 of whole
        numbers.

        May share memory with `x` where the share is all of it. Raises DataError for rows of another
        shape.
        """
        kind = np.int64 if self.integers else np.float32
        return np.ascontiguousarray(self.block(x), dtype=kind)

    def block(self, x: np.ndarray) -> np.ndarray:
        """Return this share of x [D, ...whole] in its own type, [D, ...shape]. Raises DataError."""
        if x.shape[1:] != self.whole:
            raise DataError(
                f"{self.describe()} is a share of rows of shape {self.whole}; these have "
                f"{x.shape[1:]}: partition for their shape"
            )
        if self.columns:
            return x.reshape(len(x), -1)[:, list(self.columns)].reshape(len(x), *self.shape)
        return x[(slice(None), *(slice(*span) for span in self.spans))]


def partition(
    x_shape: tuple[int, ...], split: SplitSection, names: Sequence[str] = ()
) -> tuple[Part, ...]:
    """Share out rows of shape `x_shape` (without D) among the clients of a [split] section.

    columns: [D, f], any shape flattened first; the section may list them client by client, by
    number or by their `names` (of several with one name, as an encoded category has them, it is
    all). rows: bands of an image, [D, C, r, W]. patches: a grid (rows, columns) over an image, [D,
    C, h, w], in reading order; without one the most square grid,
    wider than high. views: [D, v, ...], axis 1 shared out. variables: [D, T, f], the last axis of a
    time series shared
    out. tokens: [D, l], spans of a text of exactly the same length. Raises SpecError where that
    cannot be done.
    """
    share: Callable[[tuple[int, ...], int], tuple[Part, ...]] = VERTICAL_SPLITS[split.how]
    columns, clients = split.shares, split.clients
    if columns is not None and split.how != "columns":
        raise SpecError(
            f'explicit columns do not go with partition "{split.how}": leave them out or choose '
            '"columns"'
        )
    if split.grid is not None and split.how != "patches":
        raise SpecError(
            f'a grid does not go with partition "{split.how}": leave it out or choose "patches"'
        )
    shape = tuple(int(n) for n in x_shape)
    if columns is not None:
        parties = tuple(split.parties or ())
        return _explicit(shape, [label(m, parties) for m in range(clients)], columns, names)
    if split.grid is not None:
        return by_patches(shape, clients, split.grid)
    return share(shape, clients)


def by_columns(shape: tuple[int, ...], clients: int) -> tuple[Part, ...]:
    """Even shares of the flattened record's columns."""
    spans = _even(math.prod(shape), clients, "columns")
    return tuple(Part("columns", shape, columns=tuple(range(*span))) for span in spans)


def by_view(views: Sequence[View], clients: int) -> tuple[Part, ...]:
    """Return the arrays that make up a row, one for each client; () for no views. Raises
    SpecError.
    """
    if not views:
        return ()
    if len(views) != clients:
        raise SpecError(
            f"split.clients: wanted {len(views)}, the number of arrays that make up a record, got "
            f"{clients}"
        )
    ends = np.cumsum([math.prod(view.shape) for view in views]).tolist()
    whole = (ends[-1],)
    return tuple(
        Part(
            "parties",
            whole,
            columns=tuple(range(start, end)),
            form=view.shape,
        )
        for view, (start, end) in zip(views, pairwise((0, *ends)), strict=True)
    )


def without_client(parts: Sequence[Part], names: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the columns that no part of "columns" holds, by name or else by number; () for other
    partitions.
    """
    if parts[0].how != "columns":
        return ()
    held = {column for part in parts for column in part.columns}
    left = (column for column in range(math.prod(parts[0].whole)) if column not in held)
    return tuple(dict.fromkeys(names[column] if names else str(column) for column in left))


def _explicit(
    shape: tuple[int, ...],
    clients: Sequence[str],
    columns: Sequence[Sequence[int | str]],
    names: Sequence[str],
) -> tuple[Part, ...]:
    if len(columns) != len(clients):
        raise SpecError(
            f"columns has {len(columns)} lists for {len(clients)} clients: give one list a client"
        )
    owner: dict[int, str] = {}
    parts = []
    for client, mine in zip(clients, columns, strict=True):
        if not mine:
            raise SpecError(f"{client} has no columns: give it at least one or use fewer clients")
        held: list[int] = []
        for column in mine:
            places = _places(column, client, math.prod(shape), names)
            if (first := owner.get(places[0])) is not None:
                raise SpecError(
                    f"column {_shown(column)} is listed for {first} and for {client}: list it once"
                )
            owner |= dict.fromkeys(places, client)
            held += places
        parts.append(Part("columns", shape, columns=tuple(held)))
    return tuple(parts)


def _places(column: int | str, client: str, width: int, names: Sequence[str]) -> list[int]:
    """Return the places of a column in the flattened record; SpecError if there is none."""
    if isinstance(column, int):
        if not 0 <= column < width:
            raise SpecError(f"{client} wants column {column}: the data has 0..{width - 1}")
        return [column]
    if not names:
        raise SpecError(
            f"{client} wants column {_shown(column)}, and the columns of these data have no names: "
            f"give their numbers, 0..{width - 1}"
        )
    if places := [place for place, name in enumerate(names) if name == column]:
        return places
    known = list(dict.fromkeys(names))
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    raise SpecError(
        f"{client} wants column {_shown(column)}, which the data do not have as a feature. "
        f"{suggest(column, known)}They have {one_line(', '.join(known[:_LISTED]))}{more}"
    )


def _shown(column: int | str) -> str:
    return f'"{one_line(column)}"' if isinstance(column, str) else str(column)


def by_rows(shape: tuple[int, ...], clients: int) -> tuple[Part, ...]:
    """Bands of an image."""
    channels, height, width = _image(shape, "rows")
    return tuple(
        Part("rows", shape, ((0, channels), span, (0, width)))
        for span in _even(height, clients, "image rows")
    )


def by_patches(
    shape: tuple[int, ...], clients: int, grid: tuple[int, int] | None = None
) -> tuple[Part, ...]:
    """Patches of an image, in reading order."""
    channels, height, width = _image(shape, "patches")
    down, across = grid or _square(clients)
    if down < 1 or across < 1 or down * across != clients:
        raise SpecError(
            f"a grid of {down} x {across} does not give one patch to each of {clients} clients: "
            f"choose rows and columns whose product is {clients}, such as "
            f"{' x '.join(map(str, _square(clients)))}"
        )
    bands = _even(height, down, "image rows")
    strips = _even(width, across, "image columns")
    return tuple(
        Part("patches", shape, ((0, channels), band, strip)) for band in bands for strip in strips
    )


def by_views(shape: tuple[int, ...], clients: int) -> tuple[Part, ...]:
    """Views of an object."""
    if len(shape) < 2:
        raise SpecError(
            f'partition "views" wants rows of shape (V, ...); these are {shape}: choose "columns" '
            "for flat "
            "tables"
        )
    rest = tuple((0, n) for n in shape[1:])
    return tuple(Part("views", shape, (span, *rest)) for span in _even(shape[0], clients, "views"))


def by_variables(shape: tuple[int, ...], clients: int) -> tuple[Part, ...]:
    """Variables of a time series."""
    if len(shape) != 2:
        raise SpecError(
            f'partition "variables" wants time series of shape (T, F); these rows are {shape}: '
            'choose "columns" for '
            "flat tables"
        )
    return tuple(
        Part("variables", shape, ((0, shape[0]), span))
        for span in _even(shape[1], clients, "variables")
    )


def by_tokens(shape: tuple[int, ...], clients: int) -> tuple[Part, ...]:
    """Spans of a text, all of one length."""
    if len(shape) != 1:
        raise SpecError(
            f'partition "tokens" wants texts of L tokens; these rows are {shape}: choose '
            f'"{"rows" if len(shape) == 3 else "views"}"'
        )
    if shape[0] % clients:
        raise SpecError(
            f"{clients} clients cannot have equal spans of {shape[0]} tokens: make it a multiple "
            f"of {clients} (data.tokens)"
        )
    return tuple(Part("tokens", shape, (span,)) for span in _even(shape[0], clients, "tokens"))


def _image(shape: tuple[int, ...], how: str) -> tuple[int, int, int]:
    if len(shape) != 3:
        other = "columns" if len(shape) < 3 else "views"
        raise SpecError(
            f'partition "{how}" wants images of shape (C, H, W); these rows are {shape}: choose '
            f'"{other}"'
        )
    return shape[0], shape[1], shape[2]


def _even(places: int, parts: int, noun: str) -> list[Span]:
    if parts > places:
        raise SpecError(
            f"{parts} clients cannot share {places} {noun}: use at most {places} along that side"
        )
    base, extra = divmod(places, parts)
    cuts = [i * base + min(i, extra) for i in range(parts + 1)]
    return list(pairwise(cuts))


def _square(clients: int) -> tuple[int, int]:
    """The most square grid: the largest divisor not above the root, and its partner."""
    down = next(d for d in range(math.isqrt(clients), 0, -1) if clients % d == 0)
    return down, clients // down


def _runs(columns: Sequence[int]) -> list[Span]:
    """Neighbouring columns in ascending order joined to spans."""
    runs: list[Span] = []
    for column in columns:
        if runs and runs[-1][1] == column:
            runs[-1] = (runs[-1][0], column + 1)
        else:
            runs.append((column, column + 1))
    return runs


def _several(noun: str, spans: Sequence[Span]) -> str:
    words = [str(start) if stop - start == 1 else f"{start}..{stop - 1}" for start, stop in spans]
    one = len(spans) == 1 and spans[0][1] - spans[0][0] == 1
    return f"{noun}{'' if one else 's'} {', '.join(words)}"
