import inspect
import os
import signal

import pytest
from torch import nn

import raydpzv
from raydpzv.errors import InputError, RunWarning, SpecError
from raydpzv.keys import Key

X = (Key(0) / "verbs").generator().normal(size=(300, 5)).astype("float32")


def private(updates: int = 10):
    return raydpzv.vertical(
        [nn.Linear(3, 2), nn.Linear(2, 2)],
        {"bank": X[:, :3], "shop": X[:, 3:]},
        X[:, 0] + X[:, 3] > 0,
        classes=[0, 1],
        updates=updates,
        embedding=2,
        batch="all",
        head="sum",
        server="frozen",
        data={"split": "plain"},
        privacy={"mode": "proved", "epsilon": 1.0, "clip": 0.1, "trust": ["model"]},
    )


def plain():
    return raydpzv.horizontal(
        lambda: nn.Linear(5, 2), (X, X[:, 0] > 0), clients=3, updates=30, lr=0.1, cohort=2
    )


def test_a_private_scenario_goes_through_every_function(tmp_path):
    scenario = private()
    foretold = raydpzv.privacy(scenario)
    run = raydpzv.run(scenario, tmp_path / "run")
    (promised,) = [c for c in foretold.claims if c["adversary"] == "client" and c["holds"]]
    terms = {name: run.epsilon[name] for name in ("adversary", "relation", "holds")}
    assert terms == {"adversary": "client", "relation": "replace", "holds": True}
    assert run.epsilon["epsilon"] == pytest.approx(promised["epsilon"])
    assert "57.1 %" in foretold._repr_html_()
    assert repr(foretold).startswith("PRIVATE. ε = 1")
    assert "PRIVATE" in run._repr_html_()
    assert str(run).startswith("<run of dpzv: done, 10 updates, accuracy 0.")
    assert f", ε = 1 at δ = 0.000417 against client, kept in {run.path}>" in repr(run)
    assert str(scenario) == (
        "<scenario dpzv: dpzv on your data, 2 clients, model your Linear, "
        "until 10 updates, privacy proved, seed 0>"
    )
    found = raydpzv.audit(run, tmp_path / "audit", canaries=1)
    assert found.facts == raydpzv.audit(tmp_path / "run", canaries=1).facts
    assert found.verdict == "not falsified"
    assert (tmp_path / "audit" / "audit.html").is_file()
    assert raydpzv.audit(scenario, canaries=1).verdict == "not falsified", "it is run first"
    assert raydpzv.report(run) == tmp_path / "run" / "report.html"


@pytest.mark.parametrize(
    ("ask", "kind", "said"),
    [
        (
            lambda folder: raydpzv.report(private()),
            InputError,
            r"report: wanted a run or its folder, .* raydpzv\.run\(scenario, out",
        ),
        (
            lambda folder: raydpzv.audit(raydpzv.run(private())),
            InputError,
            "audit: wanted a run with a folder; give out",
        ),
        (
            lambda folder: raydpzv.audit(plain()),
            InputError,
            r"audit: wanted a vertical scenario with privacy.mode set, .* got decomfl",
        ),
        (
            lambda folder: raydpzv.audit(folder, by="ledgers"),
            SpecError,
            r'--by: wanted .* got "ledgers". Did you mean "ledger"',
        ),
        (
            lambda folder: raydpzv.resume(private()),
            InputError,
            "wanted the folder of a run, got VerticalScenario",
        ),
        (lambda folder: raydpzv.compare([], folder), SpecError, "got an empty list"),
    ],
)
def test_what_is_no_run_is_refused_with_the_way_out(tmp_path, ask, kind, said):
    with pytest.raises(kind, match=said):
        ask(tmp_path)


@pytest.mark.parametrize("verb", ["run", "check", "privacy"])
def test_what_is_no_scenario_is_refused_with_the_way_out(verb):
    with pytest.raises(
        SpecError, match=r"scenario: wanted a scenario's name, its TOML file, or .* got Linear"
    ):
        getattr(raydpzv, verb)(nn.Linear(2, 2))


