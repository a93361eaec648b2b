import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import scenarios
from raydpzv.errors import DataError, RunError, SpecError
from raydpzv.keys import Key
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.run_writer import RunWriter
from raydpzv.records.schema import SCHEMAS
from raydpzv.records.store import append_rows
from raydpzv.search.population import (
    Exploit,
    Turn,
    as_trained,
    check_alike,
    current,
    explored,
    facts_of,
    legs,
    pairs,
    population_of,
    turns,
)
from raydpzv.search.search_folder import metric_at
from raydpzv.search.search_plan import SearchPlan, read_search, trials_of
from raydpzv.search.space import Dimension

LR = Dimension("method.lr", "loguniform", (1e-3, 1e-1))
HEAD = Dimension("method.server_lr", "choice", (0.01, 0.02, 0.04))
KEY = Key(5)
NOWHERE = math.nan


def plain(*changes):
    return lambda settings: scenarios.load(
        "digits_dpzv",
        ["privacy.mode=none", "budget.updates=60", "evaluate.every=5", *changes, *settings],
    )


def plan(*changes, interval=20, quantile=0.25, space=(LR,), points=4):
    trials = trials_of(
        plain(*changes), [(f"method.lr={0.01 * (n + 1)}",) for n in range(points)], None
    )
    population = population_of(trials, space, interval, quantile, 3)
    return SearchPlan("x", "accuracy", "pbt", 0, None, trials, population=population)


def exploit(trial, donor, lr):
    return Exploit(trial, donor, 0.1, 0.2, {"method.lr": lr}, 700, 90)


def test_segments_end_at_multiples_of_the_interval_and_the_last_at_the_end():
    assert legs(plan()) == [20, 40, None]
    assert legs(plan(interval=None)) == [*range(5, 60, 5), None]
    assert legs(replace(plan(), population=None)) == [None]


def test_the_worst_quantile_continues_from_the_best_which_are_other_trials():
    values = {n: n / 10 for n in range(8)}
    found = dict(pairs(values, 0.25, KEY, higher=True))
    assert found.keys() == {0, 1}
    assert set(found.values()) <= {6, 7}
    lower = dict(pairs(values, 0.25, KEY, higher=False))
    assert lower.keys() == {6, 7}
    assert set(lower.values()) <= {0, 1}
    assert dict(pairs(values, 0.25, KEY, higher=True)) == found, "the same at the same key"
    others = [dict(pairs(values, 0.25, Key(n), higher=True)) for n in range(20)]
    assert any(other != found for other in others)


def test_of_three_trials_one_has_a_donor_also_at_a_half():
    assert len(list(pairs({0: 0.1, 1: 0.2, 2: 0.3}, 0.5, KEY, higher=True))) == 1


@pytest.mark.parametrize("higher", [True, False])
def test_a_trial_without_a_metric_is_worst_and_no_donor(higher):
    assert dict(pairs({0: NOWHERE, 1: 0.2, 2: 0.3, 3: 0.25}, 0.25, KEY, higher=higher)).keys() == {
        0
    }
    assert list(pairs({0: NOWHERE, 1: NOWHERE}, 0.5, KEY, higher=higher)) == []


def test_nobody_continues_from_a_trial_that_is_no_better():
    assert list(pairs({0: 0.2, 1: 0.2, 2: 0.2, 3: 0.2}, 0.25, KEY, higher=True)) == []


def test_a_step_size_is_multiplied_or_drawn_anew_within_its_range():
    found = [explored(LR, 0.05, KEY / n) for n in range(400)]
    factors = sum(value in (0.04, 0.06) for value in found)
    assert 0.68 < factors / 400 < 0.82
    assert 0.3 < sum(value == 0.04 for value in found) / factors < 0.7
    assert all(1e-3 <= value <= 1e-1 for value in found)
    edge = {explored(LR, 0.095, KEY / n) for n in range(40)}
    assert 0.1 in edge, "at its end"


def test_a_choice_goes_to_a_neighbour():
    found = [explored(HEAD, 0.02, KEY / n) for n in range(200)]
    assert set(found) == {0.01, 0.02, 0.04}
    assert found.count(0.02) < 0.2 * 200, "only where it is drawn anew"
    assert 0.02 in {explored(HEAD, 0.04, KEY / n) for n in range(20)}


