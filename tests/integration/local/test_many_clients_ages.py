"""Staleness rows of many clients: sums over windows say what all rows say, and cost less than those of 16 clients."""

from __future__ import annotations

from pathlib import Path

import pytest

import scenarios
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.runner import continued, run_local
from raydpzv.records import metrics

MANY = (
    "split.clients=64",
    "split.how=columns",
    "privacy.noise=seeded",
    "model.hidden=[2]",
    "model.embedding=2",
)


def loaded(*more: str):
    return scenarios.load("digits_dpzv", [*MANY, "budget.updates=150", "evaluate.every=75", *more])


@pytest.fixture(scope="module")
def whole():
    return scenarios.run(loaded())


def test_sums_have_the_folds_of_all_rows_and_the_run_its_bits(whole):
    every = scenarios.run(loaded("record.staleness=all"))
    assert every.rows("staleness").num_rows == 150 * 63
    assert whole.rows("staleness").num_rows <= 150 * 15
    assert whole.summary["staleness"] == every.summary["staleness"]
    assert whole.summary["model_digest"] == every.summary["model_digest"]
    found, expected = (metrics.staleness(run.rows("staleness"), 64) for run in (whole, every))
    assert str(found) == str(expected)


@pytest.mark.parametrize("until", [1, 40, 64, 100])
def test_a_run_that_stopped_within_a_window_ends_with_the_same_digest(whole, until: int, tmp_path: Path):
    out = tmp_path / "run"
    assert run_local(prepare(loaded()), RunOptions(out, until=until)).summary["status"] == "stopped"
    prepared, folder, _ = continued(out)
    again = run_local(prepared, RunOptions(folder))
    assert again.rows("staleness").num_rows >= whole.rows("staleness").num_rows
    assert again.summary["digest"] == whole.summary["digest"]


def test_up_to_16_clients_each_service_has_a_row_for_each_other():
    run = scenarios.run(loaded("split.clients=16"))
    assert run.rows("staleness").num_rows == 150 * 15
