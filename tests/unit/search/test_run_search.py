import numpy as np
import pytest
from torch import nn

import raydpzv
from raydpzv.config.toml import override
from raydpzv.errors import InputError, SpecError
from raydpzv.keys import Key

X = (Key(0) / "tuned").generator().normal(size=(60, 8)).astype("float32")
Y = np.arange(60) % 3


def scenario(**settings):
    return raydpzv.horizontal(
        lambda: nn.Linear(8, 3), (X, Y), clients=Y, updates=4, every=2, **settings
    )


@pytest.mark.usefixtures("unrendered")
def test_trials_of_an_object_have_the_bits_of_their_runs_and_resume(tmp_path):
    spec = scenario()
    space = {"lr": {"loguniform": (1e-2, 1.0)}, "seed.grid": [0, 1]}
    found = raydpzv.tune(spec, space, tmp_path / "found", samples=2)
    rows = found.table.to_pylist()
    assert [row["status"] for row in rows] == ["done"] * 4
    alone = override(spec, [f"method.lr={rows[1]['method.lr']}", "seed=1"])
    assert raydpzv.run(alone).summary["digest"] == rows[1]["digest"]
    assert found.best.method.lr in {row["method.lr"] for row in rows}
    again = raydpzv.tune(spec, space, tmp_path / "found", samples=2)
    assert again.table["seconds"].to_pylist() == found.table["seconds"].to_pylist(), (
        "nothing is made again"
    )
    with pytest.raises(InputError, match="holds another search"):
        raydpzv.tune(spec, space, tmp_path / "found", samples=1)


@pytest.mark.parametrize(
    ("space", "options", "said"),
    [
        ({"lrate": {"grid": [0.1]}}, {}, "unknown setting in the space"),
        ({"lr": 0.1}, {}, "method.lr: wanted one of choice"),
        ({}, {}, "the space: wanted at least one setting"),
        ({"lr": {"grid": [0.1]}}, {"metric": "speed"}, "speed"),
        (
            {"lr": {"grid": [0.1]}},
            {"samples": 0},
            "samples: wanted a whole number of at least 1, got 0",
        ),
        (
            {"lr": {"grid": [0.1]}},
            {"jobs": 1.5},
            "jobs: wanted a whole number of at least 1, got 1.5",
        ),
        ({"lr": {"grid": [0.1]}}, {"actors": True}, "--runner local"),
        ({"lr": {"grid": [0.1]}}, {"runner": "roy"}, 'unknown runner "roy". Did you mean "ray"'),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_is_written(
    tmp_path, space, options, said
):
    with pytest.raises(SpecError, match=said):
        raydpzv.tune(scenario(), space, tmp_path / "none", **options)
    assert not (tmp_path / "none").exists()


def test_a_wall_clock_is_not_searched_silently(tmp_path):
    wall = raydpzv.load("digits_dpzv", ["clock.kind=wall", "budget.updates=2"])
    with pytest.warns(UserWarning, match="virtual"), pytest.raises(SpecError, match="lrr"):
        raydpzv.tune(wall, {"lrr": {"grid": [0.1]}}, tmp_path / "none")


def test_an_unknown_option_is_a_type_error(tmp_path):
    with pytest.raises(TypeError, match="sample"):
        raydpzv.tune(scenario(), {"lr": {"grid": [0.1]}}, tmp_path / "none", sample=3)


@pytest.mark.usefixtures("unrendered")
def test_a_search_shows_itself_without_markup_of_its_settings(tmp_path):
    folder = tmp_path / "<script>"
    found = raydpzv.tune(scenario(), {"lr": {"grid": [0.1, 0.2]}}, folder)
    shown = found._repr_html_()
    assert "2 trials by accuracy" in shown
    assert "the best is chosen by accuracy on the test rows" in shown
    assert "&lt;script&gt;" in shown
    assert "<script" not in shown
