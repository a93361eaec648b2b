"""What a summary claims where updates may have been made elsewhere: nothing without an account, else all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import scenarios
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.summary import Ending, summarise
from raydpzv.privacy.release import Spent
from raydpzv.records.schema import SCHEMAS
from raydpzv.report.verdict import headline

NOTHING = {name: schema.empty_table() for name, schema in SCHEMAS.items()}
USERS = (
    *("privacy={}", "privacy.mode=user", "privacy.epsilon=8", "privacy.delta=1e-3", "privacy.clip=0.1"),
    *("data.train_rows=150", "data.test_rows=60", "split.clients=3", "users.count=12"),
)


def test_the_plan_is_no_bound_where_updates_may_have_been_made_elsewhere():
    prepared = prepare(scenarios.load("digits_private", ["data.train_rows=200"]))
    ending = Ending("failed", "the server was lost", 1.0, 1.0, 0, None)
    assert summarise("x", prepared, NOTHING, ending)["epsilon"]
    told = "3 updates that a lost machine may have made, beyond what the storage had, are charged in every ε"
    assert told not in summarise("x", prepared, NOTHING, ending)["warnings"]
    lost = summarise("x", replace(prepared, missing=3), NOTHING, ending)
    assert told in lost["warnings"]
    assert lost["private"] is False
    assert not lost["epsilon"]


@pytest.mark.parametrize(
    ("scenario", "changes"),
    [
        ("digits_private", ["data.train_rows=200"]),
        ("digits_dpzv", ["data.train_rows=200"]),  # whose proved ε never was the target: the paper's was
        ("digits_users_zo", [*USERS, "budget.updates=30"]),
    ],
)
def test_an_epsilon_beyond_the_target_is_said_to_be_no_target_and_why(scenario, changes):
    prepared = replace(prepare(scenarios.load(scenario, changes)), missing=3)
    planned = prepared.budget().updates

    def said(updates, missing):
        spent = Spent(
            updates, prepared.setting.participations + updates - planned, 64, fewest=3, missing=missing
        )
        ending = Ending("done", "", 1.0, 1.0, planned, spent)
        return summarise("x", replace(prepared, missing=missing), NOTHING, ending)["privacy_verdict"]

    why = said(planned + 3, 3)
    assert "lost machine" in why.partition(" Mind: ")[0], "with what is stated"
    assert why.count(f"This is not the target ε = {prepared.setting.target:g}.") == 1
    assert "Beside the run's own updates 3 count that a lost machine may have made" in why
    for updates, missing in ((planned - 5, 3), (planned, 0), (planned + 3, 0)):
        assert "lost machine" not in said(updates, missing)


def test_the_first_line_says_it_too():
    prepared = replace(prepare(scenarios.load("digits_private", ["data.train_rows=200"])), missing=3)
    ending = Ending("done", "", 1.0, 1.0, 400, Spent(403, prepared.setting.participations + 3, 64, missing=3))
    said = headline(summarise("x", prepared, NOTHING, ending))
    assert said.startswith("PRIVATE.")
    assert "This is not the target" in said
    assert said.endswith("a lost machine may have made, with other noise.")


def test_where_no_epsilon_was_asked_for_there_is_no_target_to_be_beyond():
    noise = [
        "privacy={}",
        "privacy.mode=paper",
        "privacy.sigma=1.0",
        "privacy.clip=0.1",
        "privacy.delta=1e-4",
    ]
    prepared = replace(prepare(scenarios.load("digits_dpzv", ["data.train_rows=200", *noise])), missing=3)
    ending = Ending("done", "", 1.0, 1.0, 2000, Spent(2003, 2003, 64, missing=3))
    assert "target" not in summarise("x", prepared, NOTHING, ending)["privacy_verdict"]
