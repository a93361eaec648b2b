import itertools
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from raydpzv.keys import Key
from raydpzv.methods.horizontal.rounds import Cohorts


def test_a_cohort_is_drawn_uniformly_and_without_replacement() -> None:
    cohorts = Cohorts(7, 3, Key(5))
    drawn = [tuple(cohorts.draw(round).tolist()) for round in range(1, 3501)]
    assert all(len(set(c)) == 3 and list(c) == sorted(c) for c in drawn)
    every = list(itertools.combinations(range(7), 3))
    counts = np.array([Counter(drawn)[c] for c in every])
    assert stats.chisquare(counts).pvalue > 0.01
    crooked = 3500 * (1 + 0.3 * (np.array([0 in c for c in every]) - 3 / 7)) / 35
    assert stats.chisquare(counts, crooked / crooked.sum() * 3500).pvalue < 1e-4


def test_successive_cohorts_are_independent() -> None:
    cohorts = Cohorts(6, 3, Key(5))
    shared = [
        len({*cohorts.draw(r).tolist()} & {*cohorts.draw(r + 1).tolist()}) for r in range(1, 2000)
    ]
    expected = stats.hypergeom(6, 3, 3).pmf(np.arange(4)) * len(shared)
    assert stats.chisquare(np.bincount(shared, minlength=4), expected).pvalue > 0.01


def test_a_cohort_depends_on_the_key_and_the_round_alone() -> None:
    cohorts = Cohorts(1000, 10, Key(5))
    late = cohorts.draw(50)
    assert np.array_equal(late, Cohorts(1000, 10, Key(5)).draw(50))
    assert not np.array_equal(late, cohorts.draw(51))
    assert not np.array_equal(late, Cohorts(1000, 10, Key(6)).draw(50))
    assert cohorts.draw(1).tolist() != sorted(range(10))


def test_a_cohort_of_all_is_all_of_them() -> None:
    assert Cohorts(9, 9, Key(1)).draw(4).tolist() == list(range(9))


def test_a_cohort_of_millions_of_clients_costs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers drawn from the generator, in place of a time that a busy machine would falsify."""
    used = []
    for clients in (20_000, 4_000_000):
        generator = (Key(1) / "cohort" / 1).generator()
        monkeypatch.setattr(Key, "generator", lambda _, g=generator: g)
        Cohorts(clients, 100, Key(1)).draw(1)
        used.append(int(generator.bit_generator.state["state"]["counter"][0]))
        monkeypatch.undo()
    assert used[0] > 0
    assert abs(used[1] - used[0]) <= 2
