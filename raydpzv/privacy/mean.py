"""Means of clipped slopes with floating-point noise (DPZV): the plan, its table, and its account.

| adversary  | sees                                                                       |
|------------|----------------------------------------------------------------------------|
| `paper`    | nobody: what the DPZV papers' accountant states                            |
| `client`   | one client or all of them: every release, and which rows are in each batch |
| `external` | the released values and the final model; no ids, no batch sizes, no seed   |
| `server`   | everything: trusted, so that its ε is always infinite                      |

An ε is never given without mechanism, neighbouring relation, adversary, accountant and δ; the unit
of privacy is one record. "replace" changes one record, its label included (labels only: the same
bound); "add_remove" sets one record's term to zero, the divisor and the schedule of batches staying
as they are. Sensitivity of the clipped mean: 2C/B when a record is replaced, C/B when its term is
set to zero. Both need a two-sided clip and a constant divisor.
"""

# D rows, B batch (also the mean's constant divisor), C clip, T releases, n_i releases record i
# takes part in, σ standard deviation of the noise on the mean, z = σB/C its ratio to the add/remove
# sensitivity C/B

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from raydpzv.errors import InputError, SpecError, suggest
from raydpzv.privacy.calibration import expected_participations, paper_epsilon, paper_mu
from raydpzv.privacy.claims import Claim, figure
from raydpzv.privacy.gdp import epsilon_of, mu_of
from raydpzv.privacy.participations import Participations
from raydpzv.privacy.pld import RELATIONS, poisson_epsilon, poisson_guess, poisson_releases
from raydpzv.privacy.release import (
    CLOSED_FORM,
    FLOATING_POINT,
    POISSON_PLD,
    ROUNDING,
    BatchReleasePlan,
    PrivacyLoss,
    ReleaseAccount,
    ReleaseEvent,
    Spent,
)

SERVERS = ("sgd", "zo", "frozen")
"""How w_0 learns; "sgd" and "zo" train it on labels without noise, which is hidden state."""
BUDGETED = ("paper", "client", "external")
"""Whose ε a budget can bound; the server is trusted and knows everything."""

_WHOLE = "closed form (GDP) of the whole mean"


