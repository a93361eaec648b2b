"""Which trials go on from a rung, where the rungs are, and what cannot be halved."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import scenarios
from raydpzv.errors import DataError, SpecError
from raydpzv.search import halving
from raydpzv.search.halving import better_half, first_rung, going_to, halve, rungs, said
from raydpzv.search.search_folder import Decision, add_decisions, decisions
from raydpzv.search.search_plan import SearchPlan, read_search, trials_of

NONE = math.nan
RATES = [(f"method.lr={0.01 * (n + 1):.6g}",) for n in range(8)]


def trials(*changes, points=RATES, scenario="digits_dpzv", epsilon=None):
    quiet = ["privacy.mode=none"] if scenario == "digits_dpzv" else []
    base = ["budget.updates=100", "evaluate.every=5"]

    def make(settings):
        return scenarios.load(scenario, [*quiet, *base, *changes, *settings])

    return trials_of(make, points, epsilon)


def plan(*changes, grace=None, metric="accuracy"):
    made = trials(*changes)
    return SearchPlan("x", metric, "halving", first_rung(made, grace), None, made)


def test_the_better_half_goes_on_and_of_equal_ones_the_first():
    assert better_half({0: 0.1, 1: 0.4, 2: 0.3, 3: 0.2}, higher=True) == [1, 2]
    assert better_half({0: 0.1, 1: 0.4, 2: 0.3, 3: 0.2}, higher=False) == [0, 3]
    assert better_half({4: 0.5, 2: 0.5, 9: 0.5}, higher=True) == [2, 4]
    assert better_half({7: 0.5}, higher=True) == [7]


@pytest.mark.parametrize("higher", [True, False])
def test_a_trial_without_a_metric_is_worse_than_all_others(higher):
    assert set(better_half({0: NONE, 1: 0.4, 2: 0.3, 3: NONE}, higher=higher)) == {1, 2}
    assert better_half({0: NONE, 1: NONE, 2: 0.3}, higher=higher) == [2, 0]


def test_rungs_double_from_a_fifth_to_at_most_half_of_the_budget():
    assert rungs(plan()) == [20, 40, None]
    assert rungs(plan(grace=5)) == [5, 10, 20, 40, None]
    assert rungs(plan(grace=25)) == [25, 50, None]
    assert rungs(plan(grace=60)) == [60, None]
    assert rungs(plan("budget.updates=90", "evaluate.every=50")) == [50, None]
    assert rungs(plan("budget.updates=2000", "evaluate.every=100")) == [400, 800, None]


def test_the_first_rung_is_an_evaluation_of_all_trials():
    points = [(f"evaluate.every={n}",) for n in (2, 3, 2, 3)]
    assert first_rung(trials(points=points), None) == 18
    with pytest.raises(SpecError, match=r"a multiple of evaluate.every \(6\)"):
        first_rung(trials(points=points), 20)


@pytest.mark.parametrize("grace", [1, 7, 100, 105])
def test_a_first_rung_between_evaluations_or_behind_the_end_is_refused(grace):
    with pytest.raises(SpecError, match=r"--grace: wanted a multiple of evaluate.every \(5\) below"):
        first_rung(trials(), grace)


@pytest.mark.parametrize(
    ("changes", "how", "said"),
    [
        ((), {"points": RATES[:3]}, "wanted 4 trials or more to halve, got 3"),
        (("budget.seconds=9",), {}, "no other budget"),
        ((), {"points": [*RATES, ("budget.updates=50",)]}, "wanted one budget.updates for all"),
        (("clock.kind=wall",), {}, "clock.kind: --scheduler halving goes on from checkpoints"),
        (
            (),
            {
                "points": [*RATES, ("method.lr=0.5", "privacy.head_clip=1.0", 'method.server="dp_sgd"')],
                "scenario": "digits_private",
            },
            r"trial 8 \(.*\): --scheduler halving: .* since its noise on the head's gradients comes from",
        ),
    ],
)
def test_what_cannot_stand_and_go_on_is_refused(changes, how, said):
    with pytest.raises(SpecError, match=said):
        first_rung(trials(*changes, **how), None)


def test_trials_that_are_not_started_are_not_counted():
    points = [(f"privacy.epsilon={e}",) for e in (0.5, 0.6, 0.7, 0.8, 3.0)]
    assert first_rung(trials(points=points, scenario="digits_private", epsilon=1.0), None) == 20
    with pytest.raises(SpecError, match="got 3"):
        first_rung(trials(points=points[1:], scenario="digits_private", epsilon=1.0), None)


def test_a_rung_is_decided_once_by_who_stands_there(tmp_path, monkeypatch):
    found = plan()
    values = {20: [0.1, 0.8, 0.3, NONE, 0.5, 0.6, 0.7, 0.2], 40: [NONE] * 8}
    values[40][1], values[40][4:7] = 0.4, [0.9, 0.9, 0.1]
    monkeypatch.setattr(halving, "metric_at", lambda path, metric, rung: values[rung][int(path.name)])
    first = halve(tmp_path, found, 20)
    assert [d.trial for d in first if not d.stop] == [1, 4, 5, 6]
    assert first[3] == Decision(3, 20, None, True)
    values[20] = [1.0] * 8
    assert halve(tmp_path, found, 20) == first, "as it was decided"
    assert [t.number for t in going_to(tmp_path, found, 40)] == [1, 4, 5, 6]
    assert said(halve(tmp_path, found, 40)) == "after 40 updates 2 of 4 trials go on: 4 (0.9), 5 (0.9)"
    assert [t.number for t in going_to(tmp_path, found, None)] == [4, 5]
    assert [t.number for t in going_to(tmp_path, found, 20)] == list(range(8))
    assert [(d.trial, d.updates) for d in decisions(tmp_path)] == [
        *((n, 20) for n in range(8)),
        *((n, 40) for n in (1, 4, 5, 6)),
    ]


def test_decisions_of_a_rung_are_there_all_or_none(tmp_path, monkeypatch):
    add_decisions(tmp_path, [Decision(0, 5, 0.1, True)])

    def fails(*of):
        raise OSError("killed here")

    monkeypatch.setattr("os.replace", fails)
    monkeypatch.setattr("pathlib.Path.replace", fails)
    with pytest.raises(OSError, match="killed here"):
        add_decisions(tmp_path, [Decision(1, 10, 0.1, True), Decision(2, 10, 0.1, False)])
    assert decisions(tmp_path) == [Decision(0, 5, 0.1, True)]


def test_a_plan_is_read_as_it_was_written_and_one_without_a_first_rung_is_damaged(tmp_path):
    found, path = plan(), tmp_path / "search.toml"
    path.write_text(found.as_toml())
    assert read_search(path) == found
    for wrong in (replace(found, grace=0), replace(found, scheduler="none")):
        path.write_text(wrong.as_toml())
        with pytest.raises(DataError, match="grace: wanted updates above 0 with asha or halving"):
            read_search(path)
