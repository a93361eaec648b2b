"""Quantities that change at given rounds, and which of a method's settings are such quantities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from raydpzv.settings.bounds import Count, Positive

StepSizesAt = tuple[tuple[Count, Positive], ...]
"""Step sizes from later updates on: (first update, step size), ascending."""
_CHANGES = "_at"
_STILL_HEADS = ("frozen", "discriminant")
"""Heads (method.server) that take no steps, whatever server_lr is."""


@dataclass(frozen=True)
class Schedule:
    """A quantity that changes at given rounds: `changes` are (first round, value), ascending."""

    first: float
    changes: tuple[tuple[int, float], ...] = ()

    def at(self, round: int) -> float:
        """Return the value in round 1, 2, ..."""
        return [self.first, *(value for start, value in self.changes if start <= round)][-1]

    def times(self, factor: float) -> Schedule:
        """Return the schedule of the quantity times a factor."""
        return Schedule(
            self.first * factor, tuple((start, value * factor) for start, value in self.changes)
        )


def changes_of(config: Any, name: str) -> tuple[tuple[int, float], ...]:
    """Return at which updates a setting of a method changes, and to what; () where it does not."""
    return getattr(config, f"{name}{_CHANGES}") or ()


def schedule_of(config: Any, name: str) -> Schedule:
    """Return a setting of a method as what it is round by round."""
    return Schedule(getattr(config, name), changes_of(config, name))


def scheduled(config: Any) -> list[str]:
    """Return the settings of a method (its configuration, or the class of it) that may change in
    mid-run.
    """
    names = [field.name for field in fields(config)]
    return [name for name in names if f"{name}{_CHANGES}" in names]


def without_effect(config: Any) -> Iterator[str]:
    """Yield the settings that may change in mid-run and change nothing of a method as it is
    configured.
    """
    if getattr(config, "server", "") in _STILL_HEADS:
        yield "server_lr"


def never_reached(config: Any, updates: int) -> Iterator[str]:
    """Say which changes come after the last of so many updates (or rounds)."""
    for name in scheduled(config):
        late = [round for round, _ in changes_of(config, name) if round > updates]
        if late:
            yield (
                f"method.{name}{_CHANGES}: what it changes from {late[0]:,} on comes after the "
                f"last of {updates:,} (budget.updates) and has no effect"
            )


def unordered(config: Any) -> Iterator[str]:
    """Complain of changes that are not in the order of their rounds."""
    for name in scheduled(config):
        rounds = [round for round, _ in changes_of(config, name)]
        if rounds != sorted(set(rounds)):
            yield (
                f"method.{name}{_CHANGES}: wanted changes in ascending order, one for each update "
                f"(or round), got {rounds}"
            )
