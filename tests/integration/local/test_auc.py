import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

import scenarios
from raydpzv.data.sources import Request
from raydpzv.errors import DataError
from raydpzv.experiment.prepare import load_data, prepare
from raydpzv.keys import Key

DATA = (
    "data.source=breast_cancer",
    "data.train_rows=200",
    "data.validation_fraction=0.25",
    "evaluate.every=6",
)
VERTICAL = (
    "method.name=sgd",
    "privacy.mode=none",
    "split.clients=2",
    "method.batch=16",
    "split.how=columns",
    "model.bottom=linear",
    "model.head=sum",
    "budget.updates=12",
)
HORIZONTAL = (
    "method.name=fedavg",
    "model.kind=logistic",
    "split.clients=5",
    "method.cohort=5",
    "budget.updates=6",
)


def linear(flat, x):
    outputs = len(flat) // (x.shape[1] + 1)
    return x @ flat[: outputs * x.shape[1]].reshape(outputs, -1).T + flat[-outputs:]


def margins_of(spec, models, table):
    """Scores of class 1 less those of class 0 by the final model, by numpy."""
    if "shared" in models:
        scores = linear(models["shared"], table.x)
    else:
        parts = prepare(spec).parts
        scores = models["server"] + sum(
            linear(models[f"client {m}"], part.select(table.x)) for m, part in enumerate(parts)
        )
    return scores[:, 1] - scores[:, 0]


@pytest.mark.parametrize("engine", ["torch", "compiled"])
@pytest.mark.parametrize(
    ("name", "overrides"), [("digits_dpzv", VERTICAL), ("digits_decomfl", HORIZONTAL)]
)
def test_a_run_on_two_classes_has_the_areas_of_its_scores_on_record(name, overrides, engine):
    spec = scenarios.load(name, [*DATA, *overrides, f"model.engine={engine}"])
    done = scenarios.run(spec)
    rows, scored = done.rows("auc").to_pylist(), done.rows("evaluation").to_pylist()
    assert [(r["round"], r["part"]) for r in rows] == [(r["round"], r["part"]) for r in scored]
    split = load_data(Request(spec.data, Key(spec.seed) / "data"))
    for table, last in ((split.test, rows[-2]), (split.validation, rows[-1])):
        margins = margins_of(spec, done.models, table)
        assert last["roc_auc"] == pytest.approx(roc_auc_score(table.y, margins), abs=1e-3)
        assert last["pr_auc"] == pytest.approx(average_precision_score(table.y, margins), abs=1e-3)
    assert (done.summary["roc_auc"], done.summary["pr_auc"]) == (
        rows[-2]["roc_auc"],
        rows[-2]["pr_auc"],
    )


def test_a_run_on_more_classes_has_none():
    done = scenarios.run(
        scenarios.load("digits_decomfl", ["data.train_rows=100", "budget.updates=2"])
    )
    assert done.rows("auc").num_rows == 0
    assert np.isnan(done.summary["roc_auc"])


def test_test_rows_of_one_class_are_refused(tmp_path):
    """Of 40 test rows 2 are of class 1: 20 rows drawn by class hold one of them, 3 rows hold none
    with this seed.
    """
    (tmp_path / "rare.csv").write_text(
        "a,y\n" + "".join(f"{i},{int(i < 10)}\n" for i in range(200))
    )
    given = ["data.source=csv", f"data.file={tmp_path / 'rare.csv'}", "data.target=y", *HORIZONTAL]
    spec = scenarios.load("digits_decomfl", [*given, "data.test_rows=20"])
    assert prepare(spec).split.test.y.sum() == 1
    with pytest.raises(
        DataError, match=r'the 3 test rows of "rare.csv" hold class 0 alone of two: .* no AUC'
    ):
        prepare(scenarios.load("digits_decomfl", [*given, "data.test_rows=3"]))
