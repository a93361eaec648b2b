"""The noise of integer releases: a rounded Gaussian from the operating system's randomness.

S is an integer, so S + rint(Z) = rint(S + Z): what is released is a rounding, hence
post-processing, of the continuous Gaussian mechanism, and the closed forms of `raydpzv.privacy.gdp`
hold exactly, in any dimension. Floating-point noise has no such argument, since its low bits depend
on the value it was added to.

rint(N(0, s²)) is drawn by inversion from 64 bits: one is the sign, 63 are the upper tail's
probability u in (0, 1/2), and x = −s Φ⁻¹(u). These bits are a cell of width 2^-64 in u. Where its x
lies near a half integer, or so far out that the cell is wider than the margin, 128 more bits make u
one of 192 bits and Φ at half integers, to 256 bits, decides. The total variation distance to the
exact law is below 2^-100 a draw.

scipy and mpmath are imported where a number is drawn: every actor imports this module, few draw.
"""

# N draws

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from raydpzv.errors import InputError

RandomBytes = Callable[[int], bytes]
"""As many random bytes as asked for; `os.urandom` for whatever is meant to be private."""

_MARGIN = 1e-9  # of max(1, s): a million times what double precision gets wrong
_TAIL = 2.0**-34  # u above s times this: a cell of u is less than the margin wide in x
_BITS = 256  # of Φ where it decides, 64 more than u has
_LARGEST = (
    2.0**40
)  # 192 bits reach 17 s, and double precision still finds the right integer or one beside it


def rounded_gaussian(
    scale: float, count: int, source: RandomBytes = os.urandom
) -> npt.NDArray[np.int64]:
    """Return independent draws of rint(N(0, s²)), int64 [N].

    scale: s, in the units of the integers it is added to; source: of 8 bytes a draw, and 16 more
    for few of them. Raises InputError unless 0 < s <= 2^40.
    """
    if not 0 < scale <= _LARGEST:
        raise InputError(f"noise on integers needs a scale above 0 and at most 2^40, not {scale}")
    from scipy.special import ndtri

    words_N = np.frombuffer(source(8 * count), np.uint64)
    tails_N = words_N >> np.uint64(1)
    u_N = (tails_N.astype(np.float64) + 0.5) * 2.0**-64
    x_N = -scale * ndtri(u_N)
    found_N = np.rint(x_N)
    unsure_N = 0.5 - np.abs(x_N - found_N) < _MARGIN * max(1.0, scale)
    unsure_N |= u_N < scale * _TAIL
    magnitudes_N = found_N.astype(np.int64)
    for place in np.flatnonzero(unsure_N):
        more = int.from_bytes(source(16), "little")
        magnitudes_N[place] = _decide(scale, (int(tails_N[place]) << 128) + more)
    return np.where(words_N & np.uint64(1), -magnitudes_N, magnitudes_N)


def _decide(scale: float, tail: int) -> int:
    """Return rint(−s Φ⁻¹(u)) for u = (tail + 1/2) / 2^192: the first k with Φ(−(k + 1/2)/s) < u."""
    from scipy.special import ndtri

    high = _high_precision()
    u, s = (high.mpf(tail) + 0.5) / high.mpf(2) ** 192, high.mpf(scale)

    def beyond(k: int) -> Any:
        return high.erfc((k + high.mpf(0.5)) / (s * high.sqrt(2))) / 2

    k = int(-scale * ndtri(float(u)) + 0.5)
    while k > 0 and beyond(k - 1) < u:
        k -= 1
    while beyond(k) >= u:
        k += 1
    return k


@functools.lru_cache(maxsize=1)
def _high_precision() -> Any:
    """A context of mpmath of its own: another's precision, or another thread's, changes nothing
    here.
    """
    import mpmath

    context = mpmath.MPContext()
    context.prec = _BITS
    return context
