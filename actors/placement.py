"""Who gets which share of CPUs and GPUs, checked before anything starts."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydpzv.errors import Unplaceable
from raydpzv.experiment.spec import Spec
from raydpzv.experiment.values import per_client

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


def plan(spec: Spec, total: Mapping[str, float]) -> Plan:
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
    _check(found, total)
    return found


def reserve(bundles: Sequence[Mapping[str, float]], timeout: float = 30.0) -> Any:
    """Return a placement group that holds the bundles; Unplaceable if the cluster cannot give it in time."""
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
                f"{free}; a share must fit on one machine and one GPU; lower the shares or client_actors"
            )
    return group


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


def _check(plan: Plan, total: Mapping[str, float]) -> None:
    names = ["resources.server", *(f"resources.client (actor {a})" for a in range(len(plan.actors)))]
    for name, share in zip(names, (plan.server, *plan.actors), strict=True):
        if share.gpus > 1 and share.gpus != int(share.gpus):
            raise Unplaceable(f"{name}: {share.gpus:g} GPUs asked; above 1 a share must be a whole number")
        if 0 < share.gpus < RESOLUTION or 0 < share.cpus < RESOLUTION:
            raise Unplaceable(f"{name}: a share below Ray's resolution of {RESOLUTION:g} was asked; raise it")
    for kind in ("CPU", "GPU"):
        amounts = [bundle.get(kind, 0.0) for bundle in plan.bundles()]
        need, there = sum(amounts), total.get(kind, 0.0)
        if need > there + 1e-9:
            raise Unplaceable(
                f"resources: {len([a for a in amounts if a])} actors ask {need:g} {kind} in all "
                f"(server {amounts[0]:g}, clients {sum(amounts[1:]):g}), the cluster has {there:g}; "
                f"lower server_{kind.lower()}s and client_{kind.lower()}s, or client_actors"
            )


def _total(bundles: Sequence[Mapping[str, float]]) -> str:
    kinds = sorted({kind for bundle in bundles for kind in bundle})
    return ", ".join(f"{kind} {sum(b.get(kind, 0) for b in bundles):g}" for kind in kinds)
