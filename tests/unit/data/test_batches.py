import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from raydpzv.data.batches import SAMPLINGS, Batches
from raydpzv.errors import SpecError
from raydpzv.keys import Key

KEY = Key(11) / "client" / 0


@st.composite
def batches(draw: st.DrawFn, how: str | None = None) -> Batches:
    rows = draw(st.integers(1, 50))
    how = how or draw(st.sampled_from(SAMPLINGS))
    return Batches(how, draw(st.integers(1, rows)), rows, Key(draw(st.integers(0, 2**63))))


@settings(max_examples=60, deadline=None)
@given(batches(), st.lists(st.integers(0, 8), min_size=1, max_size=12))
def test_a_draw_depends_on_key_and_step_alone(one, steps):
    fresh = {step: Batches(one.how, one.size, one.rows, one.key).draw(step) for step in steps}
    for step in (*steps, *reversed(steps)):
        got = one.draw(step)
        np.testing.assert_array_equal(got, fresh[step])
        assert got.dtype == np.int32
        got[:] = -1  # a caller's own array: writing to it must not reach the next draw


@settings(max_examples=60, deadline=None)
@given(batches(), st.integers(0, 40))
def test_no_record_takes_part_more_often_than_stated(one, steps):
    drawn = [one.draw(step) for step in range(steps)]
    assert all(len(np.unique(ids)) == len(ids) for ids in drawn)
    seen = np.bincount(np.concatenate([np.empty(0, int), *drawn]), minlength=one.rows)
    assert len(seen) == one.rows
    assert seen.max() <= one.participations(steps)


@settings(max_examples=40, deadline=None)
@given(batches("shuffle"), st.integers(0, 5))
def test_an_epoch_holds_every_record_at_most_once_and_drops_the_rest(one, epoch):
    per_epoch = one.rows // one.size
    ids = np.concatenate([one.draw(epoch * per_epoch + i) for i in range(per_epoch)])
    assert len(ids) == per_epoch * one.size
    assert len(np.unique(ids)) == len(ids)


def test_epochs_differ_and_so_do_the_dropped_records():
    one = Batches("shuffle", 4, 10, KEY)
    epochs = [
        set(np.concatenate([one.draw(2 * e), one.draw(2 * e + 1)]).tolist()) for e in range(40)
    ]
    assert set.union(*epochs) == set(range(10))
    assert len({frozenset(epoch) for epoch in epochs}) > 10


def test_going_back_an_epoch_gives_the_same_batch():
    one = Batches("shuffle", 4, 10, KEY)
    first = one.draw(0)
    assert not np.array_equal(one.draw(2), first)
    np.testing.assert_array_equal(one.draw(0), first)


def test_participations():
    shuffle = Batches("shuffle", 4, 10, KEY)  # two batches an epoch
    assert [shuffle.participations(steps) for steps in range(6)] == [0, 1, 1, 2, 2, 3]
    assert Batches("shuffle", 1, 3, KEY).participations(3 * 10**17) == 10**17
    assert Batches("uniform", 4, 10, KEY).participations(9) == 9
    assert Batches("poisson", 4, 10, KEY).participations(9) == 9


@pytest.mark.parametrize("how", SAMPLINGS)
def test_rate_and_divisor_are_the_expected_batch(how):
    one = Batches(how, 4, 10, KEY)
    assert one.rate == 0.4
    assert one.divisor == 4


def inclusion(one: Batches, steps: int) -> np.ndarray:
    return sum(np.bincount(one.draw(step), minlength=one.rows) for step in range(steps))


def agreement(seen: np.ndarray, steps: int, rate: float) -> float:
    """p-value that every record's count is Binomial(steps, rate), records independent
    (chi-square).
    """
    squares = np.sum((seen - steps * rate) ** 2) / (steps * rate * (1 - rate))
    return 2 * min(stats.chi2.cdf(squares, len(seen)), stats.chi2.sf(squares, len(seen)))


def test_poisson_includes_every_record_at_the_stated_rate():
    one = Batches("poisson", 30, 200, KEY)
    seen = inclusion(one, 2000)
    assert agreement(seen, 2000, 0.15) > 1e-3
    assert agreement(seen, 2000, 0.15 * 0.95) < 1e-3, "control: a coin off by 5 % must be noticed"


