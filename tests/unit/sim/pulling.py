"""Runs of clients that pull when they wake, without a model: for tests of both clocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import seed_parties as toy

from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.decomfl import client_seeds
from raydpzv.methods.roles import Metrics, Order, Upload
from raydpzv.records.recorder import Recorder
from raydpzv.records.store import Rows
from raydpzv.sim.arrivals import Arrivals, Delays, Poisson
from raydpzv.sim.desk import Desk
from raydpzv.sim.host import CrewHost
from raydpzv.sim.pull import PullRun
from raydpzv.sim.terms import Budget, FreeGuard
from raydpzv.sim.virtual import Timing
from raydpzv.wire.network import Network, instant
from raydpzv.wire.seeds import SeededScalars

HOW = toy.settings()
RATES = [3.0, 1.0, 0.3, 5.0, 2.0, 1.0]
NOTHING = Metrics(0.5, 1.0, 0.5)


class Scribe:
    """A crew that answers without computing."""

    def perform(self, orders: Sequence[Order]) -> list[Upload]:
        return [self._answer(order) for order in orders]

    def _answer(self, order: Order) -> Upload:
        seeds = client_seeds(HOW, order.client, order.round - 1)
        return Upload(order.client, 0, SeededScalars(seeds, np.full(len(seeds), 0.1, np.float32)))


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
        Delays([compute * (1 + m) for m in range(clients)], law, Key(2) / "compute"),
        Delays([service], law, Key(2) / "service"),
        network or instant(clients),
    )


def run(
    when: Timing, budget: Budget, *, host: Any = None, book: Ledger | None = None, every: int = 10**9
) -> tuple[Rows, Ledger, Desk]:
    book = book or toy.ledger(HOW)
    recorder = Recorder()
    desk = Desk(toy.pull_server(book, HOW), FreeGuard(), recorder, budget)
    PullRun(desk, host or CrewHost(Scribe()), when, score=lambda: NOTHING, evaluate_every=every).run()
    return recorder.drain(), book, desk


def column(rows: Rows, kind: str, name: str) -> list[Any]:
    return rows[kind].column(name).to_pylist()
