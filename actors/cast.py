"""The actors of a run: wrapping plain classes, placing them, dismissing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from actors.client import ClientActor
from actors.host import get
from actors.placement import Plan
from actors.server import ServerActor
from raydpzv.experiment.build import Experiment


@dataclass(frozen=True)
class Cast:
    """The actors of a run: the server, and for every client the actor that holds it."""

    server: Any
    actors: tuple[Any, ...]
    by_client: Mapping[int, Any]


def create(experiment: Experiment, plan: Plan, group: Any) -> Cast:
    """Create the actors in their placement group and wait until each has come up."""
    recipes = experiment.clients
    local = replace(experiment, clients=() if plan.actors else recipes)
    groups = {"ctl": ServerActor.CONTROL, "wait": ServerActor.WAITING}
    server = _actor(ServerActor, plan, group, 0, groups, {"ctl": 1, "wait": len(recipes)}).remote(
        local, plan.server.gpus
    )
    actors = [
        _actor(ClientActor, plan, group, a + 1, {"ctl": ClientActor.CONTROL}, {"ctl": 1}).remote(
            [recipes[m] for m in held], plan.actors[a].gpus
        )
        for a, held in enumerate(plan.clients)
    ]
    by_client = {m: actors[a] for a, held in enumerate(plan.clients) for m in held}
    cast = Cast(server, tuple(actors), by_client)
    ready = [actor.device.remote() for actor in (server, *actors)]
    get(ready, experiment.spec.resources.timeout, f"{len(ready)} actors to come up")
    return cast


def dismiss(cast: Cast) -> None:
    """End all actors at once."""
    import ray

    for actor in (cast.server, *cast.actors):
        ray.kill(actor)


def _actor(
    cls: type,
    plan: Plan,
    group: Any,
    bundle: int,
    groups: Mapping[str, Sequence[str]],
    sizes: Mapping[str, int],
) -> Any:
    """Wrap a plain class: concurrency groups for its methods, a bundle of the placement group, no restarts."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    methods = {
        name: ray.method(concurrency_group=group_name)(getattr(cls, name))
        for group_name, names in groups.items()
        for name in names
    }
    share = plan.bundles()[bundle]
    options: dict[str, Any] = {"concurrency_groups": dict(sizes), "enable_task_events": False}
    actor_class: Any = ray.remote(**options)(type(cls.__name__, (cls,), methods))
    return actor_class.options(
        num_cpus=share.get("CPU", 0),
        num_gpus=share.get("GPU", 0),
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle),
    )
