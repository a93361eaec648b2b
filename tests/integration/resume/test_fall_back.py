import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scenarios
from raydpzv.errors import DataError, ReplayMismatch, StoppedEarly
from raydpzv.experiment import resuming
from raydpzv.experiment.resuming import continued
from raydpzv.ledger.ledger import Ledger
from raydpzv.records.checkpoint import (
    CHECKPOINT,
    Checkpoint,
    before,
    read_checkpoint,
    write_checkpoint,
)
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.run_writer import RunWriter
from raydpzv.records.store import digest
from raydpzv.segments.started_segments import segments_started
from tests.helpers.contradictions import (
    change,
    contradictions,
    forget_waiting,
    late,
    serve_backwards,
)
from tests.helpers.kills import Killed, kill_at
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import small, stop_after
from tests.helpers.small_users import small as small_users

BUSY = ("arrivals.rate=9", "record.checkpoint_updates=4", "record.flush=1000")
"""Clients whose epochs wait, and checkpoints after updates 4, 8, 12, ..."""
USERS = ("arrivals.rate=9", "record.checkpoint_updates=2")
DPZV = (
    "budget.updates=60",
    "evaluate.every=20",
    "data.train_rows=150",
    "data.test_rows=40",
    "clock.compute=0.2",
    "clock.compute_law=exponential",
    "record.checkpoint_updates=10",
    "record.flush=1000",
)


def resume(folder: Path, **options: Any) -> Any:
    prepared, opened, _ = continued(folder)
    return run_prepared(prepared, opened, **options)


def same(run: Any, whole: Any) -> None:
    """All but the rows of faults."""
    assert digest({**run.tables, "fault": whole.rows("fault")}) == whole.summary["digest"]
    assert run.summary["model_digest"] == whole.summary["model_digest"]
    assert run.summary["ledger"]["digest"] == whole.summary["ledger"]["digest"]


@pytest.fixture
def killed(tmp_path):
    """A folder whose run was killed after 14 updates, with checkpoints after 8 and 12; the whole
    run.
    """
    spec = small("asynchronous", *BUSY)
    kill_at(14, spec, tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").checkpoint().round == 12
    return tmp_path / "run", scenarios.run(spec)


@pytest.mark.parametrize("how", [forget_waiting, serve_backwards])
def test_it_resumes_from_the_checkpoint_before_and_says_so(killed, how):
    folder, whole = killed
    change(folder / CHECKPOINT, how)
    run = resume(folder)
    same(run, whole)
    (said,) = contradictions(run)
    assert re.fullmatch(
        r"the last one contradicts the ledger \(.+\), which keeps all updates; the run resumes from"
        r" its checkpoint "
        r"after update 8",
        said,
    )
    assert run.summary["faults"][-1]["message"] == said


def test_where_both_contradict_the_ledger_it_resumes_from_the_ledger_alone(killed):
    folder, whole = killed
    for path in (folder / CHECKPOINT, before(folder / CHECKPOINT)):
        change(path, forget_waiting)
    run = resume(folder)
    same(run, whole)
    first, second = contradictions(run)
    assert first.endswith("from its checkpoint after update 8")
    assert second.endswith("from its start")


def test_a_checkpoint_before_that_cannot_be_read_is_passed_over(killed):
    folder, whole = killed
    change(folder / CHECKPOINT, forget_waiting)
    before(folder / CHECKPOINT).write_bytes(b"damaged")
    run = resume(folder)
    same(run, whole)
    assert contradictions(run)[0].endswith("from its start")


def test_checkpoints_that_follow_a_wrong_one_are_given_up_with_it(tmp_path):
    """The last upload under way is late: the run finds out when it has written one of its own."""
    spec, folder = small("asynchronous", *BUSY), tmp_path / "run"
    whole = scenarios.run(spec, tmp_path / "whole")
    kill_at(10, spec, folder)
    assert RunFolder.open(folder).checkpoint().round == 8
    shutil.rmtree(folder / "ledger")
    shutil.copytree(tmp_path / "whole" / "ledger", folder / "ledger")
    seen = []
    change(folder / CHECKPOINT, late)
    run = resume(folder, progress=lambda status: seen.append(status.updates))
    same(run, whole)
    (said,) = contradictions(run)
    assert said.endswith("from its start")
    assert max(seen[: seen.index(0, seen.index(9))]) > 12, "the control: a checkpoint came after it"


def test_a_run_that_cannot_fall_back_ends_as_failed(killed, monkeypatch):
    folder, _ = killed
    change(folder / CHECKPOINT, forget_waiting)

    def refuse(*_: Any) -> None:
        raise DataError("a part is missing")

    prepared, opened, _ = continued(folder)
    monkeypatch.setattr(resuming, "restarted", refuse)
    with pytest.raises(DataError, match="a part is missing"):
        run_prepared(prepared, opened)
    summary = RunFolder.open(folder).summary()
    assert (summary["status"], summary["stopped_by"]) == ("failed", "DataError: a part is missing")


def test_a_ledger_of_another_run_is_no_fault_of_the_checkpoint(killed):
    """The control: nothing to fall back to makes the ledger's updates, and the error says so."""
    folder, _ = killed
    with Ledger.open(folder / "ledger") as ledger:
        kept, header = ledger.since(0), ledger.header
    shutil.rmtree(folder / "ledger")
    with Ledger.create(folder / "ledger", header) as other:
        for update in kept.updates():
            changed = np.frombuffer(update.scalar, np.float32) + np.float32(update.round in (5, 13))
            other.enter(update._replace(scalar=changed.tobytes()))
    with pytest.raises(ReplayMismatch, match="update 5: its scalar is not what the ledger has"):
        resume(folder)


def counted(run: Any) -> int:
    """Return how many releases the claims of a run of users are about."""
    return int(run.summary["epsilon"][0]["scope"].split()[0])


@pytest.mark.parametrize("which", ["the last one", "both"])
def test_what_users_released_after_the_older_checkpoint_stays_charged(tmp_path, monkeypatch, which):
    """Every update of the ledger, and for each leg that was lost a sum of each of the three
    silos.
    """
    spec, folder = small_users("asynchronous", *USERS), tmp_path / "run"
    for updates in (3, 5, 7):
        kill_at(updates, spec, folder)
    for path in (folder / CHECKPOINT, before(folder / CHECKPOINT))[
        : 1 if which == "the last one" else 2
    ]:
        change(path, forget_waiting)
    shutil.copytree(folder, tmp_path / "control")
    run = resume(folder)
    fallen = len(contradictions(run))
    assert fallen == (1 if which == "the last one" else 2)
    released, lost = run.summary["ledger"]["updates"], 3 + fallen
    assert counted(run) >= released + 3 * lost
    assert counted(run) <= released + 3 * (lost + fallen), (
        "a leg that wrote both checkpoints may count twice"
    )
    monkeypatch.setattr(resuming, "note_fall_back", lambda *_: None)
    assert counted(resume(tmp_path / "control")) < released + 3 * lost


def test_a_kill_while_it_falls_back_loses_no_segment(tmp_path, monkeypatch):
    spec, folder = small_users("asynchronous", *USERS), tmp_path / "run"
    for updates in (5, 7):
        kill_at(updates, spec, folder)
    change(folder / CHECKPOINT, forget_waiting)
    shutil.copytree(folder, tmp_path / "whole")

    def die(self: RunWriter) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunWriter, "fall_back", die)
        with pytest.raises(Killed):
            resume(folder)
    assert segments_started(RunFolder.open(folder)) == 1
    whole, killed = (counted(resume(path)) for path in (tmp_path / "whole", folder))
    assert killed - whole == 3, "the leg that was killed"


