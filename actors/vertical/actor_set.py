"""The actors of a run: wrapping plain classes, placing them, dismissing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from actors.placement import Plan
from actors.remote import get, placed, wrapped
from actors.vertical.client_actor import ClientActor
from actors.vertical.server_actor import VerticalServerActor
from raydpzv.experiment.vertical import PreparedVertical


@dataclass
class ActorSet:
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


def create(experiment: PreparedVertical, plan: Plan, group: Any) -> ActorSet:
    """Create the actors in their placement group and wait until each has come up."""
    factories = experiment.clients
    local = replace(experiment, clients=() if plan.actors else factories)
    groups = {"ctl": VerticalServerActor.CONTROL, "wait": VerticalServerActor.WAITING}
    server = _actor(VerticalServerActor, plan, group, 0, groups, {"ctl": 1, "wait": len(factories)}).remote(
        local, plan.server.gpus
    )

    def make(a: int, pasts: Any) -> Any:
        cls = _actor(ClientActor, plan, group, a + 1, {"ctl": ClientActor.CONTROL}, {"ctl": 1})
        return cls.remote([factories[m] for m in plan.clients[a]], plan.actors[a].gpus, pasts)

    actor_set = ActorSet(server, [make(a, ()) for a in range(len(plan.actors))], plan.clients, make)
    ready = [actor.device.remote() for actor in (server, *actor_set.actors)]
    get(ready, experiment.spec.resources.timeout, f"{len(ready)} actors to come up")
    return actor_set


def dismiss(actor_set: ActorSet) -> None:
    """End all actors at once."""
    import ray

    for actor in (actor_set.server, *actor_set.actors):
        ray.kill(actor)


def _actor(
    cls: type,
    plan: Plan,
    group: Any,
    bundle: int,
    groups: Mapping[str, Sequence[str]],
    sizes: Mapping[str, int],
) -> Any:
    return wrapped(cls, groups, sizes).options(**placed(plan.bundles()[bundle], group, bundle))
