"""What clients cost who do nothing: rounds of DeComFL with 100 to 100,000 clients, 100 at work;
with 10,000,000, 10.

Rows of a Gaussian mixture, 10 per client, 16 columns, 4 classes; an mlp with 32 hidden units (676
parameters), one local step, P = 10, batches of 32 (here: all 10 rows). One process, one thread, the
ledger on disk.

shared        clients are rows of tables around one model: how runs are done
per_client    a model per client, as the paper has it: the baseline, at 100 and 1,000 clients
generated     as shared, but a client's rows are made when it works ("synthetic_clients"): 1,000 to
10,000,000 clients

Each size and mode is measured in a fresh process; they take turns, and a ratio is the median over
the turns of the ratios in one turn. Time covers the rounds after the first 10; ratios are of CPU
time, which says more on a machine shared with others. Memory is resident memory in the last round,
free pages given back first; "above idle" is what came on top of libraries and compiled kernels.
Bytes per idle client are the growth between two sizes per client added, with the clients' rows (720
bytes of features and labels each, which a client needs whoever simulates it) and without; and, as a
second opinion, what the objects hold that know of all clients: the table of rows, arrivals and
links, the server.

Of generated rows: the median round; start-up, from asking for the process to the end of round 1,
with all imports and compiling; the most memory that was resident at any time (VmHWM), libraries and
all.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from common import environment, median, options, show, spread, verdict, write
from fresh_process import in_fresh_process
from held import held
from peaks import Resident
from rounds import Rounds

from raydpzv.config.scenario import HorizontalScenario
from raydpzv.config.toml import parse
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.horizontal import PreparedHorizontal, prepare_horizontal
from raydpzv.experiment.runner import run_local
from raydpzv.ledger.ledger import Ledger

SIZES, QUICK_SIZES = (100, 1_000, 10_000, 100_000), (20, 200, 2_000)
LITERAL, QUICK_LITERAL = (100, 1_000), (20, 200)
COHORT, QUICK_COHORT = 100, 20
WARM, ROUNDS, QUICK_ROUNDS = 10, 40, 10
ROWS, COLUMNS, CLASSES = 10, 16, 4
HELD_OUT = 0.02
MOST_SLOWER, MOST_BYTES = 1.3, 48
"""Targets: a round with the most clients to one with a thousand (quick: 200), and bytes of an idle
client's objects.
"""
GENERATED, QUICK_GENERATED = (1_000, 100_000, 1_000_000, 10_000_000), (200, 20_000)
FEW, GENERATED_WARM, GENERATED_ROUNDS, TESTED = 10, 20, 200, 200
"""Where rows are generated: clients at work, rounds before and in the measurement, held-out
rows.
"""
MOST_PEAK, MOST_STARTUP = 1.2e9, 30
"""Targets: bytes at the peak and seconds of start-up with the most clients whose rows are
generated.
"""
SHARED, PER_CLIENT = "shared", "per_client"
Place = tuple[str, int]
"""Mode and number of clients."""


def spec_of(
    mode: str, clients: int, cohort: int, rounds: int, source: str = "synthetic"
) -> HorizontalScenario:
    """Return the scenario of one size and mode."""
    tree = {
        "data": {
            "source": source,
            "rows": math.ceil(ROWS * clients / (1 - HELD_OUT)),
            "test_rows": TESTED if source == "synthetic_clients" else None,
            "columns": COLUMNS,
            "classes": CLASSES,
            "test_fraction": HELD_OUT,
        },
        "split": {"how": "iid", "clients": clients},
        "model": {"kind": "mlp", "hidden": [32]},
        "method": {
            "name": "decomfl",
            "cohort": cohort,
            "batch": 32,
            "perturbations": 10,
            "local_steps": 1,
            "replicas": mode,
        },
        "budget": {"updates": rounds},
        "evaluate": {"every": 10**9},
        # rows at the end alone: writers keep buffers, and whether there was a flush would be a
        # matter of the pace
        "record": {"flush": 1e9},
    }
    spec = parse(tree, "the benchmark")
    assert isinstance(spec, HorizontalScenario)
    return spec


def measure(mode: str, clients: int, cohort: int, rounds: int) -> dict[str, float]:
    """Return the figures of one run; the process must be fresh."""
    run_local(prepare_horizontal(spec_of(SHARED, 20, 5, 2)))  # imports and compiles
    meter, done = Resident(), Rounds()
    idle, start, resident = meter.now(), time.perf_counter(), 0
    prepared = prepare_horizontal(spec_of(mode, clients, cohort, WARM + rounds))

    def look(status: Any) -> None:
        nonlocal resident
        done(status)
        if status.updates == WARM + rounds:
            resident = meter.now()

    with TemporaryDirectory() as folder:
        run = run_local(prepared, RunOptions(Path(folder) / "run", progress=look))
    pace, ledger = done.pace(WARM), run.summary["ledger"]
    return {
        "seconds_per_round": pace.wall,
        "cpu_seconds_per_round": pace.cpu,
        "seconds_to_round_1": done.done(1) - start,
        "resident_bytes": resident,
        "above_idle_bytes": resident - idle,
        "row_bytes": prepared.split.train.nbytes + prepared.split.test.nbytes,
        "table_bytes": held(prepared.parts),
        "timing_bytes": held(prepared.timing),
        "server_bytes": _server_bytes(prepared),
        "ledger_bytes": ledger["bytes"],
        "ledger_bytes_per_update": ledger["bytes"] / ledger["updates"],
    }


def measure_generated(clients: int, rounds: int, asked: float) -> dict[str, float]:
    """Return the figures of one run with generated rows; the process must be fresh, and was asked
    for at `asked`.
    """
    done, first_round = Rounds(), 0.0

    def look(status: Any) -> None:
        nonlocal first_round
        done(status)
        first_round = first_round or (time.perf_counter() if status.updates else 0.0)

    spec = spec_of(SHARED, clients, FEW, GENERATED_WARM + rounds, "synthetic_clients")
    prepared = prepare_horizontal(spec)
    with TemporaryDirectory() as folder:
        run_local(prepared, RunOptions(Path(folder) / "run", progress=look))
    pace = done.median_pace(GENERATED_WARM)
    return {
        "seconds_per_round": pace.wall,
        "cpu_seconds_per_round": pace.cpu,
        "startup_seconds": first_round - asked,
        "peak_bytes": Resident().peak(),
        "table_bytes": held(prepared.parts),
        "timing_bytes": held(prepared.timing),
        "server_bytes": _server_bytes(prepared),
    }


def _server_bytes(prepared: PreparedHorizontal) -> int:
    with Ledger.create(None, prepared.plan.header()) as ledger:
        return held(prepared.server(ledger))


def take_turns(
    places: tuple[Place, ...], cohort: int, rounds: int, repeats: int
) -> dict[Place, list[dict[str, float]]]:
    """Measure every size and mode `repeats` times in turn."""
    found: dict[Place, list[dict[str, float]]] = {place: [] for place in places}
    for _ in range(repeats):
        for mode, clients in places:
            figures = in_fresh_process(measure, mode, clients, cohort, rounds)
            found[mode, clients].append(figures)
            print(
                f"{mode}, {clients}: {figures['seconds_per_round']:.4f} s",
                file=sys.stderr,
                flush=True,
            )
    return found


def generated_turns(
    sizes: tuple[int, ...], rounds: int, repeats: int
) -> dict[int, list[dict[str, float]]]:
    """Measure every size with generated rows `repeats` times in turn."""
    found: dict[int, list[dict[str, float]]] = {clients: [] for clients in sizes}
    for _ in range(repeats):
        for clients in sizes:
            figures = in_fresh_process(measure_generated, clients, rounds, time.perf_counter())
            found[clients].append(figures)
            print(
                f"generated, {clients}: {figures['seconds_per_round']:.4f} s",
                file=sys.stderr,
                flush=True,
            )
    return found


def generated(turns: Mapping[int, list[dict[str, float]]]) -> dict[str, Any]:
    """Return medians by number of clients, and the last size against the first."""
    few, many = min(turns), max(turns)
    sizes = [
        {"clients": clients, **{name: median([run[name] for run in runs]) for name in runs[0]}}
        for clients, runs in turns.items()
    ]
    parts, last = ("table_bytes", "timing_bytes", "server_bytes"), sizes[-1]
    slower = _ratio(turns[many], turns[few], "cpu_seconds_per_round")
    idle = sum(_growth(turns[few], turns[many], name) for name in parts) / (many - few)
    return {
        "sizes": sizes,
        "seconds_ratio": slower,
        "wall_seconds_ratio": _ratio(turns[many], turns[few], "seconds_per_round"),
        "bytes_per_idle_client": idle,
        "targets": {
            "seconds_ratio_at_most": MOST_SLOWER,
            "peak_bytes_at_most": MOST_PEAK,
            "startup_seconds_at_most": MOST_STARTUP,
            "bytes_per_idle_client_at_most": MOST_BYTES,
        },
        "met": (
            slower <= MOST_SLOWER
            and idle <= MOST_BYTES
            and last["peak_bytes"] <= MOST_PEAK
            and last["startup_seconds"] <= MOST_STARTUP
        ),
    }


def figures(turns: Mapping[Place, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Return one entry per size and mode: medians, and ratios to the baseline of the same size."""
    found = []
    for (mode, clients), runs in turns.items():
        literal = turns.get((PER_CLIENT, clients), [])
        medians = {name: median([run[name] for run in runs]) for name in runs[0]}
        found.append(
            {
                "mode": mode,
                "clients": clients,
                **medians,
                "spread": spread([run["cpu_seconds_per_round"] for run in runs]),
                "faster_than_per_client": _ratio(literal, runs, "cpu_seconds_per_round"),
                "smaller_than_per_client": _ratio(literal, runs, "above_idle_bytes"),
            }
        )
    return found


