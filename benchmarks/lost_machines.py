"""What becomes of runs on a cluster of two machines that lose one: their digests, and how long they
stand still.

Both machines are on this one (`ray.cluster_utils.Cluster`, ports and folder of its own). Actors are
spread over both; at an evaluation of a run under the virtual clock, which waits meanwhile, the
second machine's processes are killed. Everything has room on the first. Ray itself takes some 15 s
to find out that a machine is gone. Target: the undisturbed digest, at work again within 30 s.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from common import environment, options, show, verdict, write
from lane_kills import prints

import scenarios
from actors.cluster import connected, set_defaults
from actors.runner import run_on_ray
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.sim.interfaces import Metrics, Status

TIMES, QUICK_TIMES = 5, 1
MOST_SECONDS = 30.0
CASES = (
    (
        "digits_dpzv",
        2000,
        ("privacy.noise=seeded", "budget.updates=5000", "resources.client_actors=3"),
    ),
    ("vafl", 3000, ("budget.updates=8000", "resources.client_actors=3")),
    ("digits_decomfl", 200, ("method.perturbations=5", "budget.updates=500", "resources.hosts=3")),
)
"""Scenario, the update at which the machine is lost, settings."""


class Loss:
    """Loses a machine at an evaluation, and measures how long the run then stands still: until it
    is further on.

    bundles: of the run's actors, how many were there.
    """

    def __init__(self, cluster: Any, machine: Any, at: int) -> None:
        self._cluster, self._machine, self._at = cluster, machine, at
        self._furthest, self._since = 0, 0.0
        self.bundles, self.longest = 0, 0.0

    def progress(self, status: Status) -> None:
        """Hear where the run stands."""
        if status.updates > self._furthest:
            self._furthest = status.updates
            if self._since:
                now = time.monotonic()
                self.longest, self._since = max(self.longest, now - self._since), now

    def evaluated(self, status: Status, metrics: Metrics) -> None:
        """Lose the machine if the run, which waits, is there."""
        if status.updates == self._at:
            self._furthest = self._at
            self._lose()

    def _lose(self) -> None:
        from ray.util import placement_group_table

        (group,) = (g for g in placement_group_table().values() if g["state"] == "CREATED")
        self.bundles = sum(
            node == self._machine.node_id for node in group["bundles_to_node_id"].values()
        )
        self._since = time.monotonic()
        self._cluster.remove_node(self._machine, allow_graceful=False)


def main() -> None:
    """Run the benchmark."""
    parser = options(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--times", type=int, metavar="N", help=f"machines lost, {TIMES} unless told"
    )
    chosen = parser.parse_args()
    times = chosen.times or (QUICK_TIMES if chosen.quick else TIMES)
    before, rows, stood_still, wrong = environment(), list[list[str]](), list[float](), list[str]()
    with tempfile.TemporaryDirectory(prefix="rz", ignore_cleanup_errors=True) as folder:
        os.environ |= {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled"}
        set_defaults()
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 4, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            # before there is another machine, which Ray might connect this process to
            with connected(cluster.address):
                for n in range(times):
                    name, at, settings = CASES[n % len(CASES)]
                    spec = scenarios.load(
                        name, [*settings, f"evaluate.every={at}", "resources.placement=spread"]
                    )
                    loss = Loss(cluster, cluster.add_node(num_cpus=4), at)
                    hooks = RunOptions(
                        Path(folder) / f"run {n}", progress=loss.progress, evaluated=loss.evaluated
                    )
                    found = run_on_ray(prepare(spec), hooks)
                    whole = scenarios.run(spec)
                    same = prints(found, whole) == prints(whole, whole)
                    faults = found.summary.get("faults", [])
                    wrong += (
                        []
                        if same and faults and loss.bundles
                        else [f"{n}: {name}, {len(faults)} faults"]
                    )
                    stood_still.append(loss.longest)
                    digest = "same" if same else "another"
                    rows.append(
                        [name, str(loss.bundles), str(len(faults)), f"{loss.longest:.1f}", digest]
                    )
        finally:
            cluster.shutdown()
    show("Machines lost", ["scenario", "actors there", "faults", "stood still s", "digest"], rows)
    print(
        f"longest {max(stood_still):.1f} s, {verdict(max(stood_still), MOST_SECONDS, at_most=True)}"
    )
    figures = {
        "seconds": stood_still,
        "median_seconds": statistics.median(stood_still),
        "longest_seconds": max(stood_still),
        "lost": rows,
        "wrong": wrong,
        "environment": before,
    }
    write("lost_machines", figures, chosen.json)
    if wrong:
        raise SystemExit(f"{len(wrong)} things are wrong")


if __name__ == "__main__":
    main()
