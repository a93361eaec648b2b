"""How long a user waits: CPU seconds of short commands, and a wall-clock run's first answers with
nothing compiled.

Commands are run as `python -m scenarios ...`, in turn with `python -c pass`, each in a process of
its own whose CPU seconds (user and system, with its children's) are taken when it ends. The run is
digits_dpzv on Ray under the wall clock, 10 epochs a second and client, with an empty
NUMBA_CACHE_DIR. An answer's time is from the client's waking to the answer applied; a delay counts
the updates between a client's upload and its answer's use. How old cached embeddings get follows
from the batches (every row once an epoch), hardly from the machine: no target.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import environment, median, options, show, spread, verdict, write

from raydpzv.records.metrics import staleness_summary
from raydpzv.records.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
PASS = "python -c pass"
_ACTOR = (
    "import ray; from actors.actor_process import ActorProcess; ActorProcess(); import "
    "actors.vertical.{}_actor"
)
COMMANDS: dict[str, tuple[str, ...]] = {
    PASS: ("-c", "pass"),
    "raydpzv --help": ("-m", "scenarios", "--help"),
    "raydpzv list": ("-m", "scenarios", "list"),
    "raydpzv privacy digits_dpzv": ("-m", "scenarios", "privacy", "digits_dpzv"),
    "raydpzv run, 2,000 updates": (
        "-m",
        "scenarios",
        "run",
        "digits_dpzv",
        "--set",
        "budget.updates=2000",
        "--out",
        "OUT",
    ),
    "raydpzv report": ("-m", "scenarios", "report", "OUT"),
    "a process of Ray": ("-c", "import ray"),
    "a client actor": ("-c", _ACTOR.format("client")),
    "the server actor": ("-c", _ACTOR.format("server")),
}
"""What is measured, OUT being a new folder in each turn; an actor's imports are those before its
role is made.
"""
CPU_TARGETS = {
    "raydpzv --help": 0.5,
    "raydpzv list": 0.8,
    "raydpzv privacy digits_dpzv": 2.5,
    "raydpzv run, 2,000 updates": 2.5,
    "raydpzv report": 2.5,
}
"""CPU seconds at most."""
RUN = (
    "run",
    "digits_dpzv",
    "--runner",
    "ray",
    "--set",
    "clock.kind=wall",
    "--set",
    "arrivals.rate=10",
    "--set",
    "evaluate.every=200",
)
UPDATES = 2000
RUN_TARGETS = {"slowest first answer, ms": 100.0, "late share": 0.08, "largest delay, rounds": 80.0}


def cpu_seconds(arguments: Sequence[str]) -> float:
    """Return the CPU seconds of a Python process and its children."""
    child = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"python {' '.join(arguments)} ended with status {child.returncode}")
    return used.ru_utime + used.ru_stime


def commands(repeats: int) -> dict[str, list[float]]:
    """Measure every command `repeats` times, in turn; the first turn, which may write byte code,
    does not count.
    """
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(repeats + 1):
            for name, arguments in COMMANDS.items():
                out = str(Path(folder) / str(turn))
                seconds = cpu_seconds([out if word == "OUT" else word for word in arguments])
                if turn:
                    found[name].append(seconds)
    return found


def first_answers(updates: int) -> dict[str, Any]:
    """Run digits_dpzv with nothing compiled and return what its rows say about its beginning."""
    with tempfile.TemporaryDirectory() as folder:
        out, cache = Path(folder) / "run", Path(folder) / "kernels"
        load = os.getloadavg()[0]
        subprocess.run(
            [
                sys.executable,
                "-m",
                "scenarios",
                *RUN,
                "--set",
                f"budget.updates={updates}",
                "--out",
                out,
            ],
            cwd=ROOT,
            env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        run = RunFolder.open(out)
        rows, clients = run.rows(), run.spec().split.clients
        services = sorted(rows["service"].to_pylist(), key=lambda row: row["round"])
        milliseconds: dict[int, list[float]] = {m: [] for m in range(clients)}
        for row in services:
            milliseconds[row["client"]].append(1000 * (row["applied"] - row["woke"]))
        stale = staleness_summary(rows["staleness"], rows["service"], clients)
    firsts = {m: times[0] for m, times in milliseconds.items()}
    return {
        "first answers, ms": firsts,
        "slowest first answer, ms": max(firsts.values()),
        "median answer, ms": statistics.median(t for times in milliseconds.values() for t in times),
        "late share": statistics.mean(row["late"] for row in services),
        "largest delay, rounds": max(client["delay_max"] for client in stale["clients"]),
        "oldest embedding used, rounds": stale["max"],
        "load before": load,
    }


def _print_commands(found: dict[str, list[float]]) -> None:
    base = median(found[PASS])
    rows = [
        [
            name,
            f"{median(seconds):.2f}",
            f"{spread(seconds):.0%}",
            f"{median(seconds) / base:.1f}",
            verdict(median(seconds), CPU_TARGETS.get(name), at_most=True),
        ]
        for name, seconds in found.items()
    ]
    show("CPU seconds of a command", ["command", "median", "spread", f"/ {PASS}", "target"], rows)


def _print_runs(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    names = [name for name in runs[0] if name != "first answers, ms"]
    medians = {name: median([run[name] for run in runs]) for name in names}
    rows = [
        [
            name,
            f"{medians[name]:.3g}",
            " ".join(f"{run[name]:.3g}" for run in runs),
            verdict(medians[name], RUN_TARGETS.get(name), at_most=True),
        ]
        for name in names
    ]
    show("digits_dpzv with nothing compiled", ["figure", "median", "runs", "target"], rows)
    return medians


def main() -> None:
    """Run the benchmark."""
    parser = options(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--no-ray", action="store_true", help="only the commands")
    chosen = parser.parse_args()
    before = environment()
    repeats = chosen.repeats or (1 if chosen.quick else 5)
    seconds = commands(repeats)
    _print_commands(seconds)
    result: dict[str, Any] = {"cpu_seconds": seconds, "targets": {**CPU_TARGETS, **RUN_TARGETS}}
    if not chosen.no_ray:
        runs = [
            first_answers(200 if chosen.quick else UPDATES) for _ in range(1 if chosen.quick else 3)
        ]
        result |= {"demo": runs, "demo_medians": _print_runs(runs)}
    write(
        "startup", result | {"environment": before, "environment_after": environment()}, chosen.json
    )


if __name__ == "__main__":
    main()
