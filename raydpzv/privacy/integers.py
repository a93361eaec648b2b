"""Integers with rounded Gaussian noise on their exact sum (privacy.mode = "proved"): the plan, its
table, its account.

A release is one vector of P integers: the sum over its rows of each record's clipped slopes, of
Euclidean norm at most G, plus rounded Gaussian noise of deviation s = z G. With the head trained by
DP-SGD ("dp_sgd") a release has a second part, the noised gradient of w_0 on the same rows, of noise
multiplier z_0. Nothing else that depends on records persists at the server, so that a release
depends on a record only if the record is among its rows.

For neighbours that differ in record i all releases together are μ_i-GDP with μ_i² = n_i (c/z)² +
n⁰_i (c/z_0)², n_i and n⁰_i the releases of slopes and of the head's gradient that the record takes
part in, c = 2 (a record or its label replaced) or 1 (its term set to zero): each release is a
rounding of a Gaussian mechanism on a sum that moves by at most c times one record's largest part,
given the releases before it. ε is that of the record with most. Anyone who sees neither row numbers
nor coins gets the ε of secret Poisson sampling.

| adversary     | sees                                                                               |
|---------------|------------------------------------------------------------------------------------|
| `external`    | all releases and the final model; no row numbers, no batch sizes, no coins          |
| `client`      | one client: all releases, and which rows are in each of its own                     |
| `all_clients` | all clients together: all releases, and which rows are in each                      |
| `server`      | everything before the noise: trusted, nothing is proved                             |

The unit of privacy is one record. A lone client is not counted on its own releases only, since the
others' reach it through the cached embeddings. Whatever cannot be proved is refused when the plan
is made.
"""

# D rows, B rows of an upload, Q uploads a release, P directions, n releases one record takes part
# in

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raydpzv.errors import SpecError
from raydpzv.privacy.calibration import largest_count
from raydpzv.privacy.claims import Claim, figure
from raydpzv.privacy.gdp import epsilon_of, mu_of
from raydpzv.privacy.participations import Participations
from raydpzv.privacy.pld import poisson_epsilon, poisson_guess, poisson_releases
from raydpzv.privacy.release import (
    CLOSED_FORM,
    POISSON_PLD,
    ROUNDING,
    BatchReleasePlan,
    PrivacyLoss,
    ReleaseAccount,
    ReleaseEvent,
    Spent,
    require_provable,
)

RELATIONS = {"replace": 2, "labels": 2, "add_remove": 1}
"""Neighbouring relations, and how far one moves a record's part of a sum, c, in units of its
largest norm: one record replaced, its label alone changed, its term set to zero."""
ADVERSARIES = ("client", "external")
"""Whom ε is promised against: all clients together, or anyone who sees releases and final model but
no row numbers.
"""
SERVERS = ("frozen", "joint", "dp_sgd")
"""How w_0 learns: not at all, along its part of the released direction, or by gradients with noise
of their own.
"""

_TABLE = "the proof is about the table as loaded, and about training rows"