def test_a_trial_is_its_donors_scenario_with_other_step_sizes_from_the_turn_on():
    found = plan()
    made = [Turn(20, (exploit(0, 3, 0.05),)), Turn(40, (exploit(1, 0, 0.06), exploit(2, 3, 0.07)))]
    trained = as_trained(found, made)
    assert [t.number for t in trained] == [0, 1, 2, 3]
    assert [t.spec.method.lr for t in trained] == [0.04] * 4
    assert [t.spec.method.lr_at for t in trained] == [
        ((21, 0.05),),
        ((21, 0.05), (41, 0.06)),
        ((41, 0.07),),
        None,
    ]
    assert [current(t)["method.lr"] for t in trained] == [0.05, 0.06, 0.07, 0.04]
    assert trained[3].spec == found.trials[3].spec
    assert as_trained(found, made[:1])[1].spec == found.trials[1].spec


FIRST = Turn(20, (exploit(0, 3, 0.05),))


@pytest.mark.parametrize(
    "made",
    [
        [Turn(7, FIRST.exploits)],
        [Turn("20", FIRST.exploits)],
        [Turn(40, FIRST.exploits)],
        [FIRST, FIRST],
        [FIRST, Turn(40, ()), Turn(60, ())],
        [Turn(20, (exploit(0, 4, 0.05),))],
        [Turn(20, (exploit(0, -1, 0.05),))],
        [Turn(20, (exploit("0", 3, 0.05),))],
        [Turn(20, (exploit(3, 3, 0.05),))],
        [Turn(20, (exploit(0, 1, 0.05), exploit(2, 0, 0.06)))],
        [Turn(20, (exploit(0, 3, 0.05), exploit(0, 2, 0.06)))],
        [Turn(20, (exploit(0, 3, -0.05),))],
        [Turn(20, (exploit(0, 3, NOWHERE),))],
        [Turn(20, (Exploit(0, 3, 0.1, 0.2, {"method.batch": 8}, 700, 90),))],
    ],
)
def test_what_this_search_cannot_have_decided_is_refused(made):
    """A donor that continues from another in the same turn is no donor any more: forks are made one
    by one.
    """
    with pytest.raises(
        DataError, match=r"population\.jsonl: line \d, after .* is no decision of this search"
    ):
        as_trained(plan(), made)
    as_trained(plan(), [FIRST, Turn(40, ())])


def test_a_metric_is_that_of_the_first_evaluation_and_none_where_the_loss_is_no_number(tmp_path):
    def row(round, part, accuracy, loss):
        return {
            "round": round,
            "time": 1.0,
            "part": part,
            "accuracy": accuracy,
            "loss": loss,
            "top_share": 0.5,
        }

    rows = [
        row(10, "test", 0.5, 1.0),
        row(10, "validation", 0.4, 2.0),
        row(20, "test", 0.6, NOWHERE),
        row(20, "validation", 0.7, 1.5),
        row(10, "test", 0.9, 0.1),
    ]
    append_rows(tmp_path, {"evaluation": pa.Table.from_pylist(rows, SCHEMAS["evaluation"])})
    assert metric_at(tmp_path, "accuracy", 10) == 0.5
    assert metric_at(tmp_path, "validation_loss", 10) == 2.0
    assert metric_at(tmp_path, "validation_accuracy", 20) == 0.7
    assert math.isnan(metric_at(tmp_path, "accuracy", 20)), "diverged, whatever it predicts"
    assert math.isnan(metric_at(tmp_path, "accuracy", 30))
    assert math.isnan(metric_at(tmp_path, "roc_auc", 10)), "not measured"


def test_a_row_says_from_whom_when_and_how_many_bytes():
    made = [Turn(20, (exploit(0, 3, 0.05),)), Turn(40, (exploit(0, 1, 0.06), exploit(2, 3, 0.07)))]
    assert facts_of(0, made) == {
        "exploits": 2,
        "donors": "3 at 20, 1 at 40",
        "state_bytes": 1400,
        "row_bytes": 180,
    }
    assert facts_of(1, made)["exploits"] == 0


def test_a_plan_is_read_as_it_was_written(tmp_path):
    found = plan(space=(LR, HEAD))
    (tmp_path / "search.toml").write_text(found.as_toml())
    again = read_search(tmp_path / "search.toml")
    assert again.population == found.population
    assert again.same_as(found)
    assert not again.same_as(replace(found, population=replace(found.population, interval=30)))
    (tmp_path / "search.toml").write_text(
        found.as_toml().replace('scheduler = "pbt"', 'scheduler = "none"')
    )
    with pytest.raises(DataError, match="wanted pbt with"):
        read_search(tmp_path / "search.toml")


