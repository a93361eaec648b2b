"""Small dense networks compiled with numba: embeddings, losses, gradients and whole services of a
vertical server.

The bits depend on the inputs alone: no BLAS, no libm (own exp and log), no fused multiply-add,
every sum in the order that is written here. Activations lie feature by feature, [features, rows],
so that loops over the rows are vectorised without reordering a sum; gradients add row after row.
Directions are those of `raydpzv.zo.numba_kernel`.

A network is flat parameters float32 [d] and `sizes` int64, the widths of its layers from the input
on: weights [out, in], then biases, layer by layer, with ReLU between. One width alone is the sum of
the clients' embeddings of that width, plus a bias.

numba caches compiled code by this file alone: if you change `raydpzv/zo/numba_kernel.py`,
`product_kernel.py` or `transpose_kernel.py`, touch this file too. Copy arrays in loops: for an
assignment's error message numba compiles two seconds of string functions.
Callers go through `raydpzv.engine.compiled`. Arguments are contiguous arrays, int, bool and float,
and these tuples:

| tuple      | holds                                                                                          |
|------------|------------------------------------------------------------------------------------------------|
| `net`      | flat, sizes; the inputs of a record (M·E for a sum), and the widest layer                       |
| `batch`    | all labels int64 [D], and the rows' numbers int32 [B]                                           |
| `learning` | velocity [d or 0], whether the parameters move, step size, momentum                             |
| `steps`    | seeds, scalars and step sizes, see `raydpzv.zo.update.Steps`; of one step, `step`               |
"""

# M clients, D rows, B batch, E embedding width, K classes, P directions, A amounts, d parameters

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from raydpzv.engine.dense import LAWS
from raydpzv.engine.product_kernel import _add_products
from raydpzv.engine.split_model import AGE_BINS, COUNTED
from raydpzv.engine.transpose_kernel import _turn, _turn_rows
from raydpzv.zo import numba_kernel as _generator
from raydpzv.zo.kernel_cache import compiled

_f32, _f64, _i64, _u64 = np.float32, np.float64, np.int64, np.uint64
_ZERO, _ONE = _f32(0), _f32(1)
_NO, _YES, _START, _NEXT = np.bool_(False), np.bool_(True), _i64(0), _i64(1)
"""Arguments of internal functions, which numba compiles anew for every literal."""
_TILE, _BLOCKS = _generator._TILE, _generator._BLOCKS
_GAUSSIAN, _RADEMACHER = LAWS["gaussian"], LAWS["rademacher"]
_BLOCK = 128
"""Rows whose losses are computed together."""
_BLOCK_FLOATS, _ROW_BLOCK = 1 << 15, 16
"""Weights that are moved, or whose gradient is made, together, and of how many outputs at least: a
second cache's.
"""

_LOG2E, _LN2_HI, _LN2_LO = (
    1.4426950408889634,
    6.93147180369123816490e-01,
    1.90821492927058770002e-10,
)
# 1.5 · 2^52: adding it rounds to a whole number, which its last bits then hold
_MAGIC = 6755399441055744.0
_LARGEST, _SMALLEST = 709.0, -708.0
_ONE_BITS, _HALF_ROOT_BITS = _i64(1023 << 52), _i64(0x3FE6A09E667F3BCD)
_LEAST_NORMAL, _SCALE, _SCALED = 2.2250738585072014e-308, 18014398509481984.0, -54.0
_EXP = tuple(1 / math.factorial(n) for n in range(13))
_E0, _E1, _E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12 = _EXP
_LOG = tuple(2.0 / (2 * n + 1) for n in range(1, 11))
_G1, _G2, _G3, _G4, _G5, _G6, _G7, _G8, _G9, _G10 = _LOG


@intrinsic
def _bits(typing_context: Any, value: Any) -> Any:
    """Reinterpret float64 as int64 without a round trip through memory, which would stop
    vectorisation.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), generate


@intrinsic
def _double(typing_context: Any, value: Any) -> Any:
    """Reinterpret int64 as float64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), generate


@njit(inline="always")
def exp(x):  # type: ignore[no-untyped-def]
    """e^x in float64 to 2 units of the last place; 0 below -708, infinity above 709.

    x = k ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite's two-part ln 2), then the Taylor polynomial
    of e^r.
    """
    inside = min(max(x, _SMALLEST), _LARGEST)
    shifted = inside * _LOG2E + _MAGIC
    k = shifted - _MAGIC
    r = (inside - k * _LN2_HI) - k * _LN2_LO
    high = (((_E12 * r + _E11) * r + _E10) * r + _E9) * r + _E8
    p = (((high * r + _E7) * r + _E6) * r + _E5) * r + _E4
    p = (((p * r + _E3) * r + _E2) * r + _E1) * r + _E0
    found = p * _double((_bits(shifted) << _i64(52)) + _ONE_BITS)  # type: ignore[call-arg]
    found = 0.0 if x < _SMALLEST else found
    found = math.inf if x > _LARGEST else found
    return found if x == x else x