@dataclass(frozen=True, kw_only=True)
class IntegerReleasePlan(BatchReleasePlan):
    """A run's releases, planned or made; SpecError where nothing could be proved of it.

    updates: uploads served; noise_multiplier: z, the slopes' noise over their largest part of one
    record. batch: B, rows of an upload (D for all); gather: Q; clip: C, so that V = C√P bounds a
    record's slopes; grid: G.
    head_share: of μ², spent on the head with "dp_sgd", else None. head_alone: clients never learn,
    and a release is the head's gradient alone, of norm C at most and with noise multiplier z (P is
    1). permit_large_delta: may δ be 1/D or more?
    """

    updates: int
    noise_multiplier: float
    clip: float
    gather: int = 1
    perturbations: int = 1
    grid: int = 4096
    server: str = "frozen"
    head_share: float | None = None
    head_alone: bool = False
    relation: str = "replace"
    adversary: str = "client"
    permit_large_delta: bool = False

    def __post_init__(self) -> None:
        self.require(
            "rows",
            "batch",
            "clip",
            "gather",
            "clients",
            "perturbations",
            "grid",
            server=SERVERS,
            relation=RELATIONS,
            adversary=ADVERSARIES,
        )
        require_provable(self, permit_large_delta=self.permit_large_delta)
        self._require_gather()
        if (self.server == "dp_sgd" and not self.head_alone) != (self.head_share is not None):
            raise SpecError(
                'privacy.head_share: goes with method.server = "dp_sgd", which needs it; got '
                f'{self.head_share} with "{self.server}"'
            )
        if self.head_share is not None and not 0 < self.head_share < 1:
            raise SpecError(
                "privacy.head_share: wanted a share between 0 and 1 of what dp_sgd spends, got "
                f"{self.head_share}"
            )
        if not 0 < self.noise_multiplier < math.inf:
            raise SpecError(
                f"privacy.noise_multiplier: wanted a number above 0, got {self.noise_multiplier}; "
                "without noise nothing is proved"
            )
        if self.updates < self.gather:
            raise SpecError(
                f"budget.updates: wanted at least method.gather = {self.gather} (nothing is "
                f"released before), got {self.updates}"
            )

    @property
    def change(self) -> int:
        """How far one record moves its part of a sum, c, in units of the part's largest norm."""
        return RELATIONS[self.relation]

    @property
    def release_rows(self) -> int:
        """Rows of a release, QB: the constant divisor."""
        return self.batch * self.gather

    @property
    def slope_share(self) -> float:
        """Share of μ² that is spent on what z is of: the slopes, or the head's gradient where there
        are none.
        """
        return 1.0 - (self.head_share or 0.0)

    @property
    def releases(self) -> int:
        """All releases: as made, or the most of the planned updates, of which a client's Q make
        one.
        """
        return self.updates // self.gather if self.made is None else self.made.releases

    @property
    def participations(self) -> int:
        """The most releases one record takes part in."""
        return self.most_participations(self.releases, self.release_rows, self.clients)

    @property
    def effective_multiplier(self) -> float:
        """Slopes and head on the same rows are one Gaussian mechanism of this multiplier, (z⁻² +
        z_0⁻²)^(-1/2).
        """
        return self.noise_multiplier * math.sqrt(self.slope_share)

    @property
    def head_multiplier(self) -> float | None:
        """z_0, the noise of the head's gradient over its clip; None where it has no release beside
        slopes.
        """
        if self.head_share is None:
            return None
        return self.effective_multiplier / math.sqrt(self.head_share)

    @property
    def scale(self) -> float:
        """Deviation of the noise on the integers, s = z G."""
        return self.noise_multiplier * self.grid

    def clients_mu(self, participations: int | None = None) -> float:
        """Return μ against all clients together after n releases of one record; None: as planned or
        counted.
        """
        n = self.participations if participations is None else participations
        return release_mu(
            participations=n,
            noise_multiplier=self.noise_multiplier,
            relation=self.relation,
            head_participations=n if self.head_multiplier else 0,
            head_multiplier=self.head_multiplier or math.inf,
        )

    def clients_epsilon(self) -> float:
        """Return ε against all clients together, who know which rows are in a release."""
        return epsilon_of(self.clients_mu(), self.delta)

    def external_epsilon(self) -> float:
        """Return ε of who sees releases and final model: amplified if every premise holds, else the
        clients'.
        """
        if self.premise:
            return self.clients_epsilon()
        return self.sampled_epsilon(self.effective_multiplier, self.releases)

    def sampled_epsilon(self, effective: float, releases: int) -> float:
        """Return ε of so many releases on secret Poisson batches with this effective multiplier."""
        return poisson_epsilon(**self._sampling(effective), releases=releases, delta=self.delta)

    def sampled_releases(self, limit: float) -> int:
        """Return the most releases on secret Poisson batches that stay within an ε, to 0.1 %."""
        return poisson_releases(
            **self._sampling(self.effective_multiplier), delta=self.delta, budget=limit
        )

    def _sampling(self, effective: float) -> dict[str, Any]:
        """What the accountant of Poisson batches reads; a changed label moves a sum as a replaced
        record does.
        """
        relation = "add_remove" if self.relation == "add_remove" else "replace"
        return {"noise_multiplier": effective, "rate": self.batch / self.rows, "relation": relation}

    def account(self) -> IntegerAccount:
        return IntegerAccount(self)

    def budget_terms(self, adversary: str) -> tuple[str, str]:
        return "all clients together", self.relation

    def own_caveats(self) -> tuple[str, ...]:
        head = "the head's noise is floating-point, not exactly Gaussian, and can leak"
        return (_TABLE, head) if self.server == "dp_sgd" else (_TABLE,)

    def calibration(self) -> str:
        noise = (
            f"noise of z = {figure(self.noise_multiplier)} (over one record's term), and "
            f"{self.updates:,} updates"
        )
        if self.target is None:
            return f"{noise[0].upper()}{noise[1:]}, are given by the scenario; ε follows from them."
        return (
            f"Calibration: {noise}, for ε = {figure(self.target)} at δ = {figure(self.delta)}: μ² "
            "= n (c/z)² with n the most releases that one record takes part in by the plan, c = 2 "
            "(replace, labels) or 1 (add/remove), and μ the Gaussian DP that gives this ε and δ "
            "(closed form); against an outsider who knows no batches, by Poisson sampling (PLD)."
        )

    def table(self) -> tuple[Claim, ...]:
        """Return the table: external, one client, all clients, server.

        Beside adding and removing a record it says what replacing one costs.
        """
        replaced = (replace(self, relation="replace"),) if self.relation == "add_remove" else ()
        note = (
            "Trusted: it holds the labels and sees every value before the noise. Nothing is proved."
        )
        server = replace(self.row("server", note), mechanism="none")
        return (*(row for plan in (self, *replaced) for row in plan._proved()), server)

    def _proved(self) -> tuple[Claim, ...]:
        counts = (
            f"all releases of a record count in full, at most {self.participations:,}, {self.basis}"
            f"{' for every order of arrival' if self.made is None else ''}."
        )
        one = f"The others' releases reach a client through the cached embeddings, so that {counts}"
        together = f"All clients together know which rows are in each release, so that {counts}"
        epsilon = self.clients_epsilon()
        return (
            self._external(),
            self.row("client", one, epsilon, CLOSED_FORM),
            self.row("all_clients", together, epsilon, CLOSED_FORM),
        )

    def _external(self) -> Claim:
        epsilon = self.external_epsilon()
        if self.premise:
            note = (
                f"No amplification is proved, since {self.premise}: the clients' number holds here."
            )
            return self.row("external", note, epsilon, CLOSED_FORM)
        note = (
            "Amplified by secret Poisson batches. Valid while row numbers, batch sizes (also on "
            "the wire) and the coins stay with the operator, and a number of updates alone ends "
            "the run."
        )
        guess = poisson_guess(**self._sampling(self.effective_multiplier), releases=self.releases)
        return replace(self.row("external", note, epsilon, POISSON_PLD), guess=guess)

    @property
    def mechanism(self) -> str:
        noise = f"z={figure(self.noise_multiplier)} over one record's term"
        if self.head_alone:
            return f"Gaussian on the head's gradient, {noise}, system noise"
        slopes = f"rounded Gaussian on integers, {noise}"
        if self.head_multiplier is None:
            return f"{slopes}, system noise"
        return (
            f"{slopes}, and Gaussian on the head's gradient, z_0={figure(self.head_multiplier)}, "
            "system noise"
        )

    @property
    def measured(self) -> str:
        return "mean gradient" if self.head_alone else "mean slopes"

    def reach(self, adversary: str, relation: str, accountant: str) -> tuple[float, float | None]:
        moved = (
            self.change * self.clip * math.sqrt(self.perturbations) / self.release_rows
        )  # c V / (Q B)
        return moved, self.effective_multiplier / self.change

    @property
    def scope(self) -> str:
        releases = "1 release" if self.releases == 1 else f"{self.releases:,} releases"
        what = (
            f"the head's gradient, of norm {figure(self.clip)} at most a record"
            if self.head_alone
            else (
                f"{self.perturbations} slopes, one vector of norm "
                f"{figure(self.clip)}·√{self.perturbations} at most a record"
            )
        )
        return (
            f"{releases} of {what}, {self.release_rows:,} of D={self.rows:,} records, "
            f"{self.batches} batches; unit: one record"
        )

    def _require_gather(self) -> None:
        if self.gather == 1:
            return
        if self.adversary == "external":
            raise SpecError(
                'method.gather: wanted 1 with privacy.adversary = "external", which needs '
                'method.batches = "poisson", '
                f"got {self.gather}; leave it out"
            )
        batches = self.rows // self.batch
        if self.batches != "shuffle" or batches % self.gather:
            fitting = ", ".join(str(q) for q in range(1, batches + 1) if batches % q == 0)
            raise SpecError(
                f'method.gather: {self.gather} uploads a release want method.batches = "shuffle" '
                f"and a divisor of the {batches} batches of a pass ({fitting}), got batches "
                f'"{self.batches}"'
            )


