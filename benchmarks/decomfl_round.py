"""Seconds per round and peak memory of DeComFL: as its authors run it, and by this program.

100 clients, 10 of them sampled per round, one local step, batches of 32, forward differences;
images of noise of MNIST's shape. Networks of the paper: cnn_mnist (28,938 parameters) and
cnn_fashion (1,206,590).

as published      see `published`: a model per client, each replays what it missed; 1 and 2 threads
of torch raydpzv           `run_local` with its ledger and rows on disk; 1 and 2 threads of one
process raydpzv on Ray    the same with two host actors, where Ray is installed and there is a
target

The ways take turns, so that a slow minute hits all of them; the first rounds of a run are left out.
A ratio is the median over the turns of the published way's time, at whichever number of threads it
was faster in that turn, to the way's own; and of CPU time for one thread each, which says more on a
machine shared with others. As published, only rounds are timed whose clients have as much to replay
as they have on average. The two programs never share a process: what one teaches the allocator
would help the other.

Checked first: both programs' losses agree at the same parameters. Checked in every turn: this
program's ledgers have the same digest for any number of threads and hosts.

Memory, each way in a fresh process: the high-water mark of resident memory in two rounds, less what
was resident when libraries, compiled kernels and the rows were there. The held-out rows are one
batch, so that evaluations do not show.
"""

from __future__ import annotations

import cProfile
import math
import os
import pstats
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from common import environment, median, options, show, spread, verdict, write
from federations import ON_RAY, OURS, WAYS, Case, Way, federation_of, published_of
from fresh_process import helper, in_fresh_process
from published import usual_rounds
from round_memory import memory, print_memory
from rounds import Rounds

from raydpzv.errors import RunError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.runner import run_local

CASES = (*(Case("cnn_mnist", p) for p in (1, 10, 25)), Case("cnn_fashion", 10))
QUICK = (
    Case("cnn_mnist", 2, clients=8, cohort=2, rows=160, batch=4),
    Case("cnn_fashion", 1, clients=4, cohort=2, rows=80, batch=4),
)
PARAMETERS = {"cnn_mnist": 28_938, "cnn_fashion": 1_206_590}
TARGETS = {("cnn_mnist", 10): 0.35, ("cnn_fashion", 10): 2.5}
"""Model and P to seconds per round on two threads, at most."""
CPU_TARGETS = {("cnn_mnist", 1): 6.0, ("cnn_mnist", 10): 5.0, ("cnn_mnist", 25): 4.0}
"""Model and P to how many times less CPU time than as published a round takes on one thread, at
least.
"""
WARM, ROUNDS = 2, {"cnn_mnist": 4, "cnn_fashion": 2}
"""Rounds of a run that are left out, and rounds that are timed."""
_FAR = 100  # rounds after which clients have as much to replay as ever
_CLOSE = 1e-5


@dataclass(frozen=True)
class Turn:
    """Seconds per round, by the clock on the wall and of this process's CPU time, and this
    program's ledger.
    """

    seconds: float
    cpu: float = math.nan
    digest: str | None = None


def take_turn(way: Way, case: Case) -> Turn:
    """Time some rounds."""
    return _published(way, case) if way.published else _ours(way, case)


def _published(way: Way, case: Case) -> Turn:
    torch.set_num_threads(way.threads)
    clients, cohorts = published_of(case)
    (number,) = islice(usual_rounds(cohorts, _FAR), 1)
    clients.skip_to(number)
    clients.loss(0, np.arange(case.batch))  # first calls choose kernels
    start, cpu = time.perf_counter(), time.process_time()
    clients.round(number)
    return Turn(time.perf_counter() - start, time.process_time() - cpu)


