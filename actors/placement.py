"""Who gets which share of CPUs and GPUs, checked before anything starts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from raydpzv.config.scenario import HorizontalScenario, VerticalScenario
from raydpzv.errors import Unplaceable
from raydpzv.settings.fields import per_client
from raydpzv.settings.sections_horizontal import HorizontalResourcesSection

RESOLUTION = 1e-4
"""Ray's smallest fraction of a resource."""


@dataclass(frozen=True)
class Share:
    """What one actor gets."""

    cpus: float
    gpus: float

    def bundle(self) -> dict[str, float]:
        """Return the share as a placement-group bundle."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus}
        return {name: amount for name, amount in wanted.items() if amount > 0} or {"CPU": RESOLUTION}


@dataclass(frozen=True)
class Plan:
    """The server's share, and for every client actor its share and the clients it holds."""

    server: Share
    actors: tuple[Share, ...]
    clients: tuple[tuple[int, ...], ...]

    def bundles(self) -> list[dict[str, float]]:
        """Return one bundle per actor, the server's first."""
        return [share.bundle() for share in (self.server, *self.actors)]


def plan(spec: VerticalScenario, total: Mapping[str, float]) -> Plan:
    """Share out a cluster that has `total` CPUs and GPUs. Raises Unplaceable with the arithmetic."""
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
    found = Plan(server, tuple(Share(c, g) for c, g in zip(cpus, gpus, strict=True)), held)
    _check(found, total, "client", "client_actors")
    return found


def plan_hosts(spec: HorizontalScenario, total: Mapping[str, float]) -> Plan:
    """Share out a cluster among the server and hosts, which hold no client in particular. Raises Unplaceable.

    The ledger actor asks for nothing: it lives beside the run folder, whatever else is there.
    """
    resources = spec.resources
    most = spec.descriptor.cohort(spec.method, spec.split.clients)
    wanted = _host_slots(resources, total) if resources.hosts == "auto" else resources.hosts
    hosts = max(1, min(wanted, most))
    server, each = _server_and_host_cpus(resources, total.get("CPU", 0.0), hosts)
    host = Share(each, float(resources.host_gpus))
    found = Plan(Share(server, 0.0), (host,) * hosts, ((),) * hosts)
    _check(found, total, "host", "hosts")
    return found


def _server_and_host_cpus(
    resources: HorizontalResourcesSection, total: float, hosts: int
) -> tuple[float, float]:
    """Return the CPU share of the server and of each host: what is asked, and equal shares or the rest for "auto"."""
    server, host = resources.server_cpus, resources.host_cpus
    if host == "auto":
        asked = 0.0 if server == "auto" else server
        share = _auto_cpu(total - asked, hosts + (server == "auto"))
        return (share if server == "auto" else server), share
    rest = max(RESOLUTION, min(1.0, total - hosts * host))
    return (rest if server == "auto" else server), host


def _host_slots(resources: HorizontalResourcesSection, total: Mapping[str, float]) -> int:
    """As many hosts as fit: on whole GPU devices where they get a GPU share, else one per CPU."""
    gpus, cpus = resources.host_gpus, resources.host_cpus
    if gpus > 0:
        devices = total.get("GPU", 0.0)
        return int(devices) * int(1 / gpus + 1e-9) if gpus <= 1 else int(devices / gpus)
    there = total.get("CPU", 0.0)
    if cpus == "auto" or cpus == 0:
        return int(there)
    reserved = RESOLUTION if resources.server_cpus == "auto" else resources.server_cpus
    return int((there - reserved) / cpus + 1e-9)


def reserve(
    bundles: Sequence[Mapping[str, float]], timeout: float = 30.0, *, fewer: str = "client_actors"
) -> Any:
    """Return a placement group that holds the bundles; Unplaceable if the cluster cannot give it in time.

    fewer: the setting that a user may lower.
    """
    import ray
    from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

    group, started = placement_group([dict(b) for b in bundles], strategy="PACK"), time.monotonic()
    while not group.wait(0.5):
        state = placement_group_table(group)["stats"]["scheduling_state"]
        if state == "INFEASIBLE" or time.monotonic() - started > timeout:
            free = {k: v for k, v in ray.available_resources().items() if k in ("CPU", "GPU")}
            remove_placement_group(group)
            raise Unplaceable(
                f"resources: Ray cannot place {len(bundles)} actors ({state}): asked {_total(bundles)}, free now "
                f"{free}; a share must fit on one machine and one GPU; lower the shares or {fewer}"
            )
    return group


@contextmanager
def reserved(plan: Plan, *, fewer: str = "client_actors") -> Iterator[Any]:
    """A placement group for the actors of a plan, given back at the end; as `reserve`."""
    import ray

    group = reserve(plan.bundles(), fewer=fewer)
    try:
        yield group
    finally:
        ray.util.remove_placement_group(group)


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
    """An equal share such that whole actors fit on each device: fractions do not span devices."""
    if total < 1:
        return 0.0
    return math.floor(1 / math.ceil(actors / int(total)) / RESOLUTION) * RESOLUTION


def _check(plan: Plan, total: Mapping[str, float], member: str, fewer: str) -> None:
    names = ["resources.server", *(f"resources.{member} (actor {a})" for a in range(len(plan.actors)))]
    for name, share in zip(names, (plan.server, *plan.actors), strict=True):
        if share.gpus > 1 and share.gpus != int(share.gpus):
            raise Unplaceable(f"{name}: {share.gpus:g} GPUs asked; above 1 a share must be a whole number")
        if 0 < share.gpus < RESOLUTION or 0 < share.cpus < RESOLUTION:
            raise Unplaceable(f"{name}: a share below Ray's resolution of {RESOLUTION:g} was asked; raise it")
    for kind in ("CPU", "GPU"):
        amounts = [bundle.get(kind, 0.0) for bundle in plan.bundles()]
        need, there = sum(amounts), total.get(kind, 0.0)
        settings = [f"{who}_{kind.lower()}s" for who in (["server"] if amounts[0] else []) + [member]]
        if need > there + 1e-9:
            raise Unplaceable(
                f"resources: {len([a for a in amounts if a])} actors ask {need:g} {kind} in all "
                f"(server {amounts[0]:g}, {member}s {sum(amounts[1:]):g}), the cluster has {there:g}; "
                f"lower {' and '.join(settings)}, or {fewer}"
            )


def _total(bundles: Sequence[Mapping[str, float]]) -> str:
    kinds = sorted({kind for bundle in bundles for kind in bundle})
    return ", ".join(f"{kind} {sum(b.get(kind, 0) for b in bundles):g}" for kind in kinds)
