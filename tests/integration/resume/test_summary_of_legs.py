"""What a folder says of a run that was stopped and has gone on since: never what it had released by
the stop.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

import scenarios
from raydpzv.errors import DataError, InputError, RunError, StoppedEarly
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.resuming import continued
from raydpzv.records.checkpoint import CHECKPOINT
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.write_ahead_log import TAIL
from raydpzv.report.run_summary import summary_rows
from tests.helpers.kills import kill_at
from tests.helpers.runs import run_prepared

DPZV = ("digits_dpzv", "data.train_rows=400", "method.perturbations=2", "privacy.noise=seeded")


def spec(*changes: str) -> Any:
    name, *rest = DPZV
    return scenarios.load(
        name, [*rest, "budget.updates=60", "record.checkpoint_updates=10", *changes]
    )


def stopped_at(updates: int, folder: Path) -> dict[str, Any]:
    """Begin a run or continue it, and stop it as its user would."""
    if not folder.exists():
        return run_prepared(prepare(spec()), folder, until=updates).summary
    experiment, opened, _ = continued(folder)
    return run_prepared(experiment, opened, until=updates).summary


def test_a_segment_that_is_killed_leaves_no_summary_of_the_one_before(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert stopped_at(20, run)["updates"] == 20
    kill_at(35, spec(), run)
    with pytest.raises(DataError, match="the run was killed; continue it first"):
        RunFolder.open(run).summary()
    assert stopped_at(50, run)["updates"] == 50
    assert RunFolder.open(run).summary()["updates"] == 50
    experiment, opened, _ = continued(run)
    end = run_prepared(experiment, opened).summary
    assert end["digest"] == scenarios.run(spec()).summary["digest"]


def test_a_segment_at_work_has_no_summary_of_the_one_before(tmp_path: Path) -> None:
    run, said = tmp_path / "run", []

    def look(status: Any) -> None:
        if status.updates == 30 and not status.stop_reason:
            with pytest.raises(DataError) as error:
                RunFolder.open(run).summary()
            said.append(str(error.value))

    stopped_at(20, run)
    experiment, opened, _ = continued(run)
    run_prepared(experiment, opened, progress=look)
    assert said == [
        f"{run}: has no summary.json: another process is writing this run; wait for it, or stop it"
    ]


def test_a_run_without_checkpoints_starts_again_and_takes_some(tmp_path: Path) -> None:
    """Until it has made its releases again it has no summary, which would tell of fewer."""
    run = tmp_path / "run"
    stopped_at(20, run)
    for path in run.glob("checkpoint*"):
        path.unlink()
    experiment, opened, _ = continued(run)
    with pytest.raises(StoppedEarly, match="before it had made again all releases of its ledger"):
        run_prepared(experiment, opened, until=5)
    assert not RunFolder.open(run).has_summary()
    found = RunFolder.open(run).checkpoint()
    assert found.round == 5
    experiment, opened, _ = continued(run)
    assert (
        run_prepared(experiment, opened).summary["digest"]
        == scenarios.run(spec()).summary["digest"]
    )


def test_what_a_kill_after_the_end_left_is_deleted_when_somebody_would_continue(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    stopped_at(20, run)
    shutil.copytree(run, tmp_path / "stopped")
    experiment, opened, _ = continued(run)
    run_prepared(experiment, opened)
    whole = sorted(path.name for path in run.iterdir())
    for name in (CHECKPOINT, TAIL):
        (tmp_path / "stopped" / name).rename(run / name)
    with pytest.raises(InputError, match="this run is complete"):
        continued(run)
    assert sorted(path.name for path in run.iterdir()) == whole


def test_the_pace_of_a_run_that_was_continued_is_that_of_its_last_segment(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert "updates_before" not in stopped_at(20, run)
    experiment, opened, _ = continued(run)
    summary = run_prepared(experiment, opened).summary
    assert summary["updates_before"] == 20
    shown = dict(summary_rows({**summary, "seconds": 8.0}))
    assert shown["real time"] == "8 s, since it was continued after update 20"
    assert shown["updates per real second"] == "5"
    assert (
        dict(summary_rows({**summary, "seconds": 8.0, "updates_before": 0}))["real time"] == "8 s"
    )


def test_a_segment_that_cannot_begin_lets_go_of_its_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    stopped_at(20, run)
    (run / "summary.json").unlink()
    (run / "summary.json").mkdir()
    for _ in range(2):
        experiment, opened, _ = continued(run)
        with pytest.raises(RunError, match="cannot write the run's record"):
            run_prepared(experiment, opened)
