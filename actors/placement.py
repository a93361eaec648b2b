"""Each actor's share of CPUs and GPUs, planned by packing the actors on the machines."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from actors.machines import Machine, Selector
from actors.packing import Room, packed
from actors.placement_errors import lack, refusal
from actors.shares import RESOLUTION, Plan, Share
from raydpzv.config.scenario import AnyScenario, HorizontalScenario, VerticalScenario
from raydpzv.errors import Unplaceable
from raydpzv.settings.fields import per_client
from raydpzv.settings.sections import ResourcesSection
from raydpzv.settings.sections_horizontal import HorizontalResourcesSection

_DIGITS = 4
"""Decimals of Ray's fractions of a resource."""
_MOST = 1000
"""Most actors of one share on a machine, where its number is asked for."""
Completed = Callable[[Plan], Plan]
"""Adds to a plan what the shares do not say, such as memory."""


def plan_run(
    spec: AnyScenario, machines: Sequence[Machine], completed: Completed = lambda plan: plan
) -> Plan:
    """Divide machines among a run's actors. Raises Unplaceable with the arithmetic.

    "auto" hosts are one per CPU, or per GPU share, of each machine, and fewer where the server or
    memory needs the room. "auto" shares are equal, the largest that fit. Hosts own no particular
    client. A ledger actor asks for no share: it runs beside the run folder.
    """
    return _checked(_PLANS[spec.kind](spec, machines, completed), machines)


def whole_run_gpus(spec: AnyScenario, machines: Sequence[Machine] | None) -> float:
    """Return the GPUs of a run in one process: the sum of its actors' shares, above one in whole
    devices.

    All "auto" shares together are one device, if there is one; "auto" hosts are one. machines: None
    if the cluster is unknown. Raises Unplaceable as `plan_run` does.
    """
    gpus = max((machine.has.get("GPU", 0.0) for machine in machines or ()), default=0.0)
    one = [Machine({"CPU": 1.0, "GPU": min(1.0, gpus)})]
    wanted = _WHOLE[spec.kind](spec, one, lambda plan: plan)
    server, *others = (Share(0.0, share.gpus) for share in (wanted.server, *wanted.actors))
    wanted = _checked(replace(wanted, server=server, actors=tuple(others)), machines)
    gpus = round(sum(share.gpus for share in (wanted.server, *wanted.actors)), _DIGITS)
    return gpus if gpus <= 1 else float(math.ceil(gpus))


def _client_plan(spec: VerticalScenario, machines: Sequence[Machine], completed: Completed) -> Plan:
    resources, count = spec.resources, spec.split.clients
    wanted = resources.client_actors
    actors = count if wanted == "auto" else min(int(wanted), count)
    held = tuple(tuple(range(a, count, actors)) for a in range(actors))

    def plan(cpu: float, gpu: float) -> Plan:
        cpus = _client_shares(resources.client_cpus, held, count, cpu)
        gpus = _client_shares(resources.client_gpus, held, count, gpu)
        server = Share(
            cpu if resources.server_cpus == "auto" else float(resources.server_cpus),
            gpu if resources.server_gpus == "auto" else float(resources.server_gpus),
        )
        each = tuple(Share(c, g) for c, g in zip(cpus, gpus, strict=True))
        return completed(Plan(server, each, held, *_wishes(resources)))

    # GPUs first: they decide which machines there are to choose from
    gpu = _largest(lambda share: plan(RESOLUTION, share), machines, otherwise=0.0)
    return plan(_auto_cpu(lambda share: plan(share, gpu), machines), gpu)


