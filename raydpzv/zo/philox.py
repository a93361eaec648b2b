"""The direction generator: its definition, in numpy.

Philox4x32-10 (Salmon et al. 2011) with key = 64-bit seed and counter = (block low, block high, 0,
0), then Box-Muller in float32. A tile is 1024 elements = 256 blocks: element e lies in tile e >>
10, is made from word (e >> 8) & 3 of block tile·256 + (e & 255). So any slice can be generated
alone, in any order, on any machine, and every word is a unit-stride vector.

Signs (Rademacher directions) take every bit of the same words: a tile is 32768 elements = 256
blocks, element e lies in tile t = e >> 15, row k = (e >> 8) & 127, and is -1 where bit k & 31 of
word k >> 5 of block t·256 + (e & 255) is set, else 1.

The arithmetic is part of the definition: float32, no fused multiply-add, correctly rounded square
root, Estrin polynomials. |z| <= 6.76. The fast kernel (`raydpzv.zo.numba_kernel`) is tested to give
the same bits.
"""

from __future__ import annotations

import numpy as np

TILE = 1024
BLOCKS = TILE // 4
SIGN_TILE = 128 * BLOCKS
MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10

_f32 = np.float32
LOG = tuple(
    _f32(v)
    for v in (
        -0.10106763988733292, 0.16222524642944336, -0.17250847816467285, 0.1990017294883728,
        -0.24969908595085144, 0.33335059881210327, -0.5000036358833313, 0.9999999403953552,
    )
)  # fmt: skip
SIN = tuple(
    _f32(v)
    for v in (
        0.00015148513193707913, -0.004673766437917948, 0.07968968152999878, -0.645963728427887,
        1.5707963705062866,
    )
)  # fmt: skip
COS = tuple(
    _f32(v)
    for v in (
        0.0008581905858591199, -0.020810628309845924, 0.2536507546901703, -1.2336982488632202,
        0.9999999403953552,
    )
)  # fmt: skip
SQRT_HALF_BITS = 0x3F3504F3
MINUS_2_LN2 = _f32(-1.3862943611198906)


def normals(seed: int | np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return elements [start, stop) of the standard normal direction of a 64-bit seed, float32; of
    K seeds [K, n].
    """
    first, last = start // TILE, -(-stop // TILE)
    words = philox(seed, np.arange(first * BLOCKS, last * BLOCKS, dtype=np.uint64))
    pairs = [*_box_muller(words[0], words[1]), *_box_muller(words[2], words[3])]
    tiles = np.stack([z.reshape(*np.shape(seed), -1, BLOCKS) for z in pairs], axis=-2)
    return tiles.reshape(*np.shape(seed), -1)[..., start - first * TILE : stop - first * TILE]


def signs(seed: int, start: int, stop: int) -> np.ndarray:
    """Return elements [start, stop) of the Rademacher direction of a 64-bit seed, float32, each 1
    or -1.
    """
    first, last = start // SIGN_TILE, -(-stop // SIGN_TILE)
    words = philox(seed, np.arange(first * BLOCKS, last * BLOCKS, dtype=np.uint64))
    word_t4i = np.stack(words, axis=-1).reshape(-1, BLOCKS, 4).transpose(0, 2, 1)
    bit_t4ki = word_t4i[:, :, None, :] >> np.arange(32, dtype=np.uint32)[:, None] & np.uint32(1)
    tiles = _f32(1) - _f32(2) * bit_t4ki.reshape(-1).astype(_f32)
    return tiles[start - first * SIGN_TILE : stop - first * SIGN_TILE]


def philox(seed: int | np.ndarray, block: np.ndarray) -> list[np.ndarray]:
    """Return the four 32-bit words of each 64-bit block number under a 64-bit key; of K seeds [K,
    blocks].
    """
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    key = np.asarray(seed, np.uint64)[..., None]
    key_0, key_1 = key & low, key >> shift
    c0, c1 = block & low, block >> shift
    c2 = c3 = np.zeros_like(c0)
    for _ in range(ROUNDS):
        p0, p1 = c0 * np.uint64(MULTIPLIER_0), c2 * np.uint64(MULTIPLIER_1)
        c0, c1, c2, c3 = (
            (p1 >> shift) ^ c1 ^ key_0,
            p1 & low,
            (p0 >> shift) ^ c3 ^ key_1,
            p0 & low,
        )
        key_0, key_1 = (key_0 + np.uint64(WEYL_0)) & low, (key_1 + np.uint64(WEYL_1)) & low
    return [c.astype(np.uint32) for c in (c0, c1, c2, c3)]


def _box_muller(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two uniform words to two normals: radius from `a`, angle (in half turns) and the cosine's
    sign from `b`.
    """
    u = a.astype(_f32) * _f32(2.0**-32) + _f32(2.0**-33)
    bits = u.view(np.int32) - np.int32(SQRT_HALF_BITS)
    exponent = (bits >> 23).astype(_f32)
    f = ((bits & np.int32(0x7FFFFF)) + np.int32(SQRT_HALF_BITS)).view(_f32) - _f32(1)
    squared = (f * _f32(-2)) * _log_polynomial(f) + exponent * MINUS_2_LN2
    radius = np.sqrt(np.maximum(squared, _f32(0)))
    t = b.view(np.int32).astype(_f32) * _f32(2.0**-31)
    s = t * t
    cosine = (radius * _trig_polynomial(COS, s)).view(np.uint32) ^ (b << np.uint32(31))
    return cosine.view(_f32), radius * (_trig_polynomial(SIN, s) * t)


def _log_polynomial(f: np.ndarray) -> np.ndarray:
    c = LOG
    f2 = f * f
    f4 = f2 * f2
    return ((c[0] * f + c[1]) * f2 + (c[2] * f + c[3])) * f4 + (
        (c[4] * f + c[5]) * f2 + (c[6] * f + c[7])
    )


def _trig_polynomial(c: tuple[np.float32, ...], s: np.ndarray) -> np.ndarray:
    s2 = s * s
    return (c[0] * s2 + (c[1] * s + c[2])) * s2 + (c[3] * s + c[4])
