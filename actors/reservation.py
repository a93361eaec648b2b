"""A place for each actor of a run on the cluster's machines, reserved before anything starts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from actors.shares import Plan
from actors.shortage import Amounts, lack
from raydpzv.errors import Unplaceable

_BUSY = 30.0
"""Seconds to wait for a cluster that has what is asked, but not free."""


@contextmanager
def reserved(plan: Plan) -> Iterator[Any]:
    """A placement group for the actors of a plan, given back at the end; as `reserve`."""
    import ray

    group = reserve(plan)
    try:
        yield group
    finally:
        ray.util.remove_placement_group(group)


def reserve(plan: Plan) -> Any:
    """Return a placement group for the actors of a plan; Unplaceable if the cluster cannot give it in time."""
    import ray
    from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

    missing = lack(plan, machines())
    if missing:
        raise Unplaceable(str(missing))
    bundles = plan.bundles()
    group, started = placement_group(bundles, strategy=plan.placement.upper()), time.monotonic()
    while not group.wait(0.5):
        state = placement_group_table(group)["stats"]["scheduling_state"]
        if state == "INFEASIBLE" or time.monotonic() - started > _BUSY:
            free = {k: v for k, v in ray.available_resources().items() if k in ("CPU", "GPU")}
            remove_placement_group(group)
            raise Unplaceable(
                f"resources: Ray cannot place {len(bundles)} actors ({state}): asked {_total(bundles)}, free now "
                f"{free}; a share must fit on one machine and one GPU; lower the shares or {plan.fewer}"
            )
    return group


def machines() -> list[Amounts]:
    """Return what each machine of the cluster has, busy or not."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _total(bundles: list[dict[str, float]]) -> str:
    kinds = sorted({kind for bundle in bundles for kind in bundle})
    return ", ".join(f"{kind} {sum(b.get(kind, 0) for b in bundles):g}" for kind in kinds)
