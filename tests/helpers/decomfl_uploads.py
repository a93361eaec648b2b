"""Uploads for tests of DeComFL's servers, made without a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from raydpzv.methods.horizontal.decomfl import AsyncDecomflServer, client_seeds
from raydpzv.methods.roles import Upload
from raydpzv.wire.seeds import Scalars, SeededScalars


class Scribe:
    """A client group that answers without computing: server tests need no model."""

    def process(self, orders: Any) -> list[Upload]:
        return [
            Upload(o.client, 0, Scalars(np.full(o.body.seeds.shape, 1.0 + o.client + o.round, np.float32)))
            for o in orders
        ]


def answer(server: AsyncDecomflServer, how: Any, client: int, read: int) -> None:
    seeds = client_seeds(how, client, read)
    server.receive(Upload(client, 0, SeededScalars(seeds, np.ones(len(seeds), np.float32))))
