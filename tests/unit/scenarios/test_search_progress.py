import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import scenarios
from raydpzv.search.asha import TrialLeg
from raydpzv.search.population import Exploit, Turn
from raydpzv.search.search_plan import Population, SearchPlan, trials_of
from raydpzv.search.trial_results import CUT, DIVERGED, DONE, STOPPED, TrialProgress
from scenarios import search_progress
from scenarios.search_progress import SearchProgress

POINTS = [("method.lr=0.01",), ("method.lr=0.02",), ("method.lr=0.03",)]
NOWHERE = Path("nowhere")
"""A search's folder with nothing in it: of its trials is known what they reported."""


@pytest.fixture
def plan():
    trials = trials_of(lambda settings: scenarios.load("digits_dpzv", list(settings)), POINTS, None)
    return SearchPlan("small", "accuracy", "none", 0, None, trials)


def watched(plan, reasons, **how):
    console = Console(file=io.StringIO(), width=100, **how)
    with SearchProgress(plan, 3, console, reasons, NOWHERE) as watch:
        watch.began(0)
        watch.reported(0, {"updates": 10, "accuracy": 0.5})
        watch.reported(0, {"updates": 12})
        watch.ended(0, "")
        watch.began(1)
        watch.reported(1, {"updates": 10, "accuracy": 0.75})
        watch.ended(1, "")
        watch.began(2)
        watch.reported(2, {"updates": 1_000})
        rows = watch.table()
        watch.ended(2, "its process was lost")
    return console, rows


def test_a_table_has_trials_at_work_then_the_best_of_those_that_are_over(plan, monkeypatch):
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


def test_a_segment_is_told_by_the_evaluation_that_trials_are_held_against_one_another_by(plan):
    plan = replace(plan, population=Population(space=(), interval=20, quantile=0.25, seed=0))
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    with SearchProgress(plan, 3, console, {}, NOWHERE) as watch:
        watch.leg(20, plan.trials[:1])
        watch.began(0)
        for accuracy in (0.5, 0.25):
            watch.reported(0, {"updates": 20, "accuracy": accuracy})
        watch.ended(0, "")
    assert "method.lr=0.01): 20 updates, accuracy 0.5\n" in console.file.getvalue()
    assert watch._values == {0: 0.5}


def lines_of(console):
    return console.file.getvalue().splitlines()


@pytest.fixture
def record(monkeypatch):
    """What stands in the search's folder, by trial: put there by hand."""
    found: dict[int, TrialProgress] = {}
    monkeypatch.setattr(
        search_progress, "trial_progress", lambda folder, plan, number: found.get(number)
    )
    return found


def best(watch):
    """Return what the lines of those at work say of the best."""
    said = [
        line.removeprefix("best so far: ")
        for line in watch.line().split("; ")
        if line.startswith("best so far")
    ]
    return said[0] if said else None


@pytest.mark.parametrize(
    ("metric", "worse", "better"), [("accuracy", 0.5, 0.75), ("loss", 0.75, 0.5)]
)
def test_the_best_so_far_is_over_and_did_not_diverge(plan, record, metric, worse, better):
    plan = replace(plan, metric=metric)
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    with SearchProgress(plan, 3, console, {}, NOWHERE) as watch:
        for trial in range(3):
            watch.began(trial)
            watch.reported(trial, {"updates": 10, metric: better})
        assert best(watch) is None, "all are at work"
        for trial, found, said in (
            (0, TrialProgress(DIVERGED, "its loss is nan", 20, math.nan), None),
            (1, TrialProgress(DONE, "", 40, worse), f"{metric} {worse}, trial 1"),
            (2, TrialProgress(DONE, "", 20, better), f"{metric} {better}, trial 2"),
        ):
            record[trial] = found
            watch.ended(trial, "")
            assert best(watch) == said
        table = watch.table()
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    assert (cells[0], cells[4]) == (["2", "1", "0"], ["over", "over", "diverged"])
    assert lines_of(console)[0] == (
        f"1/3 trial 0 (method.lr=0.01): 20 updates, {metric} {better}, diverged: its loss is nan"
    )


