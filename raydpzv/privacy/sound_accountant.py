"""Privacy of releases of integers ("sound"): μ and ε of a setting, the third of ε, z and updates, a run's account.

For neighbours that differ in record i all releases together are μ_i-GDP with μ_i² = n_i (c/z)² + n⁰_i (c/z_0)², n_i and
n⁰_i the releases of slopes and of the head's gradient that the record takes part in, c = 2 (a record or its label
replaced) or 1 (its term set to zero): each release is a rounding of a Gaussian mechanism on a sum that moves by at most
c times one record's largest part, given the releases before it. ε is that of the record with most. Whoever sees neither
row numbers nor coins gets the ε of secret Poisson sampling.
"""

# D rows, B rows of an upload, Q uploads a release, n releases one record takes part in

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from raydpzv.errors import SpecError
from raydpzv.privacy.calibration import largest_count
from raydpzv.privacy.gdp import epsilon_of, mu_of
from raydpzv.privacy.mean_accountant import poisson_epsilon, poisson_guess, poisson_releases
from raydpzv.privacy.participations import Participations, Rows
from raydpzv.privacy.sound_setting import RELATIONS, SoundPlan, SoundSetting

_ROUNDING = 1 + 1e-9  # a run whose noise was solved for ends on its ε, not one release before
_CLOSE = 1e-4  # relative, of z where it is searched for


