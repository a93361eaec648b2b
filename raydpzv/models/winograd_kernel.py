"""Winograd's transforms for 5x5 convolutions by tiles of 2x2 outputs, compiled with numba.

F(2x2, 5x5) of Lavin and Gray, "Fast algorithms for convolutional neural networks" (CVPR 2016), Section 4, with the
points 0, 1, -1, 2, -1/2 and infinity. A tile of 6x6 inputs d becomes Bᵀ d B, whose 36 numbers are multiplied with those
of the filter, G g Gᵀ, and summed over the channels, by 36 matrix products; Aᵀ m A are its 2x2 outputs, of which pooling
keeps the largest.

The records of a batch lie innermost, so that loops are long whatever the number of channels, and columns are kept by
even and odd numbers, so that the tiles of a row lie side by side. Every output has a loop of its own: with two, the
compiler would have to prove too many arrays apart, and vectorises neither.

numba caches compiled code by this file. Callers go through `raydpzv.models.pooled_convolutions`.
"""

# C channels, H x W pixels, B records, n = W/2 · B, L = (W/2 + 2) · B, for both parities of columns 2 n and 2 L

from __future__ import annotations

import numpy as np
from numba import njit

from raydpzv.zo.kernel_cache import compiled

_f32 = np.float32
_ZERO, _HALF, _TWO, _THREE_HALVES, _FIVE_HALVES = _f32(0), _f32(0.5), _f32(2), _f32(1.5), _f32(2.5)


@njit(inline="always")
def _six(o0, o1, o2, o3, o4, o5, d0, d1, d2, d3, d4, d5):  # type: ignore[no-untyped-def]
    """The six numbers of Bᵀ d, element by element."""
    size = len(o0)
    for e in range(size):
        o0[e] = d0[e] + _THREE_HALVES * (d1[e] - d3[e]) - _TWO * d2[e] + d4[e]
    for e in range(size):
        o1[e] = d4[e] - d1[e] - _FIVE_HALVES * d2[e] - _HALF * d3[e]
    for e in range(size):
        o2[e] = d1[e] + _HALF * d2[e] - _FIVE_HALVES * d3[e] + d4[e]
    for e in range(size):
        o3[e] = _HALF * (d3[e] - d1[e]) - d2[e] + d4[e]
    for e in range(size):
        o4[e] = _TWO * (d1[e] - d3[e]) - d2[e] + d4[e]
    for e in range(size):
        o5[e] = d1[e] + _THREE_HALVES * (d2[e] - d4[e]) - _TWO * d3[e] + d5[e]


@njit(inline="always")
def _larger(a, b):  # type: ignore[no-untyped-def]
    """The larger number, NaN if one is."""
    return b if (b > a) | (b != b) else a


@compiled
def pooled(places_Cr4n: np.ndarray, row: int, bias_C: np.ndarray, out_CHL: np.ndarray) -> None:
    """Write the largest of the four places in each pool, with its bias and ReLU, inside the padding of `out`.

    places: float32 [C, r, 4, 2 n], of r rows from `row` on; out: [C, H + 4, 2 L], even columns before odd ones.
    """
    channels, rows, _, both = places_Cr4n.shape
    size, odd = both // 2, out_CHL.shape[2] // 2
    left = (odd - size) // 2
    for c in range(channels):
        bias = bias_C[c]
        for r in range(rows):
            for q in range(2):
                p0, p1 = places_Cr4n[c, r, 0, q * size :], places_Cr4n[c, r, 1, q * size :]
                p2, p3 = places_Cr4n[c, r, 2, q * size :], places_Cr4n[c, r, 3, q * size :]
                out_n = out_CHL[c, row + r + 2, q * odd + left :]
                for e in range(size):
                    best = _larger(_larger(p0[e], p1[e]), _larger(p2[e], p3[e])) + bias
                    out_n[e] = _ZERO if best < _ZERO else best


@compiled
def inputs(x_CHL: np.ndarray, row: int, rows_6L: np.ndarray, v_36Cn: np.ndarray) -> None:
    """Write Bᵀ d B of a row of tiles to v.

    x: float32 [C, H + 4, 2 L], padded images, even columns before odd ones; row: of tiles; rows_6L: scratch [6, 2 L].
    """
    channels, size = x_CHL.shape[0], v_36Cn.shape[2]
    odd = x_CHL.shape[2] // 2
    step = (odd - size) // 2  # columns W/2 + 2 against tiles W/2
    for c in range(channels):
        d = x_CHL[c, 2 * row : 2 * row + 6]
        _six(
            rows_6L[0], rows_6L[1], rows_6L[2], rows_6L[3], rows_6L[4], rows_6L[5],
            d[0], d[1], d[2], d[3], d[4], d[5],
        )  # fmt: skip
        for k in range(6):
            even_L, odd_L = rows_6L[k, :odd], rows_6L[k, odd:]
            _six(
                v_36Cn[6 * k, c], v_36Cn[6 * k + 1, c], v_36Cn[6 * k + 2, c],
                v_36Cn[6 * k + 3, c], v_36Cn[6 * k + 4, c], v_36Cn[6 * k + 5, c],
                even_L[:size], odd_L[:size], even_L[step : step + size], odd_L[step : step + size],
                even_L[2 * step :], odd_L[2 * step :],
            )  # fmt: skip


@compiled
def outputs(
    m_36Cn: np.ndarray, row: int, bias_C: np.ndarray, sums_12n: np.ndarray, out_CHn: np.ndarray
) -> None:
    """Write Aᵀ m A of a row of tiles, pooled, with its bias and ReLU, to out[:, row].

    m: float32 [36, C, n]; sums_12n: scratch; out: [C, H/2, n].
    """
    channels, size = out_CHn.shape[0], out_CHn.shape[2]
    for c in range(channels):
        for j in range(6):
            m0, m1, m2 = m_36Cn[j, c], m_36Cn[6 + j, c], m_36Cn[12 + j, c]
            m3, m4, m5 = m_36Cn[18 + j, c], m_36Cn[24 + j, c], m_36Cn[30 + j, c]
            above_n, below_n = sums_12n[j], sums_12n[6 + j]
            for e in range(size):
                above_n[e] = m0[e] + (m1[e] + m2[e]) + m3[e] + m4[e]
            for e in range(size):
                below_n[e] = (m1[e] - m2[e]) + _TWO * m3[e] - _HALF * m4[e] + m5[e]
        out_n, bias = out_CHn[c, row], bias_C[c]
        s0, s1, s2, s3, s4, s5 = sums_12n[0], sums_12n[1], sums_12n[2], sums_12n[3], sums_12n[4], sums_12n[5]
        for e in range(size):
            left = s0[e] + (s1[e] + s2[e]) + s3[e] + s4[e]
            right = (s1[e] - s2[e]) + _TWO * s3[e] - _HALF * s4[e] + s5[e]
            out_n[e] = _larger(left, right)
        s0, s1, s2, s3, s4, s5 = (
            sums_12n[6],
            sums_12n[7],
            sums_12n[8],
            sums_12n[9],
            sums_12n[10],
            sums_12n[11],
        )
        for e in range(size):
            left = s0[e] + (s1[e] + s2[e]) + s3[e] + s4[e]
            right = (s1[e] - s2[e]) + _TWO * s3[e] - _HALF * s4[e] + s5[e]
            best = _larger(out_n[e], _larger(left, right)) + bias
            out_n[e] = _ZERO if best < _ZERO else best
