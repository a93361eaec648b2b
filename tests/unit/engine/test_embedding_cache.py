import numpy as np
import torch

from raydpzv.engine.embedding_cache import EmbeddingCache
from raydpzv.engine.split_model import AGE_BINS, COUNTED


def ids(*rows: int) -> np.ndarray:
    return np.array(rows, np.int32)


def test_rows_never_uploaded_are_zero_and_the_newest_counts() -> None:
    table = EmbeddingCache(5, 2, 3)
    table.put(1, ids(4, 2), torch.full((2, 3), 1.0), 1)
    table.put(1, ids(2), torch.full((1, 3), 7.0), 2)
    batch = table.get(ids(2, 0, 4))
    assert batch.shape == (3, 2, 3)
    assert batch[:, 0].tolist() == [[0.0] * 3] * 3
    assert batch[:, 1, 0].tolist() == [7.0, 0.0, 1.0]


def test_what_is_read_is_a_copy() -> None:
    table = EmbeddingCache(3, 1, 2)
    table.get(ids(0, 1)).fill_(9)
    assert not table.get(ids(0, 1, 2)).any()


def test_ages_are_binned_by_powers_of_two() -> None:
    table = EmbeddingCache(1, 2, 1)
    table.put(0, ids(0), torch.zeros(1, 1), 1)
    ages = [0, 1, 2, 3, 4, 7, 8, 1023, 1024, 2**22 - 1, 2**22, 2**30]
    found = [table.ages(ids(0), 1 + age, serving=1)[0, COUNTED:].tolist().index(1) for age in ages]
    assert found == [0, 1, 2, 2, 3, 3, 4, 10, 11, 22, 23, AGE_BINS - 1]
