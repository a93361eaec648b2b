"""The first line of a run or a scenario: PRIVATE or NOT PRIVATE before any number, accuracy, ε in
words.
"""

import dataclasses
import re

import pytest

import scenarios
from raydpzv.experiment.prepare import planned_privacy
from raydpzv.privacy.release import verdict
from raydpzv.report.run_summary import accuracy_line, headline
from raydpzv.sim.virtual import NOBODY_WAKES
from tests.helpers.public_data import PUBLIC

PAPER = ["privacy.mode=paper", "privacy.epsilon=1", "privacy.delta=1e-3", "privacy.clip=1"]
DONE = {"accuracy": 0.861, "peak_accuracy": 0.9, "updates": 400, "status": "done"}


def setting(scenario, *overrides):
    return planned_privacy(scenarios.load(scenario, overrides), None)


def line(scenario, *overrides):
    """The first line of what is said of a scenario's privacy."""
    return verdict(setting(scenario, *overrides)).headline()


def summary(scenario, *overrides):
    """What such a run writes to summary.json of its privacy."""
    found = setting(scenario, *overrides)
    said = verdict(found)
    return DONE | {
        "private": said.private,
        "private_reason": None if said.private else said.lead,
        "privacy_verdict": said.text,
        "privacy_asides": list(said.asides),
        "epsilon": [dataclasses.asdict(c) for c in found.claims()],
    }


def test_hidden_state_is_not_private_before_any_number_is_said():
    said = headline(summary("digits_dpzv"))
    assert said == (
        'NOT PRIVATE: the server trains its head on labels without noise (server "sgd"), which '
        "carries a record into "
        "every later release. No useful ε is proved. The paper's accountant states ε = 1, which is "
        "not proved. Test accuracy 86.10 % after 400 updates."
    )
    assert re.search(r"\d", said.replace("w_0", "")).start() > said.index("NOT PRIVATE")


def test_a_private_run_says_accuracy_and_epsilon_in_words():
    assert headline(summary("digits_private")) == (
        "PRIVATE. Test accuracy 86.10 % after 400 updates. ε = 1 (δ = 6.959e-05, replace one "
        "record) is proved against all clients together and anyone who sees the final model: an "
        "attacker who knows all else tells two versions of one record apart at most 56.1 % of the "
        "time (50 % is guessing)."
    )


def test_both_relations_are_said_where_they_differ():
    said = line("digits_users")
    for part in (
        "ε = 3 (δ = 1e-05, add or remove one user)",
        "tells whether one user took part at most 64.1 % of the time",
        "Replace one user: ε = 6.706, 76.4 %.",
        "Against one silo it is ε = 7.665 (add, remove or replace one user, its record counts "
        "known): 79.0 %.",
        "Replace one user, its record counts known: no useful ε is proved.",
    ):
        assert part in said


def test_an_epsilon_above_ten_is_not_private_and_is_no_headline():
    frozen = ("digits_dpzv", "method.server=frozen", *PUBLIC)
    weak = summary(*frozen, "privacy.epsilon=60")
    assert headline(weak).startswith("NOT PRIVATE: no useful ε is proved.")
    assert "This is not the target ε = 60." in headline(weak)
    assert not any(
        f"{c['epsilon']:.4g}" in headline(weak)
        for c in weak["epsilon"]
        if c["adversary"] == "client"
    )
    assert headline(summary(*frozen, "privacy.epsilon=0.1")).startswith("PRIVATE."), "control"
    fitted = line("digits_dpzv", "method.server=frozen", "privacy.epsilon=60")
    assert fitted.startswith(
        "NOT PRIVATE: features are scaled by what is fitted on the training rows"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            ['data.categories=["city"]'],
            "categories are read off the training rows (set data.categories",
        ),
        (["data.missing=mean"], "gaps are filled in by the training rows"),
        (["data.classes=2"], "classes are numbered by the labels that occur (set data.classes)"),
        (
            ["data.groups=city"],
            "which rows are held out depends on a column's values (data.groups)",
        ),
        (["data.split=stratified"], "rows are drawn by class"),
    ],
)
def test_what_is_fitted_on_the_training_rows_is_in_the_verdict(tmp_path, changes, said):
    file = tmp_path / "own.csv"
    file.write_text("age,city,y\n" + "".join(f"{i},{i % 3},{i % 2}\n" for i in range(60)))
    table = ["data.source=csv", f"data.file={file}", "data.target=y", "split.clients=2"]
    table += ["data.classes=[0, 1]"]
    given = ["method.server=frozen", "method.batch=8", "privacy.epsilon=0.1", *table, *PUBLIC]
    assert line("digits_dpzv", *given).startswith("PRIVATE."), "control"
    assert line("digits_dpzv", *given, *changes).startswith(f"NOT PRIVATE: {said}")


def test_noise_against_the_server_alone_is_said_with_its_unit():
    said = line("zoo_vfl", *PAPER, *PUBLIC)
    assert said.startswith("NOT PRIVATE: labels are not protected")
    assert "replace one record's features at one client) is proved against the server" in said
    assert "No useful ε is proved. The paper's accountant states ε = 1" in line("vafl", *PAPER)


def test_seeded_noise_proves_nothing_and_no_noise_has_no_epsilon():
    assert "No useful ε is proved." in line("digits_dpzv", "privacy.noise=seeded")
    said = DONE | {
        "accuracy": 0.5,
        "updates": 20,
        "privacy_verdict": "NOT PRIVATE: no noise. Nothing.",
    }
    assert headline(said) == "NOT PRIVATE: no noise. Test accuracy 50.00 % after 20 updates."


def test_a_verdict_without_a_proved_claim_is_never_called_private():
    assert headline(DONE | {"private": True, "privacy_verdict": "PRIVATE. ε = 1."}).startswith(
        "NOT PRIVATE"
    )


def test_a_summary_of_before_is_read_by_its_claims():
    said = summary("digits_private") | {
        "privacy_verdict": "Proved against all clients together: ε = 1. Mind: x."
    }
    del said["privacy_asides"]
    said["epsilon"] = [{k: v for k, v in c.items() if k != "guess"} for c in said["epsilon"]]
    assert headline(said).startswith("PRIVATE. Test accuracy")
    assert "% of the time" not in headline(said)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"failure": "one class' share"}, "NO RESULT, single-class accuracy."),
        ({"failure": "diverged"}, "NO RESULT, diverged."),
        ({"status": "stopped", "stopped_by": "stopped by the user"}, "stopped by the user."),
        ({"status": "stopped", "stopped_by": NOBODY_WAKES}, "the arrival trace is exhausted."),
    ],
)
def test_what_is_wrong_with_an_accuracy_is_beside_it(changes, said):
    assert accuracy_line({"accuracy": 0.1, "updates": 5, "status": "done"} | changes).endswith(said)


def test_the_best_model_is_said_where_validation_rows_chose_it():
    found = {"accuracy": 0.5, "peak_accuracy": 0.7, "updates": 2000, "status": "done"}
    chosen = {"best_accuracy": 0.6, "best_update": 1500, "validation_accuracy": 0.65}
    said = "chosen by validation (65.00 %) after update 1,500"
    assert accuracy_line(found | chosen) == (
        f"Test accuracy 50.00 % after 2,000 updates (best model: 60.00 %, {said})."
    )
    assert "70" not in accuracy_line(found)


def test_rounds_are_not_called_updates():
    run = {"method": "decomfl", "accuracy": 0.5, "updates": 5, "uploads": 50, "status": "done"}
    assert accuracy_line(run).endswith("after 5 rounds (50 uploads).")
