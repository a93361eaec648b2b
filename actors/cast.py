"""The actors of a run: wrapping plain classes, placing them, dismissing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from actors.client import ClientActor
from actors.host import get
from actors.ledger import LedgerActor
from actors.placement import Plan
from actors.server import ServerActor
from raydpzv.experiment.build import Experiment


@dataclass
class Cast:
    """The actors of a run: the server, client actors, and the clients that each of these holds."""

    server: Any
    actors: list[Any]
    held: tuple[tuple[int, ...], ...]
    make: Callable[[int, Any], Any]

    @property
    def holder(self) -> dict[int, int]:
        """For every client the number of the actor that holds it."""
        return {m: a for a, clients in enumerate(self.held) for m in clients}

    def replace(self, actor: int, pasts: Any) -> Any:
        """Put a new actor in the place of a lost one; pasts: what its clients are rebuilt from (or a reference)."""
        import ray

        ray.kill(self.actors[actor])  # one that cannot be reached may still hold its share
        self.actors[actor] = self.make(actor, pasts)
        return self.actors[actor]


def create(experiment: Experiment, plan: Plan, group: Any) -> Cast:
    """Create the actors in their placement group and wait until each has come up."""
    recipes = experiment.clients
    local = replace(experiment, clients=() if plan.actors else recipes)
    groups = {"ctl": ServerActor.CONTROL, "wait": ServerActor.WAITING}
    server = _actor(ServerActor, plan, group, 0, groups, {"ctl": 1, "wait": len(recipes)}).remote(
        local, plan.server.gpus
    )

    def make(a: int, pasts: Any) -> Any:
        cls = _actor(ClientActor, plan, group, a + 1, {"ctl": ClientActor.CONTROL}, {"ctl": 1})
        return cls.remote([recipes[m] for m in plan.clients[a]], plan.actors[a].gpus, pasts)

    cast = Cast(server, [make(a, ()) for a in range(len(plan.actors))], plan.clients, make)
    ready = [actor.device.remote() for actor in (server, *cast.actors)]
    get(ready, experiment.spec.resources.timeout, f"{len(ready)} actors to come up")
    return cast


def dismiss(cast: Cast) -> None:
    """End all actors at once."""
    import ray

    for actor in (cast.server, *cast.actors):
        ray.kill(actor)


def ledger_actor() -> Any:
    """Create a ledger actor on this machine, where the run folder is."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    cls = wrapped(LedgerActor, {"ctl": LedgerActor.CONTROL}, {"ctl": 1})
    return cls.options(num_cpus=0, scheduling_strategy=here).remote()


def _actor(
    cls: type,
    plan: Plan,
    group: Any,
    bundle: int,
    groups: Mapping[str, Sequence[str]],
    sizes: Mapping[str, int],
) -> Any:
    return wrapped(cls, groups, sizes).options(**placed(plan.bundles()[bundle], group, bundle))


def wrapped(cls: type, groups: Mapping[str, Sequence[str]], sizes: Mapping[str, int]) -> Any:
    """Wrap a plain class: its methods by concurrency group, and each group's number of threads."""
    import ray

    methods = {
        name: ray.method(concurrency_group=group_name)(getattr(cls, name))
        for group_name, names in groups.items()
        for name in names
    }
    options: dict[str, Any] = {"concurrency_groups": dict(sizes), "enable_task_events": False}
    return ray.remote(**options)(type(cls.__name__, (cls,), methods))


def placed(share: Mapping[str, float], group: Any, bundle: int) -> dict[str, Any]:
    """Return the options that put an actor into a bundle of a placement group."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return {
        "num_cpus": share.get("CPU", 0),
        "num_gpus": share.get("GPU", 0),
        "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle),
    }
