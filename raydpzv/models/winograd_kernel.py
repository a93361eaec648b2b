"""Scores of two pooled 5x5 convolutions and a linear layer at many points, compiled with numba.

The first layer is summed tap by tap. The second goes by F(2x2, 5x5) of Lavin and Gray, "Fast
algorithms for convolutional neural networks" (CVPR 2016), Section 4, with the points 0, 1, -1, 2,
-1/2 and infinity. A tile of 6x6 inputs d becomes Bᵀ d B, whose 36 numbers are multiplied with those
of the filter, G g Gᵀ, and summed over the channels; Aᵀ m A are its 2x2 outputs, of which pooling
keeps the largest.

Everything is done on vectors of 16 numbers, which numba has no type for: one is defined here, with
sums that stay in registers (arrays, which the compiler vectorises itself, took three times as
long). The numbers of a vector belong to records and columns side by side, columns sorted by their
number modulo 4 (of pixels) or 2 (of the second layer's inputs), so that neighbours in memory are
neighbours in work whatever the batch. A sum has the same terms in the same order wherever in a
vector it lies, by fused multiply-adds: bits follow from the record and the point alone, and are the
same on all processors that have these.

numba caches compiled code by this file. Callers go through `raydpzv.models.pooled_convolutions`.
"""

# P points, B records, H x W pixels, C and D channels, F features, K classes, n = W/4 · B

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from raydpzv.zo.kernel_cache import compiled

_f32 = np.float32
_LANES, _WIDTH, _ROWS = 16, 32, 8
"""Numbers of a vector; numbers of a block, which are two vectors; rows of a block of a matrix
product.
"""
_HALF, _TWO, _THREE_HALVES, _FIVE_HALVES = _f32(0.5), _f32(2), _f32(1.5), _f32(2.5)
_FOUR, _EIGHT, _SIXTEEN, _THIRD, _FIFTEENTH = _f32(4), _f32(8), _f32(16), _f32(1 / 3), _f32(1 / 15)
_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, _LANES)
_INDEX = ir.IntType(64)

_emitting: Callable[[Callable[..., Any]], Any] = intrinsic
"""numba's decorator, whose calls have one argument less than mypy sees."""


class _Lanes(types.Type):
    """Sixteen float32 numbers."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


_lanes = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, frontend_type: Any) -> None:
        super().__init__(manager, frontend_type, _VECTOR)


class _Emitter:
    """Writes LLVM's instructions on vectors."""

    def __init__(self, context: Any, builder: Any) -> None:
        features = context.codegen().magic_tuple()[2]
        self._context, self._builder = context, builder
        self._fuses = "+fma" in features or "x86" not in context.codegen().magic_tuple()[0]
        self.wide = "+avx512f" in features

    def pointer(self, kind: Any, array: Any) -> Any:
        return self._context.make_array(kind)(self._context, self._builder, array).data

    def whole(self, number: int) -> Any:
        return ir.Constant(_INDEX, number)

    def index(self, *terms: Any) -> Any:
        total = self.whole(0)
        for term in terms:
            total = self._builder.add(total, self.whole(term) if isinstance(term, int) else term)
        return total

    def times(self, a: Any, b: Any) -> Any:
        return self._builder.mul(a, b)

    def load(self, pointer: Any, at: Any) -> Any:
        place = self._builder.bitcast(self._builder.gep(pointer, [at]), _VECTOR.as_pointer())
        return self._builder.load(place, align=4)

    def store(self, pointer: Any, at: Any, vector: Any) -> None:
        place = self._builder.bitcast(self._builder.gep(pointer, [at]), _VECTOR.as_pointer())
        self._builder.store(vector, place, align=4)

    def number(self, pointer: Any, at: Any) -> Any:
        return self.everywhere(self._builder.load(self._builder.gep(pointer, [at])))

    def everywhere(self, number: Any) -> Any:
        nothing = ir.Constant(_VECTOR, ir.Undefined)
        one = self._builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), [0] * _LANES)
        return self._builder.shuffle_vector(one, nothing, zeros)

    def fused(self, a: Any, b: Any, c: Any) -> Any:
        """a · b + c, rounded once where the processor can."""
        if not self._fuses:
            return self._builder.fadd(self._builder.fmul(a, b), c)
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        fma = cgutils.get_or_insert_function(self._builder.module, kind, "llvm.fma.v16f32")
        return self._builder.call(fma, [a, b, c])

    def larger(self, a: Any, b: Any) -> Any:
        """The larger number, NaN if one is."""
        best = self._builder.select(self._builder.fcmp_ordered(">", a, b), a, b)
        return self._builder.select(self._builder.fcmp_unordered("uno", a, a), a, best)

    def positive(self, a: Any) -> Any:
        """The positive part, NaN of NaN."""
        zero = ir.Constant(_VECTOR, [0.0] * _LANES)
        return self._builder.select(self._builder.fcmp_ordered("<", a, zero), zero, a)

    def extract(self, values: Any, place: int) -> Any:
        return self._builder.extract_value(values, place)

    def plus(self, a: Any, b: Any) -> Any:
        return self._builder.fadd(a, b)

    def accumulators(self, count: int) -> list[Any]:
        """Places that start at 0 and that LLVM keeps in registers."""
        places = [cgutils.alloca_once(self._builder, _VECTOR) for _ in range(count)]
        for place in places:
            self._builder.store(ir.Constant(_VECTOR, [0.0] * _LANES), place)
        return places

    def add_product(self, place: Any, a: Any, b: Any) -> None:
        self._builder.store(self.fused(a, b, self._builder.load(place)), place)

    def sum_of(self, place: Any) -> Any:
        return self._builder.load(place)

    @contextmanager
    def loop(self, count: Any) -> Iterator[Any]:
        with cgutils.for_range(self._builder, count) as running:
            yield running.index


