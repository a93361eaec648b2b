import json
import math
import statistics

import pytest

from raydpzv.errors import SpecError
from raydpzv.search.space import MOST_TRIALS, Dimension
from raydpzv.search.suggest import RANDOM_FIRST, check_space, suggested

SPACE = (
    Dimension("method.lr", "loguniform", (1e-4, 1.0)),
    Dimension("method.momentum", "uniform", (0.0, 0.5)),
    Dimension("method.perturbations", "randint", (1, 3)),
    Dimension("split.sizes", "choice", ([1, 2], [2, 1])),
)


@pytest.fixture
def optuna():
    return pytest.importorskip("optuna")


def values(point):
    return {name: json.loads(value) for name, _, value in (item.partition("=") for item in point)}


def distance(found):
    return abs(math.log10(found["method.lr"]) + 1)


def search(seed, *, learns=True, higher=False, count=30):
    """Ask for one trial at a time; what is sought is a step size of 0.1. learns: is each told what
    it came to?
    """
    outcomes = []
    for _ in range(count):
        (point,) = suggested(SPACE, outcomes, 1, seed, higher=higher, accepts=lambda point: True)
        found = values(point)
        value = distance(found) * (-1 if higher else 1)
        outcomes.append((found, value if learns else None))
    return [found for found, _ in outcomes]


def test_points_are_in_the_space_and_the_same_again(optuna):
    found = suggested(SPACE, [], 30, 5, higher=True, accepts=lambda point: True)
    assert found == suggested(SPACE, [], 30, 5, higher=True, accepts=lambda point: True)
    assert found != suggested(SPACE, [], 30, 6, higher=True, accepts=lambda point: True)
    assert len(set(found)) == 30
    for found_values in map(values, found):
        assert 1e-4 <= found_values["method.lr"] <= 1.0
        assert 0.0 <= found_values["method.momentum"] <= 0.5
    assert {v["method.perturbations"] for v in map(values, found)} == {1, 2, 3}
    assert {str(v["split.sizes"]) for v in map(values, found)} == {"[1, 2]", "[2, 1]"}


@pytest.mark.parametrize("higher", [False, True])
def test_later_points_are_nearer_to_what_did_well(optuna, higher):
    """The control is told that every trial came to nothing."""

    def late(seed, **how):
        return statistics.median(map(distance, search(seed, higher=higher, **how)[RANDOM_FIRST:]))

    learned, blind = ([late(seed, learns=learns) for seed in range(2)] for learns in (True, False))
    assert max(learned) < 0.7 * min(blind)


def test_points_that_are_refused_are_chosen_anew_until_there_are_no_more(optuna):
    space = (Dimension("method.perturbations", "randint", (1, 4)),)
    found = suggested(
        space, [], 9, 0, higher=True, accepts=lambda point: point != ("method.perturbations=2",)
    )
    assert sorted(found) == [(f"method.perturbations={n}",) for n in (1, 3, 4)]


def test_a_grid_and_too_many_trials_are_refused():
    with pytest.raises(SpecError, match="seed: wanted a setting that is drawn"):
        check_space((Dimension("seed", "grid", (0, 1)),), 3)
    with pytest.raises(SpecError, match="--samples: wanted at most 2,000"):
        check_space(SPACE, MOST_TRIALS + 1)
    check_space(SPACE, MOST_TRIALS)
