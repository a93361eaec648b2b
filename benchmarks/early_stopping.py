"""Ray Tune's ASHA on the curves of whole trials: updates made, and how far its best is below the
best.

Each space is a search without a scheduler, 16 trials of digits_dpzv to their ends, of which the
validation accuracy is kept at every evaluation. On these curves `--scheduler asha` is replayed,
with trials in random orders and at paces of their own, so many at a time.
"""

from __future__ import annotations

import heapq
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from common import environment, options, show, write

from raydpzv.keys import Key
from raydpzv.records.run_folder import RunFolder
from raydpzv.search.schedulers import scheduling
from raydpzv.search.search_terms import SearchTerms
from raydpzv.search.tune_plan import SearchPlan, read_plan, run_path
from raydpzv.search.tune_results import curve

SPACE = """method.lr.loguniform = [1e-3, 1e-1]
method.momentum.uniform = [0.0, 0.95]
method.server.choice = ["sgd", "zo"]
"""
METRIC, TRIALS, UPDATES, EVERY = "validation_accuracy", 16, 2000, 50
FIRST_DRAW = 36
"""Of the draw seeds."""
MOST, POINTS = 0.5, 1.0
"""What a search may take of the full one's updates, and how many points its best may be below the
full one's.
"""
SLACK = 1e-9
"""What a difference of two accuracies may be off by."""
SPREAD = 0.2
"""Standard deviation of the logarithm of a trial's pace."""


@dataclass(frozen=True)
class Curves:
    """A space: its plan, each trial's metric at each evaluation (NaN: it has diverged), and at its
    end.
    """

    plan: SearchPlan
    values: Sequence[dict[int, float]]
    ends: Sequence[float]

    def points_below(self, ended: Sequence[int]) -> float:
        """Return how many points the best of these trials is below the best of all."""
        best = max((self.ends[n] for n in ended if not math.isnan(self.ends[n])), default=0.0)
        return 100 * (np.nanmax(self.ends) - best)


@dataclass(frozen=True)
class Came:
    """What a replayed search came to: its part of the full one's updates, and how many points it is
    below it.
    """

    part: float
    below: float


def searched(draw: int, out: Path, *more: str) -> list[dict[str, Any]]:
    """Search a space as the command does, and return the rows of its trials."""
    (out.parent / "space.toml").write_text(SPACE)
    changes = [
        f"budget.updates={UPDATES}",
        f"evaluate.every={EVERY}",
        "data.validation_fraction=0.2",
    ]
    changes += ["privacy.noise=seeded"]  # else two searches of a space differ by their noise
    words = [
        "tune",
        "digits_dpzv",
        "--space",
        str(out.parent / "space.toml"),
        "--samples",
        str(TRIALS),
    ]
    words += ["--draw-seed", str(draw), "--quiet", "--json", "--out", str(out), *more]
    words += [word for change in changes for word in ("--set", change)]
    done = subprocess.run(
        [sys.executable, "-m", "raydpzv", *words], check=True, stdout=subprocess.PIPE, text=True
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)["trials"]
    return found


def curves(draw: int, folder: Path) -> Curves:
    """Search one space without a scheduler, and return its trials' curves."""
    out = folder / f"full-{draw}"
    rows = searched(draw, out)
    plan = read_plan(out / "search.toml")
    values = [curve(RunFolder(run_path(out, trial)).rows(), METRIC) for trial in plan.trials]
    return Curves(
        plan, values, [row[METRIC] if row["status"] == "done" else math.nan for row in rows]
    )


def in_order(key: Key) -> tuple[list[int], np.ndarray]:
    """Return the trials in the order in which they begin, and the time that an update of each
    takes.
    """
    draws = key.generator()
    return [int(n) for n in draws.permutation(TRIALS)], np.exp(
        SPREAD * draws.standard_normal(TRIALS)
    )