def growth(turns: Mapping[Place, list[dict[str, float]]]) -> dict[str, Any]:
    """Return how time and memory grow with idle clients, from the second size (the first has none)
    to the last.
    """
    sizes = sorted(clients for mode, clients in turns if mode == SHARED)
    few, many = sizes[1], sizes[-1]
    first, last, added = turns[SHARED, few], turns[SHARED, many], many - few
    seconds = [
        median([run["cpu_seconds_per_round"] for run in turns[SHARED, size]]) for size in sizes[1:]
    ]
    slower = _ratio(last, first, "cpu_seconds_per_round")
    with_rows = _growth(first, last, "above_idle_bytes") / added
    without_rows = with_rows - _growth(first, last, "row_bytes") / added
    parts = ("table_bytes", "timing_bytes", "server_bytes")
    by_construction = {name: _growth(first, last, name) / added for name in parts}
    known = sum(by_construction.values())
    return {
        "from": few,
        "to": many,
        "seconds_ratio": slower,
        "wall_seconds_ratio": _ratio(last, first, "seconds_per_round"),
        "seconds_factor_per_tenfold": float(
            10 ** np.polyfit(np.log10(sizes[1:]), np.log10(seconds), 1)[0]
        ),
        "bytes_per_idle_client_with_rows": with_rows,
        "bytes_per_idle_client": without_rows,
        "bytes_by_construction": by_construction | {"sum": known},
        "targets": {
            "seconds_ratio_at_most": MOST_SLOWER,
            "bytes_per_idle_client_at_most": MOST_BYTES,
        },
        "met": slower <= MOST_SLOWER and round(known) <= MOST_BYTES,
    }


