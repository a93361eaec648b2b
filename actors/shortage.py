"""What a cluster lacks for a plan, in the arithmetic that a user can check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from actors.shares import Plan

Amounts = Mapping[str, float]
"""Amounts by Ray's names of resources."""
_KINDS = ("CPU", "GPU")
_SLACK = 1e-9
"""What sums of fractions may be off by."""


@dataclass(frozen=True)
class Lack:
    """What was asked and what there is; how much of it is missing; what a user may do.

    lasts: until the cluster grows; else until something ends that is on it.
    """

    asked: str
    missing: str
    remedy: str
    lasts: bool = True

    def __str__(self) -> str:
        return f"resources: {self.asked}; {self.remedy}"


def lack(plan: Plan, machines: Sequence[Amounts]) -> Lack | None:
    """Return the first thing that a cluster of these machines lacks for a plan, busy or not; None: nothing known."""
    total = {kind: sum(there.get(kind, 0.0) for there in machines) for kind in _KINDS}
    return lack_in_all(plan, total) or _lack_on_one(plan, machines) or _lack_of_machines(plan, machines)


def lack_in_all(plan: Plan, total: Amounts) -> Lack | None:
    """Return what is missing of the cluster's sums."""
    for kind in _KINDS:
        amounts = [bundle.get(kind, 0.0) for bundle in plan.bundles()]
        need, there = sum(amounts), total.get(kind, 0.0)
        settings = [f"{who}_{kind.lower()}s" for who in (["server"] if amounts[0] else []) + [plan.member]]
        if need > there + _SLACK:
            return Lack(
                f"{len([a for a in amounts if a])} actors ask {need:g} {kind} in all "
                f"(server {amounts[0]:g}, {plan.member}s {sum(amounts[1:]):g}), the cluster has {there:g}",
                f"{need - there:g} {kind}",
                f"lower {' and '.join(settings)}, or {plan.fewer}",
            )
    return None


def _lack_on_one(plan: Plan, machines: Sequence[Amounts]) -> Lack | None:
    """Return what no machine has by itself: one actor's share, or all of them where they go onto one."""
    if plan.placement == "strict_pack":
        bundles = plan.bundles()
        parts = {f"all {len(bundles)} actors together": _sum(bundles)}
        remedy = f'set resources.placement = "pack", lower the shares or {plan.fewer}'
    else:
        shares = {"the server": plan.server, **{f"a {plan.member}": share for share in plan.actors}}
        parts = {who: share.bundle() for who, share in shares.items()}
        remedy = "lower the shares"
    for who, asked in parts.items():
        if not any(_fits(asked, there) for there in machines):
            return Lack(
                f"{who}: {_listed(asked)} asked on one machine, the cluster's have "
                f"{', or '.join(dict.fromkeys(_listed(there) for there in machines))}",
                f"a machine with {_listed(asked)}",
                remedy,
            )
    return None


def _lack_of_machines(plan: Plan, machines: Sequence[Amounts]) -> Lack | None:
    """Return how many machines are missing where no two actors may share one."""
    actors = len(plan.bundles())
    missing = actors - len(machines)
    if plan.placement != "strict_spread" or missing <= 0:
        return None
    return Lack(
        f'placement = "strict_spread" asks a machine for each of {actors} actors, the cluster has {len(machines)}',
        "1 machine" if missing == 1 else f"{missing} machines",
        f'set resources.placement = "spread", or lower {plan.fewer}',
    )


def _fits(asked: Amounts, there: Amounts) -> bool:
    return all(there.get(kind, 0.0) + _SLACK >= amount for kind, amount in asked.items())


def _sum(bundles: Sequence[Amounts]) -> Amounts:
    return {kind: sum(bundle.get(kind, 0.0) for bundle in bundles) for kind in _KINDS}


def _listed(amounts: Amounts) -> str:
    return " and ".join(f"{amounts.get(kind, 0.0):g} {kind}" for kind in _KINDS)
