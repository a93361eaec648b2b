"""What sets the pace of a vertical run: links, how long a client is under way, and for whom the
server waits.
"""

from __future__ import annotations

import math

from raydpzv.config.scenario import AnyScenario, VerticalScenario
from raydpzv.settings.fields import per_client
from raydpzv.settings.sections import CommonSections
from raydpzv.wire.network import Network


def links(spec: CommonSections, clients: int) -> Network:
    """Return every client's link to the server."""
    network = spec.network
    return Network(
        per_client(network.latency, clients),
        per_client(network.up or math.inf, clients),
        per_client(network.down or math.inf, clients),
    )


def sizes_in_order(spec: VerticalScenario) -> str:
    """Return the settings by which larger batches take longer, so that the order of updates reveals
    their sizes.
    """
    network = {"network.up": spec.network.up, "network.down": spec.network.down}
    found = [name for name, rate in network.items() if rate is not None]
    return " and ".join([*found, *(['clock.kind = "wall"'] if spec.clock.kind == "wall" else [])])


def round_trips(spec: AnyScenario, bytes_up: int, bytes_down: int) -> list[float]:
    """Return each client's mean seconds from the start of its work to the next, if it never waits
    for an epoch.

    Without what it waits while others are served, and under the wall clock without what the machine
    takes.
    """
    clients, clock = spec.split.clients, spec.clock
    network = links(spec, clients)
    return [
        compute + network.uplink(m, bytes_up) + clock.service + network.downlink(m, bytes_down)
        for m, compute in enumerate(per_client(clock.compute, clients))
    ]


def planned_seconds(spec: AnyScenario) -> float:
    """Return how long clients need for a run's budget at the rates they are asked for; infinity
    where none are.

    A barrier or a slow machine makes them wait, so that it takes longer.
    """
    seconds = spec.budget.seconds or math.inf
    if spec.budget.updates is None or spec.arrivals.kind not in ("poisson", "constant"):
        return seconds
    rates, trips = per_client(spec.arrivals.rate, spec.split.clients), round_trips(spec, 1, 1)
    pace = sum(
        min(rate, 1 / trip) if trip else rate for rate, trip in zip(rates, trips, strict=True)
    )
    return min(seconds, spec.budget.updates / pace)


def stands_still(spec: VerticalScenario) -> bool:
    """Return whether simulated time never passes: enough clients to fill the barrier need none for
    a round trip.
    """
    if spec.arrivals.kind != "immediate" or spec.clock.kind == "wall":
        return False
    return round_trips(spec, 1, 1).count(0.0) >= spec.barrier
