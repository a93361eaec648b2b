"""The resources that a cluster lacks for a plan, with arithmetic that a user can check."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from actors.shares import Plan, Selector

Amounts = Mapping[str, float]
"""Amounts by Ray's names of resources."""
_KINDS = {"CPU": (1, "CPU"), "GPU": (1, "GPU"), "memory": (2**30, "GiB of memory")}
"""Kinds of resources: the amount of one unit, and its name."""
_SLACK = 1e-9
"""Rounding error allowed in sums of fractions."""
_OF_ONE = "ray.io/node-id"
"""The label by which Ray identifies each machine."""


@dataclass(frozen=True)
class Machine:
    """A machine's resources, busy or not, and its labels."""

    has: Amounts
    labels: Mapping[str, str] = field(default_factory=dict)

    def carries(self, selector: Selector) -> bool:
        """Return whether the machine's labels match: "a", "in(a, b)", or with "!" any other value
        or none.
        """
        for label, wanted in selector.items():
            words = re.findall(r"[^!(), ]+", wanted)
            values = words[1:] if "(" in wanted else words
            if (self.labels.get(label) in values) == wanted.startswith("!"):
                return False
        return True


@dataclass(frozen=True)
class Lack:
    """The request and the resources that exist; the missing amount; the remedy.

    lasts: until the cluster grows; else until a program on it ends.
    """

    asked: str
    missing: str
    remedy: str
    lasts: bool = True

    def __str__(self) -> str:
        return f"resources: {self.asked}; {self.remedy}"


@dataclass(frozen=True)
class _Part:
    """Actors with the same selector: the server, or all others."""

    who: str
    bundles: Sequence[Amounts]
    selector: Selector
    machines: Sequence[Machine]


def lack(plan: Plan, machines: Sequence[Machine]) -> Lack | None:
    """Return the first resource that these machines lack for a plan, busy or not; None: none is
    known.
    """
    bundles, (server, members) = plan.bundles(), plan.selectors()
    given = (("the server", bundles[:1], server), (f"{plan.member}s", bundles[1:], members))
    parts = [_Part(who, b, s, [m for m in machines if m.carries(s)]) for who, b, s in given if b]
    return (
        _lack_of_labels(parts, machines)
        or lack_in_all(plan, summed([machine.has for machine in machines]))
        or _lack_on_labelled(parts)
        or _lack_on_one(plan, parts)
        or _lack_of_machines(plan, parts, machines)
    )


def lack_in_all(plan: Plan, total: Amounts) -> Lack | None:
    """Return the lack in the cluster's sums."""
    for kind in _KINDS:
        amounts = [bundle.get(kind, 0.0) for bundle in plan.bundles()]
        need, there = sum(amounts), total.get(kind, 0.0)
        settings = [
            f"{who}_{kind.lower()}s" for who in (["server"] if amounts[0] else []) + [plan.member]
        ]
        remedy = (
            f"lower {plan.fewer}"
            if kind == "memory"
            else f"lower {' and '.join(settings)}, or {plan.fewer}"
        )
        if need > there + _SLACK:
            return Lack(
                f"{len([a for a in amounts if a])} actors ask {_amount(kind, need)} "
                f"{_KINDS[kind][1]} in all (server {_amount(kind, amounts[0])}, {plan.member}s "
                f"{_amount(kind, sum(amounts[1:]))}), the cluster has {_amount(kind, there)}",
                f"{_amount(kind, need - there)} {_KINDS[kind][1]}",
                remedy,
            )
    return None


def _lack_of_labels(parts: Sequence[_Part], machines: Sequence[Machine]) -> Lack | None:
    """Return the requested labels that no machine has."""
    values: dict[str, set[str]] = {}
    for machine in machines:
        for label, value in machine.labels.items():
            values.setdefault(label, set()).add(value)
    there = [f"{k} = {' or '.join(sorted(v))}" for k, v in sorted(values.items()) if k != _OF_ONE]
    for part in parts:
        if not part.machines:
            asked = _selected(part.selector)
            return Lack(
                f"labels ask {asked} for {part.who}, which no machine carries; labels there are "
                f"{', '.join(there) or 'none'}",
                f"a machine with {asked}",
                "correct resources.labels, or label the machines (ray start --labels)",
            )
    return None


def _lack_on_labelled(parts: Sequence[_Part]) -> Lack | None:
    """Return the lack in the sums over the machines with the labels."""
    for part in parts:
        asked, there = summed(part.bundles), summed([machine.has for machine in part.machines])
        if part.selector and not fits(asked, there):
            return Lack(
                f"{listed(asked)} asked for {part.who}, the machines with "
                f"{_selected(part.selector)} have {listed(there)}",
                f"machines with {_selected(part.selector)} that have {listed(asked)}",
                "lower the shares or widen resources.labels",
            )
    return None


def _lack_on_one(plan: Plan, parts: Sequence[_Part]) -> Lack | None:
    """Return the share that no single machine has: one actor's, or all of them under
    "strict_pack".
    """
    remedy = "lower the shares"
    if plan.placement == "strict_pack":
        bundles = plan.bundles()
        machines = [m for m in parts[0].machines if all(m in part.machines for part in parts)]
        parts = [_Part(f"all {len(bundles)} actors", [summed(bundles)], {}, machines)]
        remedy = f'set resources.placement = "pack", lower the shares or {plan.fewer}'
    for part in parts:
        for asked in part.bundles:
            if not any(fits(asked, machine.has) for machine in part.machines):
                there = dict.fromkeys(listed(machine.has) for machine in part.machines)
                return Lack(
                    f"{listed(asked)} asked on one machine for {part.who}, machines for it have "
                    f"{', or '.join(there) or 'not all labels'}",
                    f"a machine with {listed(asked)}",
                    remedy,
                )
    return None


def _lack_of_machines(
    plan: Plan, parts: Sequence[_Part], machines: Sequence[Machine]
) -> Lack | None:
    """Return how many machines are missing under "strict_spread"."""
    if plan.placement != "strict_spread":
        return None
    for part in (_Part("all", plan.bundles(), {}, machines), *parts):
        actors, there = len(part.bundles), len(part.machines)
        if actors > there:
            labelled = f" with {_selected(part.selector)}" if part.selector else ""
            return Lack(
                f'placement = "strict_spread" asks a machine for each of {actors} actors, the '
                "cluster has "
                f"{there}{labelled}",
                f"{actors - there} machine{'s' * (actors - there > 1)}{labelled}",
                f'set resources.placement = "spread", or lower {plan.fewer}',
            )
    return None


def fits(asked: Amounts, there: Amounts) -> bool:
    """Return whether the resources suffice, up to rounding."""
    return all(there.get(kind, 0.0) + _SLACK >= amount for kind, amount in asked.items())


def summed(parts: Sequence[Amounts]) -> Amounts:
    """Return the sum of amounts."""
    return {kind: sum(part.get(kind, 0.0) for part in parts) for kind in _KINDS}


def listed(amounts: Amounts) -> str:
    """Return amounts in words: CPUs and GPUs always, memory if it is given."""
    kinds = [kind for kind in _KINDS if kind != "memory" or amounts.get(kind)]
    return " and ".join(
        f"{_amount(kind, amounts.get(kind, 0.0))} {_KINDS[kind][1]}" for kind in kinds
    )


def _amount(kind: str, amount: float) -> str:
    one, _ = _KINDS[kind]
    return f"{amount:g}" if one == 1 else f"{amount / one:.2f}"


def _selected(selector: Selector) -> str:
    return " and ".join(f"{label} = {wanted}" for label, wanted in selector.items())