def test_poisson_coins_are_independent():
    """Sizes have the binomial law; fixed-size batches, the control, have none of its variance."""
    sizes = {
        how: np.array([len(Batches(how, 30, 200, KEY).draw(step)) for step in range(2000)])
        for how in ("poisson", "uniform")
    }
    ratio = {how: n.var() / (200 * 0.15 * 0.85) for how, n in sizes.items()}
    assert abs(ratio["poisson"] - 1) < 5 * np.sqrt(2 / 2000)
    assert abs(ratio["uniform"] - 1) > 5 * np.sqrt(2 / 2000)


def test_poisson_may_be_empty_and_is_ascending():
    few = Batches("poisson", 1, 3, KEY)
    empty = np.mean([len(few.draw(step)) == 0 for step in range(3000)])
    assert abs(empty - (2 / 3) ** 3) < 5 * np.sqrt(0.3 * 0.7 / 3000)
    many = Batches("poisson", 50, 100, KEY)
    assert all((np.diff(many.draw(step)) > 0).all() for step in range(20))
    np.testing.assert_array_equal(Batches("poisson", 9, 9, KEY).draw(0), np.arange(9))


@pytest.mark.parametrize("how", ["uniform", "shuffle"])
def test_fixed_size_batches_cover_all_records_evenly(how):
    one = Batches(how, 7, 40, KEY)
    steps, rate = 3000, 7 / 40
    seen = inclusion(one, steps)
    assert all(len(one.draw(step)) == 7 for step in range(20))
    # an epoch of five batches drops five of the 40: that alone varies a shuffle's counts
    trials, chance = (steps, rate) if how == "uniform" else (steps // 5, 35 / 40)
    deviation = np.sqrt(trials * chance * (1 - chance))
    assert np.abs(seen - steps * rate).max() < 4.5 * deviation
    skewed = seen + np.where(np.arange(40) == 0, round(0.2 * steps * rate), 0)
    assert np.abs(skewed - steps * rate).max() > 4.5 * deviation, (
        "control: one record drawn 20 % more often"
    )


@pytest.mark.parametrize("how", ["uniform", "shuffle"])
def test_every_place_of_a_batch_sees_every_record(how):
    one = Batches(how, 5, 10, KEY)
    first = np.bincount([one.draw(step)[0] for step in range(2000)], minlength=10)
    assert stats.chisquare(first).pvalue > 1e-3
    ascending = np.bincount([one.draw(step).min() for step in range(2000)], minlength=10)
    assert stats.chisquare(ascending).pvalue < 1e-3, (
        "control: sorted batches begin with small numbers"
    )


@pytest.mark.parametrize("how", SAMPLINGS)
def test_clients_and_steps_draw_differently(how):
    here, there = (Batches(how, 20, 100, Key(1) / "client" / m) for m in range(2))
    assert not np.array_equal(here.draw(0), there.draw(0))
    assert not np.array_equal(here.draw(0), here.draw(1))


def test_equal_settings_are_equal_after_use_and_travel():
    one, other = (Batches("shuffle", 2, 8, KEY) for _ in range(2))
    drawn = one.draw(5)
    assert one == other
    assert hash(one) == hash(other)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(one)).draw(5), drawn)


@pytest.mark.parametrize(
    ("how", "size", "rows", "words"),
    [
        ("shuffel", 2, 8, 'mean "shuffle"'),
        ("shuffle", 0, 8, "at least 1"),
        ("uniform", 9, 8, "exceeds the 8 rows"),
        ("poisson", 9, 8, "exceeds the 8 rows"),
        ("uniform", 1, 2**31, "32 bits"),
    ],
)
def test_batches_that_cannot_be_drawn_are_refused(how, size, rows, words):
    with pytest.raises(SpecError, match=rf"\A(?=.*{words})[^\n]+\Z"):
        Batches(how, size, rows, KEY)


def test_steps_count_from_0():
    with pytest.raises(SpecError, match="step -1"):
        Batches("shuffle", 2, 8, KEY).draw(-1)