def _emitted(result: Any, kinds: Sequence[Any], emit: Callable[..., Any]) -> tuple[Any, Any]:
    """Return what numba wants of an intrinsic; arrays are handed to `emit` as pointers to their
    first number.
    """

    def generate(context: Any, builder: Any, signed: Any, values: Sequence[Any]) -> Any:
        to = _Emitter(context, builder)
        given = [
            to.pointer(kind, value) if isinstance(kind, types.Array) else value
            for kind, value in zip(kinds, values, strict=True)
        ]
        found = emit(to, *given)
        return context.get_dummy_value() if found is None else found

    return signature(result, *kinds), generate


@_emitting
def _load(typing_context, array, at):  # type: ignore[no-untyped-def]
    """The numbers of an array from place `at` on."""
    return _emitted(_lanes, (array, types.intp), lambda to, start, at: to.load(start, at))


@_emitting
def _store(typing_context, array, at, vector):  # type: ignore[no-untyped-def]
    """Write a vector to an array from place `at` on."""
    return _emitted(types.void, (array, types.intp, vector), lambda to, *given: to.store(*given))


@_emitting
def _fused(typing_context, a, b, c):  # type: ignore[no-untyped-def]
    """a · b + c of a number a."""
    return _emitted(
        _lanes, (types.float32, b, c), lambda to, a, b, c: to.fused(to.everywhere(a), b, c)
    )


@_emitting
def _larger(typing_context, a, b):  # type: ignore[no-untyped-def]
    """The larger numbers, NaN where one is."""
    return _emitted(_lanes, (a, b), lambda to, a, b: to.larger(a, b))


@_emitting
def _activated(typing_context, a, bias):  # type: ignore[no-untyped-def]
    """The positive part of a + bias, of a number `bias`."""
    return _emitted(
        _lanes, (a, types.float32), lambda to, a, bias: to.positive(to.plus(a, to.everywhere(bias)))
    )


@infer_global(operator.add)
class _Sum(ConcreteTemplate):
    cases = (signature(_lanes, _lanes, _lanes),)


@infer_global(operator.sub)
class _Difference(ConcreteTemplate):
    cases = (signature(_lanes, _lanes, _lanes),)


@lower_builtin(operator.add, _lanes, _lanes)
def _add(context: Any, builder: Any, signed: Any, values: Sequence[Any]) -> Any:
    return builder.fadd(*values)


@lower_builtin(operator.sub, _lanes, _lanes)
def _subtract(context: Any, builder: Any, signed: Any, values: Sequence[Any]) -> Any:
    return builder.fsub(*values)


