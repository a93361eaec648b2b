"""Updates per second of one DPZV run by several ways to run it, for three amounts of client work.

bare              the roles' `process` and `receive` called in the run's order: no server loop, no
events, no rows, no
                  privacy account; the least one could write by hand for the same bits (checked at
                  the start)
LocalExecutor         `raydpzv.experiment.runner.run_local` in this process
Ray               virtual clock, one actor per client; also with one actor for all clients, and with
none Ray, wall clock   at a rate of arrivals that keeps every client busy

The run is the digits scenario with 7 clients (batch 64), with no evaluations but the first and the
last: they would cost every way the same. Client work beyond the method's own is a fixed amount of
numpy work before every upload, given in CPU milliseconds (see `busy`). A figure covers the steady
state, from the first look after the warm-up to the last one before the end. The ways take turns, so
that a slow minute hits all of them: a ratio is the median over the turns of the way's pace to the
bare loop's in the same turn. On a machine shared with others the ratio of CPU seconds per update
says more for ways of one process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import busy
import numpy as np
from common import environment, median, options, show, spread, verdict, write
from processes import GROUPS
from watch import Pace, Watch

from raydpzv.config.toml import load
from raydpzv.errors import RunError
from raydpzv.experiment.finalize import Run, RunOptions
from raydpzv.experiment.local_session import one_thread
from raydpzv.experiment.run_vertical import parameters
from raydpzv.experiment.runner import run_local
from raydpzv.experiment.vertical import PreparedVertical, prepare_vertical

SCENARIO = Path(__file__).parents[1] / "scenarios" / "digits_dpzv.toml"
CLIENTS = "split.clients=7"
"""Enough clients that one is always at work while another is being served."""
WORKS = {0: 20_000, 5: 500, 20: 240}
"""Client CPU milliseconds to the updates of a run: seconds each."""
WARM = 0.2
"""Share of a run's updates that count as warm-up."""
TARGETS: dict[str, dict[int, float]] = {
    "LocalExecutor": {0: 0.8, 5: 0.8, 20: 0.8},
    "Ray, wall clock": {0: 0.2, 5: 1.4, 20: 1.6},
}
"""Way to client milliseconds to the least ratio to the bare loop."""


@dataclass(frozen=True)
class Way:
    """A way to run the scenario: its name, its settings, and how it is run."""

    name: str
    settings: tuple[str, ...]
    run: Callable[[PreparedVertical, Watch], None]


def bare(experiment: PreparedVertical, watch: Watch) -> dict[str, np.ndarray]:
    """Run by hand and return the final parameters by party."""
    order = _serving_order(experiment)
    with one_thread("torch"):
        server = experiment.server.make()
        clients = [recipe.make() for recipe in experiment.clients]
        uploads = {
            first.client: clients[first.client].process(first) for first in server.first_orders()
        }
        for update, client in enumerate(order, 1):
            for answer in server.receive(uploads[client]):
                uploads[answer.client] = clients[answer.client].process(answer)
            watch.look(update)
        return parameters(server, clients)


def _serving_order(experiment: PreparedVertical) -> list[int]:
    """Return the clients in the order in which the run serves them, from the arrivals alone.

    A client wakes at its next epoch, answers take no time here, and ties cannot occur in Poisson
    arrivals.
    """
    updates = experiment.spec.budget.updates or 0
    epochs = [experiment.timing.arrivals.epochs(m) for m in range(len(experiment.clients))]
    due = [(next(times), m) for m, times in enumerate(epochs)]
    order = []
    for _ in range(updates):
        _, client = first = min(due)
        order.append(client)
        due[due.index(first)] = (next(epochs[client]), client)
    return order


def _bare(experiment: PreparedVertical, watch: Watch) -> None:
    bare(experiment, watch)


def _local(experiment: PreparedVertical, watch: Watch) -> None:
    run_local(experiment, RunOptions(progress=watch))


def _ray(experiment: PreparedVertical, watch: Watch) -> None:
    from actors.vertical.driver import run_vertical as run_on_ray

    run_on_ray(experiment, RunOptions(progress=watch))


HERE = (Way("bare", (), _bare), Way("LocalExecutor", (), _local))
ON_RAY = (
    Way("Ray", (), _ray),
    Way("Ray, wall clock", ("clock.kind=wall", "arrivals.rate=1e6"), _ray),
    Way("Ray, 1 client actor", ("resources.client_actors=1",), _ray),
    Way("Ray, no client actors", ("resources.client_actors=0",), _ray),
)


def experiment_of(way: Way, updates: int, rounds: int) -> PreparedVertical:
    """Return the scenario in a way's settings with `rounds` of work added to every upload."""
    settings = (CLIENTS, f"budget.updates={updates}", "evaluate.every=1000000000", *way.settings)
    return busy.busy(prepare_vertical(load(SCENARIO, settings)), rounds)


