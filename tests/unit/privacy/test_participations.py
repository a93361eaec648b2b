"""Counted participations against a Counter, and what a batch may not hold."""

from collections import Counter

import numpy as np
import pytest

from raydpzv.errors import InputError
from raydpzv.keys import Key
from raydpzv.privacy.participations import Participations


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_counts_are_those_of_a_counter(dtype):
    draws, rows, slow = Key(1).generator(), 50, Counter()
    marks = np.zeros(rows, np.int64)
    account, other = Participations(rows, marks), Participations(rows, marks)
    for _ in range(60):
        ids = draws.permutation(rows)[: draws.integers(0, 20)].astype(dtype)
        releases = int(draws.integers(1, 4))
        expected = max([slow[i] + releases for i in ids.tolist()], default=0)
        assert account.after(ids, releases) == max(expected, max(slow.values(), default=0))
        account.add(ids, releases)
        other.add(ids[::2], 1)  # accounts that share their marks do not disturb one another
        slow.update(dict.fromkeys(ids.tolist(), releases))
        assert account.counts.tolist() == [slow[i] for i in range(rows)]
        assert account.most == max(slow.values(), default=0)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("ids", "word"),
    [
        ([3, 1, 3], "twice"),
        ([0, 10], "0..9"),
        ([-1], "0..9"),
        ([2, -5, 3], "0..9"),
        ([4, 4], "twice"),
    ],
)
def test_rows_that_are_twice_or_nowhere_are_refused_and_not_counted(dtype, ids, word):
    account = Participations(10)
    account.add(np.array([1, 2], dtype), 1)
    for act in (account.add, account.after):
        with pytest.raises(InputError, match=word):
            act(np.array(ids, dtype), 1)
    assert account.counts.sum() == 2
    assert account.most == 1
