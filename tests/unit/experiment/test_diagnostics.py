"""Runs that did not fail and are no good: one class nearly everywhere, far below their own best."""

import json
import math

import numpy as np
import pyarrow as pa
import pytest

import scenarios
from raydpzv.errors import Diverged
from raydpzv.experiment.diagnostics import collapsed, failure, fallen, not_above, warnings
from raydpzv.experiment.prepare import class_shares, prepare
from raydpzv.records.schema import SCHEMAS

WINE = (
    "data.source=wine",
    "split.how=columns",
    "method.batch=32",
    "budget.updates=300",
    "privacy.noise=seeded",
)


@pytest.mark.parametrize(
    ("top", "largest", "expected"),
    [
        (0.97, 0.389, True),  # wine at ε = 1: 41.7 % where frozen clients have 88.9 %
        (0.9, 0.5, True),
        (0.89, 0.1, False),  # below the share from which a model is suspect
        (0.95, 0.9, False),  # the data are like this
        (0.975, 0.9, False),
        (0.985, 0.9, True),  # of the other tenth, less than a fifth is predicted as anything else
        (1.0, 1.0, False),  # there is but one class
        (math.nan, 0.5, False),
        (0.97, math.nan, False),
    ],
)
def test_a_model_has_collapsed_where_the_data_do_not_explain_its_one_class(top, largest, expected):
    assert collapsed(top, largest) is expected


@pytest.mark.parametrize(
    ("best", "accuracy", "expected"),
    [
        (0.889, 0.417, True),
        (0.9, 0.72, True),
        (0.9, 0.73, False),
        (0.9, 0.9, False),
        (0.0, 0.0, False),
        (math.nan, 0.5, False),
        (0.9, math.nan, False),
    ],
)
def test_a_run_has_fallen_that_lost_a_fifth_of_its_best(best, accuracy, expected):
    assert fallen(best, accuracy) is expected


def test_equal_to_the_control_is_not_above_it():
    assert not_above(0.5, 0.5)
    assert not not_above(0.51, 0.5)
    assert not not_above(math.nan, 0.5)
    assert not not_above(0.5, math.nan)


def test_a_collapsed_run_says_so_in_its_summary():
    summary = scenarios.run(
        # which has the same bits on every processor
        scenarios.load("digits_dpzv", [*WINE, "method.lr=0.1", "model.engine=compiled"])
    ).summary
    assert summary["accuracy"] == pytest.approx(17 / 36)
    assert summary["top_share"] == pytest.approx(33 / 36)
    assert summary["largest_class_share"] == pytest.approx(14 / 36)
    by_word = {line.partition(":")[0]: line for line in summary["warnings"]}
    assert "91.7 % of the held-out rows" in by_word["COLLAPSED"]
    assert "the largest class is 38.9 %" in by_word["COLLAPSED"]
    assert (
        "the final accuracy 47.2 % is far below the run's peak, 61.1 % at update"
        in by_word["FALLEN"]
    )


def test_a_proved_run_warns_of_nothing():
    summary = scenarios.run(
        scenarios.load("digits_dpzv", [*WINE, "privacy={}", "method.lr=0.005"])
    ).summary
    assert summary["accuracy"] > 0.8
    assert summary["warnings"] == []


def test_slopes_that_are_no_numbers_are_counted_over_all_releases():
    spec = scenarios.load(
        "digits_dpzv", [*WINE, "method.lr=0.005", "budget.updates=6", "evaluate.every=6"]
    )
    tables = scenarios.run(spec).tables
    release = tables["release"]
    counts = [0, 2, 1, *[0] * (release.num_rows - 3)]
    place = release.schema.get_field_index("nonfinite")
    bad = release.set_column(
        place, release.schema.field(place), pa.array(counts, release.schema.types[place])
    )
    for table, told in (
        (release, []),
        (bad, ["3 per-sample slopes were NaN or infinite and counted as 0"]),
    ):
        said = warnings(prepare(spec), {**tables, "release": table}, ("", ""))
        assert [line for line in said if "slopes" in line] == told


def test_a_step_size_that_changes_after_the_end_is_told_of():
    changes = ["method.lr_at=[[2, 0.01], [7, 0.005]]", "budget.updates=6", "evaluate.every=3"]
    told = scenarios.run(scenarios.load("digits_dpzv", [*WINE, "privacy={}", *changes])).summary[
        "warnings"
    ]
    assert [line for line in told if line.startswith("method.lr_at: what it changes from 7 on")]
    none = [*changes[:1], "budget={seconds=0.5}"]
    told = scenarios.run(scenarios.load("digits_dpzv", [*WINE, "privacy={}", *none])).summary[
        "warnings"
    ]
    assert not [line for line in told if "lr_at" in line], "where updates are not planned"


def test_a_horizontal_run_that_falls_says_so():
    short = (
        "data.train_rows=150",
        "data.test_rows=60",
        "budget.updates=30",
        "evaluate.every=2",
        "seed=2",
    )
    wild = ("method.name=fedavg", "method.lr=1.0", "method.local_steps=10")
    summary = scenarios.run(scenarios.load("digits_decomfl", [*short, *wild])).summary
    assert summary["failure"] is None
    assert summary["largest_class_share"] == pytest.approx(0.1, abs=0.03)
    assert [line.partition(":")[0] for line in summary["warnings"]] == ["COLLAPSED", "FALLEN"]


# When a run's last evaluation is no result, whatever its accuracy says.

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
    noise = [
        "privacy.mode=paper",
        "privacy.epsilon=1.0",
        "privacy.delta=1e-3",
        "privacy.noise=seeded",
    ]
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
