"""The resources of a trial: one process, or one and its own actors, in one placement group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from actors.machines import Machine
from actors.packing import Room
from actors.placement import plan_run, whole_run_gpus
from actors.placement_errors import listed, summed
from actors.reservation import reserved
from actors.shares import RESOLUTION, Place, Plan, Share
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import Unplaceable
from raydpzv.experiment.finalize import RunOptions

_MOST = 10**4
"""Most trials that a machine is asked to hold."""


@dataclass(frozen=True)
class TrialNeeds:
    """The share of a trial's own process, and the plan of its actors (None: it is whole in that
    process).
    """

    process: Share
    actors: Plan | None = None

    @property
    def strategy(self) -> str:
        """Return Ray's placement strategy."""
        return self.actors.placement.upper() if self.actors else "PACK"

    def bundles(self) -> list[dict[str, float]]:
        """Return one bundle for the process, and after it those of its actors."""
        return [self.process.bundle(), *(self.actors.bundles() if self.actors else [])]

    def place(self, group: Any) -> Place:
        """Return the actors' place in the trial's placement group."""
        assert self.actors is not None
        return Place(self.actors, group, driver=True)

    def check(self, machines: Sequence[Machine]) -> None:
        """Raise Unplaceable unless the shares fit on machines, busy or not, or the cluster may
        grow.
        """
        if self.actors and self.actors.placement_timeout:
            return
        bundles = self.bundles()
        if self.strategy == "STRICT_SPREAD" and len(machines) < len(bundles):
            raise Unplaceable(
                f'resources: placement = "strict_spread" asks a machine for each of {len(bundles)} '
                f"processes of a trial, the cluster has {len(machines)}; set resources.placement = "
                '"spread"'
            )
        one = self.actors is None or self.actors.placement == "strict_pack"
        for asked in [summed(bundles)] if one else bundles:
            if any(Room(machine.has).fits(asked, 1) for machine in machines):
                continue
            there = "; ".join(
                listed({kind: machine.has.get(kind, 0.0) for kind in asked}) for machine in machines
            )
            raise Unplaceable(
                f"resources: {'a trial' if one else 'an actor of a trial'} asks {listed(asked)} on "
                f"one machine, the cluster's machines have {there}; lower the "
                f"{'' if self.actors else 'GPU '}shares in [resources], or join another cluster "
                "with --address"
            )

    def capacity(self, machines: Sequence[Machine]) -> int:
        """Return how many such trials in one process each fit on these machines, busy or not; at
        least 1.
        """
        asked = self.process.bundle()
        return max(1, sum(Room(machine.has).fits(asked, _MOST) for machine in machines))

    def try_out(self) -> None:
        """Reserve a place for the actors and give it back. Raises Unplaceable if Ray cannot place
        them.
        """
        assert self.actors is not None
        with reserved(self.actors, RunOptions()):
            pass


def whole_trials(specs: Sequence[AnyScenario], machines: Sequence[Machine] | None) -> TrialNeeds:
    """Return the resources of each trial in one process, the same for all.

    machines, errors: as of `whole_run_gpus`.
    """
    return TrialNeeds(Share(1.0, max(whole_run_gpus(spec, machines) for spec in specs)))


def trial_with_actors(spec: AnyScenario, machines: Sequence[Machine]) -> TrialNeeds:
    """Return the resources of a trial with its own actors. Raises Unplaceable with the arithmetic.

    Its own process only watches, and gets the smallest share. Under the wall clock all are on one
    machine: between machines, the network would add staleness.
    """
    if spec.resources.labels:
        raise Unplaceable(
            "resources.labels: trials with actors of their own are not placed by labels, got some; "
            "leave them out, or search with trials that are whole in one process"
        )
    # its own process may be on any of them
    left = [machine.less(RESOLUTION) for machine in machines]
    if spec.clock.kind == "wall":
        found = plan_run(spec, left, lambda plan: replace(plan, placement="strict_pack"))
    else:
        found = plan_run(spec, left)
    return TrialNeeds(Share(RESOLUTION, 0.0), found)