def test_before_a_trial_is_over_the_best_is_one_of_those_that_stood_after_most_updates(
    plan, record
):
    """Also while it goes on; a metric after fewer updates, or of one that has diverged since, is no
    better.
    """
    plan = replace(plan, scheduler="asha", grace=10, promotes=True)
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    with SearchProgress(plan, 3, console, {}, NOWHERE) as watch:
        for leg, found, said in (
            (
                TrialLeg(0, 0, 10),
                TrialProgress(STOPPED, "", 10, 0.5),
                "accuracy 0.5, trial 0 after 10 updates",
            ),
            (
                TrialLeg(1, 0, 10),
                TrialProgress(STOPPED, "", 10, 0.9),
                "accuracy 0.9, trial 1 after 10 updates",
            ),
            (
                TrialLeg(0, 10, 20, 0.5),
                TrialProgress(STOPPED, "", 20, 0.4),
                "accuracy 0.4, trial 0 after 20 updates",
            ),
            (
                TrialLeg(1, 10, 20, 0.9),
                TrialProgress(STOPPED, "", 20, 0.6),
                "accuracy 0.6, trial 1 after 20 updates",
            ),
            (
                TrialLeg(1, 20, None, 0.6),
                TrialProgress(DIVERGED, "", 40, math.nan),
                "accuracy 0.4, trial 0 after 20 updates",
            ),
            (TrialLeg(0, 20, None, 0.4), TrialProgress(DONE, "", 40, 0.3), "accuracy 0.3, trial 0"),
        ):
            before = best(watch)
            watch.sent(leg)
            watch.began(leg.trial)
            assert best(watch) == before
            record[leg.trial] = found
            watch.ended(leg.trial, "")
            assert best(watch) == said


def test_a_trial_that_breaks_off_is_not_the_best_any_more(plan, record):
    plan = replace(
        plan, scheduler="pbt", population=Population(space=(), interval=10, quantile=0.5, seed=0)
    )
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    with SearchProgress(plan, 3, console, {}, NOWHERE) as watch:
        record[0] = TrialProgress(STOPPED, "", 10, 0.5)
        watch.leg(10, plan.trials)
        watch.began(0)
        watch.ended(0, "")
        assert best(watch) == "accuracy 0.5, trial 0 after 10 updates"
        watch.leg(20, plan.trials[:1])
        watch.began(0)
        watch.ended(0, "its process was lost")
        assert best(watch) is None


def test_what_a_trial_had_come_to_before_it_took_a_donor_is_not_the_best(plan, record):
    plan = replace(
        plan, scheduler="pbt", population=Population(space=(), interval=10, quantile=0.5, seed=0)
    )
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    with SearchProgress(plan, 3, console, {}, NOWHERE) as watch:
        watch.leg(10, plan.trials[:2])
        for trial, value in ((0, 0.5), (1, 0.9)):
            record[trial] = TrialProgress(STOPPED, "", 10, value)
            watch.began(trial)
            watch.ended(trial, "")
        assert best(watch) == "accuracy 0.9, trial 1 after 10 updates"
        watch.turned(Turn(10, (Exploit(1, 0, 0.9, 0.5, {"method.lr": 0.1}, 0, 0),)))
        assert best(watch) == "accuracy 0.5, trial 0 after 10 updates"


def test_what_was_reached_before_an_interruption_counts(plan, record):
    record |= {0: TrialProgress(DONE, "", 40, 0.7), 1: TrialProgress(CUT, "", 20, 0.9)}
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    with SearchProgress(plan, 1, console, {}, NOWHERE) as watch:
        assert best(watch) == "accuracy 0.7, trial 0"
        cells = [[str(cell) for cell in column.cells] for column in watch.table().columns]
    assert (cells[0], cells[4]) == (["0", "1"], ["over", "stopped early"])
    assert lines_of(console) == ["2 of 3 trials are there already"]


