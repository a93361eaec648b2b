import math

import numpy as np
import pytest

import raydpzv
import scenarios
from raydpzv.compare.compare_methods import compare
from raydpzv.engine.ranking import concordance
from raydpzv.errors import DataError, SpecError
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.rebuild import replay
from raydpzv.keys import Key
from raydpzv.records.store import digest
from raydpzv.report.page import write_report

SMALL = (
    "data.rows=400",
    "data.columns=3",
    "data.validation_fraction=0.2",
    "users.count=8",
    "split.clients=2",
    "budget.updates=4",
    "evaluate.every=2",
    "privacy.noise=seeded",
)
COMPARISON = """
title = "small"
scenario = "survival_users"
[[methods]]
label = "ULDP-SGD"
epsilons = [50.0]
[[methods]]
label = "FedAvg"
set = ["method.name=fedavg", "method.cohort=2", "method.lr=0.5"]
"""
METHODS = {
    "uldp_sgd": (),
    "uldp_avg": (),
    "uldp_naive": ("privacy.epsilon=200.0",),
    "uldp_zo": ("method.perturbations=4", "method.lr=1.0"),
}


def load(*overrides: str):
    return scenarios.load("survival_users", [*SMALL, *overrides])


@pytest.mark.parametrize("method", METHODS)
def test_methods_of_users_train_on_survival_times_and_record_concordances(method, tmp_path):
    spec = load(f"method.name={method}", *METHODS[method])
    done = scenarios.run(spec, tmp_path / "run")
    rows, scored = done.rows("concordance").to_pylist(), done.rows("evaluation").to_pylist()
    assert [(r["round"], r["part"]) for r in rows] == [(r["round"], r["part"]) for r in scored]
    assert all(math.isnan(r["accuracy"]) and math.isfinite(r["loss"]) for r in scored)
    for table, last in zip(
        (prepare(spec).split.test, prepare(spec).split.validation), rows[-2:], strict=True
    ):
        ranked = table.x.astype(float) @ done.models["shared"][:3]
        found = concordance(ranked, *table.targets.T)
        assert last["concordance"] == pytest.approx(found, abs=1e-3)
    assert done.summary["concordance"] == rows[-2]["concordance"]
    assert math.isnan(done.summary["accuracy"])
    assert done.rows("auc").num_rows == done.rows("balanced_accuracy").num_rows == 0
    page = write_report([tmp_path / "run"], tmp_path / "page")
    assert "concordance" in page.read_text()


def test_concordances_are_in_the_digest_where_there_are_any():
    done = scenarios.run(load())
    rows = {name: done.rows(name) for name in ("concordance", "evaluation")}
    changed = rows | {"concordance": rows["concordance"].slice(1)}
    names = ("concordance", "evaluation")
    assert digest(rows, names) != digest(changed, names)
    assert digest(rows | {"concordance": rows["concordance"].slice(0, 0)}, names) == digest(
        rows, ["evaluation"]
    )


def test_a_comparison_has_concordances_and_counts_no_run_as_failed(tmp_path):
    (tmp_path / "small.toml").write_text(COMPARISON)
    found = compare(str(tmp_path / "small.toml"), tmp_path / "out", seeds=1, overrides=SMALL[:-1])
    runs = found.runs.to_pylist()
    assert [run["outcome"] for run in runs] == ["ok"] * len(runs)
    assert all(0.4 < run["concordance"] < 1 for run in runs)
    assert all(math.isnan(run["accuracy"]) for run in runs)
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert "concordance" in page


def test_noise_hurts_and_training_helps_concordance():
    clear, noisy = (
        scenarios.run(load(f"privacy.epsilon={epsilon}")).summary["concordance"]
        for epsilon in (1e3, 0.01)
    )
    assert clear > 0.7
    assert noisy < clear - 0.05


@pytest.mark.parametrize(
    ("overrides", "kind", "words"),
    [
        (("method.name=uldp_group",), SpecError, "uldp_group.*no ε.*uldp_avg"),
        (
            ("users.least=1", "users.count=60"),
            DataError,
            r"users.least: wanted 2 .* silo \d has 1 of user \d.* users.least = 2",
        ),
        (("model.outputs=2",), SpecError, "model.outputs: wanted 1"),
        (("model.engine=compiled",), SpecError, "compiled"),
    ],
)
def test_what_does_not_go_with_the_cox_loss_is_refused(overrides, kind, words):
    with pytest.raises(kind, match=words):
        prepare(load(*overrides))


VERTICAL = {"dpzv": 0.05, "zoo_vfl": 0.02, "vafl": 0.2, "czofo": 0.2}
"""Methods and their step sizes."""
PARTIES = """
[data]
source = "survival"
file = "patients.csv"
target = "died"
time = "days"
scale = "none"
[split]
parties = {clinic = ["a", "b"], laboratory = ["c"]}
[method]
batch = 32
[budget]
updates = 300
[evaluate]
every = 300
"""


