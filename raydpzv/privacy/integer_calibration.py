"""Any two of ε, noise multiplier z and number of updates give the third, for releases of integers."""

from __future__ import annotations

import math
from dataclasses import replace

from raydpzv.errors import SpecError
from raydpzv.privacy.brent import brentq
from raydpzv.privacy.calibration import largest_count
from raydpzv.privacy.gdp import epsilon_of, mu_of
from raydpzv.privacy.integers import IntegerReleasePlan
from raydpzv.privacy.release import ROUNDING

_CLOSE = 1e-4  # relative, of z where it is searched for


def solve(
    plan: IntegerReleasePlan,
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    updates: int | None = None,
) -> IntegerReleasePlan:
    """Return a plan with any two of ε, z and updates, and the third solved for; the plan's own are replaced.

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
        return _longest(replace(plan, noise_multiplier=noise_multiplier, updates=plan.gather, target=epsilon))
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
    """Search log z between what is enough without sampling and what is too little with it, and end on the safe side."""

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
            f"privacy.epsilon: ε={plan.target:g} fits not one release, which alone is ε={alone:.4g} "
            f"(δ={plan.delta:g}, {plan.relation}, adversary {plan.adversary}); raise it or privacy.noise_multiplier"
        )
    return _after(plan, releases)


def _after(plan: IntegerReleasePlan, releases: int) -> IntegerReleasePlan:
    return replace(plan, updates=releases * plan.gather)
