"""The resources of a trial: one process, or one and its own actors, in one placement group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from actors.placement import plan_run, whole_run_gpus
from actors.placement_errors import fits, listed, summed
from actors.reservation import reserved
from actors.shares import RESOLUTION, Place, Plan, Share, device_slots
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import Unplaceable
from raydpzv.experiment.finalize import RunOptions

_SLACK = 1e-9
"""Rounding error allowed in a quotient of shares."""


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

    def check(self, nodes: Sequence[Mapping[str, float]]) -> None:
        """Raise Unplaceable unless the shares fit on machines, busy or not, or the cluster may
        grow.
        """
        if self.actors and self.actors.placement_timeout:
            return
        bundles = self.bundles()
        if self.strategy == "STRICT_SPREAD" and len(nodes) < len(bundles):
            raise Unplaceable(
                f'resources: placement = "strict_spread" asks a machine for each of {len(bundles)} '
                f"processes of a trial, the cluster has {len(nodes)}; set resources.placement = "
                '"spread"'
            )
        one = self.actors is None or self.actors.placement == "strict_pack"
        for asked in [summed(bundles)] if one else bundles:
            if any(fits(asked, node) for node in nodes):
                continue
            there = "; ".join(
                listed({kind: node.get(kind, 0.0) for kind in asked}) for node in nodes
            )
            raise Unplaceable(
                f"resources: {'a trial' if one else 'an actor of a trial'} asks {listed(asked)} on "
                f"one machine, the cluster's machines have {there}; lower the "
                f"{'' if self.actors else 'GPU '}shares in [resources], or join another cluster "
                "with --address"
            )

    def capacity(self, nodes: Sequence[Mapping[str, float]]) -> int:
        """Return how many such trials in one process each fit on these machines, busy or not; at
        least 1.
        """
        cpus, gpus = self.process.cpus, self.process.gpus
        room = [int(node.get("CPU", 0.0) / cpus + _SLACK) for node in nodes]
        if gpus:
            room = [
                min(n, device_slots(node.get("GPU", 0.0), gpus))
                for n, node in zip(room, nodes, strict=True)
            ]
        return max(1, sum(room))

    def try_out(self) -> None:
        """Reserve a place for the actors and give it back. Raises Unplaceable if Ray cannot place
        them.
        """
        assert self.actors is not None
        with reserved(self.actors, RunOptions()):
            pass


def whole_trials(specs: Sequence[AnyScenario], total: Mapping[str, float] | None) -> TrialNeeds:
    """Return the resources of each trial in one process, the same for all.

    total, errors: as of `whole_run_gpus`.
    """
    return TrialNeeds(Share(1.0, max(whole_run_gpus(spec, total) for spec in specs)))


def trial_with_actors(spec: AnyScenario, total: Mapping[str, float]) -> TrialNeeds:
    """Return the resources of a trial with its own actors. Raises Unplaceable with the arithmetic.

    Its own process only watches, and gets the smallest share. Under the wall clock all are on one
    machine: between machines, the network would add staleness.
    """
    if spec.resources.labels:
        raise Unplaceable(
            "resources.labels: trials with actors of their own are not placed by labels, got some; "
            "leave them out, or search with trials that are whole in one process"
        )
    left = {**total, "CPU": max(0.0, total.get("CPU", 0.0) - RESOLUTION)}
    found = plan_run(spec, left)
    if spec.clock.kind == "wall":
        found = replace(found, placement="strict_pack")
    return TrialNeeds(Share(RESOLUTION, 0.0), found)