@pytest.fixture(scope="module")
def parties(tmp_path_factory):
    """Scenarios of a table of survival times whose columns are two parties'."""
    made = prepare(load("data.rows=600")).split.train
    folder = tmp_path_factory.mktemp("parties")
    rows = np.column_stack([made.x, made.targets])
    lines = ["a,b,c,days,died", *(",".join(f"{value:g}" for value in row) for row in rows)]
    (folder / "patients.csv").write_text("\n".join(lines))
    (folder / "patients.toml").write_text(PARTIES)
    return lambda method, *overrides: scenarios.load(
        folder / "patients.toml", [f"method.name={method}", *overrides]
    )


@pytest.mark.parametrize(("method", "lr"), VERTICAL.items())
def test_vertical_methods_learn_survival_times(parties, method, lr, tmp_path):
    done = scenarios.run(parties(method, f"method.lr={lr}"), tmp_path / "run")
    first, *_, last = done.rows("concordance").to_pylist()
    assert last["concordance"] > max(first["concordance"], 0.5) + 0.1
    assert done.accuracy is None
    assert done.epsilon is None
    assert done.summary["privacy_verdict"].startswith("NOT PRIVATE")
    assert replay(tmp_path / "run").verified


@pytest.mark.parametrize(
    ("method", "overrides", "words"),
    [
        (
            "dpzv",
            ["privacy.mode=paper", "privacy.epsilon=1.0", "privacy.clip=1.0"],
            r"privacy\.mode.*no ε",
        ),
        ("vafl", ["privacy.mode=paper", "privacy.sigma=1.0"], r"privacy\.mode.*no ε follows"),
        ("frozen", ["method.server=dp_sgd", "privacy.mode=proved"], r"privacy\.mode.*no ε follows"),
        ("dpzv", ["privacy.clip=1.0"], r"privacy\.clip: bounds the slope of each record"),
        ("czofo", ["method.variant=per_row"], r"method\.variant: .* no loss of a single row"),
        ("czofo", ["method.directions=coordinate"], r"method\.variant: .* no loss of a single row"),
        (
            "frozen",
            ["method.server=discriminant", "model.head=linear"],
            r'model\.loss: .* classes.* got "cox"',
        ),
        ("dpzv", ["model.engine=compiled"], "cannot run model.loss"),
        (
            "dpzv",
            ['split.parties={clinic = ["a", "b", "days"], laboratory = ["c"]}'],
            'wanted features for "clinic", got "days", which data.time names',
        ),
    ],
)
def test_vertical_runs_refuse_bounds_on_single_records_with_survival_times(
    parties, method, overrides, words
):
    with pytest.raises(SpecError, match=words):
        prepare(parties(method, *overrides))


def test_your_own_times_and_events_are_learned_both_ways():
    made = prepare(load("data.rows=400")).split.train
    x, y = made.x, made.targets
    for scenario in (
        raydpzv.horizontal(
            "mlp", (x, y), clients=4, cohort=4, method="fedavg", loss="cox", lr=0.5, updates=20
        ),
        raydpzv.vertical(
            "mlp", [x[:, :1], x[:, 1:]], y, method="vafl", loss="cox", lr=0.2, updates=300
        ),
    ):
        assert raydpzv.run(scenario).summary["concordance"] > 0.65
        assert raydpzv.privacy(scenario).lists == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda y: y[:, :1], r"a time and an event a row, \[40, 2\].* got \[40, 1\]"),
        (lambda y: np.where(y == 1, 2, y), "the event 2 in row 0"),
        (lambda y: np.where(y < 1, np.nan, y), "nan in row"),
        (lambda y: y - [30, 0], r"column 0 of y has the time -29 in row 0 .*0 or more"),
        (lambda y: np.array(["late"] * 40), "wanted numbers"),
    ],
)
def test_times_and_events_that_are_none_are_refused(change, words):
    y = np.stack([np.arange(1, 41.0), np.arange(40) % 2 == 0], 1)
    with pytest.raises(DataError, match=words):
        prepare(
            raydpzv.horizontal("mlp", (np.eye(40), change(y)), clients=2, loss="cox", updates=2)
        )


def test_generated_times_are_those_of_proportional_hazards():
    """A pair's earlier event is that of the higher true score with 1/(1 + e^-|difference|),
    whatever censors.
    """
    split = prepare(load("data.rows=4000", "data.validation_fraction=0.0")).split
    x, (times, events) = split.train.x.astype(float), split.train.targets.T
    slopes = np.linalg.lstsq(x, -np.log(times), rcond=None)[0]
    assert 0.3 < events.mean() < 0.9
    draws = Key(0).generator().standard_normal((2, 200_000)) * 1.5
    gap = np.abs(draws[0] - draws[1])
    found = concordance(x @ slopes, times, events)
    assert found == pytest.approx((1 / (1 + np.exp(-gap))).mean(), abs=0.03)
