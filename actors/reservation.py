"""A place for each actor of a run on the cluster's machines, reserved before anything starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from actors.machines import OF_ONE, Machine, answering, cluster_machines
from actors.packing import Placing, packed
from actors.placement_errors import busy, lack, refusal
from actors.shares import Place, Plan
from raydpzv.errors import StoppedEarly
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

    with ExitStack() as waiting:
        group = _awaited(plan, options, waiting)
    try:
        yield Place(plan, group)
    finally:
        ray.util.remove_placement_group(group)


def _awaited(plan: Plan, options: RunOptions, waiting: ExitStack) -> Any:
    """Return a placed group: at once, or when others are done or the cluster has grown.

    waiting: gives back the group that only asks for machines.
    """
    import ray

    started = time.monotonic()
    asking: Any = None
    while True:
        machines = cluster_machines()
        placing = packed(plan, [machine.now() for machine in machines])
        if not placing.missing and (group := _placed(plan, placing, machines)):
            return group
        missing = lack(plan, machines) or busy(plan, placing)
        limit = plan.placement_timeout if missing.lasts else max(plan.placement_timeout, _BUSY)
        passed = time.monotonic() - started
        if options.stop.is_set():
            raise StoppedEarly("stopped while the run waited for resources; nothing was started")
        if passed > limit:
            waited = f" (waited {limit:g} s; or raise resources.placement_timeout)" if limit else ""
            raise refusal(plan, machines, placing, missing, waited)
        if missing.lasts and asking is None:
            asking = _asked(plan)
            waiting.callback(ray.util.remove_placement_group, asking)
        if missing.lasts or passed > _USUAL:
            options.watch.status(
                Status(stage=f"{missing.missing}, up to {limit:g} s: {missing.asked}")
            )
        if asking is None:
            time.sleep(_LOOK)
        elif asking.wait(_LOOK):  # Ray placed it before the machines were seen here
            waiting.pop_all()
            return asking


def _placed(plan: Plan, placing: Placing, machines: Sequence[Machine]) -> Any | None:
    """Return a group that is placed as packed; None: others were faster, or a machine is gone."""
    import ray

    pins = [
        {OF_ONE: machines[place].labels[OF_ONE]} for place in placing.places if place is not None
    ]
    group = ray.util.placement_group(
        plan.bundles(), strategy=plan.placement.upper(), bundle_label_selector=pins
    )
    try:
        placed = group.wait(_USUAL)
    except BaseException:
        ray.util.remove_placement_group(group)
        raise
    if placed:
        return group
    ray.util.remove_placement_group(group)
    return None


def _asked(plan: Plan) -> Any:
    """Return a group that Ray may place anywhere: an autoscaler grows for what is asked and
    pending.
    """
    import ray

    server, others = plan.selectors()
    selectors = [dict(server), *(dict(others) for _ in plan.actors)]
    labels = {"bundle_label_selector": selectors} if plan.labels else {}
    return ray.util.placement_group(plan.bundles(), strategy=plan.placement.upper(), **labels)