def _ours(way: Way, case: Case, progress: Callable[[Rounds], None] = lambda rounds: None) -> Turn:
    prepared = federation_of(case, WARM + ROUNDS[case.model], way.threads, way.hosts or 1)
    rounds = Rounds()

    def look(status: Any) -> None:
        rounds(status)
        progress(rounds)

    with TemporaryDirectory() as folder:
        run = _runner(way)(prepared, RunOptions(Path(folder) / "run", progress=look))
    pace = rounds.pace(WARM)
    return Turn(pace.wall, math.nan if way.hosts else pace.cpu, run.summary["ledger"]["digest"])


def _runner(way: Way) -> Callable[..., Any]:
    if not way.hosts:
        return run_local
    from actors.horizontal.driver import run_horizontal as on_ray

    return on_ray


def check_losses(cases: tuple[Case, ...]) -> None:
    """Raise RunError unless both programs' models have the same size, and the same loss at the same
    parameters.
    """
    for case in cases:
        clients, _ = published_of(case)
        prepared = federation_of(case, 1)
        objective, at = prepared.objective(), clients.parameters(0)
        rows = prepared.parts.rows(0)[: case.batch]
        found, expected = objective.loss(at, rows), clients.loss(0, rows)
        if not abs(found - expected) <= _CLOSE or objective.size != PARAMETERS[case.model]:
            raise RunError(
                f"{case.model}: the loss is {found} with {objective.size} parameters, as published "
                f"{expected} with {PARAMETERS[case.model]}: the two do not train the same model, "
                "and their pace compares nothing"
            )


def check_digests(turn: Mapping[Way, Turn]) -> None:
    """Raise RunError unless this program's ledgers are the same, whoever did the work."""
    digests = {way.name: t.digest for way, t in turn.items() if t.digest}
    if len(set(digests.values())) > 1:
        raise RunError(f"ledgers differ between ways that promise the same bits: {digests}")


def take_turns(
    cases: tuple[Case, ...], on_ray: bool, repeats: int
) -> dict[Case, dict[Way, list[Turn]]]:
    """Time every way `repeats` times in turn, the two programs each in a process of its own."""
    turns = {case: {way: list[Turn]() for way in _ways(case, on_ray)} for case in cases}
    with helper() as theirs, helper() as ours:
        for _ in range(repeats):
            for case, by_way in turns.items():
                turn = {
                    way: _turn_in(theirs if way.published else ours, way, case) for way in by_way
                }
                check_digests(turn)
                for way, found in turn.items():
                    by_way[way].append(found)
    return turns


def _ways(case: Case, on_ray: bool) -> tuple[Way, ...]:
    """Ray is only shown where there is a target: to start it takes longer than most runs."""
    return (*WAYS, ON_RAY) if on_ray and (case.model, case.perturbations) in TARGETS else WAYS


def _turn_in(process: ProcessPoolExecutor, way: Way, case: Case) -> Turn:
    found = process.submit(take_turn, way, case).result()
    print(f"{case.name}, {way.name}: {found.seconds:.3f} s", file=sys.stderr, flush=True)
    return found


def figures(turns: Mapping[Case, Mapping[Way, list[Turn]]]) -> list[dict[str, Any]]:
    """Return one entry per case and way: median seconds per round, how many times faster than as
    published, target.
    """
    found = []
    for case, by_way in turns.items():
        base = [
            min(turn)
            for turn in zip(*(_seconds(t) for w, t in by_way.items() if w.published), strict=True)
        ]
        cpu_target = CPU_TARGETS.get((case.model, case.perturbations))
        for way, taken in by_way.items():
            less_cpu = _times_less_cpu(by_way[WAYS[0]], taken) if way == OURS[0] else math.nan
            seconds = median(_seconds(taken))
            target = TARGETS.get((case.model, case.perturbations)) if way == OURS[-1] else None
            found.append(
                {
                    "case": asdict(case),
                    "name": f"{case.name}: {way.name}",
                    "way": way.name,
                    "seconds": seconds,
                    "spread": spread(_seconds(taken)),
                    "times_faster": median(
                        [b / s for b, s in zip(base, _seconds(taken), strict=True)]
                    ),
                    "target": target,
                    "met": None if target is None else seconds <= target,
                    "times_less_cpu": less_cpu,
                    "cpu_target": cpu_target if way == OURS[0] else None,
                }
            )
    return found


