"""The machines of a cluster: what each has, what of it is free, and whether it answers."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Amounts = Mapping[str, float]
"""Amounts by Ray's names of resources."""
Selector = Mapping[str, str]
"""Machine labels, and the accepted values in Ray's syntax."""
OF_ONE = "ray.io/node-id"
"""The label by which Ray identifies each machine."""
_HEALTH_CHECKS = {"period_ms": 3000, "timeout_ms": 10000, "failure_threshold": 5}
"""Ray's settings of how it looks after machines, and their defaults."""
_LISTENS_WITHIN = 2.0
"""Seconds in which a machine of the cluster takes a connection."""


@dataclass(frozen=True)
class Machine:
    """A machine of the cluster, with what the program knows of it."""

    has: Amounts
    """Its resources, busy or not."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Its labels."""
    free: Amounts | None = None
    """Its resources that nobody has reserved; None: all of them."""
    name: str = "a machine"
    """Its address."""
    home: bool = False
    """Whether the process that drives the run, and its ledger, are there."""

    def carries(self, selector: Selector) -> bool:
        """Return whether the machine's labels match: "a", "in(a, b)", or with "!" any other value
        or none.
        """
        for label, wanted in selector.items():
            words = re.findall(r"[^!(), ]+", wanted)
            values = words[1:] if "(" in wanted else words
            if (self.labels.get(label) in values) == wanted.startswith("!"):
                return False
        return True

    def now(self) -> Machine:
        """Return the machine with no more than what is free."""
        return self if self.free is None else replace(self, has=self.free)

    def less(self, cpus: float) -> Machine:
        """Return the machine without some CPUs."""
        return replace(self, has={**self.has, "CPU": max(0.0, self.has.get("CPU", 0.0) - cpus)})


def cluster_machines() -> list[Machine]:
    """Return the machines of the connected cluster."""
    import ray
    from ray._private.state import available_resources_per_node

    free, here = available_resources_per_node(), ray.get_runtime_context().get_node_id()
    return [
        Machine(
            node["Resources"],
            node.get("Labels", {}),
            free.get(node["NodeID"], {}),
            node["NodeManagerAddress"],
            node["NodeID"] == here,
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def noticed_within() -> float:
    """Return the seconds in which Ray notices that a machine is silent, by its settings.

    A machine whose processes end is noticed earlier: its connections are refused.
    """
    period, timeout, failures = (
        float(os.environ.get(f"RAY_health_check_{name}", default))
        for name, default in _HEALTH_CHECKS.items()
    )
    return failures * max(period, timeout) / 1000


def answering() -> set[str]:
    """Return the machines whose Ray process listens; Ray itself notices a lost machine late."""
    import ray

    return {node["NodeID"] for node in ray.nodes() if node["Alive"] and _listens(node)}


def _listens(node: Mapping[str, Any]) -> bool:
    try:
        place = node["NodeManagerAddress"], node["NodeManagerPort"]
        socket.create_connection(place, timeout=_LISTENS_WITHIN).close()
    except OSError:
        return False
    return True