@_emitting
def _multiply(typing_context, u, u_at, v, v_at, v_step, depth, m, m_at):  # type: ignore[no-untyped-def]
    """Write a block of a product, [8, 32] from place m_at on: Σ_k u[u_at + 8 k + r] · v[v_at + k ·
    v_step + e].
    """

    def emit(
        to: _Emitter,
        u: Any,
        u_at: Any,
        v: Any,
        v_at: Any,
        v_step: Any,
        depth: Any,
        m: Any,
        m_at: Any,
    ) -> None:
        height, vectors = (_ROWS, _WIDTH // _LANES) if to.wide else (4, 1)
        for top in range(0, _ROWS, height):
            for left in range(0, _WIDTH // _LANES, vectors):
                places = [
                    (top + r, _LANES * (left + c)) for r in range(height) for c in range(vectors)
                ]
                sums = to.accumulators(len(places))
                with to.loop(depth) as k:
                    base = to.index(v_at, to.times(k, v_step))
                    right = {
                        e: to.load(v, to.index(base, e)) for e in sorted({e for _, e in places})
                    }
                    first = to.index(u_at, to.times(k, to.whole(_ROWS)))
                    for r in sorted({r for r, _ in places}):
                        factor = to.number(u, to.index(first, r))
                        for place, (row, e) in zip(sums, places, strict=True):
                            if row == r:
                                to.add_product(place, factor, right[e])
                for place, (r, e) in zip(sums, places, strict=True):
                    to.store(m, to.index(m_at, _WIDTH * r + e), to.sum_of(place))

    index = types.intp
    return _emitted(types.void, (u, index, v, index, index, index, m, index), emit)


@_emitting
def _pool(typing_context, weights, w_at, x, x_at, x_step, columns, out, out_at):  # type: ignore[no-untyped-def]
    """Write the largest of the four places of pools, of two channels, [2, 32] from place out_at on.

    weights: [25, 2] from w_at on; x: rows of images x_step apart, of which columns 0 to 5 lie
    `columns` behind x_at.
    """
    index = types.intp

    def emit(
        to: _Emitter,
        weights: Any,
        w_at: Any,
        x: Any,
        x_at: Any,
        x_step: Any,
        columns: Any,
        out: Any,
        out_at: Any,
    ) -> None:
        before = [to.extract(columns, i) for i in range(6)]
        channels, vectors = (2, _WIDTH // _LANES) if to.wide else (1, 1)
        for c0 in range(0, 2, channels):
            for left in range(0, _WIDTH // _LANES, vectors):
                places = [
                    (c0 + c, a, b, _LANES * (left + e))
                    for c in range(channels) for e in range(vectors) for a in range(2) for b in range(2)
                ]  # fmt: skip
                sums = to.accumulators(len(places))
                with to.loop(to.whole(5)) as down:
                    rows = [to.index(x_at, to.times(to.index(down, a), x_step)) for a in range(2)]
                    first = to.index(w_at, to.times(down, to.whole(10)))
                    for right in range(5):
                        for c in range(c0, c0 + channels):
                            factor = to.number(weights, to.index(first, 2 * right + c))
                            for place, (channel, a, b, e) in zip(sums, places, strict=True):
                                if channel == c:
                                    value = to.load(x, to.index(rows[a], before[right + b], e))
                                    to.add_product(place, factor, value)
                for i in range(0, len(places), 4):
                    p0, p1, p2, p3 = (to.sum_of(place) for place in sums[i : i + 4])
                    best = to.larger(to.larger(p0, p1), to.larger(p2, p3))
                    channel, _, _, e = places[i]
                    to.store(out, to.index(out_at, _WIDTH * channel + e), best)

    kinds = (weights, index, x, index, index, types.UniTuple(index, 6), out, index)
    return _emitted(types.void, kinds, emit)


@njit(inline="always")
def _six(d0, d1, d2, d3, d4, d5):  # type: ignore[no-untyped-def]
    """Bᵀ d."""
    outer, inner = d1 - d3, d4 - d2
    return (
        _fused(-_TWO, d2, _fused(_THREE_HALVES, outer, d0 + d4)),
        _fused(-_FIVE_HALVES, d2, _fused(-_HALF, d3, d4 - d1)),
        _fused(_HALF, d2, _fused(-_FIVE_HALVES, d3, d1 + d4)),
        _fused(-_HALF, outer, inner),
        _fused(_TWO, outer, inner),
        _fused(-_TWO, d3, _fused(-_THREE_HALVES, inner, d1 + d5)),
    )


@njit(inline="always")
def _two(m0, m1, m2, m3, m4, m5):  # type: ignore[no-untyped-def]
    """Aᵀ m."""
    return (m0 + (m1 + m2)) + (m3 + m4), _fused(_TWO, m3, _fused(-_HALF, m4, (m1 - m2) + m5))


@njit(inline="always")
def _values(g0, g1, g2, g3, g4):  # type: ignore[no-untyped-def]
    """G g: a filter's values at the points, each over the product of the point's distances."""
    even, odd = (g0 + g2) + g4, g1 + g3
    at_two = (g0 + _FOUR * g2 + _SIXTEEN * g4) + (_TWO * g1 + _EIGHT * g3)
    at_half = (_SIXTEEN * g0 + _FOUR * g2 + g4) - (_EIGHT * g1 + _TWO * g3)
    return (
        g0,
        -_THIRD * (even + odd),
        _THIRD * (even - odd),
        _FIFTEENTH * at_two,
        -_FIFTEENTH * at_half,
        g4,
    )


@compiled
def _transform_filters(filters_DC25, u):  # type: ignore[no-untyped-def]
    """Write G g Gᵀ to u [D/8, 36, C, 8]; rows beyond D stay."""
    filters, channels, _ = filters_DC25.shape
    half = np.empty((6, 5), np.float32)
    for d in range(filters):
        for c in range(channels):
            g = filters_DC25[d, c]
            for j in range(5):
                found = _values(g[j], g[5 + j], g[10 + j], g[15 + j], g[20 + j])
                for i in range(6):
                    half[i, j] = found[i]
            for i in range(6):
                found = _values(half[i, 0], half[i, 1], half[i, 2], half[i, 3], half[i, 4])
                for j in range(6):
                    u[d // _ROWS, 6 * i + j, c, d % _ROWS] = found[j]


@compiled
def _padded(x_BHW, out):  # type: ignore[no-untyped-def]
    """Write images to out [H + 4, 4, W/4 + 1, n]: two pixels of padding, columns by their number
    modulo 4.
    """
    count, height, width = x_BHW.shape
    for y in range(height):
        for x in range(width):
            for b in range(count):
                out[y + 2, (x + 2) % 4, (x + 2) // 4, b] = x_BHW[b, y, x]


@compiled
def _first_layer(image, weights, bias_C, groups, records, pools, out_CHL):  # type: ignore[no-untyped-def]
    """Convolve, pool and take the positive part, inside the padding of out [C, H/2 + 4, 2 L].

    image: as `_padded` has it, of one dimension; groups: W/4; weights: [C/2, 25, 2]; pools: scratch
    [2 · 32].
    """
    channels, padded, length = out_CHL.shape
    out, packed = out_CHL.reshape(-1), weights.reshape(-1)
    column, size = (groups + 1) * records, groups * records
    for row in range(padded - 4):
        for odd in range(2):
            c0, c1 = 2 * odd * column, (2 * odd + 1) * column
            c2, c3 = (2 - 2 * odd) * column, (3 - 2 * odd) * column
            c2, c3 = c2 + odd * records, c3 + odd * records
            columns = (c0, c1, c2, c3, c0 + records, c1 + records)
            for start in range(0, size, _WIDTH):
                e = min(start, size - _WIDTH)
                for pair in range(weights.shape[0]):
                    _pool(
                        packed,
                        50 * pair,
                        image,
                        8 * row * column + e,
                        4 * column,
                        columns,
                        pools,
                        0,
                    )
                    for c in range(2 * pair, min(2 * pair + 2, channels)):
                        to = (c * padded + row + 2) * length + odd * (length // 2) + records + e
                        for lane in range(0, _WIDTH, _LANES):
                            best = _load(pools, (c - 2 * pair) * _WIDTH + lane)
                            _store(out, to + lane, _activated(best, bias_C[c]))


@njit(inline="always")
def _store_six(out, at, step, six):  # type: ignore[no-untyped-def]
    o0, o1, o2, o3, o4, o5 = six
    _store(out, at, o0)
    _store(out, at + step, o1)
    _store(out, at + 2 * step, o2)
    _store(out, at + 3 * step, o3)
    _store(out, at + 4 * step, o4)
    _store(out, at + 5 * step, o5)


@njit(inline="always")
def _column(m, at):  # type: ignore[no-untyped-def]
    """Aᵀ m of one column of the six."""
    step = 6 * _ROWS * _WIDTH
    return _two(
        _load(m, at), _load(m, at + step), _load(m, at + 2 * step), _load(m, at + 3 * step),
        _load(m, at + 4 * step), _load(m, at + 5 * step),
    )  # fmt: skip


@njit(inline="always")
def _largest(m, at):  # type: ignore[no-untyped-def]
    """The largest of the four outputs Aᵀ m A."""
    step = _ROWS * _WIDTH
    a0, b0 = _column(m, at)
    a1, b1 = _column(m, at + step)
    a2, b2 = _column(m, at + 2 * step)
    a3, b3 = _column(m, at + 3 * step)
    a4, b4 = _column(m, at + 4 * step)
    a5, b5 = _column(m, at + 5 * step)
    above_left, above_right = _two(a0, a1, a2, a3, a4, a5)
    below_left, below_right = _two(b0, b1, b2, b3, b4, b5)
    return _larger(_larger(above_left, above_right), _larger(below_left, below_right))


@compiled
def _transform_columns(x_CHL, row, out_6CL):  # type: ignore[no-untyped-def]
    """Write Bᵀ d of every column of a row of tiles to out."""
    channels, padded, length = x_CHL.shape
    x, out = x_CHL.reshape(-1), out_6CL.reshape(-1)
    for c in range(channels):
        for start in range(0, length, _LANES):
            column = min(start, length - _LANES)
            e = (c * padded + 2 * row) * length + column
            found = _six(
                _load(x, e), _load(x, e + length), _load(x, e + 2 * length), _load(x, e + 3 * length),
                _load(x, e + 4 * length), _load(x, e + 5 * length),
            )  # fmt: skip
            _store_six(out, c * length + column, channels * length, found)


@compiled
def _transform_block(columns_6CL, first, records, v_36C32):  # type: ignore[no-untyped-def]
    """Write Bᵀ d B of the 32 tiles from `first` on to v."""
    _, channels, length = columns_6CL.shape
    columns, v, half = columns_6CL.reshape(-1), v_36C32.reshape(-1), length // 2
    for i in range(6):
        for c in range(channels):
            for lane in range(0, _WIDTH, _LANES):
                e = (i * channels + c) * length + first + lane
                o = e + half
                found = _six(
                    _load(columns, e), _load(columns, o), _load(columns, e + records),
                    _load(columns, o + records), _load(columns, e + 2 * records), _load(columns, o + 2 * records),
                )  # fmt: skip
                _store_six(v, (6 * i * channels + c) * _WIDTH + lane, channels * _WIDTH, found)


@compiled
def _second_layer(x_CHL, u, bias_D, records, columns_6CL, v_36C32, m, out_DHn):  # type: ignore[no-untyped-def]
    """Do the same with the next layer, to out [D, H/4, n].

    u: transformed filters [D/8, 36, C, 8]; scratch: columns, v, m [36, 8, 32].
    """
    channels = x_CHL.shape[0]
    filters, rows, size = out_DHn.shape
    v, factors, products, out = (
        v_36C32.reshape(-1),
        u.reshape(-1),
        m.reshape(-1),
        out_DHn.reshape(-1),
    )
    for row in range(rows):
        _transform_columns(x_CHL, row, columns_6CL)
        for start in range(0, size, _WIDTH):
            first = min(start, size - _WIDTH)
            _transform_block(columns_6CL, first, records, v_36C32)
            for block in range(u.shape[0]):
                for k in range(36):
                    u_at, v_at = (36 * block + k) * channels * _ROWS, k * channels * _WIDTH
                    _multiply(
                        factors, u_at, v, v_at, _WIDTH, channels, products, k * _ROWS * _WIDTH
                    )
                for d in range(block * _ROWS, min(block * _ROWS + _ROWS, filters)):
                    for lane in range(0, _WIDTH, _LANES):
                        best = _largest(products, (d - block * _ROWS) * _WIDTH + lane)
                        _store(
                            out, (d * rows + row) * size + first + lane, _activated(best, bias_D[d])
                        )


@compiled
def _last_layer(x, weights, bias_K, depth, records, m, sums, out_BK):  # type: ignore[no-untyped-def]
    """Write x·W + b, summed first over `depth` features, then over those sums.

    x: [F, n] and room for 32 more, of one dimension; weights: [K/8, F, 8]; m, sums: scratch [8,
    32].
    """
    blocks, features, _ = weights.shape
    count, classes = out_BK.shape
    packed, total, part = weights.reshape(-1), sums.reshape(-1), m.reshape(-1)
    for block in range(blocks):
        for start in range(0, count, _WIDTH):
            total[:] = 0
            for f in range(0, features, depth):
                _multiply(
                    packed,
                    (block * features + f) * _ROWS,
                    x,
                    f * records + start,
                    records,
                    depth,
                    part,
                    0,
                )
                for e in range(0, _ROWS * _WIDTH, _LANES):
                    _store(total, e, _load(total, e) + _load(part, e))
            for k in range(block * _ROWS, min(block * _ROWS + _ROWS, classes)):
                for b in range(start, min(start + _WIDTH, count)):
                    out_BK[b, k] = total[(k - block * _ROWS) * _WIDTH + b - start] + bias_K[k]


@compiled
def scores(points_Pd, x_BHW, channels, filters, classes, out_PBK):  # type: ignore[no-untyped-def]
    """Write the scores of images at every point to out [P, B, K].

    x: float32 [B, H, W], H and W multiples of 4; channels, filters, classes: the layers' widths C,
    D, K.
    """
    count, height, width = x_BHW.shape
    groups, places = width // 4, (height // 4) * (width // 4)
    # records of zeros make room for a block in a row of tiles
    records = max(count, (_WIDTH + groups - 1) // groups)
    image = np.zeros((height + 4, 4, groups + 1, records), np.float32)
    _padded(x_BHW, image)
    middle = np.zeros((channels, height // 2 + 4, 2 * (groups + 2) * records), np.float32)
    columns = np.empty((6, channels, 2 * (groups + 2) * records), np.float32)
    v, m = np.empty((36, channels, _WIDTH), np.float32), np.empty((36, _ROWS, _WIDTH), np.float32)
    last = np.zeros(filters * places * records + _WIDTH, np.float32)
    last_DHn = last[: filters * places * records].reshape(filters, height // 4, groups * records)
    first_weights = np.zeros(((channels + 1) // 2, 25, 2), np.float32)
    u = np.zeros(((filters + _ROWS - 1) // _ROWS, 36, channels, _ROWS), np.float32)
    features = filters * places
    last_weights = np.zeros(((classes + _ROWS - 1) // _ROWS, features, _ROWS), np.float32)
    sums = np.empty((_ROWS, _WIDTH), np.float32)
    first_end = 25 * channels
    second_start = first_end + channels
    second_end = second_start + 25 * channels * filters
    last_start = second_end + filters
    last_end = last_start + features * classes
    for p in range(len(points_Pd)):
        point_d = points_Pd[p]
        first_C25 = point_d[:first_end].reshape(channels, 25)
        for c in range(channels):
            for tap in range(25):
                first_weights[c // 2, tap, c % 2] = first_C25[c, tap]
        _transform_filters(point_d[second_start:second_end].reshape(filters, channels, 25), u)
        last_KF = point_d[last_start:last_end].reshape(classes, features)
        for k in range(classes):
            for f in range(features):
                last_weights[k // _ROWS, f, k % _ROWS] = last_KF[k, f]
        bias_C = point_d[first_end:second_start]
        _first_layer(
            image.reshape(-1), first_weights, bias_C, groups, records, sums.reshape(-1), middle
        )
        _second_layer(middle, u, point_d[second_end:last_start], records, columns, v, m, last_DHn)
        _last_layer(last, last_weights, point_d[last_end:], places, records, m[0], sums, out_PBK[p])
