"""What checkpoints at the default interval cost: whole runs with and without them, in turn.

Both write their run folder, one after the other within each turn, the order changing from turn to
turn. CPU seconds are those of this process (on Ray: of all processes, per update in a steady
state), wall seconds those of the whole run; the ratio is that of a turn, and its median is judged
by CPU time, since what else runs on the machine moves it least. Own
count: the seconds that the run's summary says they took, of its CPU seconds: it knows nothing of
smaller parts of rows and colder caches.

Sizes: bytes of the last checkpoint, at the same update, of clients' models of two widths. Rounds of
user-level methods end with a checkpoint each, whatever it costs: no other record tells all that was
released.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import environment, median, options, show, spread, verdict, write
from watch import Watch

import raydpzv
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.runner import run_local

TARGET = 1.03
"""CPU seconds with checkpoints, of those without."""
_SEEDED = "privacy.noise=seeded"
_ADD_BACK = ("method.momentum=0", "method.replicas=per_client", "method.revert=add_back")
CASES: dict[str, tuple[str, tuple[str, ...], int]] = {
    "dpzv": ("digits_dpzv", (_SEEDED,), 10_000),
    "dpzv, torch": ("digits_dpzv", (_SEEDED, "model.engine=torch"), 1500),
    "vafl": ("vafl_digits", (), 20_000),
    "zoo_vfl": ("zoo_vfl", (), 15_000),
    "czofo": ("czofo", (), 5000),
    "frozen": ("frozen", (), 20_000),
    "sgd": ("sgd", (), 20_000),
    "decomfl": ("digits_decomfl", (), 1000),
    "decomfl, add_back": ("digits_decomfl", _ADD_BACK, 150),
    "decomfl, asynchronous": ("decomfl_async", (), 3000),
    "fedavg": ("digits_decomfl", ("method={}", "method.name=fedavg", "method.cohort=10"), 300),
    "uldp_zo, each round": ("digits_users_zo", (_SEEDED,), 250),
    "uldp_avg, each round": ("digits_users", (_SEEDED,), 100),
}
"""Scenario, changes, updates: a second or two of CPU time each."""
ON_RAY = {"vafl": 6000, "dpzv": 6000, "decomfl": 600}
SIZES = {
    "dpzv": ("digits_dpzv", (_SEEDED,), "model.hidden"),
    "decomfl": ("digits_decomfl", (), "model.hidden"),
    "decomfl, asynchronous": ("decomfl_async", (), "model.hidden"),
    "vafl (the control)": ("vafl_digits", ("model.bottom=mlp",), "model.hidden"),
}
_WIDTHS = 16, 256
_WAYS = ("without", "with")


def _prepared(scenario: str, changes: tuple[str, ...], updates: int, way: str) -> Any:
    prepared = prepare(raydpzv.load(scenario, [*changes, f"budget.updates={updates}"]))
    if way == "without":
        object.__setattr__(prepared, "pace", lambda: None)
    return prepared


def local(name: str, way: str, updates: int) -> dict[str, float]:
    """Return CPU and wall seconds of a run in this process, and how many checkpoints it took."""
    scenario, changes, _ = CASES[name]
    prepared = _prepared(scenario, changes, updates, way)
    with tempfile.TemporaryDirectory() as folder:
        cpu, wall = time.process_time(), time.monotonic()
        summary = run_local(prepared, RunOptions(Path(folder) / "run")).summary
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    taken = summary.get("checkpoints", {"count": 0, "seconds": 0.0})
    return {"cpu": cpu, "wall": wall, "count": taken["count"], "own": taken["seconds"] / cpu}


def on_ray(name: str, way: str, updates: int) -> dict[str, float]:
    """Return the same of a run on actors, per update in a steady state."""
    from actors.runner import run_on_ray

    scenario, changes, _ = CASES[name]
    spec = raydpzv.load(scenario, [*changes, f"budget.updates={updates}"])
    if way == "without":
        spec = raydpzv.load(
            scenario, [*changes, f"budget.updates={updates}", "record.checkpoint=1e9"]
        )
    watch = Watch(updates // 5, updates)
    with tempfile.TemporaryDirectory() as folder:
        summary = run_on_ray(
            prepare(spec), RunOptions(Path(folder) / "run", progress=watch)
        ).summary
    pace, taken = watch.pace(), summary["checkpoints"]
    own = taken["seconds"] / (pace.total * updates)
    return {"cpu": pace.total, "wall": 1 / pace.rate, "count": taken["count"], "own": own}


def turns(where: Any, name: str, updates: int, repeats: int, *, warm: bool) -> dict[str, Any]:
    """Measure both ways in turn."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in _WAYS}
    for turn in range(repeats + warm):
        for way in _WAYS if turn % 2 else reversed(_WAYS):
            figures = where(name, way, updates)
            print(name, way, figures, file=sys.stderr, flush=True)
            if turn >= warm:  # the first turn imports and compiles
                found[way].append(figures)
    return found


