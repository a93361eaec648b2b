"""Rounds of synchronous horizontal servers: drawing a cohort, and waiting for all of it."""

# M clients, m of them in a cohort, d parameters

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from raydpzv.errors import Diverged, RunError
from raydpzv.keys import Key
from raydpzv.methods.descriptor import HorizontalServerParts, MethodConfig
from raydpzv.methods.roles import Order, Upload
from raydpzv.settings.bounds import Bounds, Count, Perturbations, Positive
from raydpzv.wire.weights import Weights
from raydpzv.zo.directions import Law
from raydpzv.zo.spans import Group, groups_of
from raydpzv.zo.update import Rule


@dataclass(frozen=True)
class Sampled(MethodConfig):
    """Settings of methods whose rounds sample clients."""

    cohort: Count = 10
    """Clients sampled per round, m."""
    batch: Count = 32
    """Rows per local step, B; a client with fewer uses all of them."""
    local_steps: Annotated[int, Bounds(ge=1, le=10_000)] = 1
    """Local steps per round, K."""
    weights: Literal["uniform", "rows"] = "uniform"
    """Clients of a cohort count alike, or by their numbers of rows."""


@dataclass(frozen=True)
class Directed(MethodConfig):
    """Settings of zeroth-order methods: how many directions of which law, and how far along
    them.
    """

    perturbations: Perturbations = 10
    """Directions per local step, P."""
    smoothing: Positive = 1e-3
    """Smoothing radius μ."""
    direction: Law = "gaussian"
    """Law of the directions: standard normal, uniform on the sphere of radius √d, independent signs
    (fastest), or a product a bᵀ for each weight matrix ("rank_one")."""
    groups: dict[str, Group] | None = None
    """Factors of parameters whose names match a pattern, {"head.*" = {lr = 2.0, smoothing = 0.5}}:
    of the step size and of the smoothing radius, 1 where nothing is said."""

    @property
    def rule(self) -> Rule:
        """How (seed, scalar) pairs move the model, by plain descent."""
        return Rule(self.direction, groups=groups_of(self.groups))


@dataclass(frozen=True)
class Cohorts:
    """Cohorts: for every round `size` (m) of `clients` (M), uniformly and without replacement.

    A cohort is a function of the key and the round alone, and its cost one of m alone. whole_every:
    all clients take part in rounds 1, 1 + whole_every, ...; None: never.
    """

    clients: int
    size: int
    key: Key
    whole_every: int | None = None

    def draw(self, round: int) -> np.ndarray:
        """Return the cohort of round 1, 2, ...: client numbers int64 [m], ascending."""
        if self.whole_every and (round - 1) % self.whole_every == 0:
            return np.arange(self.clients)
        generator = (self.key / "cohort" / round).generator()
        return np.sort(generator.choice(self.clients, self.size, replace=False, shuffle=False))


class RoundServer:
    """Opens a round with one order per client of the cohort, and closes it when all of them have
    answered.

    A subclass says what the orders are (`_orders`) and what comes of the uploads, in client order
    (`_close`).
    weights: one per client, such as its number of rows, for weighted averages; None: all alike.
    """

    answers = False

    def __init__(self, cohorts: Cohorts, weights: np.ndarray | None = None) -> None:
        self._cohorts, self._weights = cohorts, weights
        self._round = 0
        self._cohort: list[int] = []
        self._waiting: dict[int, Upload] = {}

    @property
    def updates(self) -> int:
        """Rounds closed so far."""
        return self._round

    def first_orders(self) -> Sequence[Order]:
        """Return the orders of the next round."""
        self._cohort = self._cohorts.draw(self._round + 1).tolist()
        return self._orders(self._round + 1, self._cohort)

    def state(self) -> np.ndarray | None:
        return None

    def restore(self, round: int, state: np.ndarray | None) -> None:
        """Become what the server was after so many rounds, of which nothing but their cohorts is
        needed.
        """
        self._round = round

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Collect; when the cohort is complete, close the round and open the next."""
        if upload.client not in self._cohort or upload.client in self._waiting:
            raise RunError(
                f"client {upload.client} answered in round {self._round + 1}, in which it has "
                "nothing to answer: its order was sent twice or to another"
            )
        self._waiting[upload.client] = upload
        if len(self._waiting) < len(self._cohort):
            return ()
        return self._complete([self._waiting.pop(client) for client in self._cohort])

    def _complete(self, uploads: Sequence[Upload]) -> Sequence[Order]:
        """Close the round and open the next; uploads: of the whole cohort, in client order."""
        self._close(self._round + 1, uploads)
        self._round += 1
        return self.first_orders()

    def _orders(self, round: int, cohort: Sequence[int]) -> list[Order]:
        raise NotImplementedError

    def _close(self, round: int, uploads: Sequence[Upload]) -> None:
        raise NotImplementedError

    def _average(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Return the cohort's (weighted) mean in float64, summed in client order so that its bits
        are fixed.
        """
        weights = np.ones(len(values)) if self._weights is None else self._weights[self._cohort]
        total = np.zeros(values[0].shape)
        for weight, value in zip(weights.tolist(), values, strict=True):
            total += weight * value.astype(np.float64)
        return total / weights.sum()


class ModelServer(RoundServer):
    """Holds the model x and sends it to the cohort; a subclass says what comes of the answers.

    initial: x_0, float32 [d]; upload_bytes: of an answer.
    """

    def __init__(
        self,
        cohorts: Cohorts,
        initial: np.ndarray,
        upload_bytes: int,
        weights: np.ndarray | None = None,
    ) -> None:
        super().__init__(cohorts, weights)
        self._upload_bytes = upload_bytes
        self._x = _frozen(initial.copy())

    def parameters(self) -> np.ndarray:
        return self._x.copy()

    def state(self) -> np.ndarray:
        """Return the weights, which a checkpoint must keep."""
        return self.parameters()

    def restore(self, round: int, state: np.ndarray | None) -> None:
        super().restore(round, state)
        assert state is not None
        self._x = _frozen(state.astype(np.float32))

    def _orders(self, round: int, cohort: Sequence[int]) -> list[Order]:
        body = Weights(self._x)  # one object for all, which a transport can send once per process
        return [
            Order(client, body, round, start_immediately=True, upload_bytes=self._upload_bytes)
            for client in cohort
        ]

    def _move(self, step: np.ndarray, round: int) -> None:
        """Make x <- x + step, float64 [d]. Raises Diverged for what is not finite."""
        with np.errstate(over="ignore"):
            x = (self._x + step).astype(np.float32)
        if not np.isfinite(x).all():
            raise Diverged(
                f"the model must stay finite, but round {round} made it infinite: choose a smaller "
                "step size"
            )
        self._x = _frozen(x)


def _frozen(x: np.ndarray) -> np.ndarray:
    """Refuse changes: orders that are out hold this very array."""
    x.setflags(write=False)
    return x


def cohorts(parts: HorizontalServerParts, size: int, whole_every: int | None = None) -> Cohorts:
    """Return who takes part in each round."""
    return Cohorts(len(parts.rows), size, parts.key, whole_every)


def row_weights(parts: HorizontalServerParts, config: Sampled) -> np.ndarray | None:
    """Return the weights of the clients in a mean: their numbers of rows, or None for all alike."""
    return parts.rows.astype(np.float64) if config.weights == "rows" else None
