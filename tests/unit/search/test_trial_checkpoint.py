import threading
from pathlib import Path

import pytest

import scenarios
from raydpzv.config.toml import override
from raydpzv.errors import DataError, InputError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.runner import run_local
from raydpzv.records.run_folder import RunFolder
from raydpzv.search.trial_checkpoint import TrialRun

SMALL = ("budget.updates=24", "evaluate.every=6", "data.train_rows=120", "record.checkpoint=1000")
VERTICAL = ("privacy.mode=none", "method.batch=8")
AT = 12


def spec_of(scenario, *overrides):
    return scenarios.load(scenario, [*SMALL, *overrides])


def digits(*overrides):
    return spec_of("digits_dpzv", *VERTICAL, *overrides)


def run(trial, evaluated=lambda status, metrics: None, stop=None):
    experiment, folder = trial.started()
    options = RunOptions(
        folder, stop=stop or threading.Event(), evaluated=evaluated, keep_evaluated=True
    )
    return run_local(experiment, options).summary


def stopped_at(trial, copy: Path, at=AT):
    """Run until an evaluation, at which the run is copied, and is stopped."""
    stop = threading.Event()

    def evaluated(status, metrics):
        if status.updates == at and not stop.is_set():
            copy.mkdir()
            trial.save(copy, {"updates": at}, paused=True)
            stop.set()

    assert run(trial, evaluated, stop)["status"] == "stopped"


