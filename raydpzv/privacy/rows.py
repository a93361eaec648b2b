"""Noise on rows of an array, one row a record's (VAFL, ZOO-VFL, VFL-CZOFO): the plan, its table,
and its account.

On "embedding", every client clips each row of what it uploads to norm S and noises every
coordinate, against the
server: what is protected is one record's features at one client. On "gradient", the server does so
with each row of what it answers, against the clients: what is protected is one record, its label
included. Replacing a record moves its own row by at most 2S, so that n releases of one record's
rows are (2S√n/σ)-GDP, if nothing but its own row depends on the record.

Hidden state: a client that backpropagates trains w_m on its own raw features, and w_0 is trained on
raw labels. A record used once moves them, and through them every later row, of other records too.
All that is proved then is the
range of each row: R rows released, each within S, are (2S√R/σ)-GDP whatever came before them.
Against the server not
even that holds: evaluation sends it h(w_m) of the held-out rows without noise. A ZOO-VFL client
learns from its own releases and the server's answers to them alone, so that each record's own rows
are all that depends on it, and what it embeds of held-out rows is post-processing.

The DPZV papers say of their baselines only that they clip embeddings and add calibrated noise. VAFL
Theorem 6 has c = O(B√K / (μD)), a constant left open. Two calibrations are offered: "counted", σ =
2S√n/μ with n the releases that a record takes part in by the plan, and "sampled", σ = 2S (B/D) √K/μ
with K releases of batches, which is the argument (and the constant) of DPZV Theorem VI.5. The
second is a claim: the batches are known to anyone who sees the rows.
"""

# M clients, D rows, B batch, T updates, P releases per upload, S clip, K releases of batches, n_i
# releases of record i's rows, R rows released

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raydpzv.errors import InputError, SpecError
from raydpzv.privacy.calibration import largest_count
from raydpzv.privacy.claims import Claim, figure
from raydpzv.privacy.gdp import epsilon_of, mu_of
from raydpzv.privacy.participations import Participations
from raydpzv.privacy.release import (
    CLOSED_FORM,
    FLOATING_POINT,
    ROUNDING,
    BatchReleasePlan,
    PrivacyLoss,
    ReleaseAccount,
    ReleaseEvent,
    Spent,
)

PLACES = ("embedding", "gradient")
"""What is noised: what the clients send (against the server), or what the server sends (against the
clients).
"""
CALIBRATIONS = ("counted", "sampled")
"""Noise for the releases that one record takes part in, or with the sampling rate as the DPZV
papers argue.
"""

_WHOLE = "closed form (GDP) of all rows"
_HIDDEN = (
    "the server trains w_0 on labels without noise and the clients w_m on raw features, and they "
    "carry a record into every later gradient"
)
_HELD_OUT = (
    "every evaluation sends the server embeddings of held-out rows without noise, and the clients' "
    "models that make them are trained on raw features"
)


