import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray

import scenarios
from raydpzv.records.run_folder import RunFolder
from scenarios.tuning import resources, trainable

pytestmark = pytest.mark.ray

KILLED_AT = 30
SMALL = [
    "privacy.noise=seeded",
    "budget.updates=60",
    "evaluate.every=10",
    "data.train_rows=200",
    "record.checkpoint=1000",  # so that no other checkpoint is taken than at evaluations
]
TUNER = """
import numpy as np
import os, signal, sys
import scenarios
from ray import tune
from scenarios.tuning import resources, trainable

class Kill(tune.Callback):
    def on_trial_save(self, iteration, trials, trial, **info):
        kill(trial.last_result)
    def on_trial_result(self, iteration, trials, trial, result, **info):
        if OUT:
            kill(result)

def kill(result):
    # what is restored has this callback, too
    if os.getpid() == PID and result.get("updates", 0) >= AT:
        experiment_saved()
        os.kill(os.getpid(), signal.SIGKILL)

def experiment_saved():
    import gc
    from ray.tune.execution.tune_controller import TuneController
    for one in gc.get_objects():
        if isinstance(one, TuneController):
            one.checkpoint(force=True, wait=True)

PID = os.getpid()
OUT, AT, folder, overrides = (sys.argv[1] or None), int(sys.argv[2]), sys.argv[3], sys.argv[5:]
import ray
ray.init(sys.argv[4], log_to_driver=False)
spec = scenarios.load(overrides[0], overrides[1:])
tune.Tuner(
    tune.with_resources(trainable(spec, out=OUT), resources(spec)),
    param_space={"method.lr": tune.grid_search([np.float64(1e-3), 1e-2]), "seed": 1},
    tune_config=tune.TuneConfig(metric="accuracy", mode="max", max_concurrent_trials=1),
    run_config=tune.RunConfig(name="own", storage_path=folder, callbacks=[Kill()], verbose=0),
).fit()
"""


def killed_tuner(tmp_path, out, scenario, *overrides):
    """Run a Tuner in a process that kills itself with the first trial at update 30."""
    script = tmp_path / "tuner.py"
    script.write_text(TUNER)
    address = ray.get_runtime_context().gcs_address
    command = [
        sys.executable,
        script,
        str(out or ""),
        str(KILLED_AT),
        str(tmp_path / "tune"),
        address,
    ]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_CHDIR_TO_TRIAL_DIR": "0"}
    ended = subprocess.run(
        [*command, scenario, *overrides],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-2000:]


def digests(results):
    summaries = [
        json.loads(Path(r.metrics["run_folder"], "summary.json").read_text()) for r in results
    ]
    return {s["digest"] for s in summaries}, [s.get("updates_before", 0) for s in summaries]


def test_a_killed_tuner_resumes_its_trials(ray_session, tmp_path):
    """With a folder for the runs; in the next test Tune's checkpoints have the only copies."""
    from ray import tune

    out = tmp_path / "runs"
    spec = scenarios.load("digits_dpzv", SMALL)
    killed_tuner(tmp_path, out, "digits_dpzv", *SMALL)
    again = tune.Tuner.restore(
        str(tmp_path / "tune" / "own"),
        trainable=tune.with_resources(trainable(spec, out=out), resources(spec)),
    )
    results = again.fit()
    assert results.num_errors == 0, results.errors
    assert len(results) == 2
    alone = {
        scenarios.run(scenarios.load("digits_dpzv", [*SMALL, f"method.lr={lr}", "seed=1"])).summary[
            "digest"
        ]
        for lr in (1e-3, 1e-2)
    }
    found, before = digests(results)
    assert found == alone
    assert sorted(before) == [0, KILLED_AT]
    best = results.get_best_result("accuracy", "max")
    with best.checkpoint.as_directory() as copy:
        held = RunFolder.open(Path(copy))
        assert held.summary()["digest"] in alone
        assert (
            held.models().keys() == RunFolder.open(Path(best.metrics["run_folder"])).models().keys()
        )


def test_a_failed_trial_resumes_from_its_last_checkpoint(ray_session, tmp_path):
    from ray import tune

    spec = scenarios.load("digits_dpzv", SMALL)
    mark = tmp_path / "failed"

    class Failing(trainable(spec)):
        def step(self):
            if self._last.get("updates") == KILLED_AT and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().step()

    (result,) = tune.Tuner(
        tune.with_resources(Failing, resources(spec)),
        param_space={"seed": 1},
        run_config=tune.RunConfig(
            name="failing",
            storage_path=str(tmp_path),
            failure_config=tune.FailureConfig(max_failures=1),
            verbose=0,
        ),
    ).fit()
    assert mark.exists()
    assert result.error is None
    summary = json.loads(Path(result.metrics["run_folder"], "summary.json").read_text())
    assert summary["updates_before"] == KILLED_AT
    assert (
        summary["digest"]
        == scenarios.run(scenarios.load("digits_dpzv", [*SMALL, "seed=1"])).summary["digest"]
    )


def test_tunes_own_pbt_continues_a_donors_run_with_another_step_size(ray_session, tmp_path):
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    spec = scenarios.load("digits_dpzv", [*SMALL, "privacy.mode=none"])
    results = tune.Tuner(
        tune.with_resources(trainable(spec, out=tmp_path / "runs"), resources(spec)),
        param_space={"method.lr": tune.grid_search([1e-9, 0.03])},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            reuse_actors=True,
            scheduler=PopulationBasedTraining(
                time_attr="updates",
                perturbation_interval=40,
                quantile_fraction=0.5,
                custom_explore_fn=lambda config: {**config, "method.lr": config["method.lr"] * 0.8},
                synch=True,
            ),
        ),
        run_config=tune.RunConfig(name="pbt", storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert results.num_errors == 0, results.errors
    ended = [RunFolder.open(Path(result.metrics["run_folder"])) for result in results]
    (taken,) = [one for one in ended if one.spec().method.lr_at]
    assert taken.spec().method.lr == 0.03
    assert taken.spec().method.lr_at == ((41, pytest.approx(0.024)),)
    assert taken.summary()["updates"] == 60
    assert scenarios.run(taken.spec()).summary["digest"] == taken.summary()["digest"]
    assert list(tmp_path.glob("runs/*.set-aside-1"))
