"""What a direction or a step is on each parameter of a flat vector: a product a bᵀ or plain
numbers, and two factors.

The law rank_one (EGGROLL, Sarkar et al. 2025, rank 1) needs the parameters' shapes. Of a parameter
with two axes or more, seen as a matrix [m, n] of its first axis by the rest, the direction is u = a
bᵀ, a [m] and b [n] standard normal. Of others, and of matrices with one row or column, it is
standard normal itself. All these numbers are disjoint slices of the one stream of the direction's
seed, so that a and b of all parameters are independent. E[u uᵀ] = I follows:

    of one matrix      E[a_i b_j a_k b_l] = E[a_i a_k] E[b_j b_l] = 1 if (i, j) = (k, l), else 0
    of two parameters  E[u v] = E[u] E[v] = 0, since E[a_i b_j] = E[a_i] E[b_j] = 0
    of other numbers   they are independent standard normal

Groups give parameters step sizes and smoothing radii of their own: with factors s (smoothing) and r
(lr) of the parameter, queries move along λ s u and steps along η (r / s) u. The estimate is then of
the gradient, whatever s is, since E[Δ u / s] = ∇f to first order in λ.
"""

from __future__ import annotations

import fnmatch
import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from raydpzv.errors import SpecError, suggest
from raydpzv.settings.bounds import Positive

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of a flat vector's parameters, in order."""


@dataclass(frozen=True)
class Group:
    """Factors of the parameters whose names match a pattern."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    lr: Positive = 1.0
    smoothing: Positive = 1.0


_SHOWN = 12
"""Parameters that a complaint names."""
Groups = tuple[tuple[str, Group], ...]
"""Patterns of parameter names (as `fnmatch` has them) and their factors."""


@dataclass(frozen=True)
class Span:
    """Elements [start, stop) of the flat vector; their direction is made of the stream's numbers
    from `drawn` on.

    rows, columns: of the matrix a bᵀ, 0 where each element has a number of its own; lr, smoothing:
    see above.
    """

    start: int
    stop: int
    drawn: int
    rows: int = 0
    columns: int = 0
    lr: float = 1.0
    smoothing: float = 1.0

    def cut(self, first: int, last: int) -> tuple[int, int]:
        """Return which rows of the matrix hold its elements [first, last)."""
        return first // self.columns, -(-last // self.columns)


def groups_of(table: Mapping[str, Group] | None) -> Groups:
    """Return the groups of a method's settings."""
    return tuple((table or {}).items())


def layout_of(shapes: Shapes) -> str:
    """Return the digest of parameters' names and shapes in order."""
    return hashlib.sha256(repr(list(shapes)).encode()).hexdigest()


@lru_cache(maxsize=64)
def spans_of(law: str, groups: Groups, shapes: Shapes) -> tuple[Span, ...]:
    """Return the spans of a model's parameters; neighbours that are alike are one."""
    found: list[Span] = []
    start = drawn = 0
    for (_, shape), group in zip(shapes, factors(groups, shapes), strict=True):
        size = math.prod(shape)
        rows = shape[0] if law == "rank_one" and len(shape) > 1 else 0
        columns = size // rows if rows else 0
        if min(rows, columns) < 2:
            rows = columns = 0
        span = Span(start, start + size, drawn, rows, columns, group.lr, group.smoothing)
        start, drawn = span.stop, drawn + (rows + columns if rows else size)
        before = found[-1] if found else span
        if found and not before.rows and not rows and factors_of(before) == factors_of(span):
            found[-1] = replace(before, stop=span.stop)
        else:
            found.append(span)
    return tuple(found)


def factors_of(span: Span) -> tuple[float, float]:
    """Return a span's factors of the step size and the smoothing radius."""
    return span.lr, span.smoothing


def factors(groups: Groups, shapes: Shapes) -> list[Group]:
    """Return each parameter's group: of the pattern that matches its name, else factors of 1.

    Raises SpecError for a parameter that two patterns match.
    """
    found = []
    for name, _ in shapes:
        mine = [(pattern, group) for pattern, group in groups if fnmatch.fnmatchcase(name, pattern)]
        if len(mine) > 1:
            raise SpecError(
                f'method.groups: "{mine[0][0]}" and "{mine[1][0]}" both match the parameter '
                f'"{name}"; give patterns '
                "that have no parameter in common"
            )
        found.append(mine[0][1] if mine else Group())
    return found


def check_groups(groups: Groups, names: Sequence[str]) -> None:
    """Refuse patterns that match none of these parameters, or two that match one. Raises
    SpecError.
    """
    factors(groups, tuple((name, ()) for name in names))
    for pattern, _ in groups:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            shown = ", ".join(names[:_SHOWN]) + (
                f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            )
            raise SpecError(
                f'method.groups: no parameter matches "{pattern}". '
                f"{suggest(pattern, names)}Parameters: {shown}"
            )


def overlaps(spans: Sequence[Span], start: int, stop: int) -> Iterator[tuple[Span, int, int]]:
    """Yield the spans of elements [start, stop), each with where it begins and ends among them."""
    place = bisect_right(spans, start, key=lambda span: span.start) - 1
    for span in spans[max(0, place) :]:
        if span.start >= stop:
            return
        yield span, max(span.start, start) - start, min(span.stop, stop) - start