def _ratio(above: list[dict[str, float]], below: list[dict[str, float]], name: str) -> float:
    """Median over the turns of one figure's ratio; NaN where nothing was measured."""
    return median([a[name] / b[name] for a, b in zip(above, below, strict=False)])


def _growth(first: list[dict[str, float]], last: list[dict[str, float]], name: str) -> float:
    return median([b[name] - a[name] for a, b in zip(first, last, strict=True)])


def print_sizes(found: list[dict[str, Any]]) -> None:
    """Print the table of sizes."""
    rows = [
        [
            f"{f['mode']}, {f['clients']:,}",
            f"{1000 * f['seconds_per_round']:.1f}",
            f"{1000 * f['cpu_seconds_per_round']:.1f}",
            f"{f['spread']:.0%}",
            "" if math.isnan(f["faster_than_per_client"]) else f"{f['faster_than_per_client']:.2f}",
            f"{f['seconds_to_round_1']:.2f}",
            f"{f['resident_bytes'] / 1e6:.0f}",
            f"{f['above_idle_bytes'] / 1e6:.1f}",
            f"{f['row_bytes'] / 1e6:.1f}",
            (
                ""
                if math.isnan(f["smaller_than_per_client"])
                else f"{f['smaller_than_per_client']:.2f}"
            ),
            f"{f['ledger_bytes'] / 1000:.1f}",
            f"{f['ledger_bytes_per_update']:.0f}",
        ]
        for f in found
    ]
    columns = ["mode, clients", "ms / round", "CPU ms", "spread", "literal /", "round 1 s"]
    columns += ["resident", "above idle", "rows", "literal /", "ledger kB", "B / update"]
    title = (
        "Rounds with many clients: time and memory (MB), also of a model per client (literal), and "
        "the ledger"
    )
    show(title, columns, rows)


