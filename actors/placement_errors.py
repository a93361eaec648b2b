"""The resources that a cluster lacks for a plan, with arithmetic that a user can check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from actors.machines import OF_ONE, Amounts, Machine, Selector
from actors.packing import SLACK, Placing, packed
from actors.shares import Plan
from raydpzv.errors import Unplaceable

_KINDS = {"CPU": (1, "CPU"), "GPU": (1, "GPU"), "memory": (2**30, "GiB of memory")}
"""Kinds of resources: the amount of one unit, and its name."""
_NOWHERE = "no machine"
"""The table's name of what has no room."""


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
        or _lack_of_room(plan, packed(plan, machines))
    )


def refusal(
    plan: Plan,
    machines: Sequence[Machine],
    placing: Placing,
    missing: Lack,
    waited: str = "",
) -> Unplaceable:
    """Return the error of a plan that lacks something, with a table of the machines.

    waited: how long the run waited for it.
    """
    error = Unplaceable(f"{missing}{waited}")
    error.add_note(room_table(plan, machines, placing))
    return error


def room_table(plan: Plan, machines: Sequence[Machine], placing: Placing) -> str:
    """Return what each machine has free and what the actors there ask for; machines that are alike
    are one line.
    """
    rows = Counter[tuple[str, str]]()
    names: dict[tuple[str, str], str] = {}
    for number, machine in enumerate(machines):
        row = _free(machine), _asked(plan, placing, number)
        names.setdefault(row, machine.name)
        rows[row] += 1
    if placing.missing:
        row = "", _asked(plan, placing, None)
        names[row], rows[row] = _NOWHERE, 1
    more = {row: f" and {count - 1} more" if count > 1 else "" for row, count in rows.items()}
    lines = [("machine", "free", "asked"), *((names[row] + more[row], *row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _free(machine: Machine) -> str:
    """Return what is free on a machine, and of how much where others use some."""
    free, has = machine.now().has, machine.has
    kinds = [kind for kind in _KINDS if has.get(kind) or kind == "CPU"]
    return ", ".join(
        _amount(kind, free.get(kind, 0.0))
        + (f" of {_amount(kind, has[kind])}" if has.get(kind, 0.0) > free.get(kind, 0.0) else "")
        + f" {_KINDS[kind][1]}"
        for kind in kinds
    )


def _asked(plan: Plan, placing: Placing, place: int | None) -> str:
    """Return who is at a place, and what all of them ask for; None: those with no place."""
    there = [actor for actor, at in enumerate(placing.places) if at == place]
    members = len(there) - (0 in there)
    who = ["server"] * (0 in there) + [f"{members} {plan.member}{'s' * (members > 1)}"] * (
        members > 0
    )
    asked = summed([plan.bundles()[actor] for actor in there])
    kinds = [kind for kind in _KINDS if asked[kind]]
    amounts = ", ".join(f"{_amount(kind, asked[kind])} {_KINDS[kind][1]}" for kind in kinds)
    return f"{' and '.join(who)}: {amounts}" if who else "nothing"


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
        if need > there + SLACK:
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
    there = [f"{k} = {' or '.join(sorted(v))}" for k, v in sorted(values.items()) if k != OF_ONE]
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


def _lack_of_room(plan: Plan, placing: Placing) -> Lack | None:
    """Return the actors for which the machines have no room between their ends."""
    if not placing.missing:
        return None
    first = plan.bundles()[placing.places.index(None)]
    return Lack(
        f"{placing.missing} of {len(placing.places)} actors have no room, since a share lies on one "
        f"machine and a GPU's fraction on one GPU: {listed(first)} asked",
        f"a machine with {listed(first)} free",
        f"lower the shares or {plan.fewer}",
    )


def busy(plan: Plan, placing: Placing) -> Lack:
    """Return the lack of a plan that the machines could hold if nobody else used them."""
    missing = _lack_of_room(plan, placing)
    assert missing is not None
    return replace(
        missing,
        asked=f"{placing.missing} of {len(placing.places)} actors wait for resources that others "
        "use",
        remedy=f"wait until their programs end, lower the shares or {plan.fewer}",
        lasts=False,
    )


def fits(asked: Amounts, there: Amounts) -> bool:
    """Return whether the resources suffice, up to rounding."""
    return all(there.get(kind, 0.0) + SLACK >= amount for kind, amount in asked.items())


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