def _times_less_cpu(published: list[Turn], ours: list[Turn]) -> float:
    """Median over the turns of one thread's CPU time as published over this program's."""
    return median([theirs.cpu / mine.cpu for theirs, mine in zip(published, ours, strict=True)])


def _seconds(turns: list[Turn]) -> list[float]:
    return [turn.seconds for turn in turns]


def shares(case: Case) -> dict[str, float]:
    """Return where this program's time goes on one thread, as shares of a profiled run after its
    first rounds.
    """
    profile = cProfile.Profile()

    def between(rounds: Rounds) -> None:
        if rounds.latest == WARM:
            profile.enable()
        elif rounds.latest == WARM + ROUNDS[case.model]:
            profile.disable()

    _ours(OURS[0], case, between)
    stats = pstats.Stats(profile)
    total = stats.total_tt  # type: ignore[attr-defined]
    perturbing = _spent(stats, "directions.py", "add_to")
    forward = (
        _spent(stats, "torch_objective.py", "losses")
        + _spent(stats, "torch_objective.py", "loss")
        - perturbing
    )
    replaying = _spent(stats, "replica.py", "go_to")
    parts = {"forward passes": forward, "perturbing": perturbing, "updating the model": replaying}
    return {
        name: spent / total
        for name, spent in (parts | {"the rest": total - sum(parts.values())}).items()
    }


def _spent(stats: pstats.Stats, file: str, function: str) -> float:
    """Seconds in a function and what it calls."""
    entries = stats.stats.items()  # type: ignore[attr-defined]
    return sum(
        e[3] for (path, _, name), e in entries if (Path(path).name, name) == (file, function)
    )


def print_times(found: list[dict[str, Any]]) -> None:
    """Print the table of seconds per round."""
    rows = [
        [
            f["name"],
            f"{f['seconds']:.3f}",
            f"{f['spread']:.0%}",
            verdict(f["seconds"], f["target"], at_most=True),
            f"{f['times_faster']:.1f}",
            "" if math.isnan(f["times_less_cpu"]) else f"{f['times_less_cpu']:.1f}",
            verdict(f["times_less_cpu"], f["cpu_target"]),
        ]
        for f in found
    ]
    columns = [
        "model, P: way",
        "s / round",
        "spread",
        "target",
        "published / this",
        "CPU, the same",
        "target",
    ]
    show("A DeComFL round", columns, rows)


def print_shares(found: Mapping[str, Mapping[str, float]]) -> None:
    """Print where the time goes."""
    names = list(next(iter(found.values())))
    rows = [[case, *(f"{parts[name]:.1%}" for name in names)] for case, parts in found.items()]
    show("Where raydpzv's time goes on one thread", ["model, P", *names], rows)


def main() -> None:
    """Run the benchmark."""
    parser = options(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--no-ray", action="store_true", help="only the ways in one process")
    chosen = parser.parse_args()
    cases, before = QUICK if chosen.quick else CASES, environment()
    on_ray = not chosen.no_ray and find_spec("ray") is not None
    # Ray's workers are nice to others by default; the other ways are not, and on a shared machine
    # that decides
    os.environ.setdefault("RAY_worker_niceness", "0")
    check_losses(cases)
    turns = take_turns(cases, on_ray, chosen.repeats or (1 if chosen.quick else 3))
    times = figures(turns)
    print_times(times)
    in_detail = (
        cases[:1] if chosen.quick else tuple(case for case in cases if case.perturbations == 10)
    )
    where = {case.name: in_fresh_process(shares, case) for case in in_detail}
    print_shares(where)
    peaks = memory(in_detail)
    print_memory(peaks)
    result = {"figures": times, "shares": where, "memory": peaks, "environment": before}
    write("decomfl_round", result | {"environment_after": environment()}, chosen.json)


if __name__ == "__main__":
    main()