def test_a_run_of_users_stopped_before_the_ledgers_end_claims_nothing(tmp_path):
    """Its account knows of fewer releases than were made."""
    spec, folder = small_users("asynchronous", *USERS), tmp_path / "run"
    kill_at(7, spec, folder)
    for path in (folder / CHECKPOINT, before(folder / CHECKPOINT)):
        change(path, forget_waiting)
    stop, at = stop_after(2).values()
    stopped = resume(
        folder, stop=stop, progress=lambda status: at(status) if status.updates < 4 else None
    )
    assert stopped.summary["status"] == "stopped"
    assert stopped.summary["updates"] < 7 == stopped.summary["ledger"]["updates"]
    assert not stopped.summary["epsilon"]
    end = resume(folder)
    assert counted(end) >= 10 + 3 * 3


@pytest.mark.parametrize("noise", ["seeded", "system"])
def test_releases_about_records_are_charged_once_each(tmp_path, noise):
    spec, folder = (
        scenarios.load("digits_dpzv", [*DPZV, f"privacy.noise={noise}"]),
        tmp_path / "run",
    )
    kill_at(28, spec, folder)
    shutil.copytree(folder, tmp_path / "plain")
    plain = resume(tmp_path / "plain")
    change(folder / CHECKPOINT, lambda state: state | {"run": serve_backwards(state["run"])})
    shutil.copytree(folder, tmp_path / "stopped")
    run = resume(folder)
    assert contradictions(run)[0].endswith("from its checkpoint after update 10")
    assert run.summary["epsilon"] == plain.summary["epsilon"]
    assert run.summary["ledger"]["updates"] == 60
    if noise == "seeded":
        same(run, scenarios.run(spec))
    stop, at = stop_after(12).values()
    with pytest.raises(StoppedEarly, match="before it had made again all releases of its ledger"):
        resume(
            tmp_path / "stopped",
            stop=stop,
            progress=lambda status: at(status) if status.updates < 20 else None,
        )


def test_a_segment_under_the_wall_clock_resumes_from_its_ledger_alone(tmp_path):
    busy = ("clock.kind=wall", "clock.compute=0.2", "arrivals.rate=12", "budget.updates=150")
    spec, folder = small("asynchronous", *BUSY, *busy), tmp_path / "run"
    kill_at(40, spec, folder, checkpoints=3)
    for path in (folder / CHECKPOINT, before(folder / CHECKPOINT)):
        found = read_checkpoint(path, RunFolder(folder).identity)
        kept = found.checkpoint
        versions, reading = kept.weights
        wrong = Checkpoint(
            kept.round,
            kept.state,
            np.stack([versions, np.where(reading < 0, reading, reading + 1)]),
        )
        write_checkpoint(path.with_name("twin.state"), wrong, found.extents, found.log, found.run)
        path.with_name("twin.state").replace(path)
    run = resume(folder)
    assert run.summary["updates"] == 150
    assert contradictions(run)[-1].endswith("from its start")
    assert sorted(run.rows("service").column("round").to_pylist()) == list(range(1, 151))