def test_a_damaged_file_of_turns_is_named(tmp_path):
    assert turns(tmp_path) == []
    (tmp_path / "population.jsonl").write_text('{"updates": 20, "exploits": [{"trial": 1}]}\n')
    with pytest.raises(DataError, match=r"population\.jsonl"):
        turns(tmp_path)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            {"space": (Dimension("method.momentum", "uniform", (0.0, 0.9)),)},
            "method.momentum: --scheduler pbt",
        ),
        (
            {"space": (Dimension("method.lr", "grid", (0.1, 0.2)),)},
            "method.lr.grid: --scheduler pbt draws",
        ),
        ({"points": 1}, "a population of 2 trials or more, got 1"),
        ({"interval": 7}, r"--interval: wanted a multiple of evaluate.every \(5\)"),
        ({"interval": 60}, "--interval: wanted"),
        ({"quantile": 0.6}, "--quantile: wanted"),
        ({"quantile": 0.0}, "--quantile: wanted"),
        ({"quantile": math.nan}, "--quantile: wanted"),
    ],
)
def test_what_is_no_population_is_refused(how, said):
    with pytest.raises(SpecError, match=said):
        plan(**how)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("clock.kind=wall",), "clock.kind: --scheduler pbt continues from checkpoints"),
        (("budget.seconds=9",), "no other budget"),
        (("method.lr_at=[[5, 0.1]]",), "method.lr_at: is what --scheduler pbt makes"),
        (
            (
                "privacy.mode=paper",
                "privacy.epsilon=1",
                "privacy.delta=1e-4",
                "privacy.noise=seeded",
            ),
            "would draw the same noise",
        ),
        (("method.batches=poisson", "method.coins=system"), "batches of its own"),
    ],
)
def test_runs_that_cannot_continue_from_one_another_are_refused(changes, said):
    with pytest.raises(SpecError, match=said):
        plan(*changes)


def test_a_method_with_nothing_to_change_is_refused_and_others_named():
    def make(settings):
        return scenarios.load("digits_decomfl", ["method.name=fedavg", *settings])

    trials = trials_of(make, [("method.lr=0.1",), ("method.lr=0.2",)], None)
    with pytest.raises(
        SpecError, match="has none that can be changed; use asha, or one of dpzv,"
    ) as refused:
        population_of(trials, (LR,), None, None, 0)
    assert "decomfl" in str(refused.value)
    assert "fedavg" not in str(refused.value).partition("one of")[2]


@pytest.mark.parametrize(
    ("scenario", "changes"),
    [
        ("digits_dpzv", ("method.server=frozen",)),
        ("frozen", ("method.server=discriminant", "model.head=linear")),
    ],
)
def test_step_sizes_of_a_head_that_takes_no_steps_are_refused(scenario, changes):
    def population(*how):
        trials = trials_of(
            lambda settings: scenarios.load(
                scenario, ["budget.updates=100", "evaluate.every=5", *how, *settings]
            ),
            [("method.server_lr=0.1",), ("method.server_lr=0.2",)],
            None,
        )
        return population_of(
            trials, (Dimension("method.server_lr", "uniform", (0.1, 0.2)),), None, None, 0
        )

    with pytest.raises(
        SpecError, match=r'method\.server_lr: with method\.server = ".*" the head takes no steps'
    ):
        population(*changes)
    population()


def stands(path, updates, counts):
    path.mkdir()
    state = {"run": {"status": {"privacy": {"releases": 4, "records": np.array(counts)}}}}
    RunWriter(path).write_checkpoint(Checkpoint(updates, state))
    return path


def test_trials_that_have_not_released_alike_stand_for_nobody(tmp_path):
    one, same, other = (
        stands(tmp_path / name, 20, counts)
        for name, counts in (("a", [1, 2]), ("b", [1, 2]), ("c", [2, 1]))
    )
    check_alike(0, one, 1, same, 20)
    with pytest.raises(RunError, match="trials 0 and 2 have not released alike after 20 updates"):
        check_alike(0, one, 2, other, 20)
    check_alike(0, tmp_path / "diverged before", 2, other, 20)


def test_a_trial_that_somebody_continued_with_stands_for_nobody_and_nobody_for_it(tmp_path):
    """What it released past the turn would be in no account of the search."""
    one, further = stands(tmp_path / "a", 20, [1]), stands(tmp_path / "b", 25, [1])
    for run in (one, further):
        (run / "scenario.toml").write_text("")
    check_alike(0, one, 1, one, 20)
    for runs in ((0, one, 1, further), (1, further, 0, one)):
        with pytest.raises(
            RunError, match=r"trial 1 .* wanted to stand after 20 updates.* has made 25"
        ):
            check_alike(*runs, 20)
