"""What a run tells its storage of releases that a second draw would make once more."""

from __future__ import annotations

from pathlib import Path

import pytest

import scenarios
from raydpzv.experiment.finalize import fresh_noise
from raydpzv.experiment.prepare import prepare
from raydpzv.records import store
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.schema import SCHEMAS
from raydpzv.storage.commits import ANNOUNCED, UNBOUNDED
from raydpzv.storage.uploader import FreshNoise

SMALL = ["data.train_rows=200", "privacy.delta=1e-4"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["budget.updates=1000"], FreshNoise(ANNOUNCED, 20)),
        (["budget.updates=10"], FreshNoise(ANNOUNCED, 1)),
        (["budget.updates=1000", "privacy.noise=seeded"], FreshNoise()),
        (["budget.updates=1000", "clock.kind=wall", "arrivals.rate=100"], FreshNoise(UNBOUNDED)),
        (
            ["budget.updates=1000", "clock.kind=wall", "arrivals.rate=100", "privacy.noise=seeded"],
            FreshNoise(),
        ),
        (["budget.updates=1000", "privacy.mode=none"], FreshNoise()),
    ],
)
def test_a_fiftieth_of_the_plan_may_be_ahead_of_the_storage_if_time_can_stand_still(changes, told):
    assert fresh_noise(prepare(scenarios.load("digits_dpzv", [*SMALL, *changes]))) == told


def test_without_a_plan_so_many_may_be_and_a_run_that_no_record_brings_back_need_not_say():
    noise = ["privacy={}", "privacy.mode=paper", "privacy.sigma=1.0", "privacy.clip=0.1"]
    unplanned = [*noise, "budget={}", "budget.seconds=9"]
    assert fresh_noise(prepare(scenarios.load("digits_dpzv", [*unplanned, *SMALL]))) == FreshNoise(
        ANNOUNCED, 100
    )
    kept_nowhere = ["data.train_rows=200", "privacy.head_clip=1.0", 'method.server="dp_sgd"']
    assert fresh_noise(prepare(scenarios.load("digits_private", kept_nowhere))) == FreshNoise()


@pytest.mark.parametrize("name", ["frozen", "digits_decomfl"])
def test_a_summary_reads_no_rows_back_that_the_run_has_in_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    spec = scenarios.load(name, ["budget.updates=12", "record.checkpoint_updates=5"])
    read: list[Path] = []
    with monkeypatch.context() as patch:
        whole = store._read
        patch.setattr(store, "_read", lambda part, *given: read.append(part) or whole(part, *given))
        run = scenarios.run(spec, tmp_path / "run")
    assert read == []
    rows = RunFolder.open(tmp_path / "run").rows()
    assert rows["service"].num_rows >= 12
    assert run.tables.keys() == rows.keys() == SCHEMAS.keys()
    assert store.digest(run.tables, SCHEMAS) == store.digest(rows, SCHEMAS)
