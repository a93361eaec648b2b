"""The direction generator as Triton kernels: same bits as `raydpzv.zo.philox`, made in registers where x lives.

Launched with floating-point fusion off and with the correctly rounded square root, which leaves no fused multiply-add
in the code and keeps the definition's roundings. Imported only for CUDA tensors where Triton is installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

_LANES = 256
"""Philox blocks of a program of `_normals`: one tile of 1024 elements."""
_SIGN_LANES = 128
"""Philox blocks of a program of `_signs`: half a tile of 32768 elements."""
_SEEDS = 4
"""Seeds that `_signs` takes in one pass over x."""
EXACT: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False}
"""Options of every launch."""


def subtract(
    out: torch.Tensor, x: torch.Tensor, seeds: np.ndarray, coefficients: np.ndarray, start: int, law: str
) -> None:
    """Write x - Σ_j coefficients[j] · z_j[start : start + n] to `out` (may be x), in the order of j.

    out, x: contiguous float32 [n]; seeds: uint64 [k]; coefficients: float32 [k]; law: "gaussian" or "rademacher".
    Normals: x is read and written once. Signs: once for four seeds.
    """
    if x.numel() == 0 or len(seeds) == 0:
        out.copy_(x)
        return
    halves_k2 = np.ascontiguousarray(seeds, dtype="<u8").view(np.int32).reshape(-1, 2)
    keys_k2 = torch.from_numpy(halves_k2.copy()).to(x.device)
    coefficients_k = torch.from_numpy(np.array(coefficients, np.float32)).to(x.device)
    with torch.cuda.device_of(x):
        if law == "gaussian":
            grid = (_programs(x.numel(), start, 1024),)
            _normals[grid](
                out, x, keys_k2, coefficients_k, len(seeds), x.numel(), start, LANES=_LANES, **EXACT
            )
            return
        grid = (_programs(x.numel(), start, 32768) * (256 // _SIGN_LANES),)
        for j in range(0, len(seeds), _SEEDS):
            count, source = min(_SEEDS, len(seeds) - j), x if j == 0 else out
            _signs[grid](
                out,
                source,
                keys_k2[j:],
                coefficients_k[j:],
                count,
                x.numel(),
                start,
                LANES=_SIGN_LANES,
                **EXACT,
            )


def _programs(size: int, start: int, tile: int) -> int:
    """Return how many tiles [start, start + size) touches."""
    return -(-(start + size) // tile) - start // tile


@triton.jit
def _philox(block, keys, there):  # type: ignore[no-untyped-def]
    """The four words of each block; keys points at the two halves of a seed."""
    k0 = tl.load(keys, mask=there, other=0).to(tl.uint32, bitcast=True)
    k1 = tl.load(keys + 1, mask=there, other=0).to(tl.uint32, bitcast=True)
    c0, c1 = block.to(tl.uint32), (block >> 32).to(tl.uint32)
    c2 = tl.zeros_like(c0)
    c3 = tl.zeros_like(c0)
    m0, m1 = tl.full(block.shape, 0xD2511F53, tl.uint32), tl.full(block.shape, 0xCD9E8D57, tl.uint32)
    for _ in tl.static_range(10):
        a, b = c0, c2
        c0 = tl.umulhi(b, m1) ^ c1 ^ k0
        c1 = b * m1
        c2 = tl.umulhi(a, m0) ^ c3 ^ k1
        c3 = a * m0
        k0 = k0 + tl.full([], 0x9E3779B9, tl.uint32)
        k1 = k1 + tl.full([], 0xBB67AE85, tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def _box_muller(a, b):  # type: ignore[no-untyped-def]
    u = a.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    ix = u.to(tl.int32, bitcast=True) - 0x3F3504F3
    e = (ix >> 23).to(tl.float32)
    f = ((ix & 0x7FFFFF) + 0x3F3504F3).to(tl.float32, bitcast=True) - 1.0
    f2 = f * f
    f4 = f2 * f2
    upper = (f * -0.10106763988733292 + 0.16222524642944336) * f2 + (
        f * -0.17250847816467285 + 0.1990017294883728
    )
    lower = (f * -0.24969908595085144 + 0.33335059881210327) * f2 + (
        f * -0.5000036358833313 + 0.9999999403953552
    )
    r = tl.sqrt_rn(tl.maximum((f * -2.0) * (upper * f4 + lower) + e * -1.3862943611198906, 0.0))
    turn = b.to(tl.int32, bitcast=True)
    t = turn.to(tl.float32) * 4.656612873077393e-10
    s = t * t
    s2 = s * s
    sine = (s2 * 0.00015148513193707913 + (s * -0.004673766437917948 + 0.07968968152999878)) * s2
    sine = (sine + (s * -0.645963728427887 + 1.5707963705062866)) * t
    cosine = (s2 * 0.0008581905858591199 + (s * -0.020810628309845924 + 0.2536507546901703)) * s2
    cosine = cosine + (s * -1.2336982488632202 + 0.9999999403953552)
    return ((r * cosine).to(tl.int32, bitcast=True) ^ (turn << 31)).to(tl.float32, bitcast=True), r * sine


@triton.jit
def _normals(out, x, keys, coefficients, count, size, start, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    block = (tl.program_id(0).to(tl.int64) + start // 1024) * LANES + tl.arange(0, LANES)
    i0 = (block >> 8) * 1024 + (block & 255) - start
    i1, i2, i3 = i0 + 256, i0 + 512, i0 + 768
    m0, m1 = (i0 >= 0) & (i0 < size), (i1 >= 0) & (i1 < size)
    m2, m3 = (i2 >= 0) & (i2 < size), (i3 >= 0) & (i3 < size)
    x0, x1 = tl.load(x + i0, mask=m0, other=0.0), tl.load(x + i1, mask=m1, other=0.0)
    x2, x3 = tl.load(x + i2, mask=m2, other=0.0), tl.load(x + i3, mask=m3, other=0.0)
    for j in range(count):
        c = tl.load(coefficients + j)
        w0, w1, w2, w3 = _philox(block, keys + 2 * j, True)
        z0, z1 = _box_muller(w0, w1)
        z2, z3 = _box_muller(w2, w3)
        x0, x1, x2, x3 = x0 - c * z0, x1 - c * z1, x2 - c * z2, x3 - c * z3
    tl.store(out + i0, x0, mask=m0)
    tl.store(out + i1, x1, mask=m1)
    tl.store(out + i2, x2, mask=m2)
    tl.store(out + i3, x3, mask=m3)


@triton.jit
def _add_flipped(x, minus, word, bit, there):  # type: ignore[no-untyped-def]
    """X plus `minus` with its sign turned where the bit is set; x itself, to the sign of a zero, if not `there`."""
    sign = (word << (31 - bit)) & 0x80000000
    return tl.where(there, x + (sign ^ minus.to(tl.uint32, bitcast=True)).to(tl.float32, bitcast=True), x)


@triton.jit
def _signs(out, x, keys, coefficients, count, size, start, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Up to four seeds: a lane holds a block's four words of each, and walks over their bits' rows."""
    block = tl.program_id(0).to(tl.int64) * LANES + (start // 32768) * 256 + tl.arange(0, LANES)
    first = (block >> 8) * 32768 + (block & 255) - start
    t1, t2, t3 = count > 1, count > 2, count > 3
    a = _philox(block, keys, True)
    b = _philox(block, keys + 2, t1)
    c = _philox(block, keys + 4, t2)
    d = _philox(block, keys + 6, t3)
    va = -tl.load(coefficients)
    vb = -tl.load(coefficients + 1, mask=t1, other=0.0)
    vc = -tl.load(coefficients + 2, mask=t2, other=0.0)
    vd = -tl.load(coefficients + 3, mask=t3, other=0.0)
    for word in tl.static_range(4):
        for bit in range(32):
            i = first + (word * 32 + bit) * 256
            inside = (i >= 0) & (i < size)
            y = tl.load(x + i, mask=inside, other=0.0)
            y = _add_flipped(y, va, a[word], bit, True)
            y = _add_flipped(y, vb, b[word], bit, t1)
            y = _add_flipped(y, vc, c[word], bit, t2)
            y = _add_flipped(y, vd, d[word], bit, t3)
            tl.store(out + i, y, mask=inside)
