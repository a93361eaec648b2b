"""Uploads for tests of DeComFL's servers, made without a model."""

from typing import Any

import numpy as np

from raydpzv.methods.horizontal.seeded import SeededPullServer, SeededSettings, client_seeds
from raydpzv.methods.roles import Upload
from raydpzv.wire.seeds import Scalars, SeededScalars


class Scribe:
    """A client group that answers without computing: server tests need no model."""

    def __init__(self, how: SeededSettings) -> None:
        self._how = how

    def process(self, orders: Any) -> list[Upload]:
        return [Upload(o.client, 0, Scalars(self._values(o))) for o in orders]

    def _values(self, order: Any) -> np.ndarray:
        shape = (self._how.local_steps, self._how.width(order.round))
        return np.full(shape, 1.0 + order.client + order.round, np.float32)


def answer(server: SeededPullServer, how: Any, client: int, read: int) -> None:
    seeds = client_seeds(how, client, read)
    server.receive(Upload(client, 0, SeededScalars(seeds, np.ones(how.width(1), np.float32))))