@dataclass(frozen=True, kw_only=True)
class RowReleasePlan(BatchReleasePlan):
    """A run's releases of rows, planned or made; SpecError where a value makes no sense.

    clip: S, None without one (there may be no δ then); shares: each client's expected share of the
    T updates. hidden: is there state that was trained on records without noise and that later rows
    depend on? width: of the embedding.
    queries: may rows be asked for again? exact_shares: does the method share the updates out? What
    a finished run counted is of the client with most, if the clients release (each has features of
    its own to protect), else of all.
    """

    on: str
    updates: int
    clip: float | None
    sigma: float
    shares: tuple[float, ...]
    hidden: bool
    width: int
    queries: bool = False
    exact_shares: bool = False
    calibrated_by: str = "counted"

    def __post_init__(self) -> None:
        self.require(on=PLACES, calibrated_by=CALIBRATIONS)
        if not 0 <= self.sigma < math.inf:
            raise SpecError(f"want a finite σ >= 0, not {self.sigma}")

    @property
    def adversary(self) -> str:
        return "server" if self.on == "embedding" else "client"

    @property
    def of_uploads(self) -> bool:
        return self.on == "embedding"

    @property
    def expected_uploads(self) -> int:
        """K/P as planned: of the client with the largest share if the clients release, else all."""
        if self.made is not None:
            return self.made.uploads
        return _uploads(self.updates, self.shares) if self.on == "embedding" else self.updates

    @property
    def expected_participations(self) -> int:
        """n of the calibration: releases of one record's rows if every client makes its share of
        the updates.

        "shuffle": ⌈K_m / ⌊D/B⌋⌉ passes each; else the average K_m B/D, above which the maximum
        lies.
        """

        def passes(uploads: int) -> int:
            if self.batches == "shuffle":
                return -(-uploads // (self.rows // self.batch))
            return math.ceil(uploads * self.batch / self.rows)

        each = [passes(_uploads(self.updates, [share])) for share in self.shares]
        return self.per_upload * (max(each) if self.on == "embedding" else sum(each))

    @property
    def participations(self) -> int:
        """The most releases of one record's rows."""
        most = self._most_uploads * self.per_upload
        if self.queries and self.made is None:
            return most
        return self.most_participations(
            most, self.batch, 1 if self.on == "embedding" else len(self.shares)
        )

    @property
    def released(self) -> int:
        """Rows released, each with noise of its own: counted, or bounded for every arrival
        order.
        """
        if self.made is not None:
            return self.made.rows
        largest = self.rows if self.batches == "poisson" else self.batch
        return self._most_uploads * self.per_upload * largest

    @property
    def sensitivity(self) -> float:
        """How far replacing a record moves its own row: 2S."""
        return math.inf if self.clip is None else 2 * self.clip

    @property
    def _most_uploads(self) -> int:
        """One client may make all updates, unless the method shares them out; and one upload may
        still be under way.
        """
        if self.on != "embedding":
            return self.updates
        return 1 + (_uploads(self.updates, self.shares) if self.exact_shares else self.updates)

    def claimed_mu(self, participations: int, uploads: int) -> float:
        """Return μ by the calibration's own argument: 2S√n/σ, or 2S (B/D) √K/σ with K releases of
        batches.
        """
        if self.calibrated_by == "counted":
            return self.sensitivity * math.sqrt(participations) / self.sigma
        rate = self.batch / self.rows
        return self.sensitivity * rate * math.sqrt(uploads * self.per_upload) / self.sigma

    def proved_mu(self, participations: int, rows: int) -> float:
        """Return μ that is proved: 2S√n/σ, or with hidden state 2S√R/σ, since then every row may
        move by 2S.

        Infinity for hidden state behind noised embeddings: those of held-out rows show it to the
        server without noise.
        """
        if self.hidden and self.on == "embedding":
            return math.inf
        return self.sensitivity * math.sqrt(rows if self.hidden else participations) / self.sigma

    def with_sigma_for(self, epsilon: float) -> RowReleasePlan:
        """Return the plan with σ = 2S√n/μ ("counted") or 2S (B/D) √K/μ ("sampled").

        Raises InputError where no finite noise reaches (ε, δ).
        """
        mu = mu_of(epsilon, self.delta)
        if not 0 < mu < math.inf:
            raise InputError(
                f"no noise level gives ε={epsilon}, δ={self.delta}: give a finite ε and 0 < δ < 1"
            )
        if self.calibrated_by == "counted":
            reach = math.sqrt(self.expected_participations)
        else:
            reach = self.batch / self.rows * math.sqrt(self.expected_uploads * self.per_upload)
        return replace(self, sigma=self.sensitivity * reach / mu, target=epsilon)

    def account(self) -> RowAccount:
        return RowAccount(self)

    def premises(self) -> tuple[str, ...]:
        """Return what the proofs lack; the range of a row, which hidden state leaves, holds for any
        two tables.
        """
        return () if self.hidden else self.fitted

    def defect(self) -> str:
        """Return why no ε at all can be given, or nothing."""
        if self.sigma == 0:
            return f"no noise is added to the {self.on}s"
        if self.clip is None:
            return (
                f"the {self.on}s are not clipped, so that nothing bounds one record's part in them"
            )
        if self.noise == "seeded":
            return "the noise comes from a seed, and anyone with the seed subtracts it"
        return ""

    def obstacle(self) -> str:
        if broken := self.defect():
            return broken
        if self.hidden:
            return _HELD_OUT if self.on == "embedding" else _HIDDEN
        return "labels are not protected: the clients' answers are made from them without noise"

    def own_caveats(self) -> tuple[str, ...]:
        return (FLOATING_POINT,)

    def calibration(self) -> str:
        sigma = figure(self.sigma)
        if self.target is None:
            where = f"on each coordinate of every {self.on} row"
            return f"σ = {sigma} {where} is given by the scenario; it follows from no ε."
        form = (
            "2S√n/μ, n releases of one record's rows if every client makes its expected share of "
            "the updates"
            if self.calibrated_by == "counted"
            else "2S (B/D) √K/μ, K releases of batches, the argument of DPZV journal Theorem VI.5"
        )
        return (
            f"Calibration: σ = {form}: {sigma} on each coordinate of every {self.on} row, from the "
            f"target ε = {figure(self.target)} at δ = {figure(self.delta)}. S = "
            f"{figure(self.clip or math.nan)}; μ = {figure(mu_of(self.target, self.delta))} is the "
            "Gaussian DP that gives this ε and δ (closed form). The DPZV papers do not state how "
            "they calibrated their baselines' noise."
        )

    @property
    def mechanism(self) -> str:
        noise = f"σ={figure(self.sigma)} per coordinate, {self.noise} noise"
        return f"floating-point Gaussian, {noise}" if self.sigma else "none"

    @property
    def scope(self) -> str:
        clip = "unbounded" if self.clip is None else f"clipped to norm {figure(self.clip)}"
        unit = "one record's features at one client" if self.on == "embedding" else "one record"
        return (
            f"{self.updates:,} updates, {self.per_upload} release(s) of {self.batch:,} {self.on} "
            f"rows each, {clip}, of D={self.rows:,} records, {self.batches} batches; unit: {unit}"
        )

    @property
    def measured(self) -> str:
        return "row norm"

    def reach(self, adversary: str, relation: str, accountant: str) -> tuple[float, float | None]:
        return self.sensitivity, self.sigma / self.sensitivity

    def table(self) -> tuple[Claim, ...]:
        if broken := self.defect():
            note = f"{_sentence(broken)}."
            return tuple(self.row(who, note) for who in ("paper", "client", "external", "server"))
        proved = self._proved()
        external = "The final model holds parts that were trained without noise."
        others = {
            "client": "Its answers are made from labels without noise.",
            "external": external,
            "server": "Trusted: it holds the labels and sees all before the noise.",
        }
        found = {
            who: proved if who == self.adversary else self.row(who, note)
            for who, note in others.items()
        }
        return (self._paper(proved), *found.values())

    def _paper(self, proved: Claim) -> Claim:
        n = self.expected_participations if self.made is None else self.made.counted
        uploads = self.expected_uploads
        epsilon = epsilon_of(self.claimed_mu(n, uploads), self.delta)
        argument = (
            f"counted participation, {n:,} releases of one record's rows"
            if self.calibrated_by == "counted"
            else (
                f"the DPZV papers' argument of sampling, {uploads * self.per_upload:,} releases at "
                "rate B/D"
            )
        )
        share = "" if self.made else " if every client makes its expected share of the updates"
        note = (
            f"What this calibration claims ({argument}{share}); the DPZV papers do not state theirs"
            " for this method."
        )
        holds = proved.epsilon <= epsilon * ROUNDING
        if not holds:
            note += " NOT proved."
        return replace(self.row("paper", note, epsilon, CLOSED_FORM), holds=holds)

    def _proved(self) -> Claim:
        n, rows = self.participations, self.released
        epsilon = epsilon_of(self.proved_mu(n, rows), self.delta)
        if not self.hidden:
            note = (
                f"Each record's own rows are all that depends on it: {n:,} releases of them at one "
                f"client, {self.basis}. Labels are not protected."
            )
            return self.row(self.adversary, note, epsilon, CLOSED_FORM)
        direct = epsilon_of(replace(self, hidden=False).proved_mu(n, rows), self.delta)
        if self.on == "embedding":
            return self.row("server", f"{_sentence(_HELD_OUT)}.", direct_only=direct)
        note = (
            f"{_sentence(_HIDDEN)}: only the range of each of the {rows:,} rows released "
            f"({self.basis}) bounds one record's part."
        )
        return self.row(self.adversary, note, epsilon, _WHOLE, direct_only=direct)


class RowAccount(ReleaseAccount):
    """Counts how often each record's rows were released, and how many rows in all.

    On "embedding" every client has an account of its own (what is protected is one record's
    features at one client); on "gradient" there is one for all, since the others' answers reach a
    client through the cached embeddings. Noise on embeddings is added by the clients, each of which
    does not send an upload that would pass the budget. The simulator looks into these accounts when
    an upload comes, and when the run is over into those of the uploads still under way: what is
    refused was never sent. Where no ε can be given, every μ and ε is infinite.
    """

    def __init__(self, plan: RowReleasePlan) -> None:
        self._plan, self._private = plan, not plan.defect()
        groups, marks = len(plan.shares) if plan.of_uploads else 1, np.zeros(plan.rows, np.int64)
        self._records = [Participations(plan.rows, marks) for _ in range(groups)]
        self._rows, self._uploads = [0] * groups, [0] * groups
        self._spent = Spent(0, 0)  # rows and uploads of the account with most
        self._ceilings: dict[tuple[str, float], int] = {}

    def charge(self, event: ReleaseEvent) -> PrivacyLoss:
        """Count releases of these rows; return what is spent: claimed by the calibration, proved
        against clients.
        """
        group, spent, rows = self._group(event), self._spent, event.releases * len(event.ids)
        records = self._records[group]
        records.add(event.ids, event.releases)
        self._rows[group] += rows
        self._uploads[group] += 1
        self._spent = Spent(
            releases=spent.releases + event.releases,
            counted=max(spent.counted, records.most),
            rows=max(spent.rows, self._rows[group]),
            uploads=max(spent.uploads, self._uploads[group]),
        )
        proved = (
            self.mu() if self._plan.adversary == "client" and not self._plan.unmet() else math.inf
        )
        return PrivacyLoss(self.paper_mu(), proved, self._plan.delta)

    def spent(self) -> Spent:
        return self._spent

    def state(self) -> dict[str, Any]:
        spent = self._spent
        return {
            "counts": (spent.rows, spent.uploads, spent.releases, spent.counted),
            "accounts": list(zip(self._rows, self._uploads, strict=True)),
            "records": [records.counts.copy() for records in self._records],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        # older states have a batch's size after these, which no bound depends on
        rows, uploads, releases, counted = state["counts"][:4]
        self._spent = Spent(releases, counted, rows=rows, uploads=uploads)
        self._rows = [rows for rows, _ in state["accounts"]]
        self._uploads = [uploads for _, uploads in state["accounts"]]
        for records, counts in zip(self._records, state["records"], strict=True):
            records.restore(counts)

    def mu(self) -> float:
        """Return μ of what is proved so far against the adversary the noise is meant for; infinity
        if nothing is.
        """
        if not self._private:
            return math.inf if self._spent.counted else 0.0
        return self._plan.proved_mu(self._spent.counted, self._spent.rows)

    def paper_mu(self) -> float:
        """Return μ of what the calibration's argument claims so far; infinity if nothing is
        proved.
        """
        return (
            self._plan.claimed_mu(self._spent.counted, self._spent.uploads)
            if self._private
            else math.inf
        )

    def would_exceed(self, event: ReleaseEvent, limit: float, adversary: str) -> bool:
        """Return, before rows are released, whether ε would pass the limit; always, if no noise
        protects it.
        """
        plan, group = self._plan, self._group(event)
        n = max(self._spent.counted, self._records[group].after(event.ids, event.releases))
        if adversary == "paper" and self._private:
            uploads = max(self._spent.uploads, self._uploads[group] + 1)
            return (n if plan.calibrated_by == "counted" else uploads) > self._ceiling(
                adversary, limit
            )
        if adversary != plan.adversary:
            return True
        if not self._private:
            return n > 0
        rows = max(self._spent.rows, self._rows[group] + event.releases * len(event.ids))
        return (rows if plan.hidden else n) > self._ceiling(adversary, limit)

    def _group(self, event: ReleaseEvent) -> int:
        return event.client if self._plan.of_uploads else 0

    def _ceiling(self, adversary: str, limit: float) -> int:
        """The largest count that the limit allows: solved for once, so that each upload is one
        comparison.
        """
        if (adversary, limit) not in self._ceilings:
            plan = self._plan
            mu = plan.claimed_mu if adversary == "paper" else plan.proved_mu
            self._ceilings[adversary, limit] = largest_count(
                lambda count: epsilon_of(mu(count, count), plan.delta) <= limit * ROUNDING
            )
        return self._ceilings[adversary, limit]


def _sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}"


def _uploads(updates: int, shares: Sequence[float]) -> int:
    """Uploads of the client with the largest share; the tolerance keeps 2000 x 0.25 at 500."""
    return math.ceil(updates * max(shares) * (1 - 1e-12))