class IntegerAccount(ReleaseAccount):
    """Counts how often each record took part in releases of integers.

    A release is counted once for each of its records, whatever its number of directions, and its
    head's gradient with it.
    """

    def __init__(self, plan: IntegerReleasePlan) -> None:
        self._plan, self._records = plan, Participations(plan.rows)
        self._releases = 0
        # rows of uploads that wait for their client's release
        self._gathered: dict[int, list[np.ndarray]] = {}

    def charge(self, event: ReleaseEvent) -> PrivacyLoss:
        """Count a release on the rows of all its uploads; return what is proved against the
        clients.
        """
        self._gathered.pop(event.client, None)
        self._records.add(event.ids, 1)
        self._releases += 1
        return PrivacyLoss(math.nan, self._plan.clients_mu(self._records.most), self._plan.delta)

    def spent(self) -> Spent:
        return Spent(self._releases, self._records.most)

    def state(self) -> dict[str, Any]:
        gathered = [(client, list(uploads)) for client, uploads in sorted(self._gathered.items())]
        return {
            "releases": self._releases,
            "records": self._records.counts.copy(),
            "held": gathered,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._releases = state["releases"]
        self._records.restore(state["records"])
        self._gathered = dict(state["held"])

    def would_exceed(self, event: ReleaseEvent, limit: float, adversary: str) -> bool:
        """Return, before an upload is served, whether its release would take ε above the limit.

        With it go the uploads of its release that were served before: others may have released
        their rows since. An upload that exceeds nothing waits for its release.
        """
        plan = self._plan
        gathered = [*self._gathered.get(event.client, ()), event.ids]
        if adversary == "external" and not plan.premise:
            exceeds = self._releases + 1 > plan.sampled_releases(limit)
        else:
            after = plan.clients_mu(self._records.after(np.concatenate(gathered), 1))
            exceeds = after > mu_of(limit, plan.delta) * ROUNDING
        if not exceeds:
            self._gathered[event.client] = gathered
        return exceeds


def release_mu(
    *,
    participations: int,
    noise_multiplier: float,
    relation: str = "replace",
    head_participations: int = 0,
    head_multiplier: float = math.inf,
) -> float:
    """Return μ = c √(n/z² + n⁰/z_0²) of n releases of slopes and n⁰ of the head's gradient."""
    spent = participations / noise_multiplier**2 + head_participations / head_multiplier**2
    return RELATIONS[relation] * math.sqrt(spent)


_CLOSE = 1e-4  # relative, of z where it is searched for


def solve(
    plan: IntegerReleasePlan,
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    updates: int | None = None,
) -> IntegerReleasePlan:
    """Return a plan with any two of ε, z and updates, and the third solved for; the plan's own are
    replaced.

    z is of the slopes; the head's follows from its share. The updates are the most that stay within
    ε in whatever order clients arrive (against an outsider to 0.1 %), and z the least (to 0.02 %).
    Raises SpecError for other than two, for an adversary whose premise fails, and where not one
    release fits.
    """
    given = {
        "privacy.epsilon": epsilon,
        "privacy.noise_multiplier": noise_multiplier,
        "budget.updates": updates,
    }
    if sum(value is not None for value in given.values()) != 2:
        got = (
            ", ".join(f"{name} = {value}" for name, value in given.items() if value is not None)
            or "none"
        )
        raise SpecError(
            f"privacy: wanted any two of {', '.join(given)} (the third follows), got {got}"
        )
    if plan.adversary == "external" and plan.premise:
        raise SpecError(
            'privacy.adversary: against "external" no more is proved than against the clients, '
            f'since {plan.premise}; mend that, or use "client"'
        )
    if epsilon is not None and not 0 < mu_of(epsilon, plan.delta) < math.inf:
        raise SpecError(f"privacy.epsilon: wanted a finite number above 0, got {epsilon}")
    if updates is None:
        assert epsilon is not None
        assert noise_multiplier is not None
        return _longest(
            replace(plan, noise_multiplier=noise_multiplier, updates=plan.gather, target=epsilon)
        )
    if noise_multiplier is not None:
        return replace(plan, updates=updates, noise_multiplier=noise_multiplier)
    assert epsilon is not None
    return _with_least_noise(replace(plan, updates=updates, target=epsilon), epsilon)


def one_release_epsilon(plan: IntegerReleasePlan) -> float:
    """Return ε of a single release against the adversary that the plan names."""
    if plan.adversary == "external" and not plan.premise:
        return plan.sampled_epsilon(plan.effective_multiplier, 1)
    return epsilon_of(plan.clients_mu(1), plan.delta)


def _with_least_noise(plan: IntegerReleasePlan, epsilon: float) -> IntegerReleasePlan:
    """Return the plan with z = c√n/μ of the slopes' share of μ², or what sampling leaves of it."""
    effective = plan.change * math.sqrt(plan.participations) / mu_of(epsilon, plan.delta)
    if plan.adversary == "external":
        effective = _least_sampled_noise(plan, epsilon, effective)
    return replace(plan, noise_multiplier=effective / math.sqrt(plan.slope_share))


def _least_sampled_noise(plan: IntegerReleasePlan, epsilon: float, unsampled: float) -> float:
    """Search log z between what is enough without sampling and what is too little with it, and end
    on the safe side.
    """
    from scipy.optimize import brentq

    def excess(log_z: float) -> float:
        spent = plan.sampled_epsilon(math.exp(log_z), plan.releases)
        return math.log(mu_of(spent, plan.delta)) - aim

    aim, low = math.log(mu_of(epsilon, plan.delta)), unsampled * (plan.batch / plan.rows)
    while plan.sampled_epsilon(low, plan.releases) <= epsilon:
        low /= 2
    found = math.exp(brentq(excess, math.log(low), math.log(unsampled * ROUNDING), xtol=_CLOSE / 2))
    while plan.sampled_epsilon(found, plan.releases) > epsilon:
        found *= 1 + _CLOSE / 2
    return found


def _longest(plan: IntegerReleasePlan) -> IntegerReleasePlan:
    """Return the plan with the most updates within its target."""
    assert plan.target is not None
    if plan.adversary == "external":
        releases = plan.sampled_releases(plan.target)
    else:
        most = mu_of(plan.target, plan.delta) * ROUNDING
        releases = largest_count(lambda count: _after(plan, count).clients_mu() <= most)
    if releases == 0:
        alone = one_release_epsilon(plan)
        raise SpecError(
            f"privacy.epsilon: ε={plan.target:g} fits not one release, which alone is "
            f"ε={alone:.4g} (δ={plan.delta:g}, {plan.relation}, adversary {plan.adversary}); raise "
            "it or privacy.noise_multiplier"
        )
    return _after(plan, releases)


def _after(plan: IntegerReleasePlan, releases: int) -> IntegerReleasePlan:
    return replace(plan, updates=releases * plan.gather)
