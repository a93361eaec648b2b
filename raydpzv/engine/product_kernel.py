"""The matrix product of the dense kernels: sums of products in a fixed order, held in registers.

Each element of the result takes one product and one sum per term, term after term, so that its bits
are those of plain loops on every machine. A tile of 4 x 16 elements stays in registers for up to
128 terms: 2.5 to 2.9 times as fast as loops over the terms that load and store the result, and .7
of a BLAS, which fuses products and sums in another order.

numba caches compiled code by one file alone: if you change this file, touch
`raydpzv/engine/dense_kernel.py` too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from raydpzv.zo.kernel_cache import compiled

_ROWS, _LANES, _FEW, _TERMS = 4, 16, 4, 128
"""Rows and columns of a tile, which takes 8 of AVX2's 16 registers; columns of the last ones; terms
whose operands stay in the first cache."""
_COLUMNS = 64
"""Columns of x that are copied side by side for the first cache, where there are more."""
_START, _NEXT, _PART_ROW, _X_ROW = np.int64(0), np.int64(1), np.int64(_TERMS), np.int64(_COLUMNS)
_INT = ir.IntType(64)


def _tile(rows: int, lanes: int) -> Any:
    """Return a compiled function that adds the terms to a tile of so many rows and columns.

    y[y_at + r·y_row + c] += w[w_at + r·w_row + t·w_term] · x[x_at + t·x_row + c] for t = 0 to terms
    - 1, on contiguous
    float32 arrays. places: (y_at, y_row, w_at, w_row, w_term, x_at, x_row, terms), int64, counted
    in elements.
    """

    @intrinsic
    def tile(typing_context, y, w, x, places):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            arrays = zip(signature.args[:3], args[:3], strict=True)
            data = [
                context.make_array(kind)(context, builder, array).data for kind, array in arrays
            ]
            _generate(builder, (rows, lanes), data, cgutils.unpack_tuple(builder, args[3]))
            return context.get_dummy_value()

        return types.void(y, w, x, places), generate

    return tile


def _generate(builder: Any, shape: tuple[int, int], data: Any, places: Any) -> None:
    """Write the tile's code: its sums go round a loop over the terms as vectors."""
    rows, lanes = shape
    kind = ir.VectorType(ir.FloatType(), lanes)
    spread = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    y, w, x = data
    y_at, y_row, w_at, w_row, w_term, x_at, x_row, terms = places

    def place(of: Any, at: Any, step: Any, count: Any) -> Any:
        return builder.gep(of, [builder.add(at, builder.mul(step, count))])

    def vector(pointer: Any) -> Any:
        return builder.bitcast(pointer, kind.as_pointer())

    to = [vector(place(y, y_at, y_row, _INT(r))) for r in range(rows)]
    weights = [place(w, w_at, w_row, _INT(r)) for r in range(rows)]
    first = [builder.load(pointer, align=4) for pointer in to]
    before = builder.block
    loop, after = builder.append_basic_block("term"), builder.append_basic_block("stored")
    builder.cbranch(builder.icmp_signed(">", terms, _INT(0)), loop, after)

    builder.position_at_end(loop)
    term = builder.phi(_INT)
    sums = [builder.phi(kind) for _ in range(rows)]
    values = builder.load(vector(place(x, x_at, x_row, term)), align=4)
    shift, none = builder.mul(w_term, term), ir.Constant(kind, ir.Undefined)
    added = []
    for total, weight in zip(sums, weights, strict=True):
        one = builder.insert_element(
            none, builder.load(builder.gep(weight, [shift])), ir.IntType(32)(0)
        )
        product = builder.fmul(builder.shuffle_vector(one, none, spread), values)
        added.append(builder.fadd(total, product))
    following = builder.add(term, _INT(1))
    for phi, start, step in zip([term, *sums], [_INT(0), *first], [following, *added], strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(step, loop)
    builder.cbranch(builder.icmp_signed("<", following, terms), loop, after)

    builder.position_at_end(after)
    found = [builder.phi(kind) for _ in range(rows)]
    for phi, start, step in zip(found, first, added, strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(step, loop)
    for pointer, value in zip(to, found, strict=True):
        builder.store(value, pointer, align=4)


_wide_rows, _wide_row = _tile(_ROWS, _LANES), _tile(1, _LANES)
_narrow_rows, _narrow_row = _tile(_ROWS, _FEW), _tile(1, _FEW)


@compiled
def _add_products(y, w, x, weights, shape):  # type: ignore[no-untyped-def]
    """y[r, c] += Σ_t w[at + r·w_row + t·w_term] · x[t, c], the terms added in order.

    y, x: contiguous float32 [>= rows or terms, >= columns]; w: contiguous float32; weights: (at,
    w_row, w_term), int64, counted in elements; shape: (rows, terms, columns).
    """
    at, w_row, w_term = weights
    rows, terms, columns = shape
    y_row, x_row, flat = y.shape[1], x.shape[1], w.reshape(-1)
    whole = columns - columns % _FEW
    wide, turned = whole > _COLUMNS and rows >= _LANES, w_term > _TERMS and whole > _LANES
    x_part = np.empty((_TERMS if wide else 0, _COLUMNS), np.float32)
    w_part = np.empty(_ROWS * _TERMS if turned else 0, np.float32)
    for first in range(0, terms, _TERMS):
        count = min(_TERMS, terms - first)
        w_first = at + first * w_term
        for left in range(0, whole, _COLUMNS if wide else max(whole, 1)):
            right = min(left + _COLUMNS, whole) if wide else whole
            if wide:
                for t in range(count):
                    for c in range(left, right):
                        x_part[t, c - left] = x[first + t, c]
            r = 0
            while r < rows:
                height = _ROWS if r + _ROWS <= rows else 1
                parted, of = turned and height == _ROWS, (w_first + r * w_row, w_row, w_term)
                if parted:
                    for t in range(count):
                        for n in range(_ROWS):
                            w_part[n * _TERMS + t] = flat[of[0] + n * w_row + t * w_term]
                    of = (_START, _PART_ROW, _NEXT)
                w_at, w_row_here, w_term_here = of
                part = w_part if parted else flat
                from_x, x_step = (_START, _X_ROW) if wide else (first * x_row + left, x_row)
                columns_of_x = x_part if wide else x
                middle = right - (right - left) % _LANES
                for c in range(left, middle, _LANES):
                    x_at = from_x + c - left
                    places = (
                        r * y_row + c,
                        y_row,
                        w_at,
                        w_row_here,
                        w_term_here,
                        x_at,
                        x_step,
                        count,
                    )
                    if height == _ROWS:
                        _wide_rows(y, part, columns_of_x, places)
                    else:
                        _wide_row(y, part, columns_of_x, places)
                for c in range(middle, right, _FEW):
                    x_at = from_x + c - left
                    places = (
                        r * y_row + c,
                        y_row,
                        w_at,
                        w_row_here,
                        w_term_here,
                        x_at,
                        x_step,
                        count,
                    )
                    if height == _ROWS:
                        _narrow_rows(y, part, columns_of_x, places)
                    else:
                        _narrow_row(y, part, columns_of_x, places)
                r += height
        if whole == columns:
            continue
        for r in range(rows):
            to, of, t = y[r], w_first + r * w_row, first
            while t + 4 <= first + count:  # four terms per load and store of y, in the same order
                w0, w1, w2, w3 = (
                    flat[of],
                    flat[of + w_term],
                    flat[of + 2 * w_term],
                    flat[of + 3 * w_term],
                )
                x0, x1, x2, x3 = x[t], x[t + 1], x[t + 2], x[t + 3]
                for c in range(whole, columns):
                    to[c] = (((to[c] + w0 * x0[c]) + w1 * x1[c]) + w2 * x2[c]) + w3 * x3[c]
                of, t = of + 4 * w_term, t + 4
            while t < first + count:
                w0, x0 = flat[of], x[t]
                for c in range(whole, columns):
                    to[c] += w0 * x0[c]
                of, t = of + w_term, t + 1
