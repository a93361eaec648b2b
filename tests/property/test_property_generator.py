"""The compiled generator gives the defined bits, whatever slice is asked for."""

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raydpzv.zo import numba_kernel, philox
from raydpzv.zo.directions import Direction

SEEDS = st.integers(0, 2**64 - 1)
# beyond 2^42 the block number no longer fits into 32 bits
STARTS = st.one_of(
    st.integers(0, 5000), st.integers(2**42 - 3000, 2**42 + 3000), st.integers(0, 2**50)
)
quick = settings(max_examples=60, deadline=None, derandomize=True)


def bits(z: np.ndarray) -> np.ndarray:
    return z.view(np.uint32)


@quick
@given(seed=SEEDS, start=STARTS, count=st.integers(0, 3000))
def test_compiled_and_defined_slices_have_the_same_bits(seed: int, start: int, count: int) -> None:
    defined = philox.normals(seed, start, start + count)
    compiled = Direction(seed, start + count).values(start, start + count)
    assert defined.shape == compiled.shape == (count,)
    assert np.array_equal(bits(defined), bits(compiled))


@quick
@given(seed=SEEDS, start=st.integers(0, 4000), count=st.integers(0, 3000))
def test_a_slice_is_the_slice_of_the_whole(seed: int, start: int, count: int) -> None:
    whole = Direction(seed, 7000).values()
    assert np.array_equal(
        bits(Direction(seed, 7000).values(start, start + count)), bits(whole[start : start + count])
    )
    assert np.array_equal(
        bits(philox.normals(seed, start, start + count)), bits(whole[start : start + count])
    )


@quick
@given(
    seed=SEEDS, cuts=st.lists(st.integers(0, 5000), max_size=8), amount=st.floats(-10, 10, width=32)
)
def test_adding_in_chunks_is_adding_at_once(seed: int, cuts: list[int], amount: float) -> None:
    direction = Direction(seed, 5000, "sphere")
    start_immediately, in_chunks = torch.linspace(-1, 1, 5000), torch.linspace(-1, 1, 5000)
    direction.add_to(start_immediately, amount)
    edges = [0, *sorted(cuts), 5000]
    for first, last in pairwise(edges):
        direction.add_to(in_chunks[first:last], amount, start=first)
    assert torch.equal(start_immediately, in_chunks)


@quick
@given(seed=SEEDS, amount=st.floats(-1e3, 1e3, width=32))
def test_an_element_takes_one_product_and_one_sum(seed: int, amount: float) -> None:
    x = np.linspace(-1, 1, 1500, dtype=np.float32)
    out = np.empty_like(x)
    numba_kernel.add_direction(out, x, np.uint64(seed), np.float32(amount), 100)
    product = np.float32(amount) * philox.normals(seed, 100, 1600)
    assert np.array_equal(bits(out), bits(x + product))


@quick
@given(seed=SEEDS, amount=st.floats(-1e3, 1e3, width=32))
def test_a_scaled_vector_takes_one_product_and_one_sum(seed: int, amount: float) -> None:
    x, v = np.linspace(-1, 1, 1500, dtype=np.float32), philox.normals(seed, 0, 1500)
    expected = x + np.float32(amount) * v
    numba_kernel.add_scaled(x, v, np.float32(amount))
    assert np.array_equal(bits(x), bits(expected))


@quick
@given(seed=SEEDS, size=st.integers(0, 5000))
def test_the_squared_norm_is_the_sum_of_the_squares(seed: int, size: int) -> None:
    z = philox.normals(seed, 0, size).astype(np.float64)
    assert np.isclose(
        numba_kernel.squared_norm(np.uint64(seed), size), np.sum(z * z), rtol=1e-13, atol=0
    )
