"""The direction generator as Triton kernels: same bits as `raydpzv.zo.philox`, made in registers
where x lives.

Launched with floating-point fusion off and with the correctly rounded square root, which leaves no
fused multiply-add in the code and keeps the definition's roundings. Imported only for CUDA tensors
where Triton is installed.
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
_CHUNK = 1 << 24
"""Normals of which the squares are added up at a time: 64 MiB."""
_SUMS = 32
"""Sums of squares of a program of `_add_squares`."""
EXACT: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False}
"""Options of every launch."""


def subtract(
    out: torch.Tensor,
    x: torch.Tensor,
    seeds: np.ndarray,
    coefficients: np.ndarray,
    start: int,
    law: str,
) -> None:
    """Write x - Σ_j coefficients[j] · z_j[start : start + n] to `out` (may be x), in the order of
    j.

    out, x: contiguous float32 [n]; seeds: uint64 [k]; coefficients: float32 [k]; law: "gaussian" or
    "rademacher".
    Normals: x is read and written once. Signs: once for four seeds.
    """
    if x.numel() == 0 or len(seeds) == 0:
        out.copy_(x)
        return
    if law == "gaussian" and len(seeds) == 1:
        _move(x, seeds[0], float(coefficients[0]), start, out, out)
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


def add_both_ways(
    plus: torch.Tensor, minus: torch.Tensor, x: torch.Tensor, seed: np.uint64, coefficient: float
) -> None:
    """Write x + coefficient · z to `plus` and x - coefficient · z to `minus`, float32 [d], z made
    once.
    """
    _move(x, seed, coefficient, 0, minus, plus)


def descend(
    x: torch.Tensor, velocity: torch.Tensor, seed: np.uint64, amounts: tuple[float, float, float]
) -> None:
    """Take v <- βv - c z and x <- x - η v in one pass, with the bits of the CPU. amounts: β, c,
    η.
    """
    if x.numel():
        with torch.cuda.device_of(x):
            grid = (_programs(x.numel(), 0, 1024),)
            numbers = (*_halves(seed), *np.array(amounts, np.float32).tolist(), x.numel())
            _steps[grid](x, velocity, *numbers, LANES=_LANES, **EXACT)


def squared_norm(where: str, seed: np.uint64, size: int) -> float:
    """Return `raydpzv.zo.numba_kernel.squared_norm`, made on this device."""
    sums = torch.zeros(1024, dtype=torch.float64, device=where)
    with torch.cuda.device_of(sums):
        z = torch.zeros(min(size, _CHUNK), device=where)
        for start in range(0, size, _CHUNK):
            piece = z[: size - start].zero_()
            _move(piece, seed, -1.0, start, piece, piece)
            tiles = -(-piece.numel() // 1024)
            _add_squares[(1024 // _SUMS,)](
                sums, piece, tiles, piece.numel(), SUMS=_SUMS, **EXACT | {"num_warps": 1}
            )
    # one after the other, as the compiled kernel adds them
    return float(np.add.accumulate(sums.cpu().numpy())[-1])


def _move(
    x: torch.Tensor,
    seed: np.uint64,
    coefficient: float,
    start: int,
    out: torch.Tensor,
    other: torch.Tensor,
) -> None:
    """Write x - coefficient · z to `out`, and x + coefficient · z to `other` if that is another."""
    if x.numel():
        with torch.cuda.device_of(x):
            grid, both = (_programs(x.numel(), start, 1024),), other is not out
            numbers = (*_halves(seed), coefficient, x.numel(), start)
            _one[grid](out, other, x, *numbers, BOTH=both, LANES=_LANES, **EXACT)


def _halves(seed: np.uint64) -> tuple[int, int]:
    """Return the halves of a seed as int32, which spares the copy of an array to the device."""
    low, high = np.array([seed], "<u8").view(np.int32).tolist()
    return low, high


def _programs(size: int, start: int, tile: int) -> int:
    """Return how many tiles [start, start + size) touches."""
    return -(-(start + size) // tile) - start // tile


@triton.jit
def _key(keys, there):  # type: ignore[no-untyped-def]
    """The two halves of a seed that `keys` points at."""
    return tl.load(keys, mask=there, other=0), tl.load(keys + 1, mask=there, other=0)


@triton.jit
def _philox(block, k0, k1):  # type: ignore[no-untyped-def]
    """The four words of each block under the halves of a seed, int32."""
    k0, k1 = k0.to(tl.uint32, bitcast=True), k1.to(tl.uint32, bitcast=True)
    c0, c1 = block.to(tl.uint32), (block >> 32).to(tl.uint32)
    c2 = tl.zeros_like(c0)
    c3 = tl.zeros_like(c0)
    m0, m1 = (
        tl.full(block.shape, 0xD2511F53, tl.uint32),
        tl.full(block.shape, 0xCD9E8D57, tl.uint32),
    )
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
    return ((r * cosine).to(tl.int32, bitcast=True) ^ (turn << 31)).to(
        tl.float32, bitcast=True
    ), r * sine


@triton.jit
def _tile(block, k0, k1):  # type: ignore[no-untyped-def]
    """The four normals of each block."""
    w0, w1, w2, w3 = _philox(block, k0, k1)
    z0, z1 = _box_muller(w0, w1)
    z2, z3 = _box_muller(w2, w3)
    return z0, z1, z2, z3


@triton.jit(do_not_specialize=["k0", "k1", "size", "start"])
def _one(out, other, x, k0, k1, c, size, start, BOTH: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """One seed: x - c z to `out`, and x + c z to `other` if both are wanted."""
    first = (tl.program_id(0).to(tl.int64) + start // 1024) * LANES
    block = first + tl.arange(0, LANES)
    z0, z1, z2, z3 = _tile(block, k0, k1)
    base = (block >> 8) * 1024 + (block & 255) - start
    for word in tl.static_range(4):
        i = base + word * 256
        inside = (i >= 0) & (i < size)
        z = z0 if word == 0 else (z1 if word == 1 else (z2 if word == 2 else z3))
        y = tl.load(x + i, mask=inside, other=0.0)
        tl.store(out + i, y - c * z, mask=inside)
        if BOTH:
            tl.store(other + i, y + c * z, mask=inside)


@triton.jit(do_not_specialize=["k0", "k1", "size"])
def _steps(x, v, k0, k1, momentum, c, lr, size, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """One seed, with momentum: v = momentum v - c z, then x = x - lr v."""
    block = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    z0, z1, z2, z3 = _tile(block, k0, k1)
    base = (block >> 8) * 1024 + (block & 255)
    for word in tl.static_range(4):
        i = base + word * 256
        inside = i < size
        z = z0 if word == 0 else (z1 if word == 1 else (z2 if word == 2 else z3))
        moved = tl.load(v + i, mask=inside, other=0.0) * momentum - c * z
        tl.store(v + i, moved, mask=inside)
        tl.store(x + i, tl.load(x + i, mask=inside, other=0.0) - lr * moved, mask=inside)


@triton.jit(do_not_specialize=["tiles", "size"])
def _add_squares(sums, z, tiles, size, SUMS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add the square of element i of each tile to sums[i], tile after tile; a square of a float32
    is exact.
    """
    i = tl.program_id(0) * SUMS + tl.arange(0, SUMS)
    total = tl.load(sums + i)
    for tile in tl.range(0, tiles, loop_unroll_factor=16):
        at = tile * 1024 + i
        value = tl.load(z + at, mask=at < size, other=0.0).to(tl.float64)
        total += value * value
    tl.store(sums + i, total)


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
        k0, k1 = _key(keys + 2 * j, True)
        z0, z1, z2, z3 = _tile(block, k0, k1)
        x0, x1, x2, x3 = x0 - c * z0, x1 - c * z1, x2 - c * z2, x3 - c * z3
    tl.store(out + i0, x0, mask=m0)
    tl.store(out + i1, x1, mask=m1)
    tl.store(out + i2, x2, mask=m2)
    tl.store(out + i3, x3, mask=m3)


@triton.jit
def _add_flipped(x, minus, word, bit, there):  # type: ignore[no-untyped-def]
    """X plus `minus` with its sign turned where the bit is set; x itself, to the sign of a zero, if
    not `there`.
    """
    sign = (word << (31 - bit)) & 0x80000000
    return tl.where(
        there, x + (sign ^ minus.to(tl.uint32, bitcast=True)).to(tl.float32, bitcast=True), x
    )


@triton.jit
def _signs(out, x, keys, coefficients, count, size, start, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Up to four seeds: a lane holds a block's four words of each, and walks over their bits'
    rows.
    """
    block = tl.program_id(0).to(tl.int64) * LANES + (start // 32768) * 256 + tl.arange(0, LANES)
    first = (block >> 8) * 32768 + (block & 255) - start
    t1, t2, t3 = count > 1, count > 2, count > 3
    a0, a1 = _key(keys, True)
    b0, b1 = _key(keys + 2, t1)
    c0, c1 = _key(keys + 4, t2)
    d0, d1 = _key(keys + 6, t3)
    a, b = _philox(block, a0, a1), _philox(block, b0, b1)
    c, d = _philox(block, c0, c1), _philox(block, d0, d1)
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
