"""Travel times of messages: latency and bandwidth of each client's link."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Network:
    """One link per client: seconds of latency each way, bytes per second up and down (infinity: no
    limit).
    """

    latency: Sequence[float]
    up: Sequence[float]
    down: Sequence[float]

    def uplink(self, client: int, size: int) -> float:
        """Return the seconds `size` bytes take from the client to the server."""
        return self.latency[client] + size / self.up[client]

    def downlink(self, client: int, size: int) -> float:
        """Return the seconds `size` bytes take from the server to the client."""
        return self.latency[client] + size / self.down[client]

    def needs_size(self, client: int) -> bool:
        """Return whether an upload's arrival depends on its size."""
        return math.isfinite(self.up[client])


def instant(clients: int) -> Network:
    """Return a network without any delay."""
    return Network([0.0] * clients, [math.inf] * clients, [math.inf] * clients)
