"""Runs of clients that pull when they wake, without a model: for tests of both clocks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.horizontal.seeded import client_seeds
from raydpzv.methods.roles import Metrics, Order, Upload
from raydpzv.records.recorder import Recorder
from raydpzv.records.store import Rows
from raydpzv.sim.arrivals import Arrivals, Poisson
from raydpzv.sim.delays import DelayModel
from raydpzv.sim.executor import GroupExecutor
from raydpzv.sim.interfaces import Budget, PrivacyFilter
from raydpzv.sim.pull import PullRun
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.virtual import Scoring, Timing
from raydpzv.wire.network import Network, instant
from raydpzv.wire.seeds import SeededScalars
from tests.helpers import seed_parties as toy

HOW = toy.settings()
RATES = [3.0, 1.0, 0.3, 5.0, 2.0, 1.0]
NOTHING = Metrics(0.5, 1.0, 0.5)


class Scribe:
    """A client group that answers without computing."""

    def process(self, orders: Sequence[Order]) -> list[Upload]:
        return [self._answer(order) for order in orders]

    def _answer(self, order: Order) -> Upload:
        seeds = client_seeds(HOW, order.client, order.round - 1)
        return Upload(order.client, 0, SeededScalars(seeds, np.full(HOW.width(1), 0.1, np.float32)))


def timing(
    arrivals: Arrivals | None = None,
    *,
    compute: float = 0.0,
    law: Any = "constant",
    service: float = 0.0,
    network: Network | None = None,
) -> Timing:
    clients = len(RATES)
    return Timing(
        arrivals or Poisson(RATES, Key(1)),
        DelayModel([compute * (1 + m) for m in range(clients)], law, Key(2) / "compute"),
        DelayModel([service], law, Key(2) / "service"),
        network or instant(clients),
    )


def run(
    when: Timing,
    budget: Budget,
    *,
    executor: Any = None,
    ledger: Ledger | None = None,
    every: int = 10**9,
) -> tuple[Rows, Ledger, ServerLoop]:
    ledger = ledger or toy.ledger(HOW)
    recorder = Recorder()
    server_loop = ServerLoop(toy.pull_server(ledger, HOW), PrivacyFilter(), recorder, budget)
    scoring = Scoring(lambda: NOTHING, every)
    PullRun(server_loop, executor or GroupExecutor(Scribe()), when, scoring).run()
    return recorder.drain(), ledger, server_loop


def column(rows: Rows, kind: str, name: str) -> list[Any]:
    return rows[kind].column(name).to_pylist()
