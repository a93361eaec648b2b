"""A run that waits on a cluster of one machine until there is a second, with the labels it asks
for; what came of it, and of two more there under the wall clock: of one the second machine's clock
is ahead.

A process of its own: a Ray that others share cannot join another cluster. Prints one line of JSON.
"""

import json
from types import SimpleNamespace
from unittest import mock

import ray
from ray.cluster_utils import Cluster
from ray.util import placement_group_table

import scenarios
from actors.cluster import set_defaults
from actors.vertical.client_actor import ClientActor
from raydpzv.sim import clock

SETTINGS = ("privacy.noise=seeded", "budget.updates=20", "evaluate.every=20")
PLACED = (
    "resources.client_actors=1",
    "resources.client_cpus=1",
    "resources.server_cpus=1",
    "resources.placement=strict_spread",
    "resources.placement_timeout=150",
    'resources.labels.clients={zone = "b"}',
)

AHEAD = 0.5
"""Seconds that the clock of the second machine is ahead."""
WALL = (
    "clock.kind=wall",
    "arrivals.rate=4",
    "resources.client_actors=2",
    "resources.client_cpus=0.5",
)
PULLS = (
    "clock.kind=wall",
    "method.asynchronous=true",
    "budget.updates=4",
    "arrivals.rate=4",
    "resources.hosts=1",
)


class AheadClientActor(ClientActor):
    """A client actor in whose process the clock is ahead, as it would be on another machine."""

    def __init__(self, *arguments: object) -> None:
        real = clock.time
        clock.time = SimpleNamespace(time=lambda: real.time() + AHEAD)  # type: ignore[assignment]
        super().__init__(*arguments)  # type: ignore[arg-type]


def clocks(address: str) -> list[dict[str, object]]:
    """Return what is on record and said of the machines' clocks: as they are, and of clients that
    are ahead.
    """
    # Ray packs without going back: where the server may be anywhere it might take what others alone
    # can have
    apart = ("resources.placement=pack", 'resources.labels.server={zone = "a"}')
    pulled = scenarios.load(
        "digits_decomfl", [*PULLS, *apart, 'resources.labels.hosts={zone = "b"}']
    )
    ahead = scenarios.load("digits_dpzv", [*SETTINGS, *PLACED, *WALL, *apart])
    plain = scenarios.run(pulled, runner="ray", address=address)
    with mock.patch("actors.vertical.actor_set.ClientActor", AheadClientActor):
        wrong = scenarios.run(ahead, runner="ray", address=address)
    return [
        {"rows": run.rows("clock").to_pylist(), "warnings": run.summary["warnings"]}
        for run in (plain, wrong)
    ]


def main() -> None:
    """Run it, and its like without Ray."""
    set_defaults()
    head = {"num_cpus": 1, "labels": {"zone": "a"}, "include_dashboard": False}
    cluster, stages, zones = Cluster(initialize_head=True, head_node_args=head), [], {}

    def progress(status: object) -> None:
        stage = str(getattr(status, "stage", ""))
        if stage and stage not in stages:
            stages.append(stage)
            if "zone = b" in stage:
                cluster.add_node(num_cpus=1, labels={"zone": "b"})
            elif "come up" in stage:
                zone = {node["NodeID"]: node["Labels"]["zone"] for node in ray.nodes()}
                (group,) = placement_group_table().values()
                zones.update({i: zone[node] for i, node in group["bundles_to_node_id"].items()})

    spec = scenarios.load("digits_dpzv", [*SETTINGS, *PLACED])
    try:
        found = scenarios.run(spec, runner="ray", address=cluster.address, progress=progress)
        apart = clocks(cluster.address)
    finally:
        cluster.shutdown()
    alone = scenarios.run(spec)
    digests = [run.summary["digest"] for run in (found, alone)]
    print(json.dumps({"stages": stages, "zones": zones, "digests": digests, "clocks": apart}))


if __name__ == "__main__":
    main()