@njit(error_model="numpy")
def log(x):  # type: ignore[no-untyped-def]
    """ln x in float64 to 2 units of the last place: x = 2^k m with m in [√½, √2), and 2
    artanh((m-1)/(m+1)).
    """
    if not x > 0.0:
        return -math.inf if x == 0.0 else math.nan
    if x == math.inf:
        return x
    before = 0.0
    if x < _LEAST_NORMAL:
        x, before = x * _SCALE, _SCALED
    whole = (_bits(x) - _HALF_ROOT_BITS) >> _i64(52)  # type: ignore[call-arg]
    f = _double(_bits(x) - (whole << _i64(52))) - 1.0
    s = f / (2.0 + f)
    z = s * s
    high = (((_G10 * z + _G9) * z + _G8) * z + _G7) * z + _G6
    p = (((high * z + _G5) * z + _G4) * z + _G3) * z + _G2
    k = _f64(whole) + before
    # the leading 2s is f - sf, whose rounding does not count beside f's own
    return k * _LN2_HI + (f - (s * f - (s * (p * z + _G1) * z + k * _LN2_LO)))


@compiled
def _check(ids, rows):  # type: ignore[no-untyped-def]
    """Refuse row numbers outside 0..rows-1: compiled code would read, or write, somebody else's
    memory.
    """
    for b in range(ids.shape[0]):
        if ids[b] < 0 or ids[b] >= rows:
            raise IndexError("a row number is outside the data")


@compiled
def _gather(source, ids, x):  # type: ignore[no-untyped-def]
    """x[i, b] = source[ids[b], i]; IndexError for a row that is not there."""
    _check(ids, source.shape[0])
    _turn_rows(source, ids, x)


@compiled
def _activations(net, rows):  # type: ignore[no-untyped-def]
    """Room for the inputs and the outputs of every layer, [layers + 1, widest, B]."""
    return np.empty((max(2, net[1].shape[0]), net[3], rows), np.float32)


@compiled
def _outputs(net, acts):  # type: ignore[no-untyped-def]
    """The outputs of the last layer, [widest, B]."""
    return acts[max(1, net[1].shape[0] - 1)]


@compiled
def _linear(flat, at, inputs, outputs, x, y):  # type: ignore[no-untyped-def]
    """y[o, b] = bias[o] + Σ_i weight[o, i] · x[i, b], the terms added in the order of i."""
    rows = y.shape[1]
    for o in range(outputs):
        to, bias = y[o], flat[at + outputs * inputs + o]
        for b in range(rows):
            to[b] = bias
    _add_products(y, flat, x, (at, inputs, _NEXT), (outputs, inputs, rows))


@compiled
def _forward(net, acts, noise):  # type: ignore[no-untyped-def]
    """Fill acts [layers + 1, widest, B] from its first entry, the inputs; noise: before each inner
    ReLU, or empty.
    """
    flat, sizes, inputs, _ = net
    rows = acts.shape[2]
    if sizes.shape[0] == 1:
        classes = sizes[0]
        for k in range(classes):
            for b in range(rows):
                acts[1, k, b] = flat[k]
            for i in range(k, inputs, classes):
                for b in range(rows):
                    acts[1, k, b] += acts[0, i, b]
        return
    at, drawn = _START, 0
    last = sizes.shape[0] - 2
    for layer in range(last + 1):
        before, after = sizes[layer], sizes[layer + 1]
        y = acts[layer + 1]
        _linear(flat, at, before, after, acts[layer], y)
        at += (before + 1) * after
        if layer == last:
            break
        if noise.shape[0] > 0:
            for b in range(rows):
                for o in range(after):
                    y[o, b] += noise[drawn + b * after + o]
            drawn += rows * after
        for o in range(after):
            for b in range(rows):
                y[o, b] = _ZERO if y[o, b] < _ZERO else y[o, b]


@compiled
def _backprop(net, acts, delta, into, for_inputs):  # type: ignore[no-untyped-def]
    """Write the parameters' gradient, added row after row, or step along it; delta [2, widest, B]:
    that of the outputs.

    into: `_into` or `_stepping`. Returns which half of delta holds the gradient of the inputs, if
    it was wanted.
    """
    flat, sizes, inputs, _ = net
    rows = acts.shape[2]
    if sizes.shape[0] == 1:
        _row_sums(flat, delta[0], (_START, sizes[0]), into)
        for i in range(inputs):
            for b in range(rows):
                delta[1, i, b] = delta[0, i % sizes[0], b]
        return 1
    at, now = flat.shape[0], 0
    room = np.empty(rows * acts.shape[1], np.float32)
    for layer in range(sizes.shape[0] - 2, -1, -1):
        before, after = sizes[layer], sizes[layer + 1]
        at -= (before + 1) * after
        x, d, to = acts[layer], delta[now], delta[1 - now]
        if layer > 0 or for_inputs:  # before a step moves the weights
            for i in range(before):
                for b in range(rows):
                    to[i, b] = _ZERO
            _add_products(to, flat, d, (at, _NEXT, before), (before, after, rows))
        by_row = room[: rows * before].reshape(rows, before)
        _turn(x, by_row)
        _row_sums(flat, d, (at + before * after, after), into)
        _row_products(flat, d, by_row, (at, after), into)
        if layer > 0:
            for i in range(before):
                for b in range(rows):
                    to[i, b] = to[i, b] if x[i, b] > _ZERO else _ZERO
        now = 1 - now
    return now


@compiled
def _into(gradient):  # type: ignore[no-untyped-def]
    """What `_backprop` takes to write the gradient, float32 [d]."""
    return gradient, gradient[:0], 0.0, 0.0, 0.0


@compiled
def _stepping(learning, l2):  # type: ignore[no-untyped-def]
    """What `_backprop` takes to step along the gradient plus l2 · w as it is made: a block while it
    is in a cache.
    """
    velocity, _, lr, momentum = learning
    return np.empty(0, np.float32), velocity, lr, momentum, l2


