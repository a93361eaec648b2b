"""Each actor's share of CPUs and GPUs, checked before anything starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from actors.placement_errors import lack_in_all
from actors.shares import RESOLUTION, Plan, Selector, Share, device_slots
from raydpzv.config.scenario import AnyScenario, HorizontalScenario, VerticalScenario
from raydpzv.errors import Unplaceable
from raydpzv.settings.fields import per_client
from raydpzv.settings.sections import ResourcesSection
from raydpzv.settings.sections_horizontal import HorizontalResourcesSection

_DIGITS = 4
"""Decimals of Ray's fractions of a resource."""


def plan_run(spec: AnyScenario, total: Mapping[str, float]) -> Plan:
    """Divide a cluster of `total` CPUs and GPUs among a run's actors. Raises Unplaceable with the
    arithmetic.

    Hosts own no particular client. A ledger actor asks for no share: it runs beside the run folder.
    """
    return _checked(_PLANS[spec.kind](spec, total), total)


def _client_plan(spec: VerticalScenario, total: Mapping[str, float]) -> Plan:
    resources, count = spec.resources, spec.split.clients
    wanted = resources.client_actors
    actors = count if wanted == "auto" else min(int(wanted), count)
    held = tuple(tuple(range(a, count, actors)) for a in range(actors))
    cpu = _auto_cpu(total.get("CPU", 0), actors + 1)
    gpu = _auto_gpu(total.get("GPU", 0), actors + 1)
    cpus, gpus = (
        _client_shares(resources.client_cpus, held, count, cpu),
        _client_shares(resources.client_gpus, held, count, gpu),
    )
    server = Share(
        cpu if resources.server_cpus == "auto" else float(resources.server_cpus),
        gpu if resources.server_gpus == "auto" else float(resources.server_gpus),
    )
    each = tuple(Share(c, g) for c, g in zip(cpus, gpus, strict=True))
    return Plan(server, each, held, *_wishes(resources))


def whole_run_gpus(spec: AnyScenario, total: Mapping[str, float] | None) -> float:
    """Return the GPUs of a run in one process: the sum of its actors' shares, above one in whole
    devices.

    All "auto" shares together are one device, if there is one; "auto" hosts are one. total: None if
    the cluster is unknown. Raises Unplaceable as `plan_run` does.
    """
    there = total or {}
    one = {"CPU": there.get("CPU", 1.0), "GPU": min(1.0, there.get("GPU", 0.0))}
    found = _WHOLE[spec.kind](spec, one)
    server, *others = (Share(0.0, share.gpus) for share in (found.server, *found.actors))
    found = _checked(replace(found, server=server, actors=tuple(others)), total)
    gpus = round(sum(share.gpus for share in (found.server, *found.actors)), _DIGITS)
    return gpus if gpus <= 1 else float(math.ceil(gpus))


def _host_plan(spec: HorizontalScenario, total: Mapping[str, float], slots: int) -> Plan:
    """slots: hosts where their number is "auto"."""
    resources = spec.resources
    most = spec.descriptor.cohort(spec.method, spec.split.clients)
    wanted = slots if resources.hosts == "auto" else resources.hosts
    hosts = max(1, min(wanted, most))
    server, each = _server_and_host_cpus(resources, total.get("CPU", 0.0), hosts)
    host = Share(each, float(resources.host_gpus))
    return Plan(
        Share(server, 0.0), (host,) * hosts, ((),) * hosts, *_wishes(resources), "host", "hosts"
    )


_WHOLE: dict[str, Callable[[Any, Mapping[str, float]], Plan]] = {
    "vertical": _client_plan,
    "horizontal": lambda spec, one: _host_plan(spec, one, 1),
}
_PLANS: dict[str, Callable[[Any, Mapping[str, float]], Plan]] = {
    "vertical": _client_plan,
    "horizontal": lambda spec, total: _host_plan(spec, total, _host_slots(spec.resources, total)),
}


def _wishes(
    resources: ResourcesSection | HorizontalResourcesSection,
) -> tuple[str, float, Mapping[str, Selector]]:
    return resources.placement, resources.placement_timeout, resources.labels or {}


def _server_and_host_cpus(
    resources: HorizontalResourcesSection, total: float, hosts: int
) -> tuple[float, float]:
    """Return the CPU shares of the server and of each host; "auto" gets an equal share or the
    rest.
    """
    server, host = resources.server_cpus, resources.host_cpus
    if host == "auto":
        asked = 0.0 if server == "auto" else server
        share = _auto_cpu(total - asked, hosts + (server == "auto"))
        return (share if server == "auto" else server), share
    rest = max(RESOLUTION, min(1.0, total - hosts * host))
    return (rest if server == "auto" else server), host


def _host_slots(resources: HorizontalResourcesSection, total: Mapping[str, float]) -> int:
    """Return how many hosts fit: by whole GPU devices if they have a GPU share, else one per
    CPU.
    """
    gpus, cpus = resources.host_gpus, resources.host_cpus
    if gpus > 0:
        return device_slots(total.get("GPU", 0.0), gpus)
    there = total.get("CPU", 0.0)
    if cpus == "auto" or cpus == 0:
        return int(there)
    reserved = RESOLUTION if resources.server_cpus == "auto" else resources.server_cpus
    return int((there - reserved) / cpus + 1e-9)


def _client_shares(
    value: float | str | tuple[float, ...], held: Sequence[Sequence[int]], count: int, auto: float
) -> list[float]:
    if value == "auto":
        return [auto] * len(held)
    if isinstance(value, tuple):
        each = per_client(value, count)
        return [sum(each[m] for m in clients) for clients in held]
    return [float(value)] * len(held)


def _auto_cpu(total: float, actors: int) -> float:
    return min(1.0, math.floor(total / actors / RESOLUTION) * RESOLUTION)


def _auto_gpu(total: float, actors: int) -> float:
    """Return an equal share such that whole actors fit on each device: fractions do not span
    devices.
    """
    if total < 1:
        return 0.0
    return math.floor(1 / math.ceil(actors / int(total)) / RESOLUTION) * RESOLUTION


def _checked(plan: Plan, total: Mapping[str, float] | None) -> Plan:
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
    lack = None if total is None else lack_in_all(plan, total)
    if lack and not plan.placement_timeout:
        raise Unplaceable(str(lack))
    return plan
