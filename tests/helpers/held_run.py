"""A run on a cluster that another process watches: a program that tells in JSON where the run
stands, and waits for a line at some of its evaluations.

`python -m tests.helpers.held_run OUT UPDATES SCENARIO [SETTING ...]`: the run waits at the
evaluations after so many updates, "20,40" for two of them (virtual clock), or tells of them and
continues (wall clock).
"""

import json
import sys
from pathlib import Path

import ray
from ray.util.placement_group import placement_group_table

import scenarios
from actors.runner import run_on_ray
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.sim.interfaces import Metrics, Status


def places() -> dict[int, str]:
    """Return the name of the machine of each actor of the run, 0: the server's."""
    named = {node["NodeID"]: node["NodeName"] for node in ray.nodes()}
    (group,) = [one for one in placement_group_table().values() if one["state"] == "CREATED"]
    return {n: named[node] for n, node in sorted(group["bundles_to_node_id"].items())}


def main() -> None:
    """Make the run."""
    out, stops, name, *settings = sys.argv[1:]
    spec, left = scenarios.load(name, settings), [int(at) for at in stops.split(",")]

    def evaluated(status: Status, metrics: Metrics) -> None:
        if left and status.updates >= left[0]:
            left.pop(0)
            print(json.dumps([*places().values()]), flush=True)
            if spec.clock.kind == "virtual":
                sys.stdin.readline()

    run = run_on_ray(prepare(spec), RunOptions(Path(out), evaluated=evaluated))
    faults = [fault["message"] for fault in run.summary.get("faults", [])]
    done = {"digest": run.summary["digest"], "updates": run.summary["updates"], "faults": faults}
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
