"""What a person sees of a search while it runs: a table on a terminal, lines elsewhere."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

import scenarios
from raydpzv.search.bracket import TrialLeg
from raydpzv.search.search_plan import Population, SearchPlan, trials_of
from scenarios import search_progress
from scenarios.search_progress import SearchProgress

POINTS = [("method.lr=0.01",), ("method.lr=0.02",), ("method.lr=0.03",)]


@pytest.fixture
def plan():
    trials = trials_of(lambda settings: scenarios.load("digits_dpzv", list(settings)), POINTS, None)
    return SearchPlan("small", "accuracy", "none", 0, None, trials)


def watched(plan, reasons, **how):
    console = Console(file=io.StringIO(), width=100, **how)
    with SearchProgress(plan, 3, console, reasons) as watch:
        watch.began(0)
        watch.reported(0, {"updates": 10, "accuracy": 0.5})
        watch.reported(0, {"updates": 12})
        watch.ended(0, "")
        watch.began(1)
        watch.reported(1, {"updates": 10, "accuracy": 0.75})
        watch.ended(1, "")
        watch.began(2)
        watch.reported(2, {"updates": 1_000})
        rows = watch._table()
        watch.ended(2, "its process was lost")
    return console, rows


def test_a_table_has_trials_at_work_then_the_best_of_those_that_are_over(plan, monkeypatch):
    monkeypatch.setattr(search_progress, "_REDRAW", 0.0)
    console, table = watched(plan, reasons := {}, force_terminal=True)
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    assert [str(column.header) for column in table.columns] == [
        "trial",
        "method.lr",
        "updates",
        "accuracy",
        "is",
    ]
    assert cells[0][:3] == ["2", "1", "0"]
    assert cells[1][:3] == ["0.03", "0.02", "0.01"]
    assert cells[2][:3] == ["1,000", "10", "12"]
    assert cells[3][:3] == ["", "0.75", "0.5"]
    assert cells[4][:3] == ["at work", "over", "over"]
    assert reasons == {2: "its process was lost"}
    assert "its process was lost" in console.file.getvalue()
    monkeypatch.setattr(search_progress, "_MOST_SHOWN", 1)
    assert watched(plan, {}, force_terminal=True)[1].caption == "and 2 more"


def test_elsewhere_there_is_a_line_for_each_trial_that_is_over(plan):
    console, _ = watched(plan, {}, force_terminal=False)
    lines = console.file.getvalue().splitlines()
    assert lines == [
        "1/3 trial 0 (method.lr=0.01): 12 updates, accuracy 0.5",
        "2/3 trial 1 (method.lr=0.02): 10 updates, accuracy 0.75",
        "3/3 trial 2 (method.lr=0.03): no result: its process was lost",
    ]


def test_a_leg_is_told_by_the_evaluation_that_trials_are_held_against_one_another_by(plan):
    plan = replace(plan, population=Population(space=(), interval=20, quantile=0.25, seed=0))
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    with SearchProgress(plan, 3, console, {}) as watch:
        watch.leg(20, plan.trials[:1])
        watch.began(0)
        for accuracy in (0.5, 0.25):
            watch.reported(0, {"updates": 20, "accuracy": accuracy})
        watch.ended(0, "")
    assert "method.lr=0.01): 20 updates, accuracy 0.5\n" in console.file.getvalue()
    assert watch._values == {0: 0.5}


def test_a_trial_that_goes_on_is_told_of_and_is_not_over(plan):
    """By the evaluation that it was held against others by, each to a rung of its own."""
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    with SearchProgress(plan, 3, console, {}) as watch:
        for leg, updates in (
            (TrialLeg(0, 0, 10), 10),
            (TrialLeg(1, 0, 10), 10),
            (TrialLeg(0, 10, 20, 0.5), 20),
        ):
            watch.sent(leg)
            watch.began(leg.trial)
            for accuracy in (0.5, 0.25):
                watch.reported(leg.trial, {"updates": updates, "accuracy": accuracy})
            watch.ended(leg.trial, "")
    assert console.file.getvalue().splitlines() == [
        "1/3 trial 0 (method.lr=0.01): 10 updates, accuracy 0.5",
        "2/3 trial 1 (method.lr=0.02): 10 updates, accuracy 0.5",
        "trial 0 (0.5 after 10 updates) goes on to 20 updates",
        "2/3 trial 0 (method.lr=0.01): 20 updates, accuracy 0.5",
    ]


def test_changes_of_a_step_size_are_lines_of_the_table():
    assert search_progress._schedule([[241, 0.0038], [321, 0.0014]]) == "0.0038 from 241\n0.0014 from 321"
    assert search_progress._schedule([]) == ""
    assert search_progress._schedule("0 at 40") == "0 at 40"