def stopping(found: Curves, workers: int, key: Key) -> Came:
    """Replay `--scheduler asha`."""
    from ray.tune.schedulers import TrialScheduler

    from actors.tune_rules import scheduler_of

    order, pace = in_order(key)
    specs = [trial.spec for trial in found.plan.trials]
    chosen = scheduling(specs, found.plan.space, SearchTerms(scheduler="asha"))
    asha = scheduler_of(replace(found.plan, scheduling=chosen))
    known = [SimpleNamespace(trial_id=str(n)) for n in range(TRIALS)]
    busy, made, waiting = [], dict.fromkeys(order, 0), iter(order)

    def begin(now: float) -> None:
        if (trial := next(waiting, None)) is not None:
            asha.on_trial_add(None, known[trial])
            heapq.heappush(busy, (now + EVERY * pace[trial], trial))

    for _ in range(workers):
        begin(0.0)
    while busy:
        now, trial = heapq.heappop(busy)
        made[trial] += EVERY
        report = {"updates": made[trial], METRIC: found.values[trial][made[trial]]}
        stops = asha.on_trial_result(None, known[trial], report) == TrialScheduler.STOP
        if stops or made[trial] == UPDATES:
            begin(now)
        else:
            heapq.heappush(busy, (now + EVERY * pace[trial], trial))
    ended = [n for n in order if made[n] == UPDATES]
    return Came(sum(made.values()) / (UPDATES * TRIALS), found.points_below(ended))


def real(draw: int, whole: Curves, folder: Path) -> Came:
    """Search a space with `--scheduler asha` on Ray, two at a time, and hold it against the full
    search.
    """
    rows = searched(draw, folder / f"asha-{draw}", "--scheduler", "asha", "--jobs", "2")
    ended = [row["trial"] for row in rows if row["status"] == "done"]
    return Came(sum(row["updates"] for row in rows) / (UPDATES * TRIALS), whole.points_below(ended))


def _figures(came: Sequence[Came]) -> dict[str, float]:
    met = [one.part <= MOST and one.below <= POINTS + SLACK for one in came]
    return {
        "orders": len(came),
        "part_mean": float(np.mean([one.part for one in came])),
        "part_most": max(one.part for one in came),
        "below_mean": float(np.mean([one.below for one in came])),
        "below_most": max(one.below for one in came),
        "both_met": float(np.mean(met)),
    }


def main() -> None:
    """Run the benchmark."""
    parser = options(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--spaces", type=int, metavar="N", help="spaces, of draw seeds from 36 on (24)"
    )
    parser.add_argument(
        "--real", type=int, metavar="N", help="of these, spaces searched with asha too (3)"
    )
    chosen = parser.parse_args()
    count = chosen.spaces or (1 if chosen.quick else 24)
    orders = chosen.repeats or (2 if chosen.quick else 20)
    searches = (0 if chosen.quick else 3) if chosen.real is None else chosen.real
    before, rows, figures, made = environment(), [], [], list[dict[str, float]]()
    with tempfile.TemporaryDirectory() as scratch:
        spaces = dict[int, Curves]()
        for draw in range(FIRST_DRAW, FIRST_DRAW + count):
            print(f"space {draw}: {TRIALS} trials to their ends", file=sys.stderr, flush=True)
            spaces[draw] = curves(draw, Path(scratch))
        for draw in list(spaces)[:searches]:
            came = real(draw, spaces[draw], Path(scratch))
            made.append({"draw_seed": draw, "part": came.part, "below": came.below})
            rows.append([f"asha on Ray, space {draw}", "2", *_cells(_figures([came]))])
    for workers in (2, 4):
        key = Key(0) / "benchmark" / workers
        came_all = [
            stopping(found, workers, key / draw / order)
            for draw, found in spaces.items()
            for order in range(orders)
        ]
        told = _figures(came_all)
        figures.append({"at_a_time": workers, **told})
        rows.append(["asha", str(workers), *_cells(told)])
    head = ["", "at a time", "updates", "most", "points below", "most", "both in"]
    show(
        f"{count} spaces of {TRIALS} trials, {orders} orders each, against all trials in full",
        head,
        rows,
    )
    facts = {"before": before, "spaces": count, "orders": orders}
    write("early_stopping", {**facts, "figures": figures, "searches": made}, chosen.json)


def _cells(told: dict[str, float]) -> list[str]:
    parts = [f"{told[name]:.0%}" for name in ("part_mean", "part_most")]
    return [
        *parts,
        *(f"{told[name]:.2f}" for name in ("below_mean", "below_most")),
        f"{told['both_met']:.1%}",
    ]


if __name__ == "__main__":
    main()
