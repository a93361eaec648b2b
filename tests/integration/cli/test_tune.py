"""What `raydpzv tune` refuses before Ray starts."""

import sys

import pytest

from tests.helpers.commands import call, complaint

SPACE = 'method.lr.loguniform = [1e-3, 1e-1]\nmethod.server.choice = ["sgd", "zo"]\nseed.grid = [0, 1]\n'


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "space.toml").write_text(SPACE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--set method.lr=0.1", "method.lr: is fixed by --set"),
        ("--metric acuracy", 'Did you mean "accuracy"'),
        ("--metric roc_auc", "wanted data of two classes"),
        ("--epsilon 1e-9", "--epsilon 1e-09: the least of 20 trials"),
        ("--scheduler pb", 'got "pb". Did you mean "pbt"?'),
        ("--scheduler pbt", "method.server: --scheduler pbt varies"),
        ("--interval 10", "--interval: goes with --scheduler pbt"),
        ("--search optun", 'Did you mean "optuna"'),
        ("--search optuna", "seed: wanted a setting that is drawn"),
        ("--held-out method.lr=1", "--held-out: wanted settings of"),
        ("--space nowhere.toml", "cannot read the space file"),
        ("--space digits_feild", 'Did you mean "digits_field"'),
        ("--runner local", "No such option"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(place, words, said):
    done = call(
        "tune", "digits_dpzv", "--space", "space.toml", *words.split(), "--quiet", "--out", "never"
    )
    assert said in complaint(done)
    assert not (place / "never").exists()


def test_names_that_nothing_has_are_refused(place):
    assert 'Did you mean "digits_dpzv"' in complaint(
        call("tune", "digits_dpz", "--space", "space.toml")
    )
    assert "Missing option '--space'" in complaint(call("tune", "digits_field"))
    said = complaint(call("tune", "digits_field", "--space", "digits_users_field"))
    assert 'digits_field has no method "ULDP-AVG, records"' in said


def test_the_old_command_names_the_new_one(capsys):
    from scenarios.cli import app

    with pytest.raises(SystemExit) as ended:
        app(["search", "digits_dpzv", "--space", "space.toml"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "raydpzv: search: is no command any more; use `raydpzv tune SCENARIO --space FILE`\n"
    )


def test_without_ray_tune_or_optuna_one_line_says_how_to_install_it(place, monkeypatch):
    (place / "drawn.toml").write_text("method.lr.loguniform = [1e-3, 1e-1]\n")
    words = ["tune", "digits_dpzv", "--space", "drawn.toml", "--out", "never", "--quiet"]
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert complaint(call(*words, "--search", "optuna")) == (
        "raydpzv: Optuna is not installed: pip install 'raydpzv[optuna]', or draw at random: leave "
        "out --search"
    )
    monkeypatch.setitem(sys.modules, "ray.tune", None)
    assert complaint(call(*words)) == (
        "raydpzv: Ray Tune is not installed: pip install 'raydpzv[tune]'"
    )
    assert not (place / "never").exists()
