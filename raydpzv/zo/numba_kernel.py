"""The direction generator compiled with numba: same bits as `raydpzv.zo.philox`, about ten times
faster.

No fast-math: numba then neither contracts to fused multiply-adds nor reorders, which is what keeps
the bits equal between machines. All functions release the GIL and work tile by tile, so no buffer
grows with the model. None is `parallel=True`: importing such kernels raises torch's thread count;
`raydpzv.zo.apply_seeds` has threads of its own.

numba caches compiled code by this file alone: if you change a constant in `philox`, touch this file
too, and everything compiled stays in this one file.

Callers go through `raydpzv.zo.kernels`, which imports this module (a second of CPU) when it is
needed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from raydpzv.zo import philox as _definition
from raydpzv.zo.kernel_cache import compiled

_u32, _u64, _f32, _i32 = np.uint32, np.uint64, np.float32, np.int32
_M0, _M1 = _u64(_definition.MULTIPLIER_0), _u64(_definition.MULTIPLIER_1)
_W0, _W1 = _u32(_definition.WEYL_0), _u32(_definition.WEYL_1)
_LOW, _SHIFT = _u64(0xFFFFFFFF), _u64(32)
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7 = _definition.LOG
_S0, _S1, _S2, _S3, _S4 = _definition.SIN
_C0, _C1, _C2, _C3, _C4 = _definition.COS
_A1, _A2, _A3 = _f32(2.0**-32), _f32(2.0**-33), _f32(2.0**-31)
_ONE, _MINUS_TWO, _ZERO, _MINUS_2_LN2 = _f32(1), _f32(-2), _f32(0), _definition.MINUS_2_LN2
_MAGIC, _MANTISSA, _SIGN, _EXPONENT = (
    _i32(_definition.SQRT_HALF_BITS),
    _i32(0x7FFFFF),
    _i32(31),
    _i32(23),
)
_TILE, _BLOCKS, _ROUNDS = _definition.TILE, _definition.BLOCKS, _definition.ROUNDS
_SIGN_TILE, _ROWS, _BITS = _definition.SIGN_TILE, _definition.SIGN_TILE // _BLOCKS, 32
_TOP, _LAST_BIT = _u32(0x80000000), 31
_LINE = 16
"""float32 in a line of the cache."""


@intrinsic
def _bits(typing_context: Any, value: Any) -> Any:
    """Reinterpret float32 as int32 without a round trip through memory, which would stop
    vectorisation.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def _float(typing_context: Any, value: Any) -> Any:
    """Reinterpret int32 as float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def _fetch(typing_context: Any, values: Any, at: Any) -> Any:
    """Bring the cache line of values[at] in, which may be past the end. A hint: it changes no bits
    and never fails.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        place, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        wanted = ir.FunctionType(ir.VoidType(), [place, number, number, number])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [place], wanted)
        line = builder.bitcast(builder.gep(data, [args[1]]), place)
        builder.call(fetch, [line, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(values, at), generate


@njit(inline="always")
def _round(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    p0 = c0 * _M0
    p1 = c2 * _M1
    return ((p1 >> _SHIFT) ^ c1 ^ k0), p1 & _LOW, ((p0 >> _SHIFT) ^ c3 ^ k1), p0 & _LOW


@njit(inline="always")
def _box_muller(a, b):  # type: ignore[no-untyped-def]
    u = _f32(a) * _A1 + _A2
    ix = _i32(_bits(u) - _MAGIC)  # type: ignore[call-arg]
    e = _f32(_i32(ix >> _EXPONENT))
    f = _float(_i32(_i32(ix & _MANTISSA) + _MAGIC)) - _ONE
    f2 = f * f
    f4 = f2 * f2
    p = ((_L0 * f + _L1) * f2 + (_L2 * f + _L3)) * f4 + ((_L4 * f + _L5) * f2 + (_L6 * f + _L7))
    r = math.sqrt(max((f * _MINUS_TWO) * p + e * _MINUS_2_LN2, _ZERO))
    t = _f32(_i32(b)) * _A3
    s = t * t
    s2 = s * s
    sine = ((_S0 * s2 + (_S1 * s + _S2)) * s2 + (_S3 * s + _S4)) * t
    cosine = (_C0 * s2 + (_C1 * s + _C2)) * s2 + (_C3 * s + _C4)
    return _float(_i32(_bits(r * cosine) ^ _i32(_i32(b) << _SIGN))), r * sine


@njit(inline="always")
def _flip(value, word, shift):  # type: ignore[no-untyped-def]
    """The float32 with bits `value`, its sign turned where bit 31 - shift of `word` is set."""
    return _float(_i32(_i32((word << shift) & _TOP) ^ value))  # type: ignore[call-arg]


@compiled
def _words(words, seed, tile):  # type: ignore[no-untyped-def]
    """Fill words [4, 256] with the Philox words of blocks tile·256 to tile·256 + 255."""
    for i in range(_BLOCKS):
        block = tile * _u64(_BLOCKS) + _u64(i)
        k0, k1 = _u32(seed & _LOW), _u32(seed >> _SHIFT)
        c0, c1, c2, c3 = block & _LOW, block >> _SHIFT, _u64(0), _u64(0)
        for _ in range(_ROUNDS):
            c0, c1, c2, c3 = _round(c0, c1, c2, c3, _u64(k0), _u64(k1))
            k0, k1 = _u32(k0 + _W0), _u32(k1 + _W1)
        words[0, i], words[1, i], words[2, i], words[3, i] = _u32(c0), _u32(c1), _u32(c2), _u32(c3)


@compiled
def _tile(z, words, seed, tile):  # type: ignore[no-untyped-def]
    """Fill z [4, 256] with the normals of one tile; `words` [4, 256] is scratch."""
    _words(words, seed, tile)
    for i in range(_BLOCKS):
        z[0, i], z[1, i] = _box_muller(words[0, i], words[1, i])
        z[2, i], z[3, i] = _box_muller(words[2, i], words[3, i])


@compiled
def _ahead(out, x, first, last):  # type: ignore[no-untyped-def]
    """Ask for what [first, last) of x and out needs from memory, while the directions of this piece
    are made.
    """
    for i in range(first, last, _LINE):
        _fetch(x, i)  # type: ignore[call-arg]
        _fetch(out, i)


@compiled
def add_direction(out, x, seed, scale, start):  # type: ignore[no-untyped-def]
    """out[i] = x[i] + scale · z[start + i], one rounding for the product and one for the sum; out
    may be x.

    out, x: float32 [n]; seed: uint64; scale: float32; start: the first element's place in the
    direction.
    """
    z = np.empty((4, _BLOCKS), np.float32)
    words = np.empty((4, _BLOCKS), np.uint32)
    flat = z.reshape(-1)
    n = x.shape[0]
    done = 0
    while done < n:
        element = start + done
        inside = element % _TILE
        count = min(_TILE - inside, n - done)
        _ahead(out, x, done, done + count)
        _tile(z, words, seed, _u64(element // _TILE))
        # an index that may be negative to numba stops vectorisation: loops over slices take a third
        # of the time
        to, of, made = (
            out[done : done + count],
            x[done : done + count],
            flat[inside : inside + count],
        )
        for i in range(count):
            to[i] = of[i] + scale * made[i]
        done += count


@compiled
def add_both_ways(plus, minus, x, seed, scale):  # type: ignore[no-untyped-def]
    """plus[i] = x[i] + scale · z[i] and minus[i] = x[i] - scale · z[i]: the bits of two calls of
    `add_direction`.
    """
    z = np.empty((4, _BLOCKS), np.float32)
    words = np.empty((4, _BLOCKS), np.uint32)
    flat = z.reshape(-1)
    n = x.shape[0]
    for first in range(0, n, _TILE):
        last = min(first + _TILE, n)
        _ahead(plus, x, first, last)
        _ahead(minus, x, first, last)
        _tile(z, words, seed, _u64(first // _TILE))
        up, down, of = plus[first:last], minus[first:last], x[first:last]
        for i in range(last - first):
            up[i] = of[i] + scale * flat[i]
            down[i] = of[i] - scale * flat[i]


@compiled
def _subtract_tile(x, words, scale):  # type: ignore[no-untyped-def]
    """x [4, 256] -= scale · z, the normals never leaving the registers."""
    for i in range(_BLOCKS):
        z0, z1 = _box_muller(words[0, i], words[1, i])
        z2, z3 = _box_muller(words[2, i], words[3, i])
        x[0, i] -= scale * z0
        x[1, i] -= scale * z1
        x[2, i] -= scale * z2
        x[3, i] -= scale * z3


@compiled
def subtract_directions(x, seeds, scales, start):  # type: ignore[no-untyped-def]
    """x[i] -= scales[j] · z_j[start + i] for j = 0, 1, ...: the bits of `add_direction` with
    -scales[j], j by j.

    x: float32 [n]; seeds: uint64 [k]; scales: float32 [k]. A tile of x stays in the first cache for
    all seeds.
    """
    words = np.empty((4, _BLOCKS), np.uint32)
    # a piece of a tile is worked on as a whole one, in a copy
    copy = np.zeros(_TILE, np.float32)
    n = x.shape[0]
    done = 0
    while done < n:
        element = start + done
        inside = element % _TILE
        count = min(_TILE - inside, n - done)
        if count < _TILE:
            for i in range(
                count
            ):  # an assignment would compile string functions for its error message
                copy[inside + i] = x[done + i]
            tile = copy.reshape(4, _BLOCKS)
        else:
            tile = x[done : done + _TILE].reshape(4, _BLOCKS)
        for j in range(seeds.shape[0]):
            _words(words, seeds[j], _u64(element // _TILE))
            _subtract_tile(tile, words, scales[j])
        if count < _TILE:
            for i in range(count):
                x[done + i] = copy[inside + i]
        done += count


@compiled
def _signs(z, seed):  # type: ignore[no-untyped-def]
    """Fill z float32 [n] with the first signs of a direction."""
    words = np.empty((4, _BLOCKS), np.uint32)
    value = _bits(_ONE)  # type: ignore[call-arg,var-annotated]
    for first in range(0, z.shape[0], _BLOCKS):
        row = (first // _BLOCKS) % _ROWS
        if row == 0:
            _words(words, seed, _u64(first // _SIGN_TILE))
        shift = _u32(_LAST_BIT - row % _BITS)
        to, word = z[first : min(first + _BLOCKS, z.shape[0])], words[row // _BITS]
        for i in range(to.shape[0]):
            to[i] = _flip(value, word[i], shift)


@compiled
def add_signs(out, x, seed, scale, start):  # type: ignore[no-untyped-def]
    """out[i] = x[i] + scale · sign[start + i]; arguments as in `add_direction`. The product is
    exact.
    """
    words = np.empty((4, _BLOCKS), np.uint32)
    value = _bits(scale)  # type: ignore[call-arg,var-annotated]
    n = x.shape[0]
    done = 0
    while done < n:
        element = start + done
        row, inside = (element // _BLOCKS) % _ROWS, element % _BLOCKS
        count = min(_BLOCKS - inside, n - done)
        if done == 0 or row == 0:
            _words(words, seed, _u64(element // _SIGN_TILE))
        shift = _u32(_LAST_BIT - row % _BITS)
        to, of, word = (
            out[done : done + count],
            x[done : done + count],
            words[row // _BITS, inside:],
        )
        for i in range(count):
            to[i] = of[i] + _flip(value, word[i], shift)
        done += count


@compiled
def _add_one(x, words, values, first, last):  # type: ignore[no-untyped-def]
    """Rows [first, last) of x [128, 256] += value · signs; words [1, 4, 256]; values [1]: a
    float32's bits.
    """
    v0 = values[0]
    for word in range(4):
        w0 = words[0, word]
        for bit in range(_BITS):
            row, shift = word * _BITS + bit, _u32(_LAST_BIT - bit)
            if row < first or row >= last:
                continue
            for i in range(_BLOCKS):
                x[row, i] += _flip(v0, w0[i], shift)


@compiled
def _add_four(x, words, values, first, last):  # type: ignore[no-untyped-def]
    """The same for four seeds, an element loaded and stored once: half the time of four calls of
    `_add_one`.
    """
    v0, v1, v2, v3 = values[0], values[1], values[2], values[3]
    for word in range(4):
        w0, w1, w2, w3 = words[0, word], words[1, word], words[2, word], words[3, word]
        for bit in range(_BITS):
            row, shift = word * _BITS + bit, _u32(_LAST_BIT - bit)
            # a test in place of tighter bounds: with those LLVM no longer vectorises the loop over
            # i
            if row < first or row >= last:
                continue
            for i in range(_BLOCKS):
                y = (x[row, i] + _flip(v0, w0[i], shift)) + _flip(v1, w1[i], shift)
                x[row, i] = (y + _flip(v2, w2[i], shift)) + _flip(v3, w3[i], shift)


@compiled
def _add_to_sign_tile(x, words, seeds, values, tile, first, last):  # type: ignore[no-untyped-def]
    """Rows [first, last) of one tile, seed by seed in order."""
    n = seeds.shape[0]
    j = 0
    while j < n:
        group = 4 if n - j >= 4 else 1
        for g in range(group):
            _words(words[g], seeds[j + g], tile)
        if group == 4:
            _add_four(x, words, values[j:], first, last)
        else:
            _add_one(x, words, values[j:], first, last)
        j += group


@compiled
def subtract_signs(x, seeds, scales, start):  # type: ignore[no-untyped-def]
    """`subtract_directions` for signs: the bits of `add_signs` with -scales[j], j by j."""
    words = np.empty((4, 4, _BLOCKS), np.uint32)
    values = (-scales).view(np.int32)
    copy = np.zeros(_SIGN_TILE, np.float32)
    n = x.shape[0]
    done = 0
    while done < n:
        element = start + done
        inside = element % _SIGN_TILE
        count = min(_SIGN_TILE - inside, n - done)
        first, last = inside // _BLOCKS, (inside + count + _BLOCKS - 1) // _BLOCKS
        if count < _SIGN_TILE:
            for i in range(
                count
            ):  # an assignment would compile string functions for its error message
                copy[inside + i] = x[done + i]
            rows = copy.reshape(_ROWS, _BLOCKS)
        else:
            rows = x[done : done + _SIGN_TILE].reshape(_ROWS, _BLOCKS)
        _add_to_sign_tile(rows, words, seeds, values, _u64(element // _SIGN_TILE), first, last)
        if count < _SIGN_TILE:
            for i in range(count):
                x[done + i] = copy[inside + i]
        done += count


@compiled
def squared_norm(seed, size):  # type: ignore[no-untyped-def]
    """Sum of squares of the first `size` elements in float64, always added in the same order."""
    z = np.empty((4, _BLOCKS), np.float32)
    words = np.empty((4, _BLOCKS), np.uint32)
    flat = z.reshape(-1)
    lanes = np.zeros(_TILE, np.float64)
    for tile in range((size + _TILE - 1) // _TILE):
        _tile(z, words, seed, _u64(tile))
        for i in range(min(_TILE, size - tile * _TILE)):
            lanes[i] += np.float64(flat[i]) * np.float64(flat[i])
    total = 0.0
    for i in range(_TILE):
        total += lanes[i]
    return total


@compiled
def add_scaled(x, v, scale):  # type: ignore[no-untyped-def]
    """x[i] += scale · v[i], one rounding for the product and one for the sum."""
    for i in range(x.shape[0]):
        x[i] += scale * v[i]


@compiled
def subtract_products(x, rows, columns, scales, start):  # type: ignore[no-untyped-def]
    """x[e] -= (scales[j] · a_j[i]) · b_j[k] for j = 0, 1, ..., of the element at row i and column k
    of a matrix.

    x: float32 [n], elements of the matrix row by row from its element `start` on; rows: float32 [J,
    m], a_j; columns: float32 [J, N], b_j; scales: float32 [J]. One rounding for each of the two
    products and for the sum. Four seeds at a time, an element loaded and stored once.
    """
    n, width, seeds = x.shape[0], columns.shape[1], rows.shape[0]
    done, row, inside = 0, start // width, start % width
    while done < n:
        count = min(width - inside, n - done)
        to = x[done : done + count]
        j = 0
        while j + 4 <= seeds:
            a0, a1 = scales[j] * rows[j, row], scales[j + 1] * rows[j + 1, row]
            a2, a3 = scales[j + 2] * rows[j + 2, row], scales[j + 3] * rows[j + 3, row]
            b0, b1 = columns[j, inside : inside + count], columns[j + 1, inside : inside + count]
            b2, b3 = (
                columns[j + 2, inside : inside + count],
                columns[j + 3, inside : inside + count],
            )
            for i in range(count):
                y = (to[i] - a0 * b0[i]) - a1 * b1[i]
                to[i] = (y - a2 * b2[i]) - a3 * b3[i]
            j += 4
        while j < seeds:
            a0, b0 = scales[j] * rows[j, row], columns[j, inside : inside + count]
            for i in range(count):
                to[i] -= a0 * b0[i]
            j += 1
        done, row, inside = done + count, row + 1, 0
