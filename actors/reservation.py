"""A place for each actor of a run on the cluster's machines, reserved before anything starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from actors.placement_errors import Lack, Machine, lack
from actors.shares import Place, Plan, answering
from raydpzv.errors import StoppedEarly, Unplaceable
from raydpzv.experiment.finalize import RunOptions
from raydpzv.sim.interfaces import Status

_BUSY = 30.0
"""Seconds to wait for a cluster that has the resources, but not free."""
_KNOWN_WITHIN = 60.0
"""Seconds in which Ray notices a lost machine; its default settings take up to half of them."""
_LOOK = 0.5
"""Seconds between checks of the missing resources."""
_USUAL = 5.0
"""Seconds that Ray may take for a placement that fits, before the user sees a message."""


class Reservation:
    """The place of a run's actors, reserved again by a new plan when a machine of it was lost.

    plan: makes a plan for the cluster at that time; outer: a place that the caller reserved;
    options: as in `reserved`. A context manager, which gives the place back.
    """

    def __init__(self, plan: Callable[[], Plan], options: RunOptions, outer: Place | None) -> None:
        self._plan, self._options, self._outer = plan, options, outer
        self._opened = ExitStack()
        self._place = outer

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *details: object) -> None:
        self._opened.close()

    def place(self) -> Place:
        """Return the place. Raises Unplaceable if there is none."""
        if self._place is None or not (self._outer or self._place.stands()):
            if self._place is not None:
                self._opened.close()
                _await_losses()
            self._place = self._opened.enter_context(reserved(self._plan(), self._options))
        return self._place


def _await_losses() -> None:
    """Wait until Ray has noticed the lost machines, since it would still place actors there."""
    import ray

    until = time.monotonic() + _KNOWN_WITHIN
    while {node["NodeID"] for node in ray.nodes() if node["Alive"]} - answering():
        if time.monotonic() > until:
            return
        time.sleep(_LOOK)


@contextmanager
def reserved(plan: Plan, options: RunOptions) -> Iterator[Place]:
    """Reserve a place for the actors of a plan, and give it back at the end.

    options: to report missing resources to while the cluster may still grow, and to end the wait.
    Raises Unplaceable if the cluster cannot give it in time, StoppedEarly.
    """
    import ray
    from ray.util.placement_group import placement_group

    labels = _labels(plan)
    missing = lack(plan, machines())
    if missing and not plan.placement_timeout:
        raise Unplaceable(str(missing))
    # an autoscaler grows for what is asked and pending
    group = placement_group(plan.bundles(), strategy=plan.placement.upper(), **labels)
    try:
        _await(group, plan, options)
        yield Place(plan, group)
    finally:
        ray.util.remove_placement_group(group)


def _await(group: Any, plan: Plan, options: RunOptions) -> None:
    """Wait until the group is placed: for resources that others use, or for a cluster that
    grows.
    """
    started = time.monotonic()
    while not group.wait(_LOOK):
        short = lack(plan, machines())
        missing = short or _unplaced(group, plan)
        limit = plan.placement_timeout if missing.lasts else max(plan.placement_timeout, _BUSY)
        if options.stop.is_set():
            raise StoppedEarly("stopped while the run waited for resources; nothing was started")
        passed = time.monotonic() - started
        if passed > limit:
            waited = f" (waited {limit:g} s; or raise resources.placement_timeout)" if limit else ""
            raise Unplaceable(f"{missing}{waited}")
        if short or passed > _USUAL:
            options.watch.status(
                Status(stage=f"{missing.missing}, up to {limit:g} s: {missing.asked}")
            )


def _unplaced(group: Any, plan: Plan) -> Lack:
    """Return why Ray does not place a group, as far as Ray says: busy machines, or fractions that
    fit no GPU.
    """
    import ray
    from ray.util.placement_group import placement_group_table

    state = placement_group_table(group)["stats"]["scheduling_state"]
    bundles = plan.bundles()
    free = {k: v for k, v in ray.available_resources().items() if k in ("CPU", "GPU")}
    return Lack(
        f"Ray cannot place {len(bundles)} actors ({state}): asked {_total(bundles)}",
        "free resources",
        f"free now {free}; a share must fit on one machine and one GPU; lower the shares or "
        f"{plan.fewer}",
        lasts=state == "INFEASIBLE",
    )


def machines() -> list[Machine]:
    """Return the machines of the cluster."""
    import ray

    return [
        Machine(node["Resources"], node.get("Labels", {})) for node in ray.nodes() if node["Alive"]
    ]


def _labels(plan: Plan) -> dict[str, Any]:
    """Return Ray's option for the labels of each actor's machine."""
    if not plan.labels:
        return {}
    server, others = plan.selectors()
    return {"bundle_label_selector": [dict(server), *(dict(others) for _ in plan.actors)]}


def _total(bundles: list[dict[str, float]]) -> str:
    kinds = sorted({kind for bundle in bundles for kind in bundle})
    return ", ".join(
        f"{kind} {sum(b.get(kind, 0) for b in bundles):g}" for kind in kinds if kind != "memory"
    )
