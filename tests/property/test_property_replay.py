"""Replay in one pass, one seed after the other, and the numpy definition: the same bits, whatever
is asked for.
"""

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raydpzv.zo import numba_kernel, philox
from raydpzv.zo.apply_seeds import Base, replay

SEEDS = st.integers(0, 2**64 - 1)
LAWS: st.SearchStrategy[Base] = st.sampled_from(["gaussian", "rademacher"])
# around the ends of both tiles, and where block numbers outgrow 32 bits (2^42 for normals, 2^47 for
# signs)
STARTS = st.one_of(
    st.integers(0, 70_000),
    *(st.integers(edge - 3000, edge + 3000) for edge in (1 << 15, 1 << 42, 1 << 47)),
    st.integers(0, 2**50),
)
PAIRS = st.lists(st.tuples(SEEDS, st.floats(-1e3, 1e3, width=32)), max_size=9)
quick = settings(max_examples=60, deadline=None, derandomize=True)


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint32)


def start_vector(size: int) -> np.ndarray:
    return np.linspace(-1, 1, size, dtype=np.float32)


def sequential(x: np.ndarray, pairs: list[tuple[int, float]], start: int, law: Base) -> np.ndarray:
    add = numba_kernel.add_direction if law == "gaussian" else numba_kernel.add_signs
    for seed, coefficient in pairs:
        add(x, x, np.uint64(seed), np.float32(-coefficient), start)
    return x


def defined(x: np.ndarray, pairs: list[tuple[int, float]], start: int, law: Base) -> np.ndarray:
    make = philox.normals if law == "gaussian" else philox.signs
    for seed, coefficient in pairs:
        x = x - np.float32(coefficient) * make(seed, start, start + x.size)
    return x


@quick
@given(law=LAWS, pairs=PAIRS, start=STARTS, size=st.integers(0, 40_000), threads=st.integers(1, 2))
def test_one_pass_is_sequential_is_the_definition(
    law: Base, pairs: list[tuple[int, float]], start: int, size: int, threads: int
) -> None:
    x = start_vector(size)
    replay(x, [s for s, _ in pairs], [c for _, c in pairs], start=start, law=law, threads=threads)
    assert np.array_equal(bits(x), bits(sequential(start_vector(size), pairs, start, law)))
    assert np.array_equal(bits(x), bits(defined(start_vector(size), pairs, start, law)))


@quick
@given(
    law=LAWS,
    pairs=PAIRS,
    start=STARTS,
    cuts=st.lists(st.integers(0, 70_000), max_size=6),
    threads=st.integers(1, 3),
)
def test_slices_and_groups_of_seeds_move_no_bits(
    law: Base, pairs: list[tuple[int, float]], start: int, cuts: list[int], threads: int
) -> None:
    whole, pieces = torch.from_numpy(start_vector(70_000)), torch.from_numpy(start_vector(70_000))
    replay(
        whole, [s for s, _ in pairs], [c for _, c in pairs], start=start, law=law, threads=threads
    )
    half = len(pairs) // 2
    for first, last in pairwise([0, *sorted(cuts), 70_000]):
        for group in (pairs[:half], pairs[half:]):
            replay(
                pieces[first:last],
                [s for s, _ in group],
                [c for _, c in group],
                start=start + first,
                law=law,
            )
    assert torch.equal(whole, pieces)


@quick
@given(seed=SEEDS, start=STARTS, count=st.integers(0, 3000), amount=st.floats(-1e3, 1e3, width=32))
def test_adding_signs_is_the_definition(seed: int, start: int, count: int, amount: float) -> None:
    x, out = start_vector(count), np.empty(count, np.float32)
    numba_kernel.add_signs(out, x, np.uint64(seed), np.float32(amount), start)
    expected = x + np.float32(amount) * philox.signs(seed, start, start + count)
    assert np.array_equal(bits(out), bits(expected))