def check_bare(updates: int) -> None:
    """Raise RunError unless the bare loop gives LocalExecutor's bits (seeded noise, which can be
    compared).
    """
    way = Way("check", ("privacy.noise=seeded",), _bare)
    experiment = experiment_of(way, updates, 0)
    expected: Mapping[str, np.ndarray] = run_local(experiment).models
    found = bare(experiment, Watch(updates, updates))
    if differs := [name for name in expected if not np.array_equal(expected[name], found[name])]:
        raise RunError(
            f"the bare loop's parameters differ from LocalExecutor's for {', '.join(differs)}: it "
            "is not the same run, and its pace compares nothing"
        )


def message_bytes(updates: int) -> dict[str, float]:
    """Return the mean bytes of a message by direction, from a run's rows."""
    run: Run = run_local(experiment_of(HERE[1], updates, 0))
    rows = run.rows("message").to_pydict()
    return {
        direction: float(
            np.mean(
                [
                    b
                    for b, d in zip(rows["bytes"], rows["direction"], strict=True)
                    if d == direction and b
                ]
            )
        )
        for direction in ("up", "down")
    }


def take_turns(
    ways: tuple[Way, ...], works: Mapping[int, int], rounds_per_second: float, repeats: int
) -> dict[int, dict[str, list[Pace]]]:
    """Measure every way `repeats` times in turn for every amount of work; paces by milliseconds and
    way.
    """
    paces: dict[int, dict[str, list[Pace]]] = {ms: {way.name: [] for way in ways} for ms in works}
    for ms, updates in works.items():
        rounds = round(rounds_per_second * ms / 1000)
        for _ in range(repeats):
            for way in ways:
                watch = Watch(int(updates * WARM), updates)
                way.run(experiment_of(way, updates, rounds), watch)
                pace = watch.pace()
                paces[ms][way.name].append(pace)
                print(
                    f"{ms} ms, {way.name}: {pace.rate:.1f} updates/s", file=sys.stderr, flush=True
                )
    return paces


def figures(paces: dict[int, dict[str, list[Pace]]]) -> list[dict[str, Any]]:
    """Return one entry per amount of work and way: median rate, ratio to bare, target, CPU seconds
    per update.
    """
    found = []
    for ms, by_way in paces.items():
        base = by_way["bare"]
        for name, runs in by_way.items():
            ratio = median([pace.rate / other.rate for pace, other in zip(runs, base, strict=True)])
            target = TARGETS.get(name, {}).get(ms)
            found.append(
                {
                    "client_ms": ms,
                    "way": name,
                    "updates_per_second": median([pace.rate for pace in runs]),
                    "spread": spread([pace.rate for pace in runs]),
                    "over_bare": ratio,
                    "over_bare_by_cpu": median(
                        [p.total / o.total for p, o in zip(base, runs, strict=True)]
                    ),
                    "target": target,
                    "met": None if target is None else ratio >= target,
                    "cpu_seconds_per_update": {
                        group: median([pace.cpu.get(group, 0.0) for pace in runs])
                        for group in GROUPS
                    },
                    "updates_measured": [pace.updates for pace in runs],
                }
            )
    return found


def _print(found: list[dict[str, Any]]) -> None:
    rows = [
        [
            f"{f['client_ms']} ms, {f['way']}",
            f"{f['updates_per_second']:.1f}",
            f"{f['spread']:.0%}",
            f"{f['over_bare']:.2f}",
            verdict(f["over_bare"], f["target"]),
            f"{f['over_bare_by_cpu']:.2f}",
            *(f"{1000 * f['cpu_seconds_per_update'][group]:.2f}" for group in GROUPS),
        ]
        for f in found
    ]
    columns = [
        "client work, way",
        "updates/s",
        "spread",
        "/ bare",
        "target",
        "by CPU",
        *(f"{g} ms" for g in GROUPS),
    ]
    show("Throughput of one DPZV run; CPU milliseconds per update by process", columns, rows)


def main() -> None:
    """Run the benchmark."""
    parser = options(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--no-ray", action="store_true", help="only the ways in this process")
    parser.add_argument("--works", type=int, nargs="+", choices=list(WORKS), default=list(WORKS))
    chosen = parser.parse_args()
    works = {ms: WORKS[ms] // (2 if chosen.quick else 1) for ms in chosen.works}
    before = environment()
    check_bare(200)
    bytes_per_message, rounds = message_bytes(200), busy.calibrate()
    session: AbstractContextManager[None] = nullcontext()
    if not chosen.no_ray:
        from ray import cloudpickle

        from actors.cluster import connected

        cloudpickle.register_pickle_by_value(busy)  # actors cannot import from this folder
        # Ray's workers are nice to others by default; the bare loop is not, and on a shared machine
        # that decides
        os.environ.setdefault("RAY_worker_niceness", "0")
        session = connected(reuse=True)
    with session:
        ways = HERE if chosen.no_ray else HERE + ON_RAY
        paces = take_turns(ways, works, rounds, chosen.repeats or (1 if chosen.quick else 5))
    found = figures(paces)
    _print(found)
    print(
        f"bytes per message: up {bytes_per_message['up']:.0f}, down {bytes_per_message['down']:.0f}"
    )
    result = {"figures": found, "bytes_per_message": bytes_per_message, "environment": before}
    write("vfl_throughput", result | {"environment_after": environment()}, chosen.json)


if __name__ == "__main__":
    main()