def row(
    name: str, updates: int, found: dict[str, list[dict[str, float]]]
) -> tuple[list[str], dict[str, Any]]:
    """Return a table's row, and the figures it is made of."""
    pairs = list(zip(found["with"], found["without"], strict=True))
    ratios = {kind: [w[kind] / o[kind] for w, o in pairs] for kind in ("cpu", "wall")}
    cpu, own = median(ratios["cpu"]), median([w["own"] for w in found["with"]])
    figures = {"updates": updates, "turns": found, "ratios": ratios, "cpu": cpu, "own": own}
    cells = [
        name,
        str(updates),
        f"{median([o['cpu'] for o in found['without']]):.4g}",
        f"{median([w['count'] for w in found['with']]):.0f}",
        f"{cpu:.3f}",
        f"{spread(ratios['cpu']):.1%}",
        f"{median(ratios['wall']):.3f}",
        f"{own:.2%}",
        verdict(cpu, TARGET, at_most=True),
    ]
    return cells, figures


def sizes(updates: int) -> tuple[list[list[str]], dict[str, Any]]:
    """Return bytes of checkpoints of clients' models of two widths, and of their parameters."""
    rows, figures = [], {}
    for name, (scenario, changes, setting) in SIZES.items():
        found = []
        for width in _WIDTHS:
            given = [*changes, f"budget.updates={updates}", f"{setting}=[{width}]"]
            with tempfile.TemporaryDirectory() as folder:
                spec = raydpzv.load(scenario, [*given, f"record.checkpoint_updates={updates - 1}"])
                run = run_local(prepare(spec), RunOptions(Path(folder) / "run"))
            parameters = sum(4 * x.size for party, x in run.models.items() if party != "server")
            found.append(
                {"parameters": parameters, "checkpoint": run.summary["checkpoints"]["bytes"]}
            )
        figures[name] = found
        grown = {kind: found[1][kind] - found[0][kind] for kind in found[0]}
        rows.append(
            [
                name,
                *(f"{each[kind]:,}" for kind in found[0] for each in found),
                f"{grown['checkpoint']:,}",
            ]
        )
    return rows, figures


def main() -> None:
    """Run the benchmark."""
    parser = options(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", choices=CASES, action="append", help="these methods alone")
    parser.add_argument("--ray", action="store_true", help="on actors, too (some methods)")
    chosen = parser.parse_args()
    before, repeats = environment(), chosen.repeats or (1 if chosen.quick else 3)
    rows, figures = [], {}
    for name in chosen.only or CASES:
        updates = CASES[name][2] // 20 if chosen.quick else CASES[name][2]
        found = turns(local, name, updates, repeats, warm=not chosen.quick)
        cells, figures[name] = row(name, updates, found)
        rows.append(cells)
    if chosen.ray:
        os.environ.setdefault("RAY_worker_niceness", "0")
        from actors.cluster import connected

        with connected(reuse=True):
            for name, count in ON_RAY.items():
                updates = count // 10 if chosen.quick else count
                found = turns(on_ray, name, updates, repeats, warm=not chosen.quick)
                cells, figures[f"{name}, on Ray"] = row(f"{name}, on Ray", updates, found)
                rows.append(cells)
    columns = [
        "method",
        "updates",
        "CPU s without",
        "taken",
        "CPU",
        "spread",
        "wall",
        "own count",
        "CPU ratio",
    ]
    show("Runs with checkpoints, of those without", columns, rows)
    large, bytes_of = sizes(100)
    columns = ["clients of", *(f"{w} wide: parameters" for w in _WIDTHS)]
    show(
        "Bytes",
        [*columns, *(f"{w} wide: checkpoint" for w in _WIDTHS), "checkpoint grows by"],
        large,
    )
    write(
        "checkpoints", {"figures": figures, "sizes": bytes_of, "environment": before}, chosen.json
    )


if __name__ == "__main__":
    main()