def test_a_trial_that_continues_is_told_of_and_is_not_over(plan, record):
    """By the evaluation that it was held against others by, each to a rung of its own."""
    plan = replace(plan, scheduler="asha", grace=10, promotes=True)
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    with SearchProgress(plan, 3, console, {}, NOWHERE) as watch:
        for leg, updates in (
            (TrialLeg(0, 0, 10), 10),
            (TrialLeg(1, 0, 10), 10),
            (TrialLeg(0, 10, 20, 0.5), 20),
            (TrialLeg(0, 20, None, 0.5), 40),
        ):
            watch.sent(leg)
            watch.began(leg.trial)
            console.print(watch.line(), soft_wrap=True)
            for accuracy in (0.5, 0.25):
                watch.reported(leg.trial, {"updates": updates, "accuracy": accuracy})
            record[leg.trial] = TrialProgress(STOPPED if leg.until else DONE, "", updates, 0.5)
            watch.ended(leg.trial, "")
    said = [line for line in lines_of(console) if "trials started" not in line]
    assert said == [
        "trial 0 (method.lr=0.01): paused after 10 updates, accuracy 0.5",
        "trial 1 (method.lr=0.02): paused after 10 updates, accuracy 0.5",
        "trial 0 (0.5 after 10 updates) continues to 20 updates",
        "trial 0 (method.lr=0.01): paused after 20 updates, accuracy 0.5",
        "trial 0 (0.5 after 20 updates) continues to the end",
        "trial 0 (method.lr=0.01): at its end after 40 updates, accuracy 0.5",
    ]
    counted = [line.partition(";")[0] for line in lines_of(console) if "trials started" in line]
    assert counted == ["1/3 trials started", *["2/3 trials started"] * 3]


def test_trials_that_began_before_an_interruption_are_counted_once(plan, record, monkeypatch):
    """One of them stands, another was on its way."""
    plan = replace(plan, scheduler="asha", grace=10, promotes=True)
    begun = {"0000", "0001"}
    monkeypatch.setattr(
        search_progress.RunFolder, "begun", staticmethod(lambda path: path.name in begun)
    )
    record[0] = TrialProgress(STOPPED, "", 10, 0.5)
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    with SearchProgress(plan, 3, console, {}, NOWHERE) as watch:
        for leg in (TrialLeg(1, 0, 10), TrialLeg(2, 0, 10)):
            watch.sent(leg)
            watch.began(leg.trial)
            console.print(watch.line(), soft_wrap=True)
    assert [line.partition("; trial")[0] for line in lines_of(console)] == [
        "2 of 3 trials had started before",
        "2/3 trials started",
        "3/3 trials started",
    ]
    assert lines_of(console)[1].endswith(
        "starting; best so far: accuracy 0.5, trial 0 after 10 updates"
    )


def bar(plan, *acts):
    """Return what a terminal shows last above its table."""
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    with SearchProgress(plan, 3, console, {}, NOWHERE) as watch:
        for act in acts:
            act(watch)
    return (
        [line for line in lines_of(console) if "trials" in line][-1]
        .partition("━")[0]
        .split("trials")[-1]
        .strip()
    )


def test_a_terminals_bar_counts_trials_that_are_over_or_those_that_have_begun_where_they_stand(
    plan, record
):
    def went(watch):
        watch.sent(TrialLeg(0, 0, 10))
        watch.began(0)
        watch.ended(0, "")

    assert bar(replace(plan, scheduler="asha", grace=10, promotes=True), went) == "started 1/3"
    more = replace(plan, trials=plan.trials * 2)
    assert bar(plan, lambda watch: watch.ended(0, ""), lambda watch: watch.grew(more)) == "1/6"
