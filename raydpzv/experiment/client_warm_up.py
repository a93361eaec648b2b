"""The clients' side of a run's warm-up (see `raydpzv.experiment.warm_up`): roles without data, and
their loops.

Apart from the server's side because a client's process needs no more than this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from raydpzv.experiment.parties import ClientFactory
from raydpzv.keys import Key
from raydpzv.methods.roles import Client
from raydpzv.sim.arrivals import Immediate, Trace
from raydpzv.sim.clock import WallClock
from raydpzv.sim.delays import DelayModel
from raydpzv.sim.virtual import Timing
from raydpzv.sim.wall import ClientLoop, ServerConnection, WallPace
from raydpzv.wire.network import instant

if TYPE_CHECKING:
    from raydpzv.config.scenario import VerticalScenario

ANSWERS = 2
"""Answers that every client applies: the second comes to parties that have a past."""
BATCHES, HELD_OUT = 2, 512
"""Rows of the throw-away parties at most, which is all the memory they take beside their models."""


def throw_away_clients(factories: Iterable[ClientFactory], device: str) -> dict[int, Client]:
    """Return roles without data by their number."""
    return {factory.client: client_without_data(factory).make(device) for factory in factories}


def warm_up_loops(
    roles: dict[int, Client], connection: ServerConnection, spec: VerticalScenario
) -> list[ClientLoop]:
    """Return the loops of throw-away clients, without any simulated delay."""
    clients, clock = spec.split.clients, WallClock()
    nothing = DelayModel([0.0] * clients, "constant", Key(0))
    # those of a barrier continue until the server has had enough of everybody; others leave the
    # processors to the rest
    due = Immediate() if spec.barrier > 1 else Trace({m: [0.0] * ANSWERS for m in range(clients)})
    pace = WallPace(Timing(due, nothing, nothing, instant(clients)), clock, spec.resources.timeout)
    return [ClientLoop(m, role, connection, pace) for m, role in roles.items()]


def client_without_data(factory: ClientFactory) -> ClientFactory:
    """Return a client's factory with rows of zeros, no more than a few batches of them."""
    rows = BATCHES * factory.spec.method.batch
    held_out = zeros(factory.x_held_out, HELD_OUT)
    return replace(factory, x_train=zeros(factory.x_train, rows), x_held_out=held_out)


def zeros(array: np.ndarray, rows: int) -> np.ndarray:
    """Return rows of zeros in the place of an array's, at most so many."""
    return np.zeros((min(len(array), rows), *array.shape[1:]), array.dtype)