@dataclass(frozen=True, kw_only=True)
class MeanReleasePlan(BatchReleasePlan):
    """A run's releases of means; SpecError where a value makes no sense.

    releases: scalars (updates x perturbations), planned or made; clip: C, two-sided; sigma: the
    noise's standard deviation on the released mean; server: see `SERVERS`; per_upload: P,
    perturbations on one batch.
    """

    releases: int
    clip: float
    sigma: float
    server: str

    def __post_init__(self) -> None:
        self.require("rows", "batch", "releases", "clip", "clients", "per_upload", server=SERVERS)
        if not (0 < self.delta < 1 and 0 <= self.sigma < math.inf):
            raise SpecError(
                f"want 0 < δ < 1 and a finite σ >= 0, not δ={self.delta}, σ={self.sigma}"
            )

    @property
    def adversary(self) -> str:
        return "client"

    @property
    def hidden_state(self) -> bool:
        """Whether the server keeps state that is no function of released values."""
        return self.server != "frozen"

    @property
    def participations(self) -> int:
        """The most releases one record takes part in."""
        return self.most_participations(self.releases, self.batch, self.clients)

    @property
    def load(self) -> float:
        """The largest batch over the divisor; a Poisson batch may hold all rows until it is
        counted.
        """
        if self.batches != "poisson":
            return 1.0
        return (self.rows if self.made is None else self.made.largest_batch) / self.batch

    def sensitivity(self, relation: str) -> float:
        """How far one record's own term can move the mean: 2C/B replaced, C/B set to zero."""
        return (2 if relation == "replace" else 1) * self.clip / self.batch

    def counted_as(self, spent: Spent) -> Self:
        return replace(super().counted_as(spent), releases=spent.releases)

    def account(self) -> MeanAccount:
        return MeanAccount(self)

    def premises(self) -> tuple[str, ...]:
        """Return what the proofs lack; the range of a release, which hidden state leaves, holds for
        any two tables.
        """
        return () if self.hidden_state else self.fitted

    def defect(self) -> str:
        """Return why no ε at all can be given, or nothing."""
        if self.sigma == 0:
            return "no noise is added to the releases"
        if self.noise == "seeded":
            return "the noise comes from a seed, and anyone with the seed subtracts it"
        return ""

    def obstacle(self) -> str:
        if (broken := self.defect()) or not self.hidden_state:
            return broken
        return (
            f'the server trains its head on labels without noise (server "{self.server}"), which '
            "carries a record into "
            "every later release"
        )

    def own_caveats(self) -> tuple[str, ...]:
        return (FLOATING_POINT,)

    def calibration(self) -> str:
        sigma = figure(self.sigma)
        if self.target is None:
            return (
                f"σ = {sigma} on the released mean is given by the scenario; it follows from no ε."
            )
        clip, releases, rows = figure(self.clip), f"{self.releases:,}", f"{self.rows:,}"
        mu = figure(mu_of(self.target, self.delta))
        return (
            f"Calibration: σ = 2C√T/(Dμ) = 2·{clip}·√{releases} / ({rows}·{mu}) = {sigma} on the "
            f"released mean (DPZV journal Theorem VI.5), from the target ε = {figure(self.target)} "
            f"at δ = {figure(self.delta)} (replace one record, as the paper claims it). Clip C = "
            f"{clip}; T = {releases} planned {'release' if self.releases == 1 else 'releases'}; D "
            f"= {rows} training rows; μ = {mu} is the Gaussian DP that gives this ε and δ (closed "
            "form)."
        )

    @property
    def mechanism(self) -> str:
        noise = f"σ={figure(self.sigma)} on the mean slope, {self.noise} noise"
        return f"floating-point Gaussian, {noise}" if self.sigma else "none"

    @property
    def scope(self) -> str:
        releases = "1 release" if self.releases == 1 else f"{self.releases:,} releases"
        return (
            f"{releases} of a clipped batch mean, C={figure(self.clip)}, B={self.batch:,} of "
            f"D={self.rows:,} records, {self.batches} batches; unit: one record"
        )

    @property
    def measured(self) -> str:
        return "mean slope"

    def reach(self, adversary: str, relation: str, accountant: str) -> tuple[float, float | None]:
        moved = 2 * self.clip * self.load if accountant == _WHOLE else self.sensitivity(relation)
        return moved, self.sigma / moved

    def table(self) -> tuple[Claim, ...]:
        note = "Trusted: it holds the labels and sees every value before the noise."
        server = replace(self.row("server", note), mechanism="none")
        if broken := self.defect():
            rows = (("paper", "replace"), *itertools.product(("client", "external"), RELATIONS))
            said = f"{broken[0].upper()}{broken[1:]}."
            return (*(self.row(who, said, relation=relation) for who, relation in rows), server)
        clients = tuple(map(self._client, RELATIONS))
        return (self._paper(clients[0]), *clients, *map(self._external, RELATIONS), server)

    def _paper(self, client: Claim) -> Claim:
        """The paper's ε; it is true exactly where the bound proved against the clients is no
        larger.
        """
        epsilon = paper_epsilon(
            self.releases, sigma=self.sigma, clip=self.clip, rows=self.rows, delta=self.delta
        )
        holds = client.epsilon <= epsilon * ROUNDING
        note = "The paper's claim (DPZV Theorem VI.5). "
        note += (
            "True here: no smaller than what is proved against the clients."
            if holds
            else (
                "NOT proved: a client chooses its batches and knows them, so that sampling hides "
                "nothing from it."
            )
        )
        if self.hidden_state:
            note += (
                " Besides, w_0 is trained without noise and carries a record into later releases."
            )
        note += (
            " The printed clip is one-sided and bounds nothing, here it is two-sided. "
            "Hyper-parameter search and evaluation are not charged. "
            "In the papers' λ form, C is twice the one here, at the same ε."
        )
        return replace(self.row("paper", note, epsilon, CLOSED_FORM), holds=holds)

    def _client(self, relation: str) -> Claim:
        direct = self._direct(relation, self.participations)
        if self.hidden_state:
            note = (
                "The server trains w_0 without noise, and through w_0 one record moves every later "
                "slope: only the range of the whole mean bounds a release."
            )
            return self.row(
                "client", note, self._whole(), _WHOLE, relation=relation, direct_only=direct
            )
        note = (
            "A client knows its batches: all releases in which a record takes part count in full, "
            f"at most {self.participations:,}, {self.basis}; all clients' together, since the "
            "others' releases reach a client through the cached embeddings."
        )
        if self.made is None and self.batches != "shuffle":
            note += self._forecast()
        return self.row("client", note, direct, CLOSED_FORM, relation=relation)

    def _external(self, relation: str) -> Claim:
        why = self.premise
        epsilon = self._direct(relation, self.participations)
        if not why:
            epsilon = poisson_epsilon(**self._sampled(relation), delta=self.delta)
        if self.hidden_state:
            note = (
                "The final model holds w_0, trained on labels without noise, whose release no ε "
                f"covers. While w_0 is withheld, the clients' ε = {figure(self._whole())} holds "
                f"({_WHOLE})."
            )
            return self.row("external", note, relation=relation, direct_only=epsilon)
        if why:
            note = f"No amplification is proved, since {why}: the bound against clients holds here."
            return self.row("external", note, epsilon, CLOSED_FORM, relation=relation)
        secret = "batch ids, batch sizes (also on the wire) and the coins"
        note = f"Valid while {secret} stay secret: they are the operator's."
        chance = poisson_guess(**self._sampled(relation))
        return replace(
            self.row("external", note, epsilon, POISSON_PLD, relation=relation), guess=chance
        )

    def _direct(self, relation: str, participations: int) -> float:
        """ε where a record moves nothing but its own term."""
        return participation_epsilon(
            participations=participations,
            sensitivity=self.sensitivity(relation),
            sigma=self.sigma,
            delta=self.delta,
        )

    def _sampled(self, relation: str) -> dict[str, Any]:
        """What the accountant of secret Poisson batches reads; P releases on one batch are one with
        z/√P.
        """
        return {
            "noise_multiplier": self.sigma * self.batch / self.clip / math.sqrt(self.per_upload),
            "rate": self.batch / self.rows,
            "releases": -(-self.releases // self.per_upload),
            "relation": relation,
        }

    def _whole(self) -> float:
        return whole_mean_epsilon(
            releases=self.releases,
            clip=self.clip,
            sigma=self.sigma,
            delta=self.delta,
            load=self.load,
        )

    def _forecast(self) -> str:
        """What the worst case may shrink to once participation is counted."""
        expected = expected_participations(releases=self.releases, rows=self.rows, batch=self.batch)
        figures = [figure(self._direct(relation, math.ceil(expected))) for relation in RELATIONS]
        return (
            " A record may be drawn every time, and the run counts how often it was; FORECAST, no "
            f"guarantee: the average, {figure(expected)} releases, gives ε = {figures[0]} "
            f"(replace) or {figures[1]} (add or remove), and the maximum is higher."
        )


class MeanAccount(ReleaseAccount):
    """Counts how often each record took part in releases of means.

    Against the clients ε is the counted participation's, over all clients' releases: a lone client
    sees the others' releases through the cached embeddings. With hidden state it is the whole-mean
    bound's. Where no ε can be given (no noise, or seeded noise) every ε is infinite.
    """

    def __init__(self, plan: MeanReleasePlan) -> None:
        self._plan, self._records = plan, Participations(plan.rows)
        self._sigma = 0.0 if plan.defect() else plan.sigma
        self._proves = not plan.unmet()
        # squared: how far one record moves one release, with hidden state all that the clip lets
        # through
        self._reach = (2 * plan.clip if plan.hidden_state else plan.sensitivity("replace")) ** 2
        self._releases = self._largest_batch = 0
        self._events, self._widest, self._whole = (
            0,
            1,
            0.0,
        )  # batches, most releases on one, Σ (n_t/B)²

    def charge(self, event: ReleaseEvent) -> PrivacyLoss:
        """Count all releases made on one batch; return what is spent: claimed by the paper, proved
        for clients.
        """
        rows, releases = len(event.ids), event.releases
        self._records.add(event.ids, releases)
        self._releases += releases
        self._events += 1
        if releases > self._widest:
            self._widest = releases
        if rows > self._largest_batch:
            self._largest_batch = rows
        self._whole += releases * (rows / self._plan.batch) ** 2
        return PrivacyLoss(
            self.paper_mu(), self.mu() if self._proves else math.inf, self._plan.delta
        )

    def spent(self) -> Spent:
        return Spent(self._releases, self._records.most, self._largest_batch)

    def state(self) -> dict[str, Any]:
        return {
            "counts": (self._releases, self._events, self._widest, self._whole),
            "records": self._records.counts.copy(),
            "largest_batch": self._largest_batch,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._releases, self._events, self._widest, self._whole = state["counts"]
        self._records.restore(state["records"])
        self._largest_batch = state["largest_batch"]

    def mu(self) -> float:
        """Return μ of what is proved so far against the clients; infinity if nothing is."""
        return math.sqrt(self._squared_mu(self._records.most, self._whole))

    def paper_mu(self, more: int = 0) -> float:
        """Return μ of what the paper claims is spent so far, and by more releases."""
        plan = self._plan
        return paper_mu(self._releases + more, sigma=self._sigma, clip=plan.clip, rows=plan.rows)

    def would_exceed(self, event: ReleaseEvent, limit: float, adversary: str) -> bool:
        """Return, before a batch is released, whether it would take ε above the limit for this
        adversary.

        External with hidden state is always exceeded: the final model holds state that was never
        noised. Where coins hide nobody it is the clients' ε.
        """
        plan, releases = self._plan, event.releases
        participations = self._records.after(event.ids, releases)
        if adversary not in BUDGETED:
            hint = suggest(adversary, BUDGETED)
            raise InputError(
                f'no budget bounds adversary "{adversary}": {hint}Known: {", ".join(BUDGETED)}'
            )
        if adversary == "paper":
            return self.paper_mu(releases) > _ceiling(limit, plan.delta)
        if adversary == "external" and (plan.hidden_state or self._sigma <= 0):
            return True
        if adversary == "external" and not plan.premise:
            return self._events + 1 > self._poisson_ceiling(limit, releases)
        whole = self._whole + releases * (len(event.ids) / plan.batch) ** 2
        return math.sqrt(self._squared_mu(participations, whole)) > _ceiling(limit, plan.delta)

    def _squared_mu(self, participations: int, whole: float) -> float:
        reach = (whole if self._plan.hidden_state else participations) * self._reach
        if reach == 0:
            return 0.0
        return reach / self._sigma**2 if self._sigma > 0 else math.inf

    def _poisson_ceiling(self, limit: float, releases: int) -> int:
        """Batches allowed to all, each charged as the one with most releases."""
        plan = self._plan
        return poisson_releases(
            noise_multiplier=self._sigma
            * plan.batch
            / plan.clip
            / math.sqrt(max(self._widest, releases)),
            rate=min(plan.batch / plan.rows, 1.0),
            delta=plan.delta,
            budget=limit,
        )


def participation_epsilon(
    *, participations: int, sensitivity: float, sigma: float, delta: float
) -> float:
    """Return ε of n plain Gaussian releases, μ = √n·s/σ, if they depend on data and earlier
    releases only.
    """
    if participations == 0:
        return 0.0
    return epsilon_of(
        math.sqrt(participations) * sensitivity / sigma if sigma > 0 else math.inf, delta
    )


def whole_mean_epsilon(
    *, releases: int, clip: float, sigma: float, delta: float, load: float = 1.0
) -> float:
    """Return all that is proved when hidden, un-noised state lets one record move every later
    slope.

    The mean of clipped slopes lies in [−C, C], so one release is (2C/σ)-GDP whatever happened
    before it and μ = √T·2C/σ, which is D times the paper's μ. `load` is the largest batch over the
    constant divisor, above 1 only with Poisson batches. The bound is the same for every
    neighbouring relation.
    """
    return participation_epsilon(
        participations=releases, sensitivity=2 * clip * load, sigma=sigma, delta=delta
    )


@functools.lru_cache(maxsize=64)
def _ceiling(limit: float, delta: float) -> float:
    """The μ that a budget of ε allows."""
    return mu_of(limit, delta) * ROUNDING
