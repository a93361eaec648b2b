"""Whether a run draws fresh noise, and what its summary is made from."""

from __future__ import annotations

from pathlib import Path

import pytest

import scenarios
from raydpzv.experiment.finalize import fresh_noise
from raydpzv.experiment.prepare import prepare
from raydpzv.records import store
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.schema import SCHEMAS


@pytest.mark.parametrize(
    ("name", "changes", "fresh"),
    [
        ("digits_dpzv", [], True),
        ("digits_dpzv", ["clock.kind=wall", "arrivals.rate=100"], True),
        ("digits_dpzv", ["privacy.noise=seeded"], False),
        ("digits_dpzv", ["privacy.mode=none"], False),
        ("digits_private", ["privacy.head_clip=1.0", 'method.server="dp_sgd"'], False),  # it never resumes
    ],
)
def test_noise_of_the_system_is_fresh(name, changes, fresh):
    delta = ["privacy.delta=1e-4"] if name == "digits_dpzv" else []
    assert fresh_noise(prepare(scenarios.load(name, ["data.train_rows=200", *delta, *changes]))) is fresh


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
