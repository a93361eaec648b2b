"""What [privacy] comes to for a horizontal scenario of users: σ, the noise parts of its silos, what may be claimed."""

# U users, S silos

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

import numpy as np

from raydpzv.config.scenario import HorizontalScenario
from raydpzv.data.horizontal import Partition
from raydpzv.data.users import UserParts
from raydpzv.errors import SpecError
from raydpzv.experiment.privacy_setting import fitted_by
from raydpzv.keys import Key
from raydpzv.methods.descriptor import UserPlan
from raydpzv.privacy.user_accountant import UserSpending, calibrated, user_epsilon
from raydpzv.privacy.user_release import UserNoiseParts, UserRelease
from raydpzv.privacy.user_setting import UserSetting


@dataclass(frozen=True)
class UserPrivacy:
    """How a run releases sums over users, and what the claims are made from (None: it adds no noise).

    secret: what the coins of users and records come from, for the operator alone; None: the run's seed.
    """

    noise: UserNoiseParts
    claims: UserSetting | None
    secret: int | None = None


def user_privacy(spec: HorizontalScenario, parts: Partition, secret: int | None = None) -> UserPrivacy | None:
    """Return a scenario's noise for these users and silos; None for a method that knows no users.

    secret: of a run that began before; None: a new one, if coins are to hide anybody. Raises SpecError where no noise
    reaches the ε asked for, or not one release fits into the budget's.
    """
    plan = spec.descriptor.users(spec.method)
    if plan is None or spec.privacy is None or not isinstance(parts, UserParts):
        return None
    claims = user_setting(spec, plan, parts)
    if secret is None and has_secret_coins(spec):
        secret = secrets.randbits(256)
    assert spec.privacy.clip is not None
    release = UserRelease(
        spec.privacy.clip,
        plan.bits,
        claims.multiplier if claims else 0.0,
        reach=parts.clients if plan.kind == "naive" or (plan.kind, plan.weights) == ("sum", "uniform") else 1,
    )
    key = Key(spec.seed)
    seeded = spec.privacy.noise == "seeded"
    noise = UserNoiseParts(release, parts.users, key, key if secret is None else Key(secret), seeded)
    return UserPrivacy(noise, claims, secret)


def has_secret_coins(spec: HorizontalScenario) -> bool:
    """Tell whether a run draws users or records by coins that add to their privacy."""
    plan, privacy = spec.descriptor.users(spec.method), spec.privacy
    if plan is None or privacy is None or privacy.mode == "none" or privacy.noise != "system":
        return False
    return min(plan.sampling, plan.rate) < 1


def user_setting(spec: HorizontalScenario, plan: UserPlan, parts: UserParts) -> UserSetting | None:
    """Return what the claims are made from, with σ worked out of ε where that is given; None without noise."""
    privacy, updates = spec.privacy, spec.budget.updates
    if privacy is None or privacy.mode == "none":
        return None
    assert privacy.clip is not None
    assert privacy.delta is not None
    against = privacy.against or "external"
    found = UserSetting(
        users=parts.users,
        silos=parts.clients,
        releases=_releases(plan, updates, parts.clients),
        clip=privacy.clip,
        delta=privacy.delta,
        multiplier=privacy.multiplier or 1.0,
        kind=plan.kind,
        weights=plan.weights,
        sampling=plan.sampling,
        asynchronous=plan.asynchronous,
        aggregation=plan.aggregation,
        bits=plan.bits,
        group=_group(plan, parts),
        group_rule=plan.group if isinstance(plan.group, str) else "",
        rate=plan.rate,
        steps=plan.steps,
        noise=privacy.noise,
        against=against,
        planned=updates is not None,
        exposed=_exposed(spec, against),
        fitted=fitted_by(spec.data),
    )
    if privacy.epsilon is not None:
        found = calibrated(found, privacy.epsilon)
    _check_first_release(found, spec.budget.epsilon)
    return found


def _releases(plan: UserPlan, updates: int | None, silos: int) -> int:
    """Return the most releases that are planned; of single silos also those on their way when the run is over."""
    under_way = silos - 1 if plan.asynchronous and updates is not None else 0
    return (updates or 1) + under_way


def _group(plan: UserPlan, parts: UserParts) -> int:
    """k, which "max" and "median" read off the users' numbers of records."""
    if isinstance(plan.group, int):
        return plan.group
    counts_U = parts.counts().sum(0)
    return int(counts_U.max() if plan.group == "max" else np.median(counts_U))


def _exposed(spec: HorizontalScenario, against: str) -> str:
    """Return why secret coins may hide nobody: when the run ends may depend on them."""
    limits = {"seconds": spec.budget.seconds, "bytes": spec.budget.bytes}
    if against != "external":
        limits["epsilon"] = spec.budget.epsilon
    named = ", ".join(f"budget.{name}" for name, limit in limits.items() if limit is not None)
    return f"when the run ends may depend on who is drawn ({named})" if named else ""


def _check_first_release(setting: UserSetting, limit: float | None) -> None:
    """Refuse an ε budget that not even one release fits into. Raises SpecError."""
    everybody = np.arange(setting.users)
    if limit is None or not UserSpending(setting).would_exceed(everybody, limit, setting.against):
        return
    alone = user_epsilon(replace(setting, releases=1, counted=1), setting.against)
    raise SpecError(
        f"budget.epsilon: not one release fits, which alone is ε={alone:.4g} against {setting.against} "
        f"(δ={setting.delta:g}, add or remove one user), above {limit:g}; raise it or add noise"
    )