@compiled
def _row_sums(flat, d, place, into):  # type: ignore[no-untyped-def]
    """The gradient of biases: sums over the rows of d [>= count, B]; place: of the first one, and
    the count.
    """
    at, count = place
    part = np.empty(count, np.float32)
    for o in range(count):
        total = _ZERO
        for b in range(d.shape[1]):
            total += d[o, b]
        part[o] = total
    _use(flat, at, part, into)


@compiled
def _row_products(flat, d, by_row, place, into):  # type: ignore[no-untyped-def]
    """The gradient of weights [outputs, inputs], d · by_row; place: of the first one, and the
    outputs.
    """
    (at, outputs), (rows, inputs) = place, by_row.shape
    count = min(outputs, _block(inputs))
    block = np.empty(count * inputs, np.float32)
    for first in range(0, outputs, count):
        height = min(count, outputs - first)
        part = block[: height * inputs]
        for i in range(part.shape[0]):
            part[i] = _ZERO
        weights = (first * d.shape[1], d.shape[1], _NEXT)
        _add_products(part.reshape(height, inputs), d, by_row, weights, (height, rows, inputs))
        _use(flat, at + first * inputs, part, into)


@compiled
def _use(flat, at, part, into):  # type: ignore[no-untyped-def]
    """Keep a part of the gradient, which begins at `at`, or step along it."""
    gradient, velocity, lr, momentum, l2 = into
    last = at + part.shape[0]
    if gradient.shape[0] > 0:
        for i in range(part.shape[0]):
            gradient[at + i] = part[i]
        return
    some = flat[at:last]
    if l2 > 0.0:
        weight = _f32(l2)
        for i in range(part.shape[0]):
            part[i] += weight * some[i]
    _descend(some, velocity[at:last], part, lr, momentum)


@compiled
def _descend(flat, velocity, gradient, lr, momentum):  # type: ignore[no-untyped-def]
    """v <- βv + g, w <- w - ηv; an empty velocity stands for β = 0."""
    step, beta = _f32(-lr), _f32(momentum)
    if velocity.shape[0] == 0:
        for i in range(flat.shape[0]):
            flat[i] += step * gradient[i]
        return
    for i in range(flat.shape[0]):
        velocity[i] = velocity[i] * beta + gradient[i]
        flat[i] += step * velocity[i]