def _host_plan(
    spec: HorizontalScenario, machines: Sequence[Machine], completed: Completed, slots: int
) -> Plan:
    """slots: most hosts where their number is "auto"."""
    resources = spec.resources
    most = spec.descriptor.cohort(spec.method, spec.split.clients)

    def plan(hosts: int, cpu: float) -> Plan:
        server, each = (
            cpu if share == "auto" else share
            for share in (resources.server_cpus, resources.host_cpus)
        )
        host = Share(each, float(resources.host_gpus))
        return completed(
            Plan(
                Share(server, 0.0),
                (host,) * hosts,
                ((),) * hosts,
                *_wishes(resources),
                "host",
                "hosts",
            )
        )

    if resources.hosts == "auto":
        hosts = max(1, _most(lambda n: plan(n, RESOLUTION), max(1, min(slots, most)), machines))
    else:
        hosts = min(resources.hosts, most)
    return plan(hosts, _auto_cpu(lambda share: plan(hosts, share), machines))


_Planner = Callable[[Any, Sequence[Machine], Completed], Plan]
_WHOLE: dict[str, _Planner] = {
    "vertical": _client_plan,
    "horizontal": lambda spec, one, completed: _host_plan(spec, one, completed, 1),
}
_PLANS: dict[str, _Planner] = {
    "vertical": _client_plan,
    "horizontal": lambda spec, machines, completed: _host_plan(
        spec, machines, completed, _host_slots(spec.resources, machines)
    ),
}


def _wishes(
    resources: ResourcesSection | HorizontalResourcesSection,
) -> tuple[str, float, Mapping[str, Selector]]:
    return resources.placement, resources.placement_timeout, resources.labels or {}


def _host_slots(resources: HorizontalResourcesSection, machines: Sequence[Machine]) -> int:
    """Return how many hosts the machines could hold: one per CPU where no share is given."""
    cpus, gpus = resources.host_cpus, resources.host_gpus
    if cpus == "auto" or cpus == 0:
        cpus = RESOLUTION if gpus else 1.0
    one = Share(cpus, gpus).bundle()
    return sum(Room(machine.has).fits(one, _MOST) for machine in machines)


def _client_shares(
    value: float | str | tuple[float, ...], held: Sequence[Sequence[int]], count: int, auto: float
) -> list[float]:
    if value == "auto":
        return [auto] * len(held)
    if isinstance(value, tuple):
        each = per_client(value, count)
        return [sum(each[m] for m in clients) for clients in held]
    return [float(value)] * len(held)


def _most(make: Callable[[int], Plan], most: int, machines: Sequence[Machine]) -> int:
    """Return the largest number up to `most` whose plan the machines can hold; 0: none."""
    return bisect_left(
        range(1, most + 1), True, key=lambda n: packed(make(n), machines).missing > 0
    )


def _largest(
    make: Callable[[float], Plan], machines: Sequence[Machine], *, otherwise: float
) -> float:
    """Return the largest share up to 1 whose plan the machines can hold."""
    found = _most(lambda n: make(round(n * RESOLUTION, _DIGITS)), round(1 / RESOLUTION), machines)
    return round(found * RESOLUTION, _DIGITS) if found else otherwise


def _auto_cpu(make: Callable[[float], Plan], machines: Sequence[Machine]) -> float:
    """Return an "auto" CPU share. Where no machine has a CPU, those that may come have whole ones."""
    none = not any(machine.has.get("CPU") for machine in machines)
    return _largest(make, machines, otherwise=1.0 if none else RESOLUTION)


def _checked(plan: Plan, machines: Sequence[Machine] | None) -> Plan:
    """Raise Unplaceable for a share that no cluster can give, or that this one lacks and nobody
    waits for.
    """
    names = [
        "resources.server",
        *(f"resources.{plan.member} (actor {a})" for a in range(len(plan.actors))),
    ]
    for name, share in zip(names, (plan.server, *plan.actors), strict=True):
        if share.gpus > 1 and share.gpus != int(share.gpus):
            raise Unplaceable(
                f"{name}: {share.gpus:g} GPUs asked; above 1 a share must be a whole number"
            )
        if 0 < share.gpus < RESOLUTION or 0 < share.cpus < RESOLUTION:
            raise Unplaceable(
                f"{name}: a share below Ray's resolution of {RESOLUTION:g} was asked; raise it"
            )
    if machines is None or plan.placement_timeout:
        return plan
    if missing := lack(plan, machines):
        raise refusal(plan, machines, packed(plan, machines), missing)
    return plan
