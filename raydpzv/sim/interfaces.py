"""What goes into a run and out of it: budget, privacy privacy_filter, observer, activations,
status.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from raydpzv.methods.roles import Metrics, Upload
from raydpzv.privacy.release import UNACCOUNTED, PrivacyLoss, Spent
from raydpzv.secure.attempts import Attempt


class Observer(Protocol):
    """Records what happens; `records.Recorder` makes rows of it."""

    def emit(self, row_type: str, **values: Any) -> None:
        """Record one fact."""
        ...

    def writer(self, row_type: str) -> Callable[[tuple[Any, ...] | np.ndarray], None]:
        """Return what records one row of a type, a tuple of its values in the order of the type's
        columns.

        Or rows of whole numbers, int64 [n, columns], those of a list one by one; the array is kept.
        It checks no names: for rows that every update makes.
        """
        ...


class PrivacyFilter:
    """Keeps account of privacy; this one, of methods without releases, refuses nothing and claims
    nothing.

    of_uploads: is it the uploads that release something? Then one that was sent counts whether it
    is served or not.
    """

    of_uploads = False

    def refuses(self, upload: Upload) -> str | None:
        """Return why serving this upload would exceed the privacy budget, or None."""
        return None

    def charge(
        self, client: int, ids: np.ndarray, releases: int, attempt: Attempt | None = None
    ) -> PrivacyLoss:
        """Account releases made to or by a client on these rows, in an attempt at a round; return
        what is spent.
        """
        return UNACCOUNTED

    def epsilons(self, mus: np.ndarray) -> np.ndarray:
        """Return ε of many privacy losses' μ at once, float64 of the same shape; NaN stays NaN."""
        return mus

    def spent(self) -> Spent | None:
        """Return what was released, or None if this run accounts for nothing or its account was
        given up.
        """
        return None

    def give_up(self) -> None:
        """Drop the account: something was released that it cannot count."""

    def state(self) -> dict[str, Any]:
        """Return what a run that continues from a checkpoint must know, {} if nothing."""
        return {}

    def restore(self, state: Mapping[str, Any], *, lost: bool) -> None:
        """Continue with an account; lost: one more release may have been made, of which the record
        says nothing.
        """


@dataclass(frozen=True)
class Budget:
    """What ends a run; whichever comes first. None: no limit of that kind."""

    updates: int | None = None
    seconds: float | None = None
    bytes: int | None = None


class Activation(NamedTuple):
    """A client's account of how an upload came about, in seconds of the run's clock."""

    due: float
    woke: float
    late: bool
    sent: float


class Stop(Protocol):
    """Says whether a run is to end after the event in progress."""

    def is_set(self) -> bool:
        """Return whether it is."""
        ...


USER = "stopped by the user"
"""Why a run is over that somebody stopped."""
WARM_UP = "warm-up: first calls compile"
FIRST_EVALUATION = "the evaluation of the initial model"
"""Stages of a run before its first update."""


class Status(NamedTuple):
    """Where a run stands.

    loss, concordance: of the last evaluation; stage: what the run waits for before its first
    update, "" once it is under way; participants: how many clients have uploaded (None: not known,
    of a run that was continued with midway); client_uploads, client_staleness: by client, () where
    they are many (see `ClientCounts`); checkpoints,
    checkpoint_seconds: how many were taken, and the real seconds that they cost, since the run
    began or continued.
    """

    updates: int = 0  # of the model, see `Server.updates`
    uploads: int = 0
    time: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    late: int = 0
    accuracy: float = math.nan
    loss: float = math.nan
    privacy: PrivacyLoss = UNACCOUNTED
    # last service: mean age of the cached rows used, or updates since the model was read
    staleness: float = math.nan
    stop_reason: str | None = None
    stage: str = ""
    participants: int | None = None
    client_uploads: tuple[int, ...] = ()
    client_staleness: tuple[float, ...] = ()
    concordance: float = math.nan
    checkpoints: int = 0
    checkpoint_seconds: float = 0.0

    @property
    def epsilon_paper(self) -> float:
        """What the paper's argument claims is spent; NaN where it claims nothing."""
        return self.privacy.epsilons()[0]

    @property
    def epsilon_client(self) -> float:
        """What is proved to be spent against the clients; infinity if nothing is."""
        return self.privacy.epsilons()[1]


Evaluated = Callable[[Status, Metrics], None]
"""Called after each evaluation with where the run stands and what was measured."""


def unheard(status: Status, metrics: Metrics) -> None:
    """What is called after the evaluations of a run of which nobody asks: nothing is done."""
