"""When a run's last evaluation is no result, whatever its accuracy says."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
import pytest

import scenarios
from raydpzv.errors import Diverged
from raydpzv.experiment.diagnostics import failure
from raydpzv.experiment.prepare import class_shares
from raydpzv.records.schema import SCHEMAS

SHARES = [0.25, 0.35, 0.4]


def rows(*evaluations):
    """Give rows with evaluations of (accuracy, loss, top share)."""
    listed = [
        {"round": i, "time": 0.0, "part": "test", "accuracy": a, "loss": x, "top_share": s}
        for i, (a, x, s) in enumerate(evaluations)
    ]
    return {"evaluation": pa.Table.from_pylist(listed, schema=SCHEMAS["evaluation"])}


@pytest.mark.parametrize(
    ("evaluations", "word"),
    [
        ([(0.1, 1.2, 0.5), (0.8, 0.4, 0.4)], ""),
        ([(0.1, 1.2, 0.5), (0.8, math.nan, 0.4)], "diverged"),
        ([(0.1, 1.2, 0.5), (math.nan, 1.0, 0.4)], "diverged"),
        ([(0.1, 1.2, 0.5), (0.8, math.inf, 0.4)], "diverged"),
        ([(0.1, 1.2, 0.5), (0.3, 3.7, 0.4)], "diverged"),
        ([(0.6, 1.2, 0.5), (0.5, 3.7, 0.4)], "diverged"),
        ([(0.1, 1.2, 0.5), (0.7, 1.0, 0.4), (0.5, 3.7, 0.4)], "diverged"),
        ([(0.1, 1.2, 0.5), (0.55, 1.0, 0.4), (0.5, 3.7, 0.4)], ""),
        ([(0.1, 1.2, 0.5), (0.8, 3.7, 0.4)], ""),
        ([(0.1, 1.2, 0.5), (0.5, 3.5, 0.4)], ""),
        ([(0.1, 0.2, 0.5), (0.5, 2.9, 0.4)], ""),
        ([(0.1, 1.2, 0.5), (0.35, 1.1, 1.0)], "constant prediction"),
        ([(0.1, 1.2, 0.5), (0.35, 99.0, 1.0)], "constant prediction"),
        ([(0.1, 1.2, 0.5), (0.35, 1.1, 0.6)], "one class' share"),
        ([(0.1, 1.2, 0.5), (0.3501, 1.1, 0.6)], ""),
        ([(0.35, 1.2, 1.0), (0.8, 0.4, 0.4)], ""),
        ([], ""),
    ],
)
def test_a_failure_is_named_by_the_last_evaluation(evaluations, word):
    found, why = failure(rows(*evaluations), SHARES)
    assert found == word
    assert bool(why) == bool(word)


def test_shares_are_those_of_the_held_out_labels():
    assert class_shares(np.array([0, 1, 1, 3]), 5) == [0.25, 0.5, 0.0, 0.25, 0.0]


def test_a_run_that_predicts_one_class_says_so_in_its_summary():
    noise = ["privacy.mode=paper", "privacy.epsilon=1.0", "privacy.delta=1e-3", "privacy.noise=seeded"]
    spec = scenarios.load("vafl", [*noise, "privacy.clip=0.1", "budget.updates=1000"])
    summary = scenarios.run(spec).summary
    assert summary["failure"] == "constant prediction"
    assert "one class" in summary["failure_reason"]
    assert summary["warnings"][0].startswith("CONSTANT PREDICTION: ")
    healthy = scenarios.run(scenarios.load("vafl", ["budget.updates=300"])).summary
    assert healthy["failure"] is None
    assert healthy["failure_reason"] is None


def test_a_run_that_ends_by_divergence_says_so_in_its_summary(tmp_path):
    spec = scenarios.load("vafl", ["method.lr=1e9", "budget.updates=300"])
    with pytest.raises(Diverged):
        scenarios.run(spec, tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["failure"] == "diverged"
    assert "Diverged" in summary["failure_reason"]
