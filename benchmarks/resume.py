"""What it takes to go on with a run that was killed at 90 % of its updates, and what its
checkpoints cost.

Each method's run goes to its end in this process; the folder is copied when 90 % are done, which is
what a kill would leave, and the copy is gone on with. CPU seconds of both, from the scenario to the
summary: the data are loaded twice, the program is not (`--processes` measures `raydpzv run` and
`raydpzv resume` as processes, too). A tenth of the work has to be done in any case, and what came
after the last checkpoint once more.

Checkpoints: the seconds that the run's summary says they took, of the seconds that it took.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import environment, median, options, show, verdict, write

import raydpzv
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.resuming import continued
from raydpzv.experiment.runner import run_local
from raydpzv.records.run_folder import RunFolder

RESUMED, CHECKPOINTS = 0.15, 0.03
"""Shares of a run's time, at most: going on at 90 %, and checkpoints."""
STARTED, AGAIN = 1.0, 0.12
"""CPU seconds that `raydpzv resume` may take at 90 %, beside a share of those of `raydpzv run`."""
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "dpzv": ("digits_dpzv", ("privacy.noise=seeded",)),
    "dpzv, torch": ("digits_dpzv", ("privacy.noise=seeded", "model.engine=torch")),
    "vafl": ("vafl_digits", ()),
    "zoo_vfl": ("zoo_vfl", ()),
    "czofo": ("czofo", ()),
    "frozen": ("frozen", ()),
    "sgd": ("sgd", ()),
    "decomfl": ("digits_decomfl", ()),
    "decomfl, add_back": (
        "digits_decomfl",
        ("method.momentum=0", "method.replicas=per_client", "method.revert=add_back"),
    ),
    "decomfl, asynchronous": ("decomfl_async", ()),
    "uldp_zo": ("digits_users_zo", ("privacy.noise=seeded",)),
}

ROUNDS = {
    "decomfl": 20_000,
    "decomfl, asynchronous": 20_000,
    "decomfl, add_back": 1000,
    "uldp_zo": 2000,
}
"""Updates of horizontal methods: fewer where a round takes ten milliseconds."""
_LONG = 5
"""CPU seconds from which a run is measured once, since little of it is chance; shorter ones five
times.
"""


def measure(scenario: str, changes: tuple[str, ...], updates: int) -> dict[str, Any]:
    """Return CPU seconds of the whole run and of going on, and what checkpoints took of the
    first.
    """
    spec = raydpzv.load(scenario, [*changes, f"budget.updates={updates}"])
    with tempfile.TemporaryDirectory() as name:
        folder, copy = Path(name) / "run", Path(name) / "copy"
        copying = 0.0

        def look(status: Any) -> None:
            nonlocal copying
            if status.updates >= 0.9 * updates and not status.stop_reason and not copy.exists():
                began = time.process_time()
                shutil.copytree(folder, copy)
                copying += time.process_time() - began

        began, clock = time.process_time(), time.monotonic()
        whole = run_local(prepare(spec), RunOptions(folder, progress=look)).summary
        cpu, seconds = time.process_time() - began - copying, time.monotonic() - clock
        checkpoint = RunFolder.open(copy).checkpoint()
        began = time.process_time()
        prepared, opened, _ = continued(copy)
        again = run_local(prepared, RunOptions(opened)).summary
        resumed = time.process_time() - began
    return {
        "updates": updates,
        "seconds": seconds,
        "cpu": cpu,
        "resumed_cpu": resumed,
        "share": resumed / cpu,
        "lost": (0.9 * updates - (checkpoint.round if checkpoint else 0)) / updates,
        "same": all(again[field] == whole[field] for field in ("digest", "model_digest")),
        "checkpoints": whole["checkpoints"] | {"share": whole["checkpoints"]["seconds"] / seconds},
    }


