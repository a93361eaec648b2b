"""Small dense models, computed by compiled kernels on the CPU; imports no torch at run time.

The same initial parameters, layouts, seeds and zeroth-order steps as under torch; a rounding of its
own, which is the same on every machine (`raydpzv.engine.dense_kernel`).
"""

# M clients, D rows, B batch, E embedding width, P directions, A amounts

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from raydpzv.engine.dense import LAWS, DenseNetwork
from raydpzv.engine.discriminant import discriminant
from raydpzv.engine.kept_directions import KeptDirections
from raydpzv.engine.ranking import areas, balanced_accuracy
from raydpzv.engine.scores import with_own
from raydpzv.engine.split_model import (
    AGE_BINS,
    COUNTED,
    Ages,
    BottomTraining,
    HeadSettings,
    LayerNoise,
    Metrics,
    TopRows,
    TwoPointService,
    older_rows,
    score_parts,
)
from raydpzv.keys import SERVER_PARTY, Key, direction_seed
from raydpzv.wire.messages import PerturbedEmbeddings
from raydpzv.zo.kernels import Kernel
from raydpzv.zo.update import Step, Steps

EVALUATED_ROWS = 512
"""Held-out rows per call: bounds the activations' memory."""
_NO_NOISE = np.empty(0, np.float32)


def kernel(name: str) -> Kernel:
    """Return a kernel of the dense networks."""
    return Kernel(name, "raydpzv.engine.dense_kernel")


_ages = kernel("ages")
_bottom_step = kernel("bottom_step")
_clipped_gradients = kernel("clipped_gradients")
_descend = kernel("descend")
_embed = kernel("embed")
_embed_along = kernel("embed_along")
_head_step = kernel("head_step")
_mean_differences = kernel("mean_differences")
_points_along = kernel("points_along")
_put = kernel("put")
_row_gradients = kernel("row_gradients")
_row_slopes = kernel("row_slopes")
_score = kernel("score")
_step_along = kernel("step_along")
_two_point_service = kernel("two_point_service")
_zeroth_order_head = kernel("zeroth_order_head")
_zeroth_order_steps = kernel("zeroth_order_steps")


def shape_of(network: DenseNetwork, inputs: int | None = None) -> tuple[np.ndarray, int, int]:
    """Return what a kernel's `net` holds beside the parameters: widths, inputs of a record, the
    widest layer.
    """
    taken = int(network.widths[0]) if inputs is None else inputs
    return network.sizes, taken, max(*network.widths, taken)


class _Parameters:
    """A network's flat parameters and velocity.

    inputs: of a record, where they are more than the first width says, as for a sum of embeddings.
    """

    def __init__(
        self, network: DenseNetwork, key: Key, momentum: float, inputs: int | None = None
    ) -> None:
        self.network = network
        self.flat = network.initial(key)
        self._shape = shape_of(network, inputs)
        self.velocity = np.zeros(network.size if momentum else 0, np.float32)

    def net(self, flat: np.ndarray | None = None) -> tuple[Any, ...]:
        """Return the kernels' `net` of these parameters, or of others."""
        return (self.flat if flat is None else flat, *self._shape)

    def learning(self, lr: float, momentum: float, *, learns: bool = True) -> tuple[Any, ...]:
        """Return the kernels' `learning`."""
        return (self.velocity, learns, float(lr), float(momentum))

    def state(self) -> np.ndarray:
        """Return copies of the parameters and, with momentum, of the velocity: float32 [1 or 2,
        d].
        """
        return np.stack([self.flat, self.velocity] if len(self.velocity) else [self.flat])

    def restore(self, state: np.ndarray) -> None:
        """Take over the state of another network's parameters."""
        self.flat[:] = state[0]
        if len(self.velocity):
            self.velocity[:] = state[1]

    def sha256(self) -> str:
        """Return the digest of the parameters' bytes."""
        return hashlib.sha256(self.flat.tobytes()).hexdigest()


def _descend_along(own: _Parameters, steps: Steps, momentum: float, law: int) -> None:
    all_of_them = (steps.seeds, steps.scalars, steps.lrs)
    _zeroth_order_steps(own.flat, own.velocity, all_of_them, float(momentum), law)