METHODS = {
    "dpzv": digits(),
    "vafl": digits("method.name=vafl"),
    "rounds": spec_of("digits_decomfl"),
    "pulls": spec_of("digits_decomfl", "method.asynchronous=true", "method.local_steps=1"),
    "weights": spec_of("digits_decomfl", "method.name=fedavg"),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_copy_resumes_at_its_evaluation_to_the_same_digest(tmp_path, name):
    spec = METHODS[name]
    stopped_at(TrialRun(tmp_path / "run", spec, "a"), tmp_path / "copy")
    again = TrialRun(tmp_path / "elsewhere", spec, "a")
    assert again.load(tmp_path / "copy") == {"updates": AT}
    assert RunFolder.open(again.path).checkpoint().round == AT
    summary = run(again)
    assert summary["updates_before"] == AT
    assert summary["digest"] == scenarios.run(spec).summary["digest"]


def test_a_trial_resumes_in_its_own_folder_where_that_is_further(tmp_path):
    trial = TrialRun(tmp_path / "run", digits(), "a")
    stopped_at(trial, tmp_path / "copy")
    stopped_at(TrialRun(trial.path, digits(), "a"), tmp_path / "later", 18)
    assert trial.load(tmp_path / "copy") == {"updates": AT}
    summary = run(trial)
    assert summary["updates_before"] == 18
    assert summary["digest"] == scenarios.run(digits()).summary["digest"]


def test_another_trial_continues_with_its_own_step_size(tmp_path):
    stopped_at(TrialRun(tmp_path / "a", digits("method.lr=0.03"), "a"), tmp_path / "copy")
    taker = TrialRun(tmp_path / "b", digits("method.lr=0.01"), "b")
    stopped_at(taker, tmp_path / "own", 6)
    taker.load(tmp_path / "copy")
    made = RunFolder.open(taker.path).spec()
    assert (made.method.lr, made.method.lr_at) == (0.03, ((AT + 1, 0.01),))
    assert RunFolder.open(tmp_path / "b.set-aside-1").summary()["updates"] == 6
    summary = run(taker)
    planned = override(digits("method.lr=0.03"), [f"method.lr_at=[[{AT + 1}, 0.01]]"])
    assert summary["digest"] == scenarios.run(planned).summary["digest"]
    # its own copy, and that of a trial which changes nothing, keep the schedule
    (tmp_path / "end").mkdir()
    taker.save(tmp_path / "end", {"updates": 24}, paused=True)
    lost = TrialRun(tmp_path / "c", digits("method.lr=0.01"), "b")
    lost.load(tmp_path / "end")
    assert lost.final_report()["updates"] == 24


def test_no_other_setting_changes_in_mid_run(tmp_path):
    stopped_at(TrialRun(tmp_path / "a", digits(), "a"), tmp_path / "copy")
    for setting, named in (
        ("method.momentum=0.5", "method.momentum is 0.9 there"),
        ("method.name=vafl", ""),
    ):
        taker = TrialRun(tmp_path / "b", digits(setting), "b")
        with pytest.raises(
            InputError, match=f"run of trial b cannot resume with other settings: {named}"
        ):
            taker.load(tmp_path / "copy")
        assert not taker.path.exists()
    with pytest.raises(
        InputError, match=r"settings that may change in mid-run: method.lr and method.server_lr"
    ):
        TrialRun(tmp_path / "b", digits("seed=3"), "b").load(tmp_path / "copy")


def test_a_planned_schedule_is_kept_and_not_changed(tmp_path):
    planned = digits("method.lr=0.03", "method.lr_at=[[18, 0.001]]")
    stopped_at(TrialRun(tmp_path / "a", planned, "a"), tmp_path / "copy")
    same = TrialRun(tmp_path / "b", planned, "a")
    same.load(tmp_path / "copy")
    assert run(same)["digest"] == scenarios.run(planned).summary["digest"]
    other = digits("method.lr=0.01", "method.lr_at=[[18, 0.001]]")
    with pytest.raises(InputError, match=r"method\.lr is 0\.03 there, asked for is 0\.01"):
        TrialRun(tmp_path / "c", other, "c").load(tmp_path / "copy")


def test_releases_of_a_lost_folder_are_not_made_again_uncharged(tmp_path):
    private = spec_of("digits_dpzv", "method.batch=8")
    assert private.privacy.noise == "system"
    trial = TrialRun(tmp_path / "run", private, "a")
    stopped_at(trial, tmp_path / "copy")
    with pytest.raises(InputError, match="drawn a second time and not charged; give trainable"):
        TrialRun(tmp_path / "elsewhere", private, "a").load(tmp_path / "copy")
    assert not (tmp_path / "elsewhere").exists()
    trial.load(tmp_path / "copy")  # where it is, its own record says what was released
    assert run(trial)["updates"] == 24


def test_a_wall_clock_run_is_named_and_resumes_as_a_new_segment(tmp_path):
    wall = digits(
        "clock.kind=wall", "arrivals.rate=500", "budget.updates=2000", "evaluate.every=10"
    )
    trial, stop, seen = TrialRun(tmp_path / "run", wall, "a"), threading.Event(), []
    (copy := tmp_path / "copy").mkdir()

    def evaluated(status, metrics):
        if status.updates and not stop.is_set():
            seen.append(status.updates)
            trial.save(copy, {"updates": status.updates}, paused=False)
            stop.set()

    assert run(trial, evaluated, stop)["status"] == "stopped"
    assert [file.name for file in copy.iterdir()] == ["trial.json"]
    with pytest.raises(InputError, match="real time does not stand still; give trainable"):
        TrialRun(tmp_path / "b", wall, "a").load(copy)
    again = TrialRun(trial.path, wall, "a")
    assert again.load(copy) == {"updates": seen[0]}
    (stop := threading.Event()).set()
    assert run(again, stop=stop)["status"] == "stopped"
    legs = RunFolder.open(trial.path).rows()["leg"].to_pylist()
    assert [row["leg"] for row in legs] == [2]
    assert legs[0]["round"] >= seen[0]


def test_a_finished_run_reports_what_it_measured_and_is_no_donor(tmp_path):
    trial = TrialRun(tmp_path / "run", digits("data.validation_fraction=0.2"), "a")
    assert trial.final_report() is None
    summary = run(trial)
    report = trial.final_report()
    for name in ("accuracy", "loss", "validation_accuracy", "updates", "simulated_seconds"):
        assert report[name] == summary[name]
    (copy := tmp_path / "copy").mkdir()
    trial.save(copy, report, paused=True)
    with pytest.raises(DataError, match="has no checkpoint from which another trial could resume"):
        TrialRun(tmp_path / "b", digits("data.validation_fraction=0.2"), "b").load(copy)


def test_a_damaged_copy_is_named(tmp_path):
    (copy := tmp_path / "copy").mkdir()
    (copy / "trial.json").write_text('{"trail": "a"}')
    with pytest.raises(DataError, match=r"trial\.json: is damaged"):
        TrialRun(tmp_path / "run", digits(), "a").load(copy)
