"""The settings of Ray Tune's schedulers, and the trials that each can take."""

import re

import pytest

import scenarios
from raydpzv.errors import SpecError
from raydpzv.search.schedulers import Scheduling, scheduling, step_sizes, without_checkpoint
from raydpzv.search.search_terms import SearchTerms
from raydpzv.search.space import Dimension
from tests.helpers.loading import refusal

SHORT = ("budget.updates=180", "evaluate.every=10")
STEPS = (Dimension("method.lr", "loguniform", (1e-3, 1e-1)),)


def asked(name, *changes, space=STEPS, trials=2, scenario="digits_dpzv", **terms):
    specs = [scenarios.load(scenario, [*SHORT, *changes])] * trials
    return scheduling(specs, space, SearchTerms(scheduler=name, **terms))


def test_defaults_are_parts_of_the_budget_at_evaluations():
    assert asked("none") == Scheduling()
    assert asked("asha").grace == 20
    assert asked("asha", grace=40).grace == 40
    assert asked("hyperband").every == 10
    population = asked("pbt", quantile=0.5)
    assert (population.interval, population.quantile) == (10, 0.5)
    assert asked("pbt", interval=60).interval == 60
    assert [asked(name).cuts for name in ("none", "asha", "hyperband", "pbt")] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("name", "changes", "terms", "said"),
    [
        ("pb", (), {}, 'wanted none, asha, hyperband or pbt, got "pb". Did you mean "pbt"'),
        ("none", (), {"grace": 10}, "--grace: goes with --scheduler asha"),
        ("asha", (), {"interval": 10}, "--interval: goes with --scheduler pbt"),
        ("asha", (), {"quantile": 0.5}, "--quantile: goes with --scheduler pbt"),
        ("asha", (), {"grace": 15}, "--grace: wanted a multiple of evaluate.every"),
        ("asha", (), {"grace": 180}, "below budget.updates"),
        ("asha", ("evaluate.every=180",), {}, "evaluate.every: wanted fewer updates"),
        ("asha", ("budget.seconds=9",), {}, "wanted one budget.updates for all trials"),
        ("hyperband", ("clock.kind=wall",), {}, "resumes trials from checkpoints"),
        ("hyperband", (), {"actors": True}, "--actors: --scheduler hyperband pauses"),
        ("pbt", (), {"interval": 25}, "--interval: wanted a multiple"),
        ("pbt", (), {"quantile": 0.6}, "--quantile: wanted a share"),
        ("pbt", ("privacy.noise=seeded",), {}, "would draw the same noise for two sums"),
        ("pbt", ("method.lr_at=[[20, 0.1]]",), {}, "method.lr_at: is what --scheduler pbt writes"),
    ],
)
def test_what_a_scheduler_cannot_take_is_refused_by_name(name, changes, terms, said):
    with refusal(SpecError, re.escape(said)):
        asked(name, *changes, **terms)


def test_pbt_varies_step_sizes_that_are_drawn_and_have_an_effect():
    for dimension, changes, said in (
        (
            Dimension("method.momentum", "uniform", (0, 0.9)),
            (),
            "varies what can change in mid-run",
        ),
        (Dimension("method.lr", "grid", (1, 2)), (), "method.lr.grid: --scheduler pbt draws"),
        (
            Dimension("method.server_lr", "uniform", (0.1, 0.2)),
            ("method.server=frozen",),
            "the head takes no steps",
        ),
    ):
        with pytest.raises(SpecError, match=said):
            asked("pbt", *changes, space=(dimension,))
    with pytest.raises(SpecError, match="wanted 2 trials or more, got 1"):
        asked("pbt", trials=1)
    assert step_sizes(scenarios.load("digits_dpzv").method) == ["server_lr", "lr"]


def test_trials_of_one_budget_are_compared_at_the_same_evaluations():
    for change in ("budget.updates=90", "evaluate.every=20"):
        specs = [scenarios.load("digits_dpzv", [*SHORT, *more]) for more in ((), (change,))]
        with pytest.raises(SpecError, match="for all trials"):
            scheduling(specs, STEPS, SearchTerms(scheduler="asha"))


def test_runs_without_a_checkpoint_say_why():
    assert without_checkpoint(scenarios.load("digits_dpzv")) == ""
    wall = scenarios.load("digits_dpzv", ["clock.kind=wall"])
    assert without_checkpoint(wall) == "real time cannot pause"
