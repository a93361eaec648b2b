import numpy as np
import pytest

import scenarios
from raydpzv.data.sources import Request
from raydpzv.experiment.prepare import load_data, prepare
from raydpzv.keys import Key

SMALL = (
    "data.train_rows=200",
    "data.test_rows=60",
    "data.validation_fraction=0.25",
    "evaluate.every=6",
)
VERTICAL = (
    "method.name=sgd",
    "privacy.mode=none",
    "split.clients=2",
    "method.batch=16",
    "method.lr=0.5",
    "model.bottom=linear",
    "model.head=linear",
    "budget.updates=24",
    "split.how=columns",
)
HORIZONTAL = (
    "method.name=fedavg",
    "model.kind=logistic",
    "split.clients=5",
    "method.cohort=5",
    "method.lr=0.5",
    "budget.updates=12",
)
ENGINES = ("torch", "compiled")


def run(name, overrides, engine):
    spec = scenarios.load(name, [*SMALL, *overrides, f"model.engine={engine}"])
    return spec, scenarios.run(spec)


def linear(flat, x):
    """One linear layer: weights [K, F], then biases [K]."""
    outputs = len(flat) // (x.shape[1] + 1)
    return x @ flat[: outputs * x.shape[1]].reshape(outputs, -1).T + flat[-outputs:]


def scores_of(spec, models, table):
    """The final model's scores by numpy, from what the run returns."""
    if "shared" in models:
        return linear(models["shared"], table.x.reshape(table.rows, -1))
    parts = prepare(spec).parts
    embeddings = [
        linear(models[f"client {m}"], part.select(table.x)) for m, part in enumerate(parts)
    ]
    return linear(models["server"], np.concatenate(embeddings, axis=1))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "overrides"), [("digits_dpzv", VERTICAL), ("digits_decomfl", HORIZONTAL)]
)
def test_validation_rows_are_scored_beside_the_test_rows_and_choose_the_best_model(
    name, overrides, engine
):
    spec, done = run(name, overrides, engine)
    rows = done.rows("evaluation").to_pylist()
    assert [row["part"] for row in rows] == ["test", "validation"] * (len(rows) // 2)
    assert [row["round"] for row in rows[::2]] == [row["round"] for row in rows[1::2]]
    split = load_data(Request(spec.data, Key(spec.seed) / "data"))
    assert (split.train.rows, split.validation.rows, split.test.rows) == (150, 50, 60)
    for table, last in ((split.test, rows[-2]), (split.validation, rows[-1])):
        scores = scores_of(spec, done.models, table)
        assert last["accuracy"] == pytest.approx((scores.argmax(1) == table.y).mean(), abs=1e-9)
        losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(table.rows), table.y]
        assert last["loss"] == pytest.approx(losses.mean(), rel=1e-4)
    best = max(range(len(rows) // 2), key=lambda i: rows[2 * i + 1]["accuracy"])
    assert done.summary["accuracy"] == rows[-2]["accuracy"]
    assert done.summary["best_accuracy"] == rows[2 * best]["accuracy"]
    assert done.summary["best_update"] == rows[2 * best]["round"]
    assert done.summary["validation_accuracy"] == rows[2 * best + 1]["accuracy"]


def test_without_validation_rows_nothing_is_called_best():
    spec = scenarios.load("digits_decomfl", [*SMALL, *HORIZONTAL, "data.validation_fraction=0"])
    done = scenarios.run(spec)
    assert set(done.rows("evaluation")["part"].to_pylist()) == {"test"}
    assert np.isnan(done.summary["best_accuracy"])
    assert done.summary["best_update"] is None
    assert done.summary["peak_accuracy"] == max(done.rows("evaluation")["accuracy"].to_pylist())