def test_a_package_that_is_called_shows_the_functions_signature():
    assert list(inspect.signature(raydpzv.privacy).parameters) == ["scenario", "rows"]
    assert "falsify" in raydpzv.audit.__doc__
    assert raydpzv.privacy.gdp.__name__ == "raydpzv.privacy.gdp", "and is a package still"


class Interrupting(raydpzv.Callback):
    """Presses Ctrl-C after so many updates."""

    interval = 0.0

    def __init__(self, updates):
        self._left = updates

    def status(self, status):
        if self._left is not None and status.updates >= self._left:
            self._left = None
            os.kill(os.getpid(), signal.SIGINT)


def test_a_run_that_ctrl_c_stopped_resumes_to_the_same_bits(tmp_path):
    with pytest.raises(KeyboardInterrupt, match=r"continue with raydpzv\.resume\('.*run'\)"):
        raydpzv.run(private(updates=40), tmp_path / "run", callbacks=[Interrupting(7)])
    run = raydpzv.resume(tmp_path / "run")
    assert (run.summary["status"], run.summary["updates"]) == ("done", 40)
    with pytest.raises(KeyboardInterrupt):
        raydpzv.run(plain(), tmp_path / "plain", callbacks=[Interrupting(11)])
    assert (
        raydpzv.resume(tmp_path / "plain").summary["digest"]
        == raydpzv.run(plain()).summary["digest"]
    )


def test_a_comparison_that_ctrl_c_stopped_is_continued_by_the_same_call(tmp_path):
    pressed = []

    def press(at_work):
        if not pressed:
            pressed.append(os.kill(os.getpid(), signal.SIGINT))

    with pytest.raises(KeyboardInterrupt, match="the same call continues it in"):
        raydpzv.compare(plain(), tmp_path / "two", seeds=2, progress=press)
    found = raydpzv.compare(plain(), tmp_path / "two", seeds=2)
    assert found.runs["status"].to_pylist() == ["done"] * 2
    assert "decomfl" in found._repr_html_()
    assert str(found).startswith("<comparison of 2 runs, median test accuracy: decomfl 0.")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("learning_rate", "lr"),
        ("batch_size", "batch"),
        ("epochs", "updates"),
        ("momentun", "momentum"),
    ],
)
def test_words_of_other_libraries_are_understood(word, meant):
    with pytest.raises(SpecError, match=f'{word}: unknown setting. Did you mean "{meant}"'):
        raydpzv.vertical("linear", [X[:, :3], X[:, 3:]], X[:, 0] > 0, **{word: 1})


@pytest.mark.parametrize("name", ["", "a\nb", " ", 3, "<b>"])
def test_a_view_without_a_readable_name_is_refused(name):
    with pytest.raises(SpecError, match="wanted names that begin with a letter"):
        raydpzv.vertical("linear", {name: X[:, :3], "shop": X[:, 3:]}, X[:, 0] > 0)


def test_a_script_is_warned_of_what_the_terminal_prints(tmp_path):
    spec = raydpzv.load("digits_dpzv", ["method.lr=1e6", "budget.updates=20"])
    with pytest.warns(RunWarning) as told:
        run = raydpzv.run(spec, tmp_path / "run")
    assert tuple(str(warning.message) for warning in told) == run.warnings
    assert run.warnings[0].startswith("DIVERGED: ")
    assert told[0].filename == __file__
    assert "<run of digits_dpzv: DIVERGED, 20 updates" in repr(run)
    assert "DIVERGED" in run._repr_html_()
    with pytest.warns(RunWarning, match="DIVERGED"):
        raydpzv.run(spec, storage_path=tmp_path, name="run")  # which is complete
    good = raydpzv.run(raydpzv.load("frozen", ["budget.updates=2"]))
    assert good.warnings == tuple(good.summary["warnings"])
    assert ": done, 2 updates" in repr(good)
