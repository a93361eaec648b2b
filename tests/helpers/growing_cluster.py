"""A run that waits on a cluster of one machine until there is a second, with the labels it asks for; what came of it.

A process of its own: a Ray that others share cannot join another cluster. Prints one line of JSON.
"""

from __future__ import annotations

import json

import ray
from ray.cluster_utils import Cluster
from ray.util import placement_group_table

import scenarios
from actors.cluster import set_defaults

SETTINGS = ("privacy.noise=seeded", "budget.updates=20", "evaluate.every=20")
PLACED = (
    *("resources.client_actors=1", "resources.client_cpus=1", "resources.server_cpus=1"),
    *(
        "resources.placement_timeout=150",
        'resources.labels.clients={zone = "b"}',
        "resources.placement=strict_spread",
    ),
)


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
    finally:
        cluster.shutdown()
    alone = scenarios.run(spec)
    digests = [run.summary["digest"] for run in (found, alone)]
    print(json.dumps({"stages": stages, "zones": zones, "digests": digests}))


if __name__ == "__main__":
    main()