class CompiledBottom:
    """A bottom model at its client's features [D, ...] and [N, ...]; see
    `raydpzv.engine.split_model.Bottom`.
    """

    def __init__(
        self,
        network: DenseNetwork,
        x_train: np.ndarray,
        x_test: np.ndarray,
        training: BottomTraining,
        key: Key,
    ) -> None:
        learns = training.rule or training.descent
        self._parameters = _Parameters(network, key, learns.momentum if learns else 0.0)
        self._training, self._clip = (
            training,
            math.inf if training.clip is None else float(training.clip),
        )
        self._law = LAWS[training.rule.law] if training.rule else 0
        self._x_train, self._x_test = _flattened(x_train), _flattened(x_test)
        self._acts: np.ndarray | None = None
        self._directions = KeptDirections(network.size)

    @property
    def size(self) -> int:
        return self._parameters.network.size

    @property
    def layout(self) -> str:
        return self._parameters.network.layout

    def embed(self, ids: np.ndarray, noise: LayerNoise | None = None) -> np.ndarray:
        return self._embedded(self._x_train, _rows(ids), noise)[0]

    def embed_held_out(self, at: np.ndarray | None = None) -> np.ndarray:
        ids = np.arange(len(self._x_test), dtype=np.int32)
        starts = range(0, max(1, len(ids)), EVALUATED_ROWS)
        return np.concatenate(
            [self._embedded(self._x_test, ids[n : n + EVALUATED_ROWS], at=at)[0] for n in starts]
        )

    def embed_along(
        self, ids: np.ndarray, seeds: Sequence[int] | np.ndarray, amounts: Sequence[float]
    ) -> np.ndarray:
        own, kept, of = self._parameters, self._directions, np.array(seeds, np.uint64)
        out = np.empty((len(amounts), len(seeds), len(ids), own.network.widths[-1]), np.float32)
        made = kept.made(of)
        room = kept.z if made else kept.room(of)
        directions = (of, self._law, np.array(amounts, np.float64), made, room, kept.factors)
        _embed_along(self._x_train, _rows(ids), own.net(), directions, self._clip, out)
        return out

    def forward(self, ids: np.ndarray, noise: LayerNoise | None = None) -> np.ndarray:
        """Return the embeddings and keep the activations."""
        found, self._acts = self._embedded(self._x_train, _rows(ids), noise)
        return found

    def step_size(self, lr: float) -> None:
        descent = self._training.descent
        assert descent is not None
        self._training = replace(self._training, descent=replace(descent, lr=lr))

    def backward(self, gradient_BE: np.ndarray, scale: float = 1.0) -> None:
        if self._acts is None:
            return
        own, descent = self._parameters, self._training.descent
        assert descent is not None
        wanted = (self._acts.shape[2], own.network.widths[-1])
        if gradient_BE.shape != wanted:
            raise ValueError(
                f"wanted a gradient {wanted}, as the embeddings, got {gradient_BE.shape}"
            )
        learning = own.learning(float(descent.lr) * scale, descent.momentum)
        _bottom_step(
            own.net(), learning, self._acts, _floats(gradient_BE), self._clip, float(descent.l2)
        )
        self._acts = None

    def descend(self, steps: Steps) -> None:
        assert self._training.rule is not None
        own, kept, momentum = (
            self._parameters,
            self._directions,
            float(self._training.rule.momentum),
        )
        if len(steps) == 1 and kept.made(steps.seeds[0]):
            step = (steps.scalars[0], float(steps.lrs[0]))
            _step_along(own.flat, own.velocity, (kept.z, kept.factors), step, momentum)
        else:
            _descend_along(own, steps, momentum, self._law)

    def state(self) -> np.ndarray:
        return self._parameters.state()

    def restore(self, state: np.ndarray) -> None:
        self._parameters.restore(state)

    def parameters(self) -> np.ndarray:
        return self._parameters.flat.copy()

    def sha256(self) -> str:
        return self._parameters.sha256()

    def _embedded(
        self,
        source: np.ndarray,
        ids: np.ndarray,
        noise: LayerNoise | None = None,
        at: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        own, rows = self._parameters, len(ids)
        drawn = _NO_NOISE
        if noise is not None:
            inner = enumerate(own.network.widths[1:-1])
            drawn = np.concatenate(
                [_NO_NOISE, *(noise(layer, rows * width) for layer, width in inner)]
            )
        return cast(
            "tuple[np.ndarray, np.ndarray]", _embed(source, ids, own.net(at), drawn, self._clip)
        )


class CompiledTop:
    """The head with labels and the cache; see `raydpzv.engine.split_model.Top`."""

    def __init__(
        self, network: DenseNetwork, settings: HeadSettings, key: Key, rows: TopRows
    ) -> None:
        clients, width = rows.clients, rows.width
        self._parameters = _Parameters(network, key / "server", settings.momentum, clients * width)
        self._settings, self._key, self._steps = settings, key, 0
        self._labels, self._labels_test = (
            np.array(labels, np.int64) for labels in (rows.labels_train, rows.labels_test)
        )
        self._clients, self._width, self._validated = clients, width, rows.validated
        self._metrics = rows.metrics
        self._table = np.zeros((len(self._labels), clients * width), np.float32)
        self._refreshed = np.zeros((len(self._labels), clients), np.int64)

    def step_size(self, lr: float) -> None:
        self._settings = replace(self._settings, lr=lr)

    def put(self, client: int, ids: np.ndarray, values_BE: np.ndarray, round: int) -> None:
        _put(
            self._uploaded(values_BE, ids, client),
            self._table,
            self._refreshed,
            _rows(ids),
            client,
            round,
        )

    def ages(self, ids: np.ndarray, round: int, serving: int) -> Ages:
        found = self._no_ages()
        _ages(self._refreshed, _rows(ids), round, serving, found)
        return found

    def older(self, ids: np.ndarray, round: int, limit: int, serving: int) -> dict[int, np.ndarray]:
        return older_rows(self._refreshed, ids, round, limit, serving)

    def two_point(
        self, client: int, body: PerturbedEmbeddings, round: int, *, smoothing: float, clip: float
    ) -> TwoPointService:
        ids, plus_PBE, minus_PBE = body.ids, body.plus, body.minus
        if plus_PBE.shape != minus_PBE.shape:
            raise ValueError(
                f"wanted embeddings of equal shapes, got {plus_PBE.shape} and {minus_PBE.shape}"
            )
        rows = _rows(ids)
        sums, nonfinite = np.zeros(len(plus_PBE)), np.zeros(len(plus_PBE), np.int64)
        ages = self._no_ages()
        loss = _two_point_service(
            self._uploaded(plus_PBE, ids, client),
            self._uploaded(minus_PBE, ids, client),
            self._table,
            self._refreshed,
            (self._labels, rows),
            client,
            round,
            self._parameters.net(),
            self._learning(),
            float(smoothing),
            float(clip),
            sums,
            nonfinite,
            ages,
        )
        self._own_step(rows)
        return TwoPointService(sums.tolist(), nonfinite.tolist(), ages, loss)

    def train(self, ids: np.ndarray) -> float:
        if len(ids) == 0:
            return math.nan
        rows = _rows(ids)
        loss = self._stepped(self._table, rows, rows, self._nothing())
        self._own_step(rows)
        return loss

    def backward(self, ids: np.ndarray, scale: float = 1.0) -> tuple[float, np.ndarray]:
        gradient = np.empty((len(ids), self._table.shape[1]), np.float32)
        rows = _rows(ids)
        loss = self._stepped(self._table, rows, rows, gradient, scale) if len(rows) else math.nan
        return loss, gradient.reshape(-1, self._clients, self._width)

    def gradient(self, ids: np.ndarray) -> np.ndarray:
        """Backpropagate on cached embeddings to them alone: the step is that of a copy."""
        gradient, rows = np.empty((len(ids), self._table.shape[1]), np.float32), _rows(ids)
        if len(rows):
            own, (velocity, _, lr, momentum) = self._parameters, self._learning()
            learning = (velocity.copy(), True, lr, momentum)
            net = own.net(own.flat.copy())
            _head_step(self._table, rows, (self._labels, rows), net, learning, gradient)
        return gradient.reshape(-1, self._clients, self._width)

    def backward_on(self, values_BME: np.ndarray, ids: np.ndarray) -> tuple[float, np.ndarray]:
        inputs = _floats(values_BME).reshape(len(ids), self._clients * self._width)
        gradient = np.empty_like(inputs)
        loss = self._stepped(inputs, np.arange(len(ids), dtype=np.int32), _rows(ids), gradient)
        return loss, gradient.reshape(values_BME.shape)

    def mean_differences(self, client: int, ids: np.ndarray, ahead_nBE: np.ndarray) -> np.ndarray:
        out = np.zeros(len(ahead_nBE))
        if len(ids):
            ahead, batch = self._uploaded(ahead_nBE, ids, client), (self._labels, _rows(ids))
            _mean_differences(ahead, self._table, batch, client, self._parameters.net(), out)
        return out

    def row_slopes(
        self,
        client: int,
        ids: np.ndarray,
        plus_BE: np.ndarray,
        minus_BE: np.ndarray,
        smoothing: float,
        along: int | None = None,
    ) -> np.ndarray:
        ahead, behind = (
            (self._uploaded(values_BE, ids, client), self._parameters.net(self._at(along, amount)))
            for values_BE, amount in ((plus_BE, smoothing), (minus_BE, -smoothing))
        )
        batch = (self._labels, _rows(ids))
        return cast(
            np.ndarray, _row_slopes(ahead, behind, self._table, batch, client, float(smoothing))
        )

    def descend(self, step: Step) -> None:
        how = self._settings
        _descend_along(self._parameters, Steps.of(step), how.momentum, LAWS[how.law])

    def clipped_gradient(self, ids: np.ndarray, clip: float) -> np.ndarray:
        own, total = self._parameters, np.zeros(self._parameters.network.size)
        _clipped_gradients(self._table, (self._labels, _rows(ids)), own.net(), float(clip), total)
        return total

    def descend_by(self, gradient: np.ndarray) -> None:
        own, how = self._parameters, self._settings
        _descend(own.flat, own.velocity, _floats(gradient), float(how.lr), float(how.momentum))

    def row_gradients(
        self, client: int, ids: np.ndarray, count: int, smoothing: float, key: Key
    ) -> np.ndarray:
        """Estimate every row's gradient from its own losses; the directions come from the
        generator's stream.
        """
        own, out = self._parameters, np.empty((len(ids), self._width), np.float32)
        directions = (count, np.uint64(key.seed64()), float(smoothing))
        _row_gradients(directions, self._table, (self._labels, _rows(ids)), client, own.net(), out)
        return out

    def fit(self, variance: float) -> None:
        ids, own = np.flatnonzero(self._refreshed.all(1)), self._parameters
        if found := discriminant(
            self._table[ids], self._labels[ids], own.network.widths[-1], variance
        ):
            own.flat[:] = np.concatenate([part.ravel() for part in found])

    def evaluate(
        self, embeddings_MNE: Sequence[np.ndarray], at: np.ndarray | None = None
    ) -> Metrics:
        joined = np.concatenate([np.asarray(e, np.float32) for e in embeddings_MNE], axis=1)
        labels, net = self._labels_test, self._parameters.net(at)
        return score_parts(
            lambda part: scored(joined, labels, part, net, self._metrics),
            len(labels),
            self._validated,
        )

    def state(self) -> dict[str, Any]:
        cache = {"embeddings": self._table.copy(), "refreshed": self._refreshed.copy()}
        return {"head": self._parameters.state(), "steps": self._steps} | cache

    def restore(self, state: Mapping[str, Any]) -> None:
        self._parameters.restore(state["head"])
        self._steps, self._table[:], self._refreshed[:] = (
            state["steps"],
            state["embeddings"],
            state["refreshed"],
        )

    def parameters(self) -> np.ndarray:
        return self._parameters.flat.copy()

    def sha256(self) -> str:
        return self._parameters.sha256()

    def _at(self, along: int | None, amount: float) -> np.ndarray:
        """Return the parameters moved along a seed's direction, or themselves."""
        own = self._parameters
        if along is None:
            return own.flat
        points = np.empty((1, 1, own.network.size), np.float32)
        seeds, amounts = np.array([along], np.uint64), np.array([amount])
        _points_along(own.flat, seeds, LAWS[self._settings.law], amounts, points)
        return points[0, 0]

    def _uploaded(self, values: np.ndarray, ids: np.ndarray, client: int) -> np.ndarray:
        """Embeddings [..., B, E] as the kernels take them; ValueError: not one of width E for each
        row.
        """
        wanted = (len(ids), self._width)
        if values.shape[-2:] != wanted or not 0 <= client < self._clients:
            raise ValueError(
                f"wanted embeddings {wanted} of a client below {self._clients}, got "
                f"{values.shape[-2:]} of {client}"
            )
        return _floats(values)

    def _stepped(
        self,
        source: np.ndarray,
        at: np.ndarray,
        ids: np.ndarray,
        gradient: np.ndarray,
        scale: float = 1.0,
    ) -> float:
        batch, net = (self._labels, ids), self._parameters.net()
        return cast(float, _head_step(source, at, batch, net, self._learning(scale), gradient))

    def _learning(self, scale: float = 1.0) -> tuple[Any, ...]:
        how = self._settings
        return self._parameters.learning(
            float(how.lr) * scale, how.momentum, learns=how.training == "sgd"
        )

    def _own_step(self, ids: np.ndarray) -> None:
        """The head's own zeroth-order step, if that is how it learns."""
        own, how = self._parameters, self._settings
        if how.training != "zo" or len(ids) == 0:
            return
        seed = np.uint64(direction_seed(self._key, SERVER_PARTY, self._steps))
        self._steps += 1
        behind = 0.0 if how.one_sided else -float(how.smoothing)
        direction = (seed, LAWS[how.law], float(how.smoothing), behind)
        _zeroth_order_head(self._table, (self._labels, ids), own.net(), self._learning(), direction)

    def _no_ages(self) -> Ages:
        return np.empty((self._clients - 1, COUNTED + AGE_BINS), np.int64)

    def _nothing(self) -> np.ndarray:
        return np.empty((0, self._table.shape[1]), np.float32)


def scored(
    source: np.ndarray, labels: np.ndarray, part: slice, net: tuple[Any, ...], metrics: str = ""
) -> Metrics:
    """Score a part of the rows [N, F] with classes [N] by a dense network, in blocks of 512.

    metrics: the name of the user's, "" for none.
    """
    count, classes = part.stop - part.start, net[1][-1]
    two = classes == 2
    counts, right, total = np.zeros(classes, np.int64), 0, 0.0
    margins = np.empty(count if two else 0)
    for start in range(0, count, EVALUATED_ROWS):
        stop = min(start + EVALUATED_ROWS, count)
        ids = np.arange(part.start + start, part.start + stop, dtype=np.int32)
        found = _score(source, (labels, ids), net, counts, margins[start:stop])
        right, total = right + found[0], total + found[1]
    plain = (right / count, total / count, int(counts.max()) / count)
    ranks = (*areas(margins, labels[part]), balanced_accuracy(margins, labels[part])) if two else ()
    found = Metrics(*plain, *ranks)
    if not metrics:
        return found
    scores_NK = _embed(source[part], np.arange(count, dtype=np.int32), net, _NO_NOISE, math.inf)[0]
    return with_own(found, metrics, scores_NK, labels[part])


def _rows(ids: np.ndarray) -> np.ndarray:
    """Row numbers as the kernels are compiled for; what came in a message may be read-only, which
    is another type.
    """
    return np.array(ids, np.int32)


def _floats(values: np.ndarray) -> np.ndarray:
    return np.array(values, np.float32, order="C")


def _flattened(x: np.ndarray) -> np.ndarray:
    """Features [D, ...] as float32 [D, F]."""
    return np.array(x, np.float32, order="C").reshape(len(x), -1)
