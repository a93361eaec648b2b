"""Digits under softmax regression in plain numpy: what an algorithm's second derivation in a test
needs.

From a run come the initial model, its clients' rows and the addresses of cohorts, batches and
seeds, and nothing else.
"""

# d = 650 parameters, M clients, P perturbations

from typing import Any

import numpy as np

import raydpzv
from raydpzv.config.scenario import HorizontalScenario
from raydpzv.data.horizontal import batch_rows
from raydpzv.experiment.finalize import Run
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.horizontal.rounds import Cohorts
from raydpzv.methods.roles import Order, Upload
from raydpzv.zo import philox
from raydpzv.zo.vectors import as_array
from tests.helpers.seed_parties import directions

SMALL = (
    "data.train_rows=120",
    "data.test_rows=40",
    "model.kind=logistic",
    "model.engine=compiled",
    "split.clients=8",
    "split.sizes=drawn",
    "method.cohort=4",
    "method.batch=8",
    "budget.updates=20",
    "evaluate.every=10",
)


class SoftmaxByHand:
    """A small scenario, its first model x0 float32 [d], and the losses of its clients in
    float64.
    """

    def __init__(self, method: str, *overrides: str) -> None:
        spec = raydpzv.load("digits_decomfl", [f"method.name={method}", *SMALL, *overrides])
        assert isinstance(spec, HorizontalScenario)
        self.spec, self.method, self.key = spec, spec.method, Key(spec.seed)
        self.prepared = prepare_horizontal(spec)
        self.x0 = as_array(self.prepared.plan.initial()).copy()
        self.rows = self.prepared.parts.sizes
        self._features, self._labels = (np.asarray(a) for a in self.prepared.split.train.arrays)
        self._cohorts = Cohorts(spec.split.clients, spec.method.cohort, self.key)

    def run(self, **options: Any) -> Run:
        """Return the program's run of the scenario."""
        return raydpzv.run(self.spec, **options)

    def cohort(self, round: int) -> list[int]:
        """Return the clients of a round, ascending."""
        found: list[int] = self._cohorts.draw(round).tolist()
        return found

    def loss(self, x: np.ndarray, client: int, round: int, step: int = 0) -> float:
        """Return the mean cross-entropy at x on the client's batch of a local step."""
        rows = batch_rows(self.prepared.parts, self.key, client, round, step, self.method.batch)
        inputs = self._features[rows].reshape(len(rows), -1).astype(np.float64)
        weight, bias = x[:640].reshape(10, 64).astype(np.float64), x[640:].astype(np.float64)
        scores = inputs @ weight.T + bias
        most = scores.max(1)
        losses = (
            most
            + np.log(np.exp(scores - most[:, None]).sum(1))
            - scores[range(len(rows)), self._labels[rows]]
        )
        return float(losses.mean())

    def directions(self, seed: int, count: int) -> np.ndarray:
        """Return the directions of a step's seed, float32 [P, d]."""
        return np.stack([self.direction(s) for s in directions(seed, count).tolist()])

    def direction(self, seed: int) -> np.ndarray:
        """Return the direction of its own seed, float32 [d]."""
        make = philox.signs if self.method.direction == "rademacher" else philox.normals
        return make(seed, 0, len(self.x0))

    def play(self, rounds: int) -> tuple[Any, list[tuple[list[Order], list[Upload]]]]:
        """Play rounds of the program's roles; return the server, and each round's orders and
        uploads.
        """
        ledger = Ledger.create(None, self.prepared.plan.header())
        server, group = self.prepared.server(ledger), self.prepared.client_group(ledger)
        orders, played = list(server.first_orders()), []
        for _ in range(rounds):
            uploads = group.process(orders)
            played.append((orders, uploads))
            orders = [order for upload in uploads for order in server.receive(upload)]
        return server, played
