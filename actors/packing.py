"""Which machine each actor of a plan goes to. A share lies on one machine, and its GPU fraction on
one device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from actors.machines import Amounts, Machine
from actors.shares import Plan
from raydpzv.grouping import grouped

SLACK = 1e-9
"""Rounding error allowed in sums of fractions."""


class Room:
    """What is left on one machine while actors are put there."""

    def __init__(self, has: Amounts) -> None:
        gpus = has.get("GPU", 0.0)
        whole = int(gpus + SLACK)
        self._left = {kind: has.get(kind, 0.0) for kind in ("CPU", "memory")}
        self._devices = [1.0] * whole + [max(0.0, gpus - whole)]

    def fits(self, asked: Amounts, most: int) -> int:
        """Return how many actors with this share fit, up to `most`."""
        for kind, left in self._left.items():
            if (amount := asked.get(kind, 0.0)) > 0:
                most = min(most, int(min(float(most), left / amount + SLACK)))
        if gpus := asked.get("GPU", 0.0):
            most = min(most, len(list(self._slots(gpus))))
        return most

    def take(self, asked: Amounts, count: int) -> None:
        """Put actors here that fit."""
        for kind in self._left:
            self._left[kind] -= count * asked.get(kind, 0.0)
        if gpus := asked.get("GPU", 0.0):
            for devices in list(self._slots(gpus))[:count]:
                for device in devices:
                    self._devices[device] -= min(gpus, 1.0)

    def _slots(self, gpus: float) -> Iterator[Sequence[int]]:
        """Yield the devices of each actor that fits: whole ones, or several times the same one."""
        if gpus > 1:
            free = [device for device, left in enumerate(self._devices) if left > 1 - SLACK]
            size = round(gpus)
            yield from (free[i : i + size] for i in range(0, len(free) - size + 1, size))
            return
        for device, left in enumerate(self._devices):
            yield from [[device]] * int(left / gpus + SLACK)


@dataclass(frozen=True)
class Placing:
    """The machine of each bundle of a plan, by number; None: no machine has room for it."""

    places: Sequence[int | None]

    @property
    def missing(self) -> int:
        """Return how many actors have no place."""
        return sum(place is None for place in self.places)


def packed(plan: Plan, machines: Sequence[Machine]) -> Placing:
    """Return the places of a plan's actors on these machines, as many as there is room for.

    The server goes beside the process that drives the run where it can: each update passes between
    the two. The other actors fill machines from there ("pack"), or lie on as many as can be.
    """
    best: Placing | None = None
    for first in _servers(plan, machines):
        found = _around(plan, machines, first)
        if best is None or found.missing < best.missing:
            best = found
        if not best.missing:
            break
    return best or Placing([None] * len(plan.bundles()))


def _servers(plan: Plan, machines: Sequence[Machine]) -> Iterator[int]:
    """Yield machines that have room for the server: where the driver is, large ones, of those that
    are alike one.
    """
    selectors, seen = plan.selectors(), set[tuple[object, ...]]()
    for number in _ordered(machines, range(len(machines))):
        machine = machines[number]
        matches = tuple(machine.carries(selector) for selector in selectors)
        kind = (*matches, *sorted(machine.has.items()))
        if kind not in seen and matches[0] and Room(machine.has).fits(plan.bundles()[0], 1):
            seen.add(kind)
            yield number


def _ordered(machines: Sequence[Machine], numbers: Iterable[int]) -> list[int]:
    """Return machines where the driver is, then those with many CPUs."""
    return sorted(numbers, key=lambda n: (not machines[n].home, -machines[n].has.get("CPU", 0.0)))


def _around(plan: Plan, machines: Sequence[Machine], first: int) -> Placing:
    """Return the places where the server has this one: large shares first, alike ones together."""
    server, *members = plan.bundles()
    rooms = [Room(machine.has) for machine in machines]
    rooms[first].take(server, 1)
    order = [first, *(n for n in _ordered(machines, range(len(machines))) if n != first)]
    order = [n for n in order if machines[n].carries(plan.selectors()[1])]
    if plan.placement == "strict_pack":
        order = [n for n in order if n == first]

    held = Counter({first: 1})
    places: list[int | None] = [first] + [None] * len(members)
    for asked, alike in _by_share(members):
        waiting = list(alike)
        for number in _dealt(plan.placement, asked, len(alike), rooms, order, held):
            places[1 + waiting.pop(0)] = number
    return Placing(places)


def _by_share(members: Sequence[Amounts]) -> list[tuple[Amounts, list[int]]]:
    """Return the actors that ask for the same, largest shares first."""
    alike = grouped(
        (tuple(asked.get(kind, 0.0) for kind in ("GPU", "CPU", "memory")), number)
        for number, asked in enumerate(members)
    )
    return [(members[alike[share][0]], alike[share]) for share in sorted(alike, reverse=True)]


def _dealt(
    placement: str,
    asked: Amounts,
    count: int,
    rooms: Sequence[Room],
    order: Sequence[int],
    held: Counter[int],
) -> Iterator[int]:
    """Yield the machine of each of `count` actors that has room; `held` counts actors by machine."""
    spreads = "spread" in placement
    while count:
        before = count
        # the least filled machine first where actors lie on as many as can be
        for number in sorted(order, key=lambda n: held[n]) if spreads else order:
            if placement == "strict_spread" and held[number]:
                continue
            here = rooms[number].fits(asked, min(count, 1) if spreads else count)
            rooms[number].take(asked, here)
            held[number] += here
            count -= here
            yield from [number] * here
        if count == before or not spreads:
            return
