"""Client groups of weight-sized methods: from the model in an order to the update in an upload."""

# d parameters

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

import numpy as np

from raydpzv.data.horizontal import Partition, batch_rows
from raydpzv.engine.objective import Objective
from raydpzv.keys import Key
from raydpzv.methods.horizontal.compression import Codec
from raydpzv.methods.roles import Order, Upload
from raydpzv.wire.weights import Weights
from raydpzv.zo.vectors import Vector, as_array


class Settings(Protocol):
    """Settings of a client that trains: rows per local step, at most."""

    @property
    def batch(self) -> int:
        """Return the rows."""
        ...


S = TypeVar("S", bound=Settings)


class ObjectiveThreads:
    """Clients of one process, each of whom works alone with one of the objectives: one per thread,
    which moves no bits.

    A subclass says what the work is (`_work`).
    """

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._threads = len(objectives)
        self._idle: SimpleQueue[Objective] = SimpleQueue()
        for objective in objectives:
            self._idle.put(objective)

    def process(self, orders: Sequence[Order]) -> list[Upload]:
        if self._threads == 1:
            return [self._with_objective(order) for order in orders]
        # a pool of its own for each call, as a kept one would not survive a fork
        with ThreadPoolExecutor(self._threads) as pool:
            return list(pool.map(self._with_objective, orders))

    def _with_objective(self, order: Order) -> Upload:
        objective = self._idle.get()
        # no warnings: what is not finite is counted or reaches the server, which names client and
        # round
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                return self._work(order, objective)
            finally:
                self._idle.put(objective)

    def _work(self, order: Order, objective: Objective) -> Upload:
        raise NotImplementedError


def model_of(order: Order) -> np.ndarray:
    """Return the model that an order sends, float32 [d]."""
    if not isinstance(order.body, Weights):
        raise TypeError(f"a client that trains whole models cannot use {type(order.body).__name__}")
    return order.body.values


class TrainingClientGroup(ObjectiveThreads, Generic[S]):
    """Clients that copy the weights they get, train the copy and return what changed. They keep
    nothing.

    objectives: one per thread; codec: makes messages of updates. settings: the clients'. A subclass
    says what training is (`_train`).
    """

    def __init__(
        self, objectives: Sequence[Objective], parts: Partition, codec: Codec, settings: S, key: Key
    ) -> None:
        super().__init__(objectives)
        self._parts, self._codec, self._settings, self._key = parts, codec, settings, key

    def _work(self, order: Order, objective: Objective) -> Upload:
        start = model_of(order)
        x = objective.vector(start)
        loss = self._train(objective, x, order.client, order.round)
        body = self._codec.encode(as_array(x) - start, order.client, order.round)
        return Upload(order.client, order.round - 1, body, loss)

    def _train(self, objective: Objective, x: Vector, client: int, round: int) -> float:
        """Train x, float32 [d], in place; return the loss at its start, on the first batch."""
        raise NotImplementedError

    def _rows(self, client: int, round: int, step: int) -> np.ndarray:
        """Return the rows of a client's local step 0, 1, ..."""
        return batch_rows(self._parts, self._key, client, round, step, self._settings.batch)
