"""The actors of a run: wrapping plain classes, placing them, dismissing them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from actors.actor_reuse import end, keep_survivors, start
from actors.remote import get
from actors.shares import Place
from actors.vertical.client_actor import ClientActor
from actors.vertical.executor import holders
from actors.vertical.server_actor import VerticalServerActor
from raydpzv.experiment.vertical import PreparedVertical


@dataclass
class ActorSet:
    """The actors of a run: the server, client actors, the clients that each of these holds, and where they are.

    kept: those whose processes another leg of the run continues with.
    """

    server: Any
    actors: list[Any]
    held: tuple[tuple[int, ...], ...]
    place: Place
    make: Callable[[int, Any], Any]
    kept: list[Any] = field(default_factory=list)

    @property
    def holder(self) -> dict[int, int]:
        """For every client the number of the actor that holds it."""
        return holders(self.held)

    def replace(self, actor: int, pasts: Any) -> Any:
        """Put a new actor in the place of a lost one; pasts: what its clients are rebuilt from (or a reference)."""
        import ray

        ray.kill(self.actors[actor])  # one that cannot be reached may still hold its share
        self.actors[actor] = self.make(actor, pasts)
        return self.actors[actor]


def create(experiment: PreparedVertical, place: Place) -> ActorSet:
    """Create the actors in their place and wait until each has come up."""
    factories, plan = experiment.clients, place.plan
    local = replace(experiment, clients=() if plan.actors else factories)
    role = VerticalServerActor
    groups = {"ctl": role.CONTROL, "wait": role.WAITING, "keep": role.KEEPING}
    bundles, threads = plan.bundles(), {"ctl": 1, "wait": len(factories), "keep": 1}
    server, server_made = start(
        *(role, groups, threads),
        *(bundles[0], place.group, place.bundle(0)),
        *(local, plan.server.gpus),
    )

    def client(a: int, pasts: Any) -> tuple[Any, Any]:
        return start(
            *(ClientActor, {"ctl": ClientActor.CONTROL}, {"ctl": 1}),
            *(bundles[a + 1], place.group, place.bundle(a + 1)),
            *([factories[m] for m in plan.clients[a]], plan.actors[a].gpus, pasts),
        )

    def make(a: int, pasts: Any) -> Any:
        return client(a, pasts)[0]

    clients = [client(a, ()) for a in range(len(plan.actors))]
    actor_set = ActorSet(server, [actor for actor, _ in clients], plan.clients, place, make)
    made = [server_made, *(made for _, made in clients)]
    try:
        get(made, experiment.spec.resources.timeout, f"{len(made)} actors to come up")
    except BaseException:
        dismiss(actor_set, well=False)
        raise
    return actor_set


def dismiss(actor_set: ActorSet, *, well: bool) -> None:
    """End all actors that were not kept; well: their run did."""
    end([a for a in (actor_set.server, *actor_set.actors) if a not in actor_set.kept], well=well)


def break_off(actor_set: ActorSet) -> None:
    """End what a run's actors do, for those that take their places after a loss; `dismiss` ends the others."""
    for call in ("close_transport", "leave"):
        getattr(actor_set.server, call).remote()
    for actor in actor_set.actors:
        actor.stop.remote()  # whose loops would keep waiting for a server (wall clock)
    kept = keep_survivors([actor_set.server, *actor_set.actors])
    actor_set.kept = kept
