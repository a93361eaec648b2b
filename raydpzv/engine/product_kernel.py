"""The matrix product of the dense kernels: sums of products in a fixed order, held in registers.

Each element of the result takes one product and one sum per term, term after term, so that its bits are those of plain
loops on every machine. A tile of 4 x 16 elements stays in registers for up to 128 terms: 2.5 to 2.9 times as fast as
loops over the terms that load and store the result, and .7 of a BLAS, which fuses products and sums in another order.

numba caches compiled code by one file alone: if you change this file, touch `raydpzv/engine/dense_kernel.py` too.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from raydpzv.zo.kernel_cache import compiled

_ROWS, _LANES, _TERMS = 4, 16, 128
"""Rows and columns of a tile, which takes 8 of AVX2's 16 registers; terms whose operands stay in the first cache."""
_INT = ir.IntType(64)
_VECTOR = ir.VectorType(ir.FloatType(), _LANES)
_SPREAD = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), [0] * _LANES)


def _tile(rows: int) -> Any:
    """Return a compiled function that adds the terms to a tile of so many rows.

    y[y_at + r·y_row + c] += w[w_at + r·w_row + t·w_term] · x[x_at + t·x_row + c] for t = 0 to terms - 1, on contiguous
    float32 arrays. places: (y_at, y_row, w_at, w_row, w_term, x_at, x_row, terms), int64, counted in elements.
    """

    @intrinsic
    def tile(typing_context, y, w, x, places):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            arrays = zip(signature.args[:3], args[:3], strict=True)
            data = [context.make_array(kind)(context, builder, array).data for kind, array in arrays]
            _generate(builder, rows, data, cgutils.unpack_tuple(builder, args[3]))
            return context.get_dummy_value()

        return types.void(y, w, x, places), generate

    return tile


def _generate(builder: Any, rows: int, data: Any, places: Any) -> None:
    """Write the tile's code: its sums go round a loop over the terms as vectors."""
    y, w, x = data
    y_at, y_row, w_at, w_row, w_term, x_at, x_row, terms = places

    def place(of: Any, at: Any, step: Any, count: Any) -> Any:
        return builder.gep(of, [builder.add(at, builder.mul(step, count))])

    def vector(pointer: Any) -> Any:
        return builder.bitcast(pointer, _VECTOR.as_pointer())

    to = [vector(place(y, y_at, y_row, _INT(r))) for r in range(rows)]
    weights = [place(w, w_at, w_row, _INT(r)) for r in range(rows)]
    first = [builder.load(pointer, align=4) for pointer in to]
    before = builder.block
    loop, after = builder.append_basic_block("term"), builder.append_basic_block("stored")
    builder.cbranch(builder.icmp_signed(">", terms, _INT(0)), loop, after)

    builder.position_at_end(loop)
    term = builder.phi(_INT)
    sums = [builder.phi(_VECTOR) for _ in range(rows)]
    values = builder.load(vector(place(x, x_at, x_row, term)), align=4)
    shift, none = builder.mul(w_term, term), ir.Constant(_VECTOR, ir.Undefined)
    added = []
    for total, weight in zip(sums, weights, strict=True):
        one = builder.insert_element(none, builder.load(builder.gep(weight, [shift])), ir.IntType(32)(0))
        product = builder.fmul(builder.shuffle_vector(one, none, _SPREAD), values)
        added.append(builder.fadd(total, product))
    following = builder.add(term, _INT(1))
    for phi, start, step in zip([term, *sums], [_INT(0), *first], [following, *added], strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(step, loop)
    builder.cbranch(builder.icmp_signed("<", following, terms), loop, after)

    builder.position_at_end(after)
    found = [builder.phi(_VECTOR) for _ in range(rows)]
    for phi, start, step in zip(found, first, added, strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(step, loop)
    for pointer, value in zip(to, found, strict=True):
        builder.store(value, pointer, align=4)


_several_rows, _one_row = _tile(_ROWS), _tile(1)


@compiled
def _add_products(y, w, x, weights, shape):  # type: ignore[no-untyped-def]
    """y[r, c] += Σ_t w[at + r·w_row + t·w_term] · x[t, c], the terms added in order.

    y, x: contiguous float32 [>= rows or terms, >= columns]; w: contiguous float32; weights: (at, w_row, w_term), int64,
    counted in elements; shape: (rows, terms, columns).
    """
    at, w_row, w_term = weights
    rows, terms, columns = shape
    y_row, x_row, flat = y.shape[1], x.shape[1], w.reshape(-1)
    whole = columns - columns % _LANES
    for first in range(0, terms, _TERMS):
        count = min(_TERMS, terms - first)
        w_first, x_first = at + first * w_term, first * x_row
        r = 0
        while r < rows:
            several = r + _ROWS <= rows
            for c in range(0, whole, _LANES):
                places = (r * y_row + c, y_row, w_first + r * w_row, w_row, w_term, x_first + c, x_row, count)
                if several:
                    _several_rows(y, flat, x, places)
                else:
                    _one_row(y, flat, x, places)
            r += _ROWS if several else 1
        if whole == columns:
            continue
        for r in range(rows):
            to, of, t = y[r], w_first + r * w_row, first
            while t + 4 <= first + count:  # four terms per load and store of y, in the same order
                w0, w1, w2, w3 = flat[of], flat[of + w_term], flat[of + 2 * w_term], flat[of + 3 * w_term]
                x0, x1, x2, x3 = x[t], x[t + 1], x[t + 2], x[t + 3]
                for c in range(whole, columns):
                    to[c] = (((to[c] + w0 * x0[c]) + w1 * x1[c]) + w2 * x2[c]) + w3 * x3[c]
                of, t = of + 4 * w_term, t + 4
            while t < first + count:
                w0, x0 = flat[of], x[t]
                for c in range(whole, columns):
                    to[c] += w0 * x0[c]
                of, t = of + w_term, t + 1
