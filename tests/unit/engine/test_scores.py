"""Measures of held-out rows against scikit-learn, and what own metrics may return."""

import math
import sys

import numpy as np
import pytest
import torch
from sklearn import metrics as theirs

from raydpzv.engine.scores import RESERVED, fit, measured, own_metrics, with_own
from raydpzv.engine.split_model import Metrics
from raydpzv.errors import InputError, SpecError
from raydpzv.foreign import handle
from raydpzv.keys import Key
from raydpzv.records.schema import SCHEMAS
from raydpzv.registry import LOSSES
from raydpzv.report.comparison_table import CURVES, RUNS
from raydpzv.search.tune_plan import METRICS, OF_NUMBERS

DRAW = (Key(0) / "scores").generator()
Y = DRAW.standard_normal((50, 2))
SCORES = (Y + 0.5 * DRAW.standard_normal((50, 2))).astype(np.float32)


def test_measures_of_numbers_are_those_of_scikit_learn():
    found = fit(torch.tensor(SCORES), torch.tensor(Y))
    assert found["rmse"] == pytest.approx(math.sqrt(theirs.mean_squared_error(Y, SCORES)))
    assert found["r2"] == pytest.approx(theirs.r2_score(Y, SCORES))


def test_a_constant_label_has_no_explained_variance():
    found = fit(torch.tensor(SCORES), torch.ones(50, 2, dtype=torch.float64))
    assert math.isnan(found["r2"])
    assert math.isfinite(found["rmse"])


def test_accuracy_is_that_of_the_loss_and_none_of_numbers():
    bits = Y[:, 0] > 0
    binary = measured(torch.tensor(SCORES[:, :1]), torch.tensor(bits).long(), LOSSES["binary"], 0.1)
    assert binary.accuracy == pytest.approx(theirs.accuracy_score(bits, SCORES[:, 0] > 0))
    assert binary.roc_auc == pytest.approx(theirs.roc_auc_score(bits, SCORES[:, 0]))
    several = measured(
        torch.tensor(SCORES), torch.tensor((Y > 0).astype(float)), LOSSES["multi_label"], 0.1
    )
    assert several.accuracy == pytest.approx(((SCORES > 0) == (Y > 0)).mean())
    numbers = measured(torch.tensor(SCORES), torch.tensor(Y), LOSSES["squared_error"], 0.1)
    assert math.isnan(numbers.accuracy)
    assert math.isnan(numbers.top_share)
    own = measured(
        torch.tensor(SCORES), torch.tensor(Y), LOSSES[handle(lambda s, y: s.sum(1))], 0.1
    )
    assert math.isnan(own.accuracy)
    assert not own.measures


def test_own_metrics_get_arrays_of_their_own():
    def spoil(scores, y):
        scores[:], y[:] = 0, 0
        return {"zero": float(scores.sum()), "whole": np.int64(2)}

    found = with_own(Metrics(0.5, 0.1, 0.2, measures={"rmse": 1.0}), handle(spoil), SCORES, Y)
    assert found.measures == {"rmse": 1.0, "zero": 0.0, "whole": 2.0}
    assert SCORES.any()
    assert with_own(found, "", SCORES, Y) is found


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        ({"accuracy": 1.0}, '"accuracy" is a column of the program\'s own'),
        ({"validation_cost": 1.0}, "column of the program's own"),
        ({"cost": "high"}, "wanted a float for cost, got str 'high'"),
        ({"cost": True}, "wanted a float for cost, got bool"),
        ({"cost": torch.ones(())}, r"got Tensor tensor\(1.\); convert it with float\(\)"),
        ({"a cost": 1.0}, "names of letters, digits and underscores, got 'a cost'"),
        ({2: 1.0}, "names of letters"),
        ({}, "wanted a table of floats by name"),
        (1.0, "wanted a table of floats by name, got 1.0"),
    ],
)
def test_what_is_no_table_of_floats_is_refused(returned, complaint):
    with pytest.raises(InputError, match=complaint):
        own_metrics(handle(lambda scores, y: returned))(SCORES, Y)


def test_errors_of_own_metrics_are_said_in_a_line():
    with pytest.raises(
        InputError, match=r"your metrics fail on scores \[50, 2\] .*ZeroDivisionError"
    ):
        own_metrics(handle(lambda scores, y: 1 / 0))(SCORES, Y)
    with pytest.raises(
        InputError, match=r"your metrics fail on scores \[50, 2\] .*SystemExit: gone"
    ):
        own_metrics(handle(lambda scores, y: sys.exit("gone")))(SCORES, Y)
    with pytest.raises(SpecError, match="wanted a function of scores and labels"):
        own_metrics(handle([1]))


def test_no_column_of_rows_comparisons_and_searches_can_be_shadowed():
    schemas = [
        SCHEMAS[name]
        for name in ("evaluation", "auc", "balanced_accuracy", "concordance", "measure")
    ]
    names = {name for schema in (*schemas, RUNS, CURVES) for name in schema.names}
    ours = {name.removeprefix("validation_") for name in (*METRICS, *OF_NUMBERS)}
    assert names | ours <= RESERVED
