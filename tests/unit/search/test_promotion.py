"""When asha promotes, where its trials stand, and what its plan says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import scenarios
from raydpzv.errors import DataError, SpecError
from raydpzv.search.promotion import first_rung, rule, rungs, why_not_promoting
from raydpzv.search.search_plan import SearchPlan, read_search, trials_of

RATES = [(f"method.lr={0.01 * (n + 1):.6g}",) for n in range(4)]


def trials(*changes, points=RATES, scenario="digits_dpzv"):
    quiet = ["privacy.mode=none"] if scenario == "digits_dpzv" else []
    base = ["budget.updates=100", "evaluate.every=5"]

    def make(settings):
        return scenarios.load(scenario, [*quiet, *base, *changes, *settings])

    return trials_of(make, points, None)


def plan(*changes, grace=None):
    made = trials(*changes)
    return SearchPlan("x", "accuracy", "asha", first_rung(made, grace), None, made, promotes=True)


@pytest.mark.parametrize(
    ("changes", "points", "actors", "why"),
    [
        ((), RATES, False, ""),
        ((), RATES, True, "--actors: actors of a trial's own cannot stand still"),
        (
            ("clock.kind=wall",),
            RATES,
            False,
            "trial 0 (method.lr=0.01) leaves no checkpoint to go on from: real time",
        ),
        (("budget.bytes=9",), RATES, False, "budget.bytes: trial 0 (method.lr=0.01) may end before"),
        ((), [*RATES, ("budget.epsilon=1.0",)], False, "budget.epsilon: trial 4"),
    ],
)
def test_trials_are_promoted_wherever_each_can_stand_and_go_on(changes, points, actors, why):
    scenario = "digits_private" if any("epsilon" in point[0] for point in points) else "digits_dpzv"
    said = why_not_promoting(trials(*changes, points=points, scenario=scenario), actors=actors)
    assert said.startswith(why)
    assert bool(said) == bool(why)


def test_noise_that_is_kept_nowhere_leaves_nothing_to_go_on_from():
    changes = ("privacy.head_clip=1.0", 'method.server="dp_sgd"')
    said = why_not_promoting(trials(*changes, scenario="digits_private"), actors=False)
    assert said.endswith("its noise on the head's gradients comes from the operating system and is not kept")


def test_rungs_double_from_an_eighth_to_at_most_half_of_the_budget():
    assert rungs(plan()) == [10, 20, 40]
    assert rungs(plan("budget.updates=2000", "evaluate.every=50")) == [250, 500, 1000]
    assert rungs(plan(grace=5)) == [5, 10, 20, 40]
    assert rungs(plan(grace=60)) == [60]


@pytest.mark.parametrize("grace", [1, 7, 100])
def test_a_first_rung_between_evaluations_or_behind_the_end_is_refused(grace):
    with pytest.raises(SpecError, match=r"--grace: wanted a multiple of evaluate.every \(5\) below"):
        first_rung(trials(), grace)


def test_trials_of_several_lengths_are_refused():
    with pytest.raises(SpecError, match=r"--scheduler asha: wanted one budget\.updates for all"):
        first_rung(trials(points=[*RATES, ("budget.updates=50",)]), None)


def test_a_plan_says_that_it_promotes_and_one_that_says_nothing_does_not(tmp_path):
    found, path = plan(), tmp_path / "search.toml"
    path.write_text(found.as_toml())
    assert read_search(path) == found
    assert "10, 20, 40 updates" in rule(found)
    path.write_text(found.as_toml().replace("promotes = true\n", ""))
    assert read_search(path) == replace(found, promotes=False)
    assert not found.same_as(replace(found, promotes=False))
    path.write_text(found.as_toml().replace('"asha"', '"halving"'))
    with pytest.raises(DataError, match="promotes: is of asha alone"):
        read_search(path)