@compiled
def make_direction(z, seed, law):  # type: ignore[no-untyped-def]
    """Fill z float32 [d] with a direction before its factor, and return that: 1, or √d / ‖z‖ on the
    sphere.
    """
    size = z.shape[0]
    if law == _RADEMACHER:
        _generator._signs(z, seed)
        return 1.0
    lanes = np.zeros(min(_TILE, size), np.float64)  # in the order of the generator's `squared_norm`
    words, last = np.empty((4, _BLOCKS), np.uint32), np.empty((4, _BLOCKS), np.float32)
    for first in range(0, size, _TILE):
        count = min(_TILE, size - first)
        if count == _TILE:
            _generator._tile(
                z[first : first + _TILE].reshape(4, _BLOCKS), words, seed, _u64(first // _TILE)
            )
        else:
            _generator._tile(last, words, seed, _u64(first // _TILE))
            values = last.reshape(-1)
            for i in range(count):
                z[first + i] = values[i]
        if law != _GAUSSIAN:
            of = z[first : first + count]
            for i in range(count):
                lanes[i] += _f64(of[i]) * _f64(of[i])
    if law == _GAUSSIAN:
        return 1.0
    total = 0.0
    for i in range(lanes.shape[0]):
        total += lanes[i]
    return math.sqrt(size / total)


@compiled
def add_along(out, x, z, coefficient):  # type: ignore[no-untyped-def]
    """out[i] = x[i] + coefficient · z[i], one rounding for the product and one for the sum; out may
    be x.
    """
    for i in range(x.shape[0]):
        out[i] = x[i] + coefficient * z[i]


@compiled
def _clip_row(values, o_count, b, limit):  # type: ignore[no-untyped-def]
    """Return the norm of row b of values [E, B], and what it is multiplied by to be at most `limit`
    long.
    """
    total = 0.0
    for o in range(o_count):
        total += _f64(values[o, b]) * _f64(values[o, b])
    norm = math.sqrt(total)
    return norm, (limit / norm if norm > limit else 1.0)


@compiled
def _put_out(values, width, limit, out):  # type: ignore[no-untyped-def]
    """out[b, k] = values[k, b], rows cut to norm `limit` (infinity: as they are)."""
    for b in range(out.shape[0]):
        factor = _ONE
        if limit < math.inf:
            factor = _f32(_clip_row(values, width, b, limit)[1])
        for k in range(width):
            out[b, k] = values[k, b] * factor


@compiled
def embed(source, ids, net, noise, limit):  # type: ignore[no-untyped-def]
    """Return embeddings of source[ids], [B, E], and the activations that `bottom_step` needs."""
    acts, out = _activations(net, ids.shape[0]), np.empty((ids.shape[0], net[1][-1]), np.float32)
    _gather(source, ids, acts[0])
    _forward(net, acts, noise)
    _put_out(_outputs(net, acts), out.shape[1], limit, out)
    return out, acts


@compiled
def bottom_step(net, learning, acts, gradient_BE, limit, l2):  # type: ignore[no-untyped-def]
    """One step along the gradient of the embeddings that `embed` made with acts, through their
    clip.
    """
    rows, width = gradient_BE.shape
    delta = np.empty((2, acts.shape[1], rows), np.float32)
    out = _outputs(net, acts)
    for b in range(rows):
        factor, along = 1.0, 0.0
        if limit < math.inf:
            norm, factor = _clip_row(out, width, b, limit)
            if norm > limit:
                for k in range(width):
                    along += _f64(out[k, b]) * _f64(gradient_BE[b, k])
                along /= norm * norm
        for k in range(width):
            delta[0, k, b] = _f32(factor * (_f64(gradient_BE[b, k]) - along * _f64(out[k, b])))
    _backprop(net, acts, delta, _stepping(learning, l2), _NO)


@compiled
def _block(inputs):  # type: ignore[no-untyped-def]
    """Return of how many outputs at a time the weights are moved, or their gradient made."""
    return max(_ROW_BLOCK, _BLOCK_FLOATS // max(1, inputs) // _ROW_BLOCK * _ROW_BLOCK)


@compiled
def _forward_along(net, acts, z, coefficients):  # type: ignore[no-untyped-def]
    """`_forward` at w + c_a · z, acts [A, layers + 1, widest, B], from the inputs in acts[0, 0];
    not of a sum.

    No whole w + c_a · z is written: a block of weights is moved and multiplied while it is in a
    cache, for every a.
    """
    flat, sizes, _, _ = net
    at, last, rows = _START, sizes.shape[0] - 2, acts.shape[3]
    for layer in range(last + 1):
        before, after = sizes[layer], sizes[layer + 1]
        count, biases = min(after, _block(before)), at + after * before
        w = np.empty(count * before, np.float32)
        for first in range(0, after, count):
            height, begin = min(count, after - first), at + first * before
            of, u = flat[begin : begin + height * before], z[begin : begin + height * before]
            for a in range(coefficients.shape[0]):
                c, y = coefficients[a], acts[a, layer + 1, first : first + height]
                for i in range(of.shape[0]):
                    w[i] = of[i] + c * u[i]
                for o in range(height):
                    bias = flat[biases + first + o] + c * z[biases + first + o]
                    for b in range(rows):
                        y[o, b] = bias
                x = acts[a if layer > 0 else 0, layer]
                _add_products(y, w, x, (_START, before, _NEXT), (height, before, rows))
                if layer < last:
                    for o in range(height):
                        for b in range(rows):
                            y[o, b] = _ZERO if y[o, b] < _ZERO else y[o, b]
        at += (before + 1) * after


@compiled
def embed_along(source, ids, net, directions, limit, out):  # type: ignore[no-untyped-def]
    """Embeddings at w + amounts[a] · u_p to out [A, P, B, E], every direction made once.

    directions: seeds, their law, amounts, whether z holds them all already, and z float32 [P or 1,
    d] and factors float64 [P], which are filled with the directions (of one row: with the last)
    before their factors, and with these.
    """
    (_, sizes, _, widest), (seeds, law, amounts, made, z, factors) = net, directions
    count, last = amounts.shape[0], sizes.shape[0] - 1
    acts, coefficients = (
        np.empty((count, last + 1, widest, ids.shape[0]), np.float32),
        np.empty(count, np.float32),
    )
    _gather(source, ids, acts[0, 0])
    for p in range(seeds.shape[0]):
        of = z[min(p, z.shape[0] - 1)]
        if not made:
            factors[p] = make_direction(of, seeds[p], law)
        for a in range(count):
            coefficients[a] = _f32(amounts[a] * factors[p])
        _forward_along(net, acts, of, coefficients)
        for a in range(count):
            _put_out(acts[a, last], sizes[-1], limit, out[a, p])


@compiled
def step_along(flat, velocity, directions, step, momentum):  # type: ignore[no-untyped-def]
    """The step of `zeroth_order_steps` along directions that are there: z [P, d] and factors [P] of
    `embed_along`.
    """
    (z, factors), (scalars, lr) = directions, step
    count, moving = z.shape[0], velocity.shape[0] > 0
    target, beta, down = velocity if moving else flat, _f32(momentum), _f32(-lr)
    coefficients = np.empty(count, np.float32)
    for p in range(count):
        amount = -scalars[p] / count if moving else lr * scalars[p] / count
        coefficients[p] = _f32(amount * factors[p])
    for first in range(0, flat.shape[0], _TILE):  # which stays in the first cache
        last = min(first + _TILE, flat.shape[0])
        to, x = target[first:last], flat[first:last]
        if moving:
            for i in range(last - first):
                to[i] *= beta
        for p in range(count):
            c, of = coefficients[p], z[p, first:last]
            for i in range(last - first):
                to[i] -= c * of[i]
        if moving:
            for i in range(last - first):
                x[i] += down * to[i]


@compiled
def zeroth_order_steps(flat, velocity, steps, momentum, law):  # type: ignore[no-untyped-def]
    """Steps along mean_p scalars[k, p] · u_kp for k = 0, 1, ...: the bits of
    `raydpzv.zo.update.Descent`.
    """
    seeds, scalars, lrs = steps
    for k in range(lrs.shape[0]):
        _zeroth_order_step(flat, velocity, (seeds[k], scalars[k], lrs[k]), momentum, law)


@compiled
def _zeroth_order_step(flat, velocity, step, momentum, law):  # type: ignore[no-untyped-def]
    """One step along mean_p scalars[p] · u_p."""
    seeds, scalars, lr = step
    z, count = np.empty(flat.shape[0], np.float32), seeds.shape[0]
    moving = velocity.shape[0] > 0
    target = velocity if moving else flat
    if moving:
        beta = _f32(momentum)
        for i in range(flat.shape[0]):
            velocity[i] *= beta
    for p in range(count):
        amount = -scalars[p] / count if moving else lr * scalars[p] / count
        factor = make_direction(z, seeds[p], law)
        c = _f32(amount * factor)
        for i in range(flat.shape[0]):
            target[i] -= c * z[i]
    if moving:
        down = _f32(-lr)
        for i in range(flat.shape[0]):
            flat[i] += down * velocity[i]


@compiled
def _losses(scores, batch, classes, losses, soft, softens):  # type: ignore[no-untyped-def]
    """Cross-entropy of every row, float64 [B], from scores [K, B]; if `softens`, the softmax to
    soft [K, B].
    """
    labels, ids = batch
    rows = ids.shape[0]
    top, total = np.empty(rows, np.float32), np.zeros(rows, np.float64)
    for b in range(rows):
        top[b] = scores[0, b]
    for k in range(1, classes):
        for b in range(rows):
            top[b] = scores[k, b] if scores[k, b] > top[b] else top[b]
    parts = np.empty((classes, rows), np.float64)
    for k in range(classes):
        part = parts[k]
        for b in range(rows):
            part[b] = exp(_f64(scores[k, b]) - _f64(top[b]))
            total[b] += part[b]
    for b in range(rows):
        losses[b] = log(total[b]) - (_f64(scores[labels[ids[b]], b]) - _f64(top[b]))
    if softens:
        for k in range(classes):
            for b in range(rows):
                soft[k, b] = _f32(parts[k, b] / total[b])


@compiled
def _mean(values):  # type: ignore[no-untyped-def]
    """The mean in the order of the rows; NaN of none."""
    total = 0.0
    for b in range(values.shape[0]):
        total += values[b]
    return total / values.shape[0] if values.shape[0] > 0 else math.nan


@compiled
def _put(values, table, refreshed, ids, client, round):  # type: ignore[no-untyped-def]
    _check(ids, refreshed.shape[0])
    width = values.shape[1]
    for b in range(ids.shape[0]):
        for k in range(width):
            table[ids[b], client * width + k] = values[b, k]
        refreshed[ids[b], client] = round


@compiled
def put(values, table, refreshed, ids, client, round):  # type: ignore[no-untyped-def]
    """Store embeddings [B, E] in table [D, M·E], and the round in refreshed [D, M]."""
    _put(values, table, refreshed, ids, client, round)


@compiled
def _ages(refreshed, ids, round, serving, found):  # type: ignore[no-untyped-def]
    _check(ids, refreshed.shape[0])
    for m in range(refreshed.shape[1]):
        if m != serving:
            row = found[m - (1 if m > serving else 0)]
            row[:] = 0
            row[0], row[1], row[2] = round, m, ids.shape[0]
    for b in range(ids.shape[0]):
        for m in range(refreshed.shape[1]):
            if m == serving:
                continue
            made, row = refreshed[ids[b], m], found[m - (1 if m > serving else 0)]
            if made == 0:
                row[3] += 1
                continue
            age = round - made
            row[4] += age
            row[5] = max(row[5], age)
            # the exponent of a float64: 0 for age 0, k for ages 2^(k-1) .. 2^k - 1
            which = (_bits(_f64(age)) >> _i64(52)) - 1022 if age > 0 else 0  # type: ignore[call-arg]
            row[COUNTED + min(which, AGE_BINS - 1)] += 1


@compiled
def ages(refreshed, ids, round, serving, found):  # type: ignore[no-untyped-def]
    """Fill `found` with the ages of these rows' entries: see `raydpzv.engine.split_model.Ages`."""
    _ages(refreshed, ids, round, serving, found)


@compiled
def _backward(net, acts, batch, delta, into, for_inputs):  # type: ignore[no-untyped-def]
    """Write the mean loss's gradient, or step along it; delta [2, widest, B] holds the softmax; see
    `_backprop`.
    """
    labels, ids = batch
    rows, classes = ids.shape[0], net[1][-1]
    share = _f32(1.0 / max(1, rows))
    for b in range(rows):
        delta[0, labels[ids[b]], b] -= _ONE
    for k in range(classes):
        for b in range(rows):
            delta[0, k, b] *= share
    return _backprop(net, acts, delta, into, for_inputs)


@compiled
def _head_step(acts, batch, net, learning, dx):  # type: ignore[no-untyped-def]
    """Step w_0 on the inputs in acts[0]; dx [B, M·E], if not empty: the mean loss's gradient.
    Returns the mean loss.
    """
    (_, sizes, inputs, widest), learns, rows = net, learning[1], batch[1].shape[0]
    _forward(net, acts, np.empty(0, np.float32))
    losses, delta = np.empty(rows, np.float64), np.empty((2, widest, rows), np.float32)
    _losses(_outputs(net, acts), batch, sizes[-1], losses, delta[0], learns)
    if learns:
        half = _backward(net, acts, batch, delta, _stepping(learning, 0.0), dx.shape[0] > 0)
        for b in range(dx.shape[0]):
            for i in range(inputs):
                dx[b, i] = delta[half, i, b]
    return _mean(losses)


@compiled
def head_step(source, at, batch, net, learning, dx):  # type: ignore[no-untyped-def]
    """Step the head on source[at] [B, M·E] with the batch's labels; dx [B or 0, M·E]: see
    `_head_step`.
    """
    labels, ids = batch
    acts = _activations(net, ids.shape[0])
    _check(ids, labels.shape[0])
    _gather(source, at, acts[0])
    return _head_step(acts, batch, net, learning, dx)


@compiled
def _substitute(x, client, values):  # type: ignore[no-untyped-def]
    """The client's inputs become values [B, E]."""
    width = values.shape[1]
    for b in range(values.shape[0]):
        for k in range(width):
            x[client * width + k, b] = values[b, k]


@compiled
def _losses_with(values, acts, client, batch, net, losses):  # type: ignore[no-untyped-def]
    """Every row's loss with `values` in place of the client's embeddings."""
    _substitute(acts[0], client, values)
    _forward(net, acts, np.empty(0, np.float32))
    scores = _outputs(net, acts)
    _losses(scores, batch, net[1][-1], losses, scores, _NO)


@compiled
def two_point_service(  # type: ignore[no-untyped-def]
    plus,
    minus,
    table,
    refreshed,
    batch,
    client,
    round,
    net,
    learning,
    smoothing,
    clip,
    sums,
    nonfinite,
    found,
):
    """One upload at w ± λu_p, embeddings [P, B, E]: sums of clipped slopes, ages, the cache's rows,
    the head's step.

    Slopes are (ℓ⁺ - ℓ⁻) / 2λ (DPZV preprint Eq. (3)); what is not finite counts as 0. Returns the
    mean loss.
    """
    ids = batch[1]
    rows, width = ids.shape[0], plus.shape[2]
    acts = _activations(net, rows)
    _gather(table, ids, acts[0])
    ahead, behind = np.empty(rows, np.float64), np.empty(rows, np.float64)
    for p in range(plus.shape[0]):
        _losses_with(plus[p], acts, client, batch, net, ahead)
        _losses_with(minus[p], acts, client, batch, net, behind)
        for b in range(rows):
            # in float32 as it is sent, recorded and replayed; the clip in float64, where C is not
            # rounded upwards
            slope = _f64(_f32((ahead[b] - behind[b]) / (2 * smoothing)))
            if not math.isfinite(slope):
                nonfinite[p] += 1
                slope = 0.0  # type: ignore[assignment]
            sums[p] += min(max(slope, -clip), clip)
    middle, half = np.zeros((rows, width), np.float32), _f32(0.5 / plus.shape[0])
    for p in range(plus.shape[0]):
        for b in range(rows):
            for k in range(width):
                middle[b, k] += plus[p, b, k] + minus[p, b, k]
    for b in range(rows):
        for k in range(width):
            middle[b, k] *= half
    _ages(refreshed, ids, round, client, found)
    _put(middle, table, refreshed, ids, client, round)
    if rows == 0:  # no step, not even by momentum
        return math.nan
    _substitute(acts[0], client, middle)
    return _head_step(acts, batch, net, learning, np.empty((0, table.shape[1]), np.float32))


@compiled
def zeroth_order_head(table, batch, net, learning, direction):  # type: ignore[no-untyped-def]
    """w_0's own step on cached rows: w_0 <- w_0 - η_0 mean_i(slope_i) u_0, slopes from behind · u_0
    to ahead · u_0.

    direction: u_0's seed and law, ahead, behind.
    """
    (flat, sizes, inputs, widest), (velocity, _, lr, momentum) = net, learning
    seed, law, ahead, behind = direction
    rows, acts, none = (
        batch[1].shape[0],
        _activations(net, batch[1].shape[0]),
        np.empty(0, np.float32),
    )
    z, w = np.empty(flat.shape[0], np.float32), np.empty(flat.shape[0], np.float32)
    factor = make_direction(z, seed, law)
    losses, slopes = np.empty(rows, np.float64), np.zeros(rows, np.float64)
    for sign, amount in ((1.0, ahead), (-1.0, behind)):
        c = _f32(amount * factor)
        for i in range(flat.shape[0]):
            w[i] = flat[i] + c * z[i]
        _gather(table, batch[1], acts[0])
        _forward((w, sizes, inputs, widest), acts, none)
        scores = _outputs(net, acts)
        _losses(scores, batch, sizes[-1], losses, scores, _NO)
        for b in range(rows):
            slopes[b] += sign * losses[b] / (ahead - behind)
    seeds, scalars = np.empty(1, np.uint64), np.empty(1, np.float64)
    seeds[0], scalars[0] = seed, _mean(slopes)
    _zeroth_order_step(flat, velocity, (seeds, scalars, lr), momentum, law)


@compiled
def _cached_losses(table, batch, net, acts, losses):  # type: ignore[no-untyped-def]
    """Fill acts[0] with the rows' cached embeddings, and losses [B] with their losses."""
    _gather(table, batch[1], acts[0])
    _forward(net, acts, np.empty(0, np.float32))
    scores = _outputs(net, acts)
    _losses(scores, batch, net[1][-1], losses, scores, _NO)


@compiled
def mean_differences(ahead, table, batch, client, net, out):  # type: ignore[no-untyped-def]
    """Means over the rows of ℓ(ahead[n] in place of the client's cached embeddings) - ℓ(as cached)
    to out [n].
    """
    rows, acts = batch[1].shape[0], _activations(net, batch[1].shape[0])
    here, there = np.empty(rows, np.float64), np.empty(rows, np.float64)
    _cached_losses(table, batch, net, acts, here)
    for n in range(out.shape[0]):
        _losses_with(ahead[n], acts, client, batch, net, there)
        for b in range(rows):
            there[b] -= here[b]
        out[n] = _mean(there)


@compiled
def row_slopes(ahead, behind, table, batch, client, smoothing):  # type: ignore[no-untyped-def]
    """Return (ℓ⁺ - ℓ⁻) / 2λ of every row, float32 [B].

    ahead, behind: embeddings [B, E] in place of the client's cached ones, and the network with the
    head on that side.
    """
    (plus, net), (minus, other), rows = ahead, behind, batch[1].shape[0]
    acts, out = _activations(net, rows), np.empty(rows, np.float32)
    above, below = np.empty(rows, np.float64), np.empty(rows, np.float64)
    _gather(table, batch[1], acts[0])
    _losses_with(plus, acts, client, batch, net, above)
    _losses_with(minus, acts, client, batch, other, below)
    for b in range(rows):
        out[b] = _f32((above[b] - below[b]) / (2 * smoothing))
    return out


@compiled
def clipped_gradients(table, batch, net, clip, total):  # type: ignore[no-untyped-def]
    """Add to total, float64 [d], every row's own gradient of the loss by the parameters, each cut
    to norm `clip`.

    A gradient that is not finite counts as 0.
    """
    labels, ids = batch
    acts, delta, none = (
        _activations(net, 1),
        np.empty((2, net[3], 1), np.float32),
        np.empty(0, np.float32),
    )
    losses, gradient = np.empty(1, np.float64), np.empty(net[0].shape[0], np.float32)
    for b in range(ids.shape[0]):
        row = (labels, ids[b : b + 1])
        _gather(table, row[1], acts[0])
        _forward(net, acts, none)
        _losses(_outputs(net, acts), row, net[1][-1], losses, delta[0], _YES)
        _backward(net, acts, row, delta, _into(gradient), _NO)
        squares = 0.0
        for i in range(gradient.shape[0]):
            squares += _f64(gradient[i]) * _f64(gradient[i])
        norm = math.sqrt(squares)
        if not math.isfinite(norm):
            continue
        # the last factor keeps rounding from leaving a gradient a hair above the clip
        factor = clip / norm * (1.0 - 2.0**-50) if norm > clip else 1.0
        for i in range(gradient.shape[0]):
            total[i] += factor * _f64(gradient[i])


@compiled
def row_gradients(directions, table, batch, client, net, out):  # type: ignore[no-untyped-def]
    """(E/λ) mean_n (ℓ(h + λv_n) - ℓ(h)) v_n of every row to out [B, E]; v_n on the unit sphere,
    made from the seed.

    directions: how many, their seed, and λ.
    """
    (count, seed, smoothing), ids = directions, batch[1]
    rows, width, acts = out.shape[0], out.shape[1], _activations(net, out.shape[0])
    here, there = np.empty(rows, np.float64), np.empty(rows, np.float64)
    _cached_losses(table, batch, net, acts, here)
    z, moved = np.empty(rows * width, np.float32), np.empty((rows, width), np.float32)
    total, radius = np.zeros((rows, width), np.float64), _f32(smoothing)
    for n in range(count):
        for i in range(z.shape[0]):
            z[i] = _ZERO
        _generator.add_direction(z, z, seed, _ONE, n * z.shape[0])
        for b in range(rows):
            squares = 0.0
            for k in range(width):
                squares += _f64(z[b * width + k]) * _f64(z[b * width + k])
            norm = math.sqrt(squares)
            for k in range(width):
                z[b * width + k] = _f32(_f64(z[b * width + k]) / norm) if norm > 0.0 else _ZERO
                moved[b, k] = table[ids[b], client * width + k] + radius * z[b * width + k]
        _losses_with(moved, acts, client, batch, net, there)
        for b in range(rows):
            for k in range(width):
                total[b, k] += (there[b] - here[b]) * _f64(z[b * width + k])
    for b in range(rows):
        for k in range(width):
            out[b, k] = _f32(width / smoothing * (total[b, k] / count))


@compiled
def score(source, batch, net, counts, margins):  # type: ignore[no-untyped-def]
    """Return (right predictions, sum of losses) of a batch's rows of source; counts int64 [K]: +=
    predictions by class.

    margins: scores of class 1 less those of class 0, to float64 [B]; empty: not wanted.
    """
    labels, ids = batch
    rows, classes = ids.shape[0], net[1][-1]
    acts, losses = _activations(net, rows), np.empty(rows, np.float64)
    _cached_losses(source, batch, net, acts, losses)
    scores = _outputs(net, acts)
    right, total = 0, 0.0
    for b in range(rows):
        best = 0
        for k in range(1, classes):
            best = k if scores[k, b] > scores[best, b] else best
        counts[best] += 1
        right += 1 if best == labels[ids[b]] else 0
        total += losses[b]
    for b in range(margins.shape[0]):
        margins[b] = _f64(scores[1, b]) - _f64(scores[0, b])
    return right, total


@compiled
def points_along(flat, seeds, law, amounts, points):  # type: ignore[no-untyped-def]
    """w + amounts[a] · u_p to points [A, P, d]: the bits of
    `raydpzv.zo.directions.Direction.add_to`.
    """
    z = np.empty(flat.shape[0], np.float32)
    for p in range(seeds.shape[0]):
        factor = make_direction(z, seeds[p], law)
        for a in range(amounts.shape[0]):
            c, to = _f32(amounts[a] * factor), points[a, p]
            for i in range(flat.shape[0]):
                to[i] = flat[i] + c * z[i]


@compiled
def losses_at(source, batch, ends, net, out):  # type: ignore[no-untyped-def]
    """Mean loss on each client's rows, to out float64 [M]; ends [M]: where its rows end.

    Rows are computed in blocks, of any clients: a row's loss does not depend on the others.
    """
    labels, ids = batch
    losses, none = np.empty(ids.shape[0], np.float64), np.empty(0, np.float32)
    for first in range(0, ids.shape[0], _BLOCK):
        some = (labels, ids[first : first + _BLOCK])
        rows = some[1].shape[0]
        acts = _activations(net, rows)
        _gather(source, some[1], acts[0])
        _forward(net, acts, none)
        scores = _outputs(net, acts)
        _losses(scores, some, net[1][-1], losses[first : first + rows], scores, _NO)
    _means(losses, ends, out)


@compiled
def losses_along(source, batch, ends, net, directions, out):  # type: ignore[no-untyped-def]
    """`losses_at` at w + amounts[a] · u_p to out float64 [P, A, M]; directions: seeds, their law,
    amounts.

    The points have the bits of `raydpzv.zo.directions.Direction.add_to`.
    """
    (labels, ids), (flat, sizes, _, widest), (seeds, law, amounts) = batch, net, directions
    count, last = amounts.shape[0], sizes.shape[0] - 1
    z, factors = (
        np.empty((seeds.shape[0], flat.shape[0]), np.float32),
        np.empty(seeds.shape[0], np.float64),
    )
    for p in range(seeds.shape[0]):
        factors[p] = make_direction(z[p], seeds[p], law)
    losses = np.empty((seeds.shape[0], count, ids.shape[0]), np.float64)
    coefficients = np.empty(count, np.float32)
    for first in range(0, ids.shape[0], _BLOCK):
        some = (labels, ids[first : first + _BLOCK])
        rows = some[1].shape[0]
        acts = np.empty((count, last + 1, widest, rows), np.float32)
        _gather(source, some[1], acts[0, 0])
        for p in range(seeds.shape[0]):
            for a in range(count):
                coefficients[a] = _f32(amounts[a] * factors[p])
            _forward_along(net, acts, z[p], coefficients)
            for a in range(count):
                scores = acts[a, last]
                _losses(scores, some, sizes[-1], losses[p, a, first : first + rows], scores, _NO)
    for p in range(seeds.shape[0]):
        for a in range(count):
            _means(losses[p, a], ends, out[p, a])


@compiled
def _means(losses, ends, out):  # type: ignore[no-untyped-def]
    """Write the mean of each client's losses to out [M]."""
    begin = 0
    for m in range(ends.shape[0]):
        out[m] = _mean(losses[begin : ends[m]])
        begin = ends[m]


@compiled
def _loss_and_gradient(source, batch, net, into):  # type: ignore[no-untyped-def]
    """Return the mean loss of these rows; its gradient goes where `_backprop` says."""
    rows, acts = batch[1].shape[0], _activations(net, batch[1].shape[0])
    losses, delta = np.empty(rows, np.float64), np.empty((2, net[3], rows), np.float32)
    _gather(source, batch[1], acts[0])
    _forward(net, acts, np.empty(0, np.float32))
    _losses(_outputs(net, acts), batch, net[1][-1], losses, delta[0], _YES)
    _backward(net, acts, batch, delta, into, _NO)
    return _mean(losses)


@compiled
def loss_and_gradient(source, batch, net, gradient):  # type: ignore[no-untyped-def]
    """Return the mean loss of these rows; its gradient is written to `gradient` [d]."""
    return _loss_and_gradient(source, batch, net, _into(gradient))


@compiled
def gradients(source, batch, ends, net, out):  # type: ignore[no-untyped-def]
    """Write the gradient of the mean loss of rows ends[n - 1] to ends[n] - 1 of the batch to
    out[n], float32 [n, d].
    """
    (labels, ids), first = batch, 0
    for n in range(ends.shape[0]):
        _loss_and_gradient(source, (labels, ids[first : ends[n]]), net, _into(out[n]))
        first = ends[n]


@compiled
def descents(source, batch, cuts, net, lr, out):  # type: ignore[no-untyped-def]
    """What SGD changes, to out float32 [n, d]: descent n begins at flat and takes the steps last[n
    - 1] to last[n] - 1.

    cuts: ends, last. Step k uses the rows ends[k - 1] to ends[k] - 1 of the batch.
    """
    (labels, ids), (ends, last), (flat, sizes, inputs, widest) = batch, cuts, net
    step_by = _stepping((np.empty(0, np.float32), _YES, lr, 0.0), 0.0)
    first, step = 0, 0
    for n in range(last.shape[0]):
        w = out[n]
        for i in range(flat.shape[0]):
            w[i] = flat[i]
        while step < last[n]:
            rows = (labels, ids[first : ends[step]])
            _loss_and_gradient(source, rows, (w, sizes, inputs, widest), step_by)
            first = ends[step]
            step += 1
        for i in range(flat.shape[0]):
            w[i] -= flat[i]


@compiled
def inner_products(gradient, seeds, law, out):  # type: ignore[no-untyped-def]
    """<g, u_p> of every seed to out float64 [P], u_p with the bits of
    `raydpzv.zo.directions.Direction.values`.
    """
    z = np.empty(gradient.shape[0], np.float32)
    for p in range(seeds.shape[0]):
        factor = _f32(make_direction(z, seeds[p], law))
        total = 0.0
        for i in range(gradient.shape[0]):
            total += _f64(gradient[i]) * _f64(z[i] * factor)
        out[p] = total


@compiled
def descend(flat, velocity, gradient, lr, momentum):  # type: ignore[no-untyped-def]
    """One step along the gradient, see `_descend`."""
    _descend(flat, velocity, gradient, lr, momentum)
