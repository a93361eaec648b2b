"""The actors of a vertical run, and new ones in place of those that are lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from actors.actor_process import start
from actors.driver import ActorSet
from actors.shares import Place
from actors.vertical.client_actor import ClientActor
from actors.vertical.executor import holders
from actors.vertical.server_actor import VerticalServerActor
from raydpzv.experiment.vertical import PreparedVertical


@dataclass(kw_only=True)
class ClientActors(ActorSet):
    """The server and client actors of a run. held: the clients of each actor; make: starts an actor
    by its number.
    """

    held: tuple[tuple[int, ...], ...]
    make: Callable[[int, Any], tuple[Any, Any]]

    @property
    def holder(self) -> dict[int, int]:
        """For every client the number of the actor that holds it."""
        return holders(self.held)

    def replace(self, actor: int, pasts: Any) -> Any:
        """Put a new actor in the place of a lost one; pasts: what its clients are rebuilt from (or
        a reference).
        """
        import ray

        ray.kill(self.actors[actor])  # one that cannot be reached may still hold its share
        self.actors[actor], _ = self.make(actor, pasts)
        return self.actors[actor]


def create(experiment: PreparedVertical, place: Place) -> ClientActors:
    """Create the actors in their place."""
    factories, plan = experiment.clients, place.plan
    local = replace(experiment, clients=() if plan.actors else factories)
    role = VerticalServerActor
    groups = {"ctl": role.CONTROL, "keep": role.KEEPING}
    bundles, threads = plan.bundles(), {"ctl": 1, "keep": 1}

    def client(a: int, pasts: Any) -> tuple[Any, Any]:
        return start(
            ClientActor,
            {"ctl": ClientActor.CONTROL},
            {"ctl": 1},
            bundles[a + 1],
            place.group,
            place.bundle(a + 1),
            [factories[m] for m in plan.clients[a]],
            plan.actors[a].gpus,
            pasts,
        )

    server, server_made = start(
        role, groups, threads, bundles[0], place.group, place.bundle(0), local, plan.server.gpus
    )
    clients = [client(a, ()) for a in range(len(plan.actors))]
    return ClientActors(
        server=server,
        actors=[actor for actor, _ in clients],
        made=[server_made, *(made for _, made in clients)],
        place=place,
        held=plan.clients,
        make=client,
    )
