"""Rows noised once and repeated for ever ("memoization", Erlingsson et al. 2014): the plan, its
table, its account.

Each client, whose model never changes, clips each record's embedding to norm S, adds N(0, σ²) to
every coordinate once, and sends that same row whenever it is asked. Then n = 1: the server's view
of one record's features at one client is (2/z)-GDP with z = σ/S (the record replaced), of its
features at all clients (2√M/z)-GDP, however long the run is.

The server sees the noised rows and nothing else of the features; whatever it makes of them, the
head included, is post-processing, so that its ε holds against everybody. Labels are the server's
own and are not protected.
"""

# D rows, M clients, E embedding width

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from raydpzv.errors import RunError, SpecError
from raydpzv.privacy.claims import Claim, figure
from raydpzv.privacy.gdp import epsilon_of, mu_of
from raydpzv.privacy.participations import Participations
from raydpzv.privacy.release import (
    CLOSED_FORM,
    PrivacyLoss,
    ReleaseAccount,
    ReleaseEvent,
    ReleasePlan,
    Spent,
    require_positive,
    require_provable,
)


@dataclass(frozen=True, kw_only=True)
class MemoizedReleasePlan(ReleasePlan):
    """A run's noise on rows; SpecError where nothing could be proved of it.

    rows: D; clip: S; noise_multiplier: z = σ/S; grid: whole numbers in S that rows are cut to.
    """

    rows: int
    clients: int
    width: int
    clip: float
    noise_multiplier: float
    grid: int = 4096
    permit_large_delta: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "rows", "clients", "width", "clip", "noise_multiplier", "grid")
        require_provable(self, permit_large_delta=self.permit_large_delta)

    @property
    def adversary(self) -> str:
        return "server"

    @property
    def protected(self) -> int:
        return self.rows

    @property
    def of_uploads(self) -> bool:
        return True

    @property
    def mu(self) -> float:
        """μ of one record's features at one client: 2S/σ."""
        return 2 / self.noise_multiplier

    @property
    def epsilon(self) -> float:
        """ε of one record's features at one client."""
        return epsilon_of(self.mu, self.delta)

    @property
    def record_epsilon(self) -> float:
        """ε of one record's features at all M clients, μ = 2S√M/σ."""
        return epsilon_of(self.mu * math.sqrt(self.clients), self.delta)

    def account(self) -> MemoizedAccount:
        return MemoizedAccount(self)

    def first_event(self) -> ReleaseEvent:
        return ReleaseEvent(0, np.arange(1))

    # a row is repeated: ε is that of once, however long the run was and whatever was lost
    def counted_as(self, spent: Spent) -> Self:
        return self

    def as_made(self, spent: Spent | None, *, done: bool, beyond_plan: bool = False) -> Self:
        return self

    def obstacle(self) -> str:
        return "labels are not protected: the head is made from them without noise"

    def calibration(self) -> str:
        noise = f"σ = zS with z = {figure(self.noise_multiplier)} and S = {figure(self.clip)}"
        if self.target is None:
            return (
                f"{noise}, on each coordinate of every embedding, once, is given by the scenario; ε"
                " follows from it."
            )
        return (
            f"Calibration: {noise}, on each coordinate of every embedding, once: z = 2/μ, for ε = "
            f"{figure(self.target)} at δ = {figure(self.delta)} (replace one record's features at "
            "one client), and μ the Gaussian DP that gives this ε and δ (closed form)."
        )

    @property
    def mechanism(self) -> str:
        return (
            f"rounded Gaussian on rows, once, z={self.noise_multiplier:.4g} times S, system noise"
        )

    @property
    def scope(self) -> str:
        return (
            f"each embedding of {self.width} coordinates clipped to norm {self.clip:.4g} and "
            f"noised once, of D={self.rows:,} records at {self.clients} clients; unit: one "
            "record's features at one client"
        )

    @property
    def measured(self) -> str:
        return "row norm"

    def reach(self, adversary: str, relation: str, accountant: str) -> tuple[float, float | None]:
        return 2 * self.clip, self.noise_multiplier / 2

    def table(self) -> tuple[Claim, ...]:
        whole = f"ε = {self.record_epsilon:.4g} (replace, {CLOSED_FORM}, δ = {self.delta:g})"
        server = (
            "It holds the labels, which are not protected, and sees each row as it was noised "
            f"once, however often. Of a record's features at all {self.clients} clients together: "
            f"{whole}. Held-out rows are not protected: their embeddings are sent without noise to "
            "be scored, by models that depend on no record."
        )
        others = (
            "Sees no more of the features than the server, whose head is made from noised rows: "
            "post-processing."
        )
        return tuple(
            self.row(
                adversary, server if adversary == "server" else others, self.epsilon, CLOSED_FORM
            )
            for adversary in ("external", "client", "all_clients", "server")
        )


class MemoizedAccount(ReleaseAccount):
    """Counts rows as they are noised, and fails where one is noised a second time: ε is that of
    once.

    An upload of rows that were sent before releases nothing.
    """

    def __init__(self, plan: MemoizedReleasePlan) -> None:
        self._plan = plan
        self._records = [Participations(plan.rows) for _ in range(plan.clients)]
        self._releases = 0

    def charge(self, event: ReleaseEvent) -> PrivacyLoss:
        """Count rows that were noised now; return what is proved, against everybody.

        Raises RunError for one that was noised before.
        """
        records = self._records[event.client]
        records.add(event.ids, event.releases)
        if records.most > 1:
            raise RunError(
                f"client {event.client} noised a row a second time, so that its ε is not the one "
                "stated; start a new run"
            )
        self._releases += event.releases
        return PrivacyLoss(math.nan, self._plan.mu, self._plan.delta)

    def would_exceed(self, event: ReleaseEvent, limit: float, adversary: str) -> bool:
        """Return whether ε, which is the same after every upload, is above the limit."""
        return self._plan.epsilon > limit

    def spent(self) -> Spent:
        return Spent(self._releases, max(r.most for r in self._records))


def memoized_multiplier(*, epsilon: float, delta: float) -> float:
    """Return z = 2/μ(ε, δ), the noise on rows that are sent once; SpecError where none reaches (ε,
    δ).
    """
    mu = mu_of(epsilon, delta)
    if not 0 < mu < math.inf:
        raise SpecError(f"privacy.epsilon: wanted a finite number above 0, got {epsilon}")
    return 2 / mu