def sound_mu(
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


def clients_mu(setting: SoundSetting, participations: int | None = None) -> float:
    """Return μ against all clients together after n releases of one record; None: as planned or counted."""
    n = setting.participations if participations is None else participations
    return sound_mu(
        participations=n,
        noise_multiplier=setting.noise_multiplier,
        relation=setting.relation,
        head_participations=n if setting.head_multiplier else 0,
        head_multiplier=setting.head_multiplier or math.inf,
    )


def clients_epsilon(setting: SoundSetting) -> float:
    """Return ε against all clients together, who know which rows are in a release."""
    return epsilon_of(clients_mu(setting), setting.delta)


def external_epsilon(setting: SoundSetting) -> float:
    """Return ε against whoever sees releases and final model: amplified if every premise holds, else the clients'."""
    if setting.premise:
        return clients_epsilon(setting)
    return _sampled(setting, setting.effective_multiplier, setting.releases)


def external_guess(setting: SoundSetting) -> float:
    """Return how often that outsider is right at most, where sampling hides batches from it."""
    return poisson_guess(
        noise_multiplier=setting.effective_multiplier,
        rate=setting.rate,
        releases=setting.releases,
        relation=_sampled_relation(setting),
    )


def promised_epsilon(setting: SoundSetting) -> float:
    """Return ε against the adversary that the setting names."""
    return external_epsilon(setting) if setting.adversary == "external" else clients_epsilon(setting)


def one_release_epsilon(setting: SoundSetting) -> float:
    """Return ε of a single release against the adversary that the setting names."""
    if setting.adversary == "external" and not setting.premise:
        return _sampled(setting, setting.effective_multiplier, 1)
    return epsilon_of(clients_mu(setting, 1), setting.delta)


def solve(
    plan: SoundPlan,
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    updates: int | None = None,
) -> SoundSetting:
    """Return the setting that any two of ε, z and updates make of a plan, with the third worked out.

    z is of the slopes; the head's follows from its share. The updates are the most that stay within ε in whatever order
    clients arrive (against an outsider to 0.1 %), and z the least (to 0.02 %). Raises SpecError for other than two, for
    an adversary whose premise fails, and where not one release fits.
    """
    given = {
        "privacy.epsilon": epsilon,
        "privacy.noise_multiplier": noise_multiplier,
        "budget.updates": updates,
    }
    if sum(value is not None for value in given.values()) != 2:
        got = ", ".join(f"{name} = {value}" for name, value in given.items() if value is not None) or "none"
        raise SpecError(f"privacy: wanted any two of {', '.join(given)} (the third follows), got {got}")
    if plan.adversary == "external" and plan.premise:
        raise SpecError(
            'privacy.adversary: against "external" no more is proved than against the clients, since '
            f'{plan.premise}; mend that, or use "client"'
        )
    if epsilon is not None and not 0 < mu_of(epsilon, plan.delta) < math.inf:
        raise SpecError(f"privacy.epsilon: wanted a finite number above 0, got {epsilon}")
    if updates is None:
        assert epsilon is not None
        assert noise_multiplier is not None
        return _longest(plan, epsilon, noise_multiplier)
    if noise_multiplier is not None:
        return _setting(plan, updates, noise_multiplier)
    assert epsilon is not None
    return _with_least_noise(_setting(plan, updates, 1.0, epsilon), epsilon)


class SoundSpending:
    """Counts how often each record took part in releases; a fold over them, plain data.

    A release is counted once, whatever its number of directions, and its head's gradient with it.
    """

    def __init__(self, setting: SoundSetting) -> None:
        self._setting, self._records = setting, Participations(setting.rows)
        self.releases = 0

    @property
    def participations(self) -> int:
        """The most releases that one record took part in."""
        return self._records.most

    def add(self, ids: Rows) -> None:
        """Count a release on the rows of all its uploads, int [n].

        Raises InputError for a row twice or outside 0..D-1.
        """
        self._records.add(ids, 1)
        self.releases += 1

    def state(self) -> dict[str, Any]:
        """Return what another account of the same setting goes on from."""
        return {"releases": self.releases, "records": self._records.counts.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of another account."""
        self.releases = state["releases"]
        self._records.restore(state["records"])

    def mu(self) -> float:
        """Return μ of what is proved so far against all clients together."""
        return clients_mu(self._setting, self.participations)

    def epsilon(self) -> float:
        """Return ε of what is proved so far against all clients together."""
        return epsilon_of(self.mu(), self._setting.delta)

    def would_exceed(self, ids: Rows, budget: float, adversary: str = "client") -> bool:
        """Tell before a release on these rows whether it would take ε above the budget."""
        setting = self._setting
        if adversary == "external" and not setting.premise:
            return self.releases + 1 > _sampled_releases(setting, setting.effective_multiplier, budget)
        after = clients_mu(setting, self._records.after(ids, 1))
        return after > mu_of(budget, setting.delta) * _ROUNDING


def _setting(
    plan: SoundPlan, updates: int, noise_multiplier: float, target: float | None = None
) -> SoundSetting:
    shared: dict[str, Any] = {field.name: getattr(plan, field.name) for field in fields(SoundPlan)}
    return SoundSetting(**shared, updates=updates, noise_multiplier=noise_multiplier, target=target)


def _with_least_noise(setting: SoundSetting, epsilon: float) -> SoundSetting:
    """Return the setting with z = c√n/μ of the slopes' share of μ², or what sampling leaves of it."""
    effective = setting.change * math.sqrt(setting.participations) / mu_of(epsilon, setting.delta)
    if setting.adversary == "external":
        effective = _least_sampled_noise(setting, epsilon, effective)
    return replace(setting, noise_multiplier=effective / math.sqrt(setting.slope_share))


def _least_sampled_noise(setting: SoundSetting, epsilon: float, unsampled: float) -> float:
    """Search log z between what is enough without sampling and what is too little with it, and end on the safe side."""
    from scipy.optimize import brentq

    def excess(log_z: float) -> float:
        spent = _sampled(setting, math.exp(log_z), setting.releases)
        return math.log(mu_of(spent, setting.delta)) - aim

    aim, low = math.log(mu_of(epsilon, setting.delta)), unsampled * setting.rate
    while _sampled(setting, low, setting.releases) <= epsilon:
        low /= 2
    found = math.exp(brentq(excess, math.log(low), math.log(unsampled * _ROUNDING), xtol=_CLOSE / 2))
    while _sampled(setting, found, setting.releases) > epsilon:
        found *= 1 + _CLOSE / 2
    return found


def _longest(plan: SoundPlan, epsilon: float, noise_multiplier: float) -> SoundSetting:
    trial = _setting(plan, plan.gather, noise_multiplier, epsilon)
    if plan.adversary == "external":
        releases = _sampled_releases(plan, trial.effective_multiplier, epsilon)
    else:
        most = mu_of(epsilon, plan.delta) * _ROUNDING
        releases = largest_count(
            lambda count: clients_mu(trial, plan.participations_of(count * plan.gather)) <= most
        )
    if releases == 0:
        raise SpecError(
            f"privacy.epsilon: ε={epsilon:g} fits not one release, which alone is ε={one_release_epsilon(trial):.4g} "
            f"(δ={plan.delta:g}, {plan.relation}, adversary {plan.adversary}); raise it or privacy.noise_multiplier"
        )
    return _setting(plan, releases * plan.gather, noise_multiplier, epsilon)


def _sampled(plan: SoundPlan, effective: float, releases: int) -> float:
    return poisson_epsilon(
        noise_multiplier=effective,
        rate=plan.rate,
        releases=releases,
        delta=plan.delta,
        relation=_sampled_relation(plan),
    )


def _sampled_releases(plan: SoundPlan, effective: float, budget: float) -> int:
    return poisson_releases(
        noise_multiplier=effective,
        rate=plan.rate,
        delta=plan.delta,
        budget=budget,
        relation=_sampled_relation(plan),
    )


def _sampled_relation(plan: SoundPlan) -> str:
    """A changed label moves a sum as a replaced record does."""
    return "add_remove" if plan.relation == "add_remove" else "replace"
