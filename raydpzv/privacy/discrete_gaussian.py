"""Exact discrete Gaussian noise N_Z(0, s²), P(k) ∝ exp(−k² / (2 s²)), many draws at once.

Rejection as in Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy" (NeurIPS
2020), Algorithms 1 to 3, with their two coins thrown as one. With t = ⌊s⌋ + 1 a proposal is Y = U +
tV, U uniform on 0..t−1 and V geometric, P(V = v) ∝ e^−v, with a sign (no −0); it stays with
probability e^−γ, γ = Y²/(2s²) − V + 1/2. Since Y ≥ sV, γ is at least (V − 1)²/2 ≥ 0, and what stays
has P(Y) ∝ e^−V e^−γ ∝ exp(−Y²/(2s²)).

Every comparison of a random number with e^−γ or e^−v is exact: a float bound decides unless the
number's first bits lie within `_MARGIN` units of it, or in the bound's own cell; then more bits are
drawn and arithmetic as precise as they are decides. The law is the one of the float s, without an
error, and what is drawn is a function of the random bytes alone.

mpmath is imported where more bits are needed, which a million draws never do: every actor imports
this module.
"""

# N draws

from __future__ import annotations

import functools
import itertools
import os
from fractions import Fraction
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from raydpzv.errors import InputError
from raydpzv.privacy.rounded_gaussian import RandomBytes

_LEAST = 2.0**-40  # the square of less would vanish in the end
_LARGEST = (
    2.0**40
)  # t times the largest V is exact in double precision, and 2^64 has t more than 2^23 times
_MARGIN = 32.0  # of 2^-53: rounding moves the bound by at most 8, wherever it is largest
_PROPOSALS = 1 << 15  # at once: what they need stays in a processor's cache
_STEPS = (
    46  # V = 45 has probability 2e-20: one word in 2^64 or so gets there, and is looked at in full
)
_MORE = 128  # bits drawn where those there are do not decide


def discrete_gaussian(
    scale: float, count: int, source: RandomBytes = os.urandom
) -> npt.NDArray[np.int64]:
    """Return independent draws of N_Z(0, s²), int64 [N], exactly.

    scale: s, in the units of the integers it is added to. source: gives as many random bytes as it
    is asked for, about 34 a draw; the operating system's for whatever is meant to be private.
    Raises InputError unless 2^-40 <= s <= 2^40.
    """
    if not _LEAST <= scale <= _LARGEST:
        raise InputError(f"noise on integers needs a scale from 2^-40 to 2^40, not {scale}")
    found_N, have = np.empty(count, np.int64), 0
    while have < count:
        kept = _accepted(scale, min(_PROPOSALS, (count - have) * 9 // 4 + 16), source)[
            : count - have
        ]
        found_N[have : have + len(kept)] = kept
        have += len(kept)
    return found_N


def _accepted(scale: float, proposals: int, source: RandomBytes) -> npt.NDArray[np.int64]:
    """Return what stays of so many proposals, in their order."""
    places, steps, coins = np.frombuffer(source(24 * proposals), np.uint64).reshape(3, proposals)
    t = int(scale) + 1
    v = _geometric(steps, source)
    y = (places % np.uint64(t)).astype(np.int64) + t * v
    negative = (coins & np.uint64(1)).astype(bool)
    # 2^64 is no multiple of t: its last, incomplete stretch is left out, and so is −0
    fair = (places < np.uint64((1 << 64) // t * t)) if t & (t - 1) else np.ones(proposals, bool)
    fair &= ~(negative & (y == 0))
    bounds = np.exp(v - 0.5 - y.astype(np.float64) ** 2 / (2 * scale * scale)) * 2.0**53
    gaps = bounds - (coins >> np.uint64(11)).astype(np.float64)
    stays = gaps > 0
    for place in np.flatnonzero(np.abs(gaps) < _MARGIN):
        exponent = (
            Fraction(int(y[place]) ** 2) / (2 * Fraction(scale) ** 2)
            - int(v[place])
            + Fraction(1, 2)
        )
        stays[place] = _Uniform(int(coins[place]) >> 11, 53, source).below(exponent)
    y = np.where(negative, -y, y)
    return cast("npt.NDArray[np.int64]", y[stays & fair])


def _geometric(words: npt.NDArray[np.uint64], source: RandomBytes) -> npt.NDArray[np.int64]:
    """Return V with P(V >= v) = e^−v, of 64 random bits each: the first bits of a number below e^−v
    or not.
    """
    bounds = _powers()
    v = (_STEPS - np.searchsorted(bounds, words, side="right")).astype(np.int64)
    cells = np.searchsorted(bounds, words, side="left")
    for place in np.flatnonzero(bounds[np.minimum(cells, _STEPS - 1)] == words):
        number = _Uniform(int(words[place]), 64, source)
        v[place] = next(v for v in itertools.count() if not number.below(Fraction(v + 1)))
    return v


@functools.lru_cache(maxsize=1)
def _powers() -> npt.NDArray[np.uint64]:
    """⌊2^64 e^−v⌋ for v = 46..1, ascending, uint64: a word above is a number above, one below is a
    number below.
    """
    high = _precise(_MORE)
    return np.array(
        [int(high.exp(-v) * high.mpf(2) ** 64) for v in range(_STEPS, 0, -1)], np.uint64
    )


class _Uniform:
    """A uniform number on [0, 1), of which as many bits are drawn as comparisons with it need."""

    def __init__(self, first: int, bits: int, source: RandomBytes) -> None:
        self._number, self._bits, self._source = first, bits, source

    def below(self, exponent: Fraction) -> bool:
        """Return whether it is below e^−exponent."""
        while True:
            high = _precise(self._bits + 64)
            bound = (
                high.exp(-high.mpf(exponent.numerator) / exponent.denominator)
                * high.mpf(2) ** self._bits
            )
            gap = bound - self._number  # the number is this and a fraction of a unit
            if not -1 < gap < 2:
                return bool(gap > 0)
            more = int.from_bytes(self._source(_MORE // 8), "little")
            self._number, self._bits = (self._number << _MORE) + more, self._bits + _MORE


def _precise(bits: int) -> Any:
    """A context of mpmath of its own: another's precision, or another thread's, changes nothing
    here.
    """
    import mpmath

    context = mpmath.MPContext()
    context.prec = bits
    return context
