"""Runs on a cluster that grows: one that waits for a machine with the labels that it asks for, and
under the wall clock two more, of which one has clients whose clocks are ahead.

Prints lines of JSON: what it waits for, and at its end what came of the runs.
"""

import json
from types import SimpleNamespace
from unittest import mock

import ray
from ray.util import placement_group_table

import scenarios
from actors.vertical.client_actor import ClientActor
from raydpzv.sim import clock

SETTINGS = ("privacy.noise=seeded", "budget.updates=20", "evaluate.every=20")
PLACED = (
    "resources.client_actors=1",
    "resources.placement_timeout=150",
    'resources.labels.server={zone = "!late"}',
    'resources.labels.clients={zone = "late"}',
)

AHEAD = 0.5
"""Seconds that the clock of the second machine is ahead."""
WALL = (
    "clock.kind=wall",
    "arrivals.rate=4",
    "resources.client_actors=2",
)
PULLS = (
    "clock.kind=wall",
    "method.asynchronous=true",
    "budget.updates=4",
    "arrivals.rate=4",
    "resources.hosts=1",
    'resources.labels.server={zone = "!late"}',
    'resources.labels.hosts={zone = "late"}',
)


class AheadClientActor(ClientActor):
    """A client actor in whose process the clock is ahead, as it would be on another machine."""

    def __init__(self, *arguments: object) -> None:
        real = clock.time
        clock.time = SimpleNamespace(time=lambda: real.time() + AHEAD)  # type: ignore[assignment]
        super().__init__(*arguments)  # type: ignore[arg-type]


def clocks() -> list[dict[str, object]]:
    """Return what is on record and said of the machines' clocks: as they are, and of clients that
    are ahead.
    """
    pulled = scenarios.load("digits_decomfl", PULLS)
    ahead = scenarios.load("digits_dpzv", [*SETTINGS, *PLACED, *WALL])
    plain = scenarios.run(pulled, runner="ray")
    with mock.patch("actors.vertical.actor_set.ClientActor", AheadClientActor):
        wrong = scenarios.run(ahead, runner="ray")
    return [
        {"rows": run.rows("clock").to_pylist(), "warnings": run.summary["warnings"]}
        for run in (plain, wrong)
    ]


def main() -> None:
    """Make the runs, and the first one without Ray."""
    told, zones = set[str](), {}

    def progress(status: object) -> None:
        stage = str(getattr(status, "stage", ""))
        if stage and stage not in told:
            told.add(stage)
            print(json.dumps(stage), flush=True)
            if "come up" in stage:
                zone = {node["NodeID"]: node["Labels"]["zone"] for node in ray.nodes()}
                (group,) = placement_group_table().values()
                zones.update({i: zone[node] for i, node in group["bundles_to_node_id"].items()})

    spec = scenarios.load("digits_dpzv", [*SETTINGS, *PLACED])
    waited = scenarios.run(spec, runner="ray", progress=progress)
    digests = [run.summary["digest"] for run in (waited, scenarios.run(spec))]
    print(json.dumps({"zones": zones, "digests": digests, "clocks": clocks()}))


if __name__ == "__main__":
    main()
