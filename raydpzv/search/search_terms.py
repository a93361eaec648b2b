"""How a space is searched, and who watches a search: light enough for the command line's help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raydpzv.errors import check_count

DRAWS = 10
"""Default number of draws if the space has random settings."""


@dataclass(frozen=True, kw_only=True)
class SearchTerms:
    """How a space is searched, as `raydpzv tune` has it; None: the default of the scenario or of
    the space.
    """

    samples: int | None = None
    search: str = "random"
    metric: str | None = None
    scheduler: str = "none"
    grace: int | None = None
    interval: int | None = None
    quantile: float | None = None
    epsilon: float | None = None
    draw_seed: int = 0
    actors: bool = False
    held_out: Sequence[str] | None = None
    soonest: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("samples", 1), ("grace", 1), ("interval", 1), ("draw_seed", 0)):
            check_count(name, getattr(self, name), least)


@dataclass(frozen=True)
class TuneOptions:
    """Where and how trials run on Ray."""

    jobs: int | None = None
    """Most trials at a time; None: as many as fit."""
    address: str | None = None
    """Of the cluster; None: a Ray of our own."""
    verbose: bool = False
    """Show what Ray's processes print."""
    loggers: Sequence[str] = ()
    """Loggers of Ray Tune by name."""
    callbacks: Sequence[Any] = ()
    """Callbacks and loggers of Ray Tune."""

    def __post_init__(self) -> None:
        check_count("jobs", self.jobs)


@dataclass(frozen=True)
class TrialOutcomes:
    """What Ray Tune says of the trials, by their numbers, once it has ended."""

    ended: frozenset[int] = frozenset()
    """Trials that came to their end or that a scheduler stopped."""
    started: frozenset[int] = frozenset()
    """Trials that were ever started."""
    reasons: Mapping[int, str] = field(default_factory=dict)
    """Why trials have no result."""
    stopped: bool = False
    """Has the user stopped the search?"""


class SearchWatch:
    """Events of a search; override those that you want."""

    def began(self, trial: int) -> None:
        """A trial has started or resumed."""

    def reported(self, trial: int, report: Mapping[str, Any]) -> None:
        """A trial has been evaluated, or says how far it is."""

    def ended(self, trial: int, reason: str) -> None:
        """A trial has finished; reason: why it has no result, "" if it has one."""
