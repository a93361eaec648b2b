"""The shares of a run's actors, and how they are to lie on the machines of a cluster."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RESOLUTION = 1e-4
"""Ray's smallest fraction of a resource."""
_LISTENS_WITHIN = 2.0
"""Seconds in which a machine of the cluster takes a connection."""
Selector = Mapping[str, str]
"""Labels of machines, and Ray's words for the values that will do."""


def device_slots(devices: float, share: float) -> int:
    """Return how many processes with this GPU share fit on so many devices: a fraction is of one device."""
    return int(devices) * int(1 / share + 1e-9) if share <= 1 else int(devices / share + 1e-9)


@dataclass(frozen=True)
class Share:
    """What one actor gets; memory: bytes that it takes at the least, 0: unknown."""

    cpus: float
    gpus: float
    memory: int = 0

    def bundle(self) -> dict[str, float]:
        """Return the share as a placement-group bundle."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus}
        shares = {name: amount for name, amount in wanted.items() if amount > 0} or {"CPU": RESOLUTION}
        return shares | ({"memory": self.memory} if self.memory else {})


@dataclass(frozen=True)
class Plan:
    """The server's share, and for every client actor its share and the clients it holds.

    placement, placement_timeout, labels: as in [resources]. member: what an actor beside the server is, in messages and
    in names of settings; fewer: the setting by which there are fewer of them.
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
        """Return which machines the server may be on, and which the others."""
        return self.labels.get("server", {}), self.labels.get(f"{self.member}s", {})


@dataclass(frozen=True)
class Place:
    """Where a run's actors go: a plan, and a placement group that has its bundles.

    driver: is the group's first bundle, before the server's, that of the process that drives the run?
    """

    plan: Plan
    group: Any
    driver: bool = False

    def stands(self) -> bool:
        """Tell whether all its machines are there; not if Ray is to place some of its actors elsewhere."""
        from ray.util.placement_group import placement_group_table

        found = placement_group_table(self.group)
        used = set(found["bundles_to_node_id"].values())
        return found["state"] == "CREATED" and used <= answering()

    def bundle(self, actor: int) -> int:
        """Return the number of an actor's bundle in the group; 0: the server's."""
        return actor + self.driver


def answering() -> set[str]:
    """Return the machines of the cluster whose own process of Ray listens; Ray finds out after a while only."""
    import ray

    return {node["NodeID"] for node in ray.nodes() if node["Alive"] and _listens(node)}


def _listens(node: Mapping[str, Any]) -> bool:
    try:
        place = node["NodeManagerAddress"], node["NodeManagerPort"]
        socket.create_connection(place, timeout=_LISTENS_WITHIN).close()
    except OSError:
        return False
    return True