def print_growth(found: Mapping[str, Any]) -> None:
    """Print how things grow."""
    parts = found["bytes_by_construction"]
    rows = [
        [
            "round, last / first",
            f"{found['seconds_ratio']:.2f}",
            verdict(found["seconds_ratio"], MOST_SLOWER, at_most=True),
        ],
        [
            "round, per tenfold number of clients (fit)",
            f"{found['seconds_factor_per_tenfold']:.3f}",
            "",
        ],
        ["bytes per idle client, its rows apart", f"{found['bytes_per_idle_client']:.0f}", ""],
        ["the same with its rows", f"{found['bytes_per_idle_client_with_rows']:.0f}", ""],
        *(
            [
                f"by construction: {name.removesuffix('_bytes')}",
                f"{size:.0f}",
                verdict(round(size), MOST_BYTES, at_most=True) if name == "sum" else "",
            ]
            for name, size in parts.items()
        ),
    ]
    show(
        f"Growth from {found['from']:,} to {found['to']:,} clients",
        ["what", "figure", "target"],
        rows,
    )


def print_generated(found: Mapping[str, Any]) -> None:
    """Print the sizes with generated rows, and how the last compares with the first."""
    rows = [
        [
            f"{f['clients']:,}",
            f"{1000 * f['seconds_per_round']:.2f}",
            f"{1000 * f['cpu_seconds_per_round']:.2f}",
            f"{f['startup_seconds']:.1f}",
            f"{f['peak_bytes'] / 1e6:.0f}",
        ]
        for f in found["sizes"]
    ]
    columns = ["clients", "ms / round", "CPU ms", "start-up s", "peak MB"]
    show(
        f"Rows made when a client works, {FEW} clients in a round (medians of rounds)",
        columns,
        rows,
    )
    last = found["sizes"][-1]
    against = [
        ("round, last / first (CPU)", found["seconds_ratio"], MOST_SLOWER),
        ("bytes per idle client", found["bytes_per_idle_client"], MOST_BYTES),
        ("peak MB of the last", last["peak_bytes"] / 1e6, MOST_PEAK / 1e6),
        ("start-up s of the last", last["startup_seconds"], MOST_STARTUP),
    ]
    lines = [
        [name, f"{value:.4g}", verdict(value, target, at_most=True)]
        for name, value, target in against
    ]
    show(f"The last size, {last['clients']:,} clients", ["what", "figure", "target"], lines)


def main() -> None:
    """Run the benchmark."""
    chosen = options(__doc__.splitlines()[0] if __doc__ else "").parse_args()
    quick, before = chosen.quick, environment()
    sizes, literal = (QUICK_SIZES, QUICK_LITERAL) if quick else (SIZES, LITERAL)
    places = (*((PER_CLIENT, size) for size in literal), *((SHARED, size) for size in sizes))
    cohort, rounds = (QUICK_COHORT, QUICK_ROUNDS) if quick else (COHORT, ROUNDS)
    repeats = chosen.repeats or (1 if quick else 3)
    turns = take_turns(places, cohort, rounds, repeats)
    extent = (QUICK_ROUNDS if quick else GENERATED_ROUNDS), repeats
    found, grown = figures(turns), growth(turns)
    print_sizes(found)
    print_growth(grown)
    made = generated(generated_turns(QUICK_GENERATED if quick else GENERATED, *extent))
    print_generated(made)
    result = {"figures": found, "growth": grown, "generated": made, "environment": before}
    write("scale", result | {"environment_after": environment()}, chosen.json)


if __name__ == "__main__":
    main()
