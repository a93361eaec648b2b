"""The shares of a run's actors, and their place on the machines of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from actors.machines import Selector, answering

RESOLUTION = 1e-4
"""Ray's smallest fraction of a resource."""


@dataclass(frozen=True)
class Share:
    """The share of one actor. memory: the least bytes that it takes, 0: unknown."""

    cpus: float
    gpus: float
    memory: int = 0

    def bundle(self) -> dict[str, float]:
        """Return the share as a placement-group bundle."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus}
        shares = {name: amount for name, amount in wanted.items() if amount > 0} or {
            "CPU": RESOLUTION
        }
        return shares | ({"memory": self.memory} if self.memory else {})


@dataclass(frozen=True)
class Plan:
    """The server's share, and each client actor's share and clients.

    placement, placement_timeout, labels: as in [resources]. member: the name of an actor other than
    the server, in messages and settings; fewer: the setting that lowers their number.
    """

    server: Share
    actors: tuple[Share, ...]
    clients: tuple[tuple[int, ...], ...]
    placement: str = "pack"
    placement_timeout: float = 0.0
    labels: Mapping[str, Selector] = field(default_factory=dict)
    member: str = "client"
    fewer: str = "client_actors"

    def bundles(self) -> list[dict[str, float]]:
        """Return one bundle per actor, the server's first."""
        return [share.bundle() for share in (self.server, *self.actors)]

    def selectors(self) -> tuple[Selector, Selector]:
        """Return the selectors of the server's machine and of the others'."""
        return self.labels.get("server", {}), self.labels.get(f"{self.member}s", {})


@dataclass(frozen=True)
class Place:
    """The place of a run's actors: a plan, and a placement group that has its bundles.

    driver: the group's first bundle, before the server's, is of the process that drives the run.
    """

    plan: Plan
    group: Any
    driver: bool = False

    def stands(self) -> bool:
        """Return whether all its machines still answer and no bundle is waiting for a new one."""
        from ray.util.placement_group import placement_group_table

        found = placement_group_table(self.group)
        used = set(found["bundles_to_node_id"].values())
        return found["state"] == "CREATED" and used <= answering()

    def bundle(self, actor: int) -> int:
        """Return the number of an actor's bundle in the group; 0: the server's."""
        return actor + self.driver
