"""Checkpoints of virtual runs on actors: stopped there, gone on with there, to the bits of a run in one process."""

from __future__ import annotations

import pytest

import scenarios
from raydpzv.experiment.reexecute import resuming
from raydpzv.records.run_folder import RunFolder
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import stop_after

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

SMALL = (
    *("budget.updates=1500", "evaluate.every=500", "data.train_rows=150", "data.test_rows=40"),
    *(
        "resources.client_actors=2",
        "privacy.noise=seeded",
        "record.checkpoint_updates=50",
        "record.flush=1000",
    ),
    *("clock.compute=0.2", "clock.compute_law=exponential", "network.latency=0.05"),
)


@pytest.mark.parametrize(("name", "lane"), [("digits_dpzv", "socket"), ("vafl", "ray")])
def test_a_stopped_run_goes_on_from_its_checkpoint(tmp_path, name, lane):
    spec = scenarios.load(name, [*SMALL, f"resources.lane={lane}"])
    whole = scenarios.run(scenarios.load(name, [*SMALL])).summary
    stop, progress = stop_after(20)
    first = scenarios.run(spec, tmp_path / "run", runner="ray", stop=stop, progress=progress).summary
    assert 20 <= first["updates"] < 1500
    assert first["checkpoints"]["count"] >= 1
    assert first["checkpoints"]["bytes"] > 0
    assert RunFolder.open(tmp_path / "run").checkpoint().round == first["updates"]
    experiment, folder, _ = resuming(tmp_path / "run")
    served = []
    end = run_prepared(
        experiment, folder, runner="ray", progress=lambda status: served.append(status.updates)
    ).summary
    assert min(count for count in served if count) >= first["updates"]
    for field in ("digest", "model_digest", "bytes_up", "vector_length"):
        assert end.get(field) == whole.get(field), field