def processes(
    scenario: str, changes: tuple[str, ...], updates: int, repeats: int
) -> dict[str, float]:
    """Return the median CPU seconds of `raydpzv run`, of `resume` of a copy at 90 %, and of
    `report`.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, copy = Path(name) / "run", Path(name) / "copy"
        again, resumed = Path(name) / "again", Path(name) / "resumed"
        spec = raydpzv.load(scenario, [*changes, f"budget.updates={updates}"])

        def look(status: Any) -> None:
            if status.updates >= 0.9 * updates and not status.stop_reason and not copy.exists():
                shutil.copytree(folder, copy)

        run_local(prepare(spec), RunOptions(folder, progress=look))
        given = [
            part for change in (*changes, f"budget.updates={updates}") for part in ("--set", change)
        ]
        found: dict[str, list[float]] = {"run": [], "resume": [], "report": []}
        for turn in range(repeats + 1):  # the first may write byte code
            for left in (again, resumed):
                shutil.rmtree(left, ignore_errors=True)
            shutil.copytree(copy, resumed)
            taken = {
                "run": _cpu(["run", scenario, *given, "--out", str(again), "--quiet"]),
                "resume": _cpu(["resume", str(resumed), "--quiet"]),
                "report": _cpu(["report", str(again)]),
            }
            print(taken, file=sys.stderr, flush=True)
            for what, seconds in taken.items():
                found[what] += [seconds] * (turn > 0)
        return {what: median(seconds) for what, seconds in found.items()}


def _cpu(arguments: list[str]) -> float:
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-m", "raydpzv", *arguments], capture_output=True, text=True
    )
    if (
        done.returncode and "the run diverged" not in done.stderr
    ):  # as dpzv with the noise of 20,000 updates
        raise SystemExit(done.stderr)
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


def main() -> None:
    """Run the benchmark."""
    parser = options(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", choices=CASES, action="append", help="these methods alone")
    parser.add_argument(
        "--updates", type=int, default=20_000, metavar="N", help="of vertical methods"
    )
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="of horizontal methods (see `ROUNDS`)"
    )
    parser.add_argument("--processes", action="store_true", help="also as processes")
    chosen = parser.parse_args()
    before = environment()
    rows, started, figures = [], [], {}
    for name in chosen.only or CASES:
        scenario, changes = CASES[name]
        vertical = raydpzv.load(scenario, changes).kind == "vertical"
        updates = chosen.updates if vertical else chosen.rounds or ROUNDS[name]
        if chosen.quick:
            updates = 200 if vertical else 20
        turned = measure(scenario, changes, updates)  # imports and compiles
        found = [turned] if chosen.quick else []
        repeats = 0 if chosen.quick else chosen.repeats or (1 if turned["cpu"] > _LONG else 5)
        for _ in range(repeats):
            turned = measure(scenario, changes, updates)
            print(name, turned, file=sys.stderr, flush=True)
            found.append(turned)
        figures[name] = {"turns": found}
        share = median([turned["share"] for turned in found])
        taken = median([turned["checkpoints"]["share"] for turned in found])
        rows.append(
            [
                name,
                f"{updates}",
                f"{median([turned['cpu'] for turned in found]):.2f}",
                f"{share:.1%}",
                verdict(share, RESUMED, at_most=True),
                f"{median([turned['lost'] for turned in found]):.1%}",
                f"{taken:.2%}",
                verdict(taken, CHECKPOINTS, at_most=True),
                f"{found[-1]['checkpoints']['bytes']}",
                "yes" if all(turned["same"] for turned in found) else "NO",
            ]
        )
        if chosen.processes:
            whole = figures[name]["processes"] = processes(
                scenario, changes, updates, max(repeats, 1)
            )
            bar = STARTED + AGAIN * whole["run"]
            started.append(
                [
                    name,
                    *(f"{taken:.2f}" for taken in whole.values()),
                    verdict(whole["resume"], bar, at_most=True),
                ]
            )
    columns = [
        "method",
        "updates",
        "CPU s",
        "going on",
        "",
        "done again",
        "checkpoints",
        "",
        "bytes",
        "same bits",
    ]
    show("Going on at 90 %", columns, rows)
    if (
        started
    ):  # imports are the same two or three seconds in both, which no way of going on can save
        columns = ["method", "run, CPU s", "resume, CPU s", "report, CPU s", "resume"]
        show("As processes, imports included", columns, started)
    write("resume", {"figures": figures, "environment": before}, chosen.json)


if __name__ == "__main__":
    main()
