"""Replay of seeded directions, all seeds in one pass over the parameters.

An update known as (seed, coefficient) pairs is applied element by element in the order of the
pairs, so that the bits are those of one pair after the other, whatever the slices, the threads and
the device. What is saved is traffic and, on an accelerator, launches: x is read and written once,
the normals never leave the registers.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Literal, get_args

import numpy as np

from raydpzv.errors import InputError, suggest
from raydpzv.zo import device, kernels, philox
from raydpzv.zo.spans import Span
from raydpzv.zo.vectors import Vector, as_array, is_vector, on_cpu

Base = Literal["gaussian", "rademacher"]
"""What the generator makes. The sphere is the gaussian with `Direction.norm_factor` in the
coefficient.
"""
_UNIT: dict[str, int] = {"gaussian": 16 * philox.TILE, "rademacher": philox.SIGN_TILE}
"""Elements that one thread takes at the least: 64 and 128 KiB of x, which the second cache
holds.
"""
_PRODUCTS = 16
"""Seeds whose a and b are made at a time: of a table of 30,000 words and 400 columns 2 MB."""
_PIECES = 4
"""Pieces per thread: one that is slowed down leaves its later pieces to the others."""


def replay(
    x: Vector,
    seeds: Sequence[int] | np.ndarray,
    coefficients: Sequence[float] | np.ndarray,
    *,
    start: int = 0,
    law: Base = "gaussian",
    threads: int = 1,
) -> None:
    """x[i] -= coefficients[j] · z_j[start + i] for j = 0, 1, ... in that order, in place.

    x: contiguous float32 [n], an array or a tensor on any device; seeds: whole numbers in
    0..2^64-1. Each coefficient is rounded to float32 once; each element and seed takes one product
    and one sum. `threads` counts on the CPU only and moves no bits. Raises InputError for what does
    not fit.
    """
    _check(x, start, law, threads)
    seeds_k, coefficients_k = _seeds(seeds), np.asarray(coefficients, np.float32)
    if coefficients_k.shape != seeds_k.shape:
        raise InputError(
            f"replay got {seeds_k.size} seeds and coefficients of shape {coefficients_k.shape}: "
            "give one per seed"
        )
    if on_cpu(x):
        _on_cpu(as_array(x), seeds_k, coefficients_k, start, law, threads)
    else:
        device.subtract(x, x, seeds_k, coefficients_k, start, law)


def replay_products(
    x: Vector,
    seeds: np.ndarray,
    coefficients: Sequence[float] | np.ndarray,
    span: Span,
    *,
    start: int = 0,
    threads: int = 1,
) -> None:
    """`replay` of directions a bᵀ on a part of one matrix; start: the place of x[0] in the matrix,
    row by row.

    Each element and seed takes a product of coefficient and a, one of that and b, and one sum: the
    order and the roundings of `replay`, and so the same bits from any slices, any number of seeds
    in a call and any threads.
    """
    coefficients_k = np.asarray(coefficients, np.float32)
    for first in range(0, len(seeds), _PRODUCTS):
        chosen = slice(first, first + _PRODUCTS)
        _add_products(x, seeds[chosen], coefficients_k[chosen], span, start, threads)


def _add_products(
    x: Vector, seeds: np.ndarray, scales: np.ndarray, span: Span, start: int, threads: int
) -> None:
    top, bottom = span.cut(start, start + len(x))
    rows = drawn(seeds, span.drawn + top, bottom - top)
    columns = drawn(seeds, span.drawn + span.rows, span.columns)
    begin = start - top * span.columns
    if not on_cpu(x):
        device.subtract_products(x, rows, columns, scales, begin)
        return
    array = as_array(x)

    def work(first: int, last: int) -> None:
        kernels.subtract_products(array[first:last], rows, columns, scales, begin + first)

    in_pieces(array.size, start, _UNIT["gaussian"], threads, work)


def drawn(seeds: np.ndarray, first: int, count: int) -> np.ndarray:
    """Return normals [first, first + count) of each seed's stream, float32 [k, count]."""
    z = np.zeros((len(seeds), count), np.float32)
    for z_j, seed in zip(z, seeds, strict=True):
        kernels.add_direction(z_j, z_j, seed, np.float32(1), first)
    return z


def _on_cpu(
    x: np.ndarray, seeds: np.ndarray, scales: np.ndarray, start: int, law: Base, threads: int
) -> None:
    subtract = kernels.subtract_directions if law == "gaussian" else kernels.subtract_signs

    def work(first: int, last: int) -> None:
        subtract(x[first:last], seeds, scales, start + first)

    in_pieces(x.size, start, _UNIT[law], threads, work)


def in_pieces(
    size: int, start: int, unit: int, threads: int, work: Callable[[int, int], None]
) -> None:
    """Call work(first, last) for pieces of [0, size), cut at whole units of the direction, on
    several threads.
    """
    if threads == 1:
        work(0, size)
        return
    pieces = deque(pairwise(_cuts(size, start, unit, _PIECES * threads)))

    def several() -> None:
        while pieces:
            try:
                first, last = pieces.popleft()
            except IndexError:  # another thread took the last one
                return
            work(first, last)

    # a pool of its own for each call, as a kept one would not survive a fork; the caller works too
    with ThreadPoolExecutor(threads - 1) as pool:
        helpers = [pool.submit(several) for _ in range(threads - 1)]
        several()
        for helper in helpers:
            helper.result()


def _cuts(size: int, start: int, unit: int, pieces: int) -> list[int]:
    """Return where to cut [0, size) into at most `pieces`, at whole units of the direction."""
    first, last = start // unit, -(-(start + size) // unit)
    pieces = max(1, min(pieces, last - first))
    inner = (unit * (first + (last - first) * i // pieces) - start for i in range(1, pieces))
    return [0, *inner, size]


def _seeds(seeds: Sequence[int] | np.ndarray) -> np.ndarray:
    if isinstance(seeds, np.ndarray) and seeds.dtype == np.uint64 and seeds.ndim == 1:
        return seeds.copy()  # one by one they would take as long as a short direction
    try:
        return np.array([operator.index(seed) for seed in seeds], np.uint64)
    except (TypeError, OverflowError) as error:
        raise InputError(f"seeds must be whole numbers in 0..2^64-1: {error}") from None


def _check(x: Vector, start: int, law: str, threads: int) -> None:
    if law not in get_args(Base):
        hint = (
            'use "gaussian" and fold Direction.norm_factor into the coefficients'
            if law == "sphere"
            else ""
        )
        raise InputError(
            f'replay knows the laws "gaussian" and "rademacher", not {law!r}: '
            f"{hint or suggest(law, get_args(Base))}"
        )
    if not is_vector(x):
        raise InputError(
            f"replay changes contiguous float32 vectors in place, not {x.dtype} of shape "
            f"{tuple(x.shape)}: give it a flat view"
        )
    if start < 0 or threads < 1:
        raise InputError(
            f"start must be 0 or more and threads 1 or more, not {start} and {threads}"
        )
