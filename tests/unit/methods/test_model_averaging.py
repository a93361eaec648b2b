import numpy as np
import pytest

from raydpzv.keys import Key
from raydpzv.methods.model_averaging import ModelAverage, tail_begin


@pytest.mark.parametrize(
    ("share", "updates", "gathered", "begin"),
    [
        (0.5, 400, 1, 200),
        (1.0, 400, 1, 0),
        (0.1, 400, 1, 360),  # 0.1 * 400 is a little more than 40 in binary
        (0.25, 101, 2, 38),  # 50 releases, of which 12 or 13
        (None, 400, 1, None),
        (0.5, None, 1, None),
    ],
)
def test_the_tail_is_the_last_share_of_what_is_planned(share, updates, gathered, begin):
    assert tail_begin(share, updates, gathered) == begin


@pytest.mark.parametrize("begin", [None, 0, 3, 4, 7, 9, 20])
def test_updates_before_the_tail_are_those_that_it_does_not_cover(begin):
    tail, updates = ModelAverage(begin), [1, 3, 4, 8, 9]
    assert tail.before(updates) == sum(not tail.covers(update) for update in updates)


def test_the_mean_is_that_of_the_iterates_past_the_begin_and_of_no_other():
    iterates = (Key(1) / "iterates").generator().standard_normal((9, 5)).astype(np.float32)
    mean, none = ModelAverage(4), ModelAverage(None)
    for update, x in enumerate(iterates, 1):
        assert (mean.mean() is None) == (update <= 5)
        for tail in (mean, none):
            if tail.covers(update):
                tail.add(x)
    found = mean.mean()
    assert found.dtype == np.float32
    assert found == pytest.approx(iterates[4:].mean(0), rel=1e-6)
    for other in (iterates[3:], iterates[5:], iterates[4:-1]):
        assert np.abs(found - other.mean(0)).max() > 1e-2, "control: another tail has another mean"
    assert none.mean() is None


def test_many_iterates_lose_nothing_and_are_not_kept_by_reference():
    """A sum in float32 would stand still at 2^24 steps of one; here x is changed in place, as a
    model is.
    """
    x, tail = np.full(1, 2.0**24, np.float32), ModelAverage(0)
    tail.add(x)
    x[:] = 1
    for _ in range(3):
        tail.add(x)
    assert tail.mean() == np.float32((2.0**24 + 3) / 4)
