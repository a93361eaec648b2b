"""The embedding table against a dictionary, one row at a time."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raydpzv.engine.embedding_cache import EmbeddingCache
from raydpzv.engine.split_model import AGE_BINS
from tests.helpers.ages import cache_uses

ROWS, CLIENTS = 6, 3
BATCHES = st.lists(st.integers(0, ROWS - 1), unique=True, max_size=ROWS)
# who uploads which rows, and how many rounds pass until then
HISTORY = st.lists(st.tuples(st.integers(0, CLIENTS - 1), BATCHES, st.integers(1, 40)), max_size=12)


def slow_bin(age: int) -> int:
    k = 0
    while age >= 2**k:
        k += 1
    return min(k, AGE_BINS - 1)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    history=HISTORY,
    asked=BATCHES,
    later=st.integers(1, 70_000),
    serving=st.integers(0, CLIENTS - 1),
)
def test_values_and_ages_are_those_of_a_dictionary(
    history: list[tuple[int, list[int], int]], asked: list[int], later: int, serving: int
) -> None:
    table = EmbeddingCache(ROWS, CLIENTS, 1)
    newest: dict[tuple[int, int], int] = {}
    round = 0
    for client, rows, passed in history:
        round += passed
        table.put(client, np.array(rows, np.int32), torch.full((len(rows), 1), float(round)), round)
        newest.update({(row, client): round for row in rows})
    now = round + later
    ids = np.array(asked, np.int32)
    expected = [[float(newest.get((row, m), 0)) for m in range(CLIENTS)] for row in asked]
    assert table.get(ids).flatten(1).tolist() == expected
    uses = cache_uses(table.ages(ids, now, serving))
    assert [use.client for use in uses] == [m for m in range(CLIENTS) if m != serving]
    assert all(use.round == now for use in uses)
    for use in uses:
        ages = [now - newest[row, use.client] for row in asked if (row, use.client) in newest]
        assert (use.rows, use.missing) == (len(asked), len(asked) - len(ages))
        assert (use.age_sum, use.age_max) == (sum(ages), max(ages, default=0))
        assert use.age_bins == [sum(slow_bin(a) == k for a in ages) for k in range(AGE_BINS)]
