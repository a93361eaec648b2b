import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

import scenarios
from raydpzv.compare.results import collect
from raydpzv.compare.run_comparison import (
    PoolOptions,
    in_processes,
    on_this_machine,
    one_by_one,
    opened,
    unfinished,
)
from tests.helpers.gate import Gate, StopWaiting, held_work
from tests.helpers.programs import ROOT
from tests.helpers.small_comparisons import small_comparison, timeless


def make(
    how, comparison, root, ended=lambda planned, why: None, stop=None, progress=lambda at_work: None
):
    with opened(root, comparison):
        how(
            unfinished(root, comparison),
            root,
            progress=progress,
            ended=ended,
            stop=stop or threading.Event(),
        )


@pytest.fixture
def forked(monkeypatch):
    """Fork the processes of runs: spawned, as in ORPHANS below, each would import for seconds."""
    monkeypatch.setattr(
        "raydpzv.compare.run_comparison._SPAWN", multiprocessing.get_context("forkserver")
    )


@pytest.mark.usefixtures("forked")
def test_a_lost_process_costs_its_run_alone_and_all_others_have_the_bits_of_one_process(
    tmp_path: Path, monkeypatch
):
    gate, comparison = Gate(tmp_path / "gate", at=20), small_comparison(seeds=(0,), epsilons=(1.0,))
    monkeypatch.setattr("raydpzv.compare.run_comparison._work", partial(held_work, gate))
    reasons, killed, most = {}, [], []

    def kill_one(at_work):
        most.append(len(at_work))
        if not killed and gate.waiting() == 2:
            killed.append(list(at_work))
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
            gate.file.touch()

    two = partial(in_processes, jobs=2)
    make(
        two,
        comparison,
        tmp_path / "two",
        lambda planned, why: reasons.update({planned.folder: why}),
        progress=kill_one,
    )
    assert max(most) == 2
    assert len(reasons) == 4
    lost = [name for name, why in reasons.items() if why]
    assert len(lost) == 1
    assert lost[0] in killed[0]
    assert reasons[lost[0]].startswith("its process ended with status -9")
    assert [planned.folder for planned in unfinished(tmp_path / "two", comparison)] == lost
    make(two, comparison, tmp_path / "two")
    make(one_by_one, comparison, tmp_path / "one")
    found, expected = collect(comparison, tmp_path / "two"), collect(comparison, tmp_path / "one")
    assert timeless(found.runs) == timeless(expected.runs)
    assert found.curves.equals(expected.curves)
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("forked")
def test_a_stop_ends_the_runs_at_work_cleanly(tmp_path: Path, monkeypatch):
    many = 10_000_000  # a process hears of a stop beside its run
    comparison, over = small_comparison(f"budget.updates={many}", seeds=(0,)), []
    look = StopWaiting(Gate(tmp_path / "gate", at=50), runs=2)
    monkeypatch.setattr("raydpzv.compare.run_comparison._work", partial(held_work, look.gate))
    two, root = partial(in_processes, jobs=2), tmp_path / "two"
    make(two, comparison, root, lambda planned, why: over.append(why), look.stop, look)
    rows = [row for row in collect(comparison, root).runs.to_pylist() if row["status"] == "stopped"]
    assert len(over) == len(rows) == 2
    assert all(why == "stopped before its end" for why in over)
    assert all(50 <= row["updates"] < many for row in rows)
    assert not multiprocessing.active_children()


ORPHANS = """
import sys
from functools import partial
from pathlib import Path
from threading import Event
from raydpzv.compare import run_comparison
from tests.helpers.gate import Gate, held_work
from tests.helpers.small_comparisons import small_comparison, timeless

gate, root = map(Path, sys.argv[1:])
run_comparison._work = partial(held_work, Gate(gate, at=50))
comparison = small_comparison("budget.updates=10000000", seeds=(0,))
with run_comparison.opened(root, comparison):
    todo = run_comparison.unfinished(root, comparison)
    nothing = lambda *given: None
    run_comparison.in_processes(todo, root, progress=nothing, ended=nothing, stop=Event(), jobs=2)
"""


def test_runs_stop_cleanly_and_say_nothing_once_the_process_that_asked_for_them_is_killed(
    tmp_path: Path,
):
    gate, root = Gate(tmp_path / "gate", at=50), tmp_path / "all"
    command = [sys.executable, "-c", ORPHANS, str(gate.file), str(root)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as parent:
        while gate.waiting() < 2:
            assert parent.poll() is None
            time.sleep(0.02)
        parent.kill()
        gate.file.touch()
        _, errors = parent.communicate()  # the pipe closes when the last process ends
    assert errors == ""
    summaries = [json.loads(path.read_text()) for path in root.glob("runs/*/summary.json")]
    assert [summary["status"] for summary in summaries] == ["stopped", "stopped"]


@pytest.mark.parametrize(
    ("jobs", "settings", "processes"),
    [(1, (), False), (3, (), True), (None, (), True), (3, ("resources.server_gpus=auto",), False)],
)
def test_one_job_or_a_gpu_to_share_stay_in_this_process(monkeypatch, jobs, settings, processes):
    monkeypatch.setattr("raydpzv.compare.run_comparison.cores", lambda: 3)
    how = on_this_machine(PoolOptions(jobs=jobs), [scenarios.load("digits_dpzv", settings)])
    assert (how is one_by_one) is not processes
    assert not processes or how.keywords == {"jobs": 3}
