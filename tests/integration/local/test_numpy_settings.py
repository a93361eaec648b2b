"""Settings that come in from Python with NumPy's types: every door takes them as Python's own."""

import dataclasses
import functools

import numpy as np
import pytest

import raydpzv
from raydpzv.config.toml import as_tree, override
from raydpzv.errors import InputError
from raydpzv.experiment.rebuild import rebuild
from raydpzv.search.space import in_order, literal
from tests.helpers.loading import refusal
from tests.helpers.report_views import without_pixels

SMALL = ("budget.updates=4", "evaluate.every=2", "data.train_rows=100", "privacy.noise=seeded")
X = np.arange(240, dtype=np.float32).reshape(40, 6) / 240
Y = np.arange(40) % 2
GIVEN = {
    "lr": (np.float32(0.25), 0.25),
    "batch": (np.int64(8), 8),
    "smoothing": (np.array(0.5), 0.5),
    "updates": (np.uint8(4), 4),
    "seed": (np.int32(3), 3),
    "title": (np.str_("a title"), "a title"),
    "model__hidden": (np.array([4, 5]), [4, 5]),
    "classes": ([np.int64(0), np.int64(1)], [0, 1]),
    "data__centre": (np.zeros(6, np.float32), [0.0] * 6),
    "data__spread": (tuple(np.ones(6)), [1.0] * 6),
}
OWN = {name: own for name, (_, own) in GIVEN.items()}
OTHERS = {name: other for name, (other, _) in GIVEN.items()}


def test_horizontal_and_vertical_take_them():
    horizontal = functools.partial(raydpzv.horizontal, "mlp", (X, Y), scale="public")
    vertical = functools.partial(raydpzv.vertical, "mlp", [X[:, :3], X[:, 3:]], Y, scale="public")
    own, others = (
        horizontal(clients=4, **OWN, method__server_model=True),
        horizontal(clients=np.int64(4), **OTHERS, method__server_model=np.True_),
    )
    assert as_tree(own) == as_tree(others)
    assert horizontal(clients=np.array(4), **OWN) == horizontal(clients=4, **OWN)
    own, others = vertical(**OWN, rate=[1.0, 2.0]), vertical(**OTHERS, rate=np.array([1.0, 2.0]))
    assert as_tree(own) == as_tree(others)
    assert repr(as_tree(own)) == repr(as_tree(others))


def test_a_scenario_that_was_changed_in_place_runs_and_replays(tmp_path):
    spec = raydpzv.load("digits_dpzv", [*SMALL, "method.lr=0.25", "seed=3", "method.batch=8"])
    plain = raydpzv.load("digits_dpzv", SMALL)
    method = dataclasses.replace(plain.method, lr=np.float32(0.25), batch=np.int64(8))
    changed = plain.model_copy(update={"seed": np.int64(3), "method": method})
    run = raydpzv.run(changed, out=tmp_path / "run")
    assert run.summary["digest"] == raydpzv.run(spec).summary["digest"]
    assert rebuild(tmp_path / "run").verified
    assert raydpzv.privacy(changed).claims == raydpzv.privacy(spec).claims
    wrong = plain.model_copy(update={"seed": np.int64(-3)})
    with pytest.raises(InputError, match=r"seed: wanted .*-3"):
        raydpzv.run(wrong)


def test_a_comparison_takes_them(tmp_path, monkeypatch):
    without_pixels(monkeypatch)
    compared = raydpzv.compare(
        "digits_dpzv",
        tmp_path / "two",
        overrides=np.array(SMALL),
        seeds=np.int64(1),
        epsilons=[np.float32(1), "none"],
        targets=np.array([0.5]),
        jobs=np.int64(1),
    )
    assert set(compared.runs["seed"].to_pylist()) == {0}
    again = raydpzv.compare(
        "digits_dpzv",
        tmp_path / "two",
        overrides=list(SMALL),
        seeds=np.arange(1),
        epsilons=[1, "none"],
        targets=[0.5],
    )
    assert again.runs["accuracy"] == compared.runs["accuracy"]


def test_a_search_takes_them(tmp_path, monkeypatch):
    without_pixels(monkeypatch)
    space = {
        "lr": {"uniform": np.array([0.001, 0.01], np.float32)},
        "method.perturbations": {"randint": (np.int64(1), np.int64(2))},
        "seed": {"grid": np.arange(2)},
        "method.batch": {"choice": [np.int16(8)]},
    }
    terms = {"samples": np.int64(1), "draw_seed": np.uint8(3), "jobs": np.int64(1)}
    terms["epsilon"] = np.float64(1e9)
    changes = [*SMALL, "privacy.noise=system"]
    found = raydpzv.tune("digits_dpzv", space, tmp_path / "s", overrides=changes, **terms)
    assert found.table["status"].to_pylist() == ["done", "done"]
    assert [trial.values["seed"] for trial in found.plan.trials] == [0, 1]


def test_a_trial_of_an_own_tuner_takes_them():
    config = {
        "method.lr": np.float32(0.25),
        "method.perturbations": np.int64(2),
        "method.coins": np.str_("seed"),
        "model.hidden": np.array([4, 5]),
        "method.momentum": np.array(0.5),
        "seed": np.uint32(7),
    }
    plain = raydpzv.load("digits_dpzv")
    settings = in_order(f"{name}={literal(value)}" for name, value in config.items())
    found = override(plain, settings)
    assert (found.method.lr, found.method.perturbations, found.method.momentum) == (0.25, 2, 0.5)
    assert (found.seed, found.model.hidden) == (7, (4, 5))


@pytest.mark.parametrize(
    "value", [np.complex64(1), np.datetime64("2020-01-01"), np.array([object()]), np.bytes_(b"a")]
)
def test_what_is_no_number_is_named_in_one_line(value):
    with refusal(InputError, r"wanted .*, got "):
        raydpzv.horizontal("mlp", (X, Y), updates=4, lr=value)
