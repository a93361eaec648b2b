"""The three lines that come first: accuracy, ε and against whom, private or not."""

from __future__ import annotations

import dataclasses

import pytest

import scenarios
from raydpzv.experiment.prepare import load_data
from raydpzv.experiment.privacy_setting import privacy_setting
from raydpzv.keys import Key
from raydpzv.privacy.statements import claims, verdict
from raydpzv.report.verdict import accuracy_line, epsilon_line, private_line, verdict_lines
from raydpzv.sim.virtual import NOBODY_WAKES
from tests.helpers.public_data import PUBLIC

PAPER = ["privacy.mode=paper", "privacy.epsilon=1", "privacy.delta=1e-3", "privacy.clip=1"]


def lines(scenario, *overrides):
    """What is said of a scenario's privacy."""
    spec = scenarios.load(scenario, overrides)
    setting = privacy_setting(spec, load_data(spec.data, Key(spec.seed) / "data").train.rows).claims
    table = [dataclasses.asdict(c) for c in claims(setting)]
    return epsilon_line(table), private_line(table, verdict(setting)[1])


def test_hidden_state_is_not_private_and_the_proved_epsilon_is_said_beside_the_claimed_one():
    epsilon, private = lines("digits_dpzv")
    assert epsilon == (
        "ε = 157,480 (δ = 0.001, replace one record) is proved against the clients; the claimed ε = 1 is not proved."
    )
    assert private.startswith("NOT PRIVATE: the server trains w_0 on labels without noise")
    assert private.endswith("into every later release.")


def test_a_private_run_says_on_what_terms():
    epsilon, private = lines("digits_dpzv", "method.server=frozen", "privacy.epsilon=60", *PUBLIC)
    assert "is proved against the clients and whoever sees the final model" in epsilon
    assert private.startswith("PRIVATE against the clients")
    assert "This is not the target ε = 60." in private
    assert "An ε this large is vacuous." in private
    assert "Mind" not in private
    epsilon, private = lines("digits_dpzv", "method.server=frozen", "privacy.epsilon=60")
    assert epsilon == "No finite ε is proved; the claimed ε = 60 is not proved."
    assert private.startswith("NOT PRIVATE: features are scaled by what is fitted on the training rows")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (['data.categories=["city"]'], "categories are read off the training rows (set data.categories"),
        (["data.missing=mean"], "gaps are filled in by the training rows"),
        (["data.classes=2"], "classes are numbered by the labels that occur (set data.classes)"),
        (["data.groups=city"], "which rows are held out depends on a column's values (data.groups)"),
        (["data.split=stratified"], "rows are drawn by class"),
    ],
)
def test_what_is_fitted_on_the_training_rows_stands_in_the_verdict(tmp_path, changes, said):
    file = tmp_path / "own.csv"
    file.write_text("age,city,y\n" + "".join(f"{i},{i % 3},{i % 2}\n" for i in range(60)))
    table = ["data.source=csv", f"data.file={file}", "data.target=y", "split.clients=2"]
    table += ["data.classes=[0, 1]"]
    given = ["method.server=frozen", "method.batch=8", "privacy.epsilon=60", *table, *PUBLIC]
    assert lines("digits_dpzv", *given)[1].startswith("PRIVATE against the clients"), "control"
    assert lines("digits_dpzv", *given, *changes)[1].startswith(f"NOT PRIVATE: {said}")


def test_noise_against_the_server_alone_is_said_with_its_unit():
    epsilon, private = lines("zoo_vfl", *PAPER, *PUBLIC)
    assert "replace one record's features at one client) is proved against the server" in epsilon
    assert "nothing against the clients" in epsilon
    assert private.startswith("NOT PRIVATE")
    assert lines("vafl", *PAPER)[0] == "No finite ε is proved; the claimed ε = 1 is not proved."


def test_seeded_noise_proves_nothing_and_no_noise_has_no_epsilon():
    assert lines("digits_dpzv", "privacy.noise=seeded")[0] == "No finite ε is proved."
    said = {"accuracy": 0.5, "peak_accuracy": 0.6, "updates": 20, "status": "done"}
    accuracy, epsilon, private = verdict_lines(said | {"privacy_verdict": "NOT PRIVATE: no noise. Nothing."})
    assert accuracy == "Test accuracy 50.00 % after 20 updates."
    assert epsilon == "No ε: no noise is added."
    assert private == "NOT PRIVATE: no noise."


def test_a_verdict_without_a_proved_claim_is_never_called_private():
    assert private_line([], "Proved against the clients: ε = 1.").startswith("NOT PRIVATE")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"failure": "one class' share"}, "NO RESULT, single-class accuracy."),
        ({"failure": "diverged"}, "NO RESULT, diverged."),
        ({"status": "stopped", "stopped_by": "stopped by the user"}, "stopped by the user."),
        ({"status": "stopped", "stopped_by": NOBODY_WAKES}, "the arrival trace is exhausted."),
    ],
)
def test_what_is_wrong_with_an_accuracy_stands_beside_it(changes, said):
    line = accuracy_line({"accuracy": 0.1, "updates": 5, "status": "done"} | changes)
    assert line.endswith(said)


def test_the_best_model_is_said_where_validation_rows_chose_it():
    found = {"accuracy": 0.5, "peak_accuracy": 0.7, "updates": 2000, "status": "done"}
    chosen = {"best_accuracy": 0.6, "best_update": 1500, "validation_accuracy": 0.65}
    said = "chosen by validation (65.00 %) after update 1,500"
    assert accuracy_line(found | chosen) == (
        f"Test accuracy 50.00 % after 2,000 updates (best model: 60.00 %, {said})."
    )
    assert "70" not in accuracy_line(found)


def test_rounds_are_not_called_updates():
    line = accuracy_line(
        {
            "method": "decomfl",
            "accuracy": 0.5,
            "updates": 5,
            "uploads": 50,
            "status": "done",
        }
    )
    assert line.endswith("after 5 rounds (50 uploads).")
