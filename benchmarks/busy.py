"""Clients with more to compute: a recipe whose role burns a fixed amount of numpy work before every
upload.

The amount is calibrated to CPU seconds once, and fixed from then on: clients that compete for a
core take longer, as real work would.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from raydpzv.experiment.parties import ClientFactory
from raydpzv.experiment.vertical import PreparedVertical
from raydpzv.methods.roles import Client, Order, Upload
from raydpzv.wire.messages import Evaluate

_ELEMENTS = 4096
"""Elements of one round's array: 16 KiB, in the first cache; numpy releases the interpreter lock
meanwhile.
"""


def burn(rounds: int) -> None:
    """Compute sines, `rounds` times 4096 of them."""
    x = np.linspace(0, 1, _ELEMENTS, dtype=np.float32)
    out = np.empty_like(x)
    for _ in range(rounds):
        np.sin(x, out=out)


def calibrate(tries: int = 7, rounds: int = 2000) -> float:
    """Return the rounds of `burn` in one CPU second of this thread: the fastest of some tries."""
    best = 0.0
    for _ in range(tries):
        start = time.thread_time()
        burn(rounds)
        best = max(best, rounds / (time.thread_time() - start))
    return best


class BusyClient:
    """A role with `rounds` of burning added to every piece of work; evaluation is not slowed
    down.
    """

    def __init__(self, role: Client, rounds: int) -> None:
        self._role, self._rounds = role, rounds

    def __getattr__(self, name: str) -> Any:
        """Everything else is the role's own."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._role, name)

    def process(self, order: Order) -> Upload:
        """Apply and work, or evaluate."""
        if isinstance(order.body, Evaluate):
            return self._role.evaluate()
        self._role.apply(order)
        return self.work()

    def work(self) -> Upload:
        """Burn, then do the role's work."""
        burn(self._rounds)
        return self._role.work()


@dataclass(frozen=True)
class BusyRecipe(ClientFactory):
    """A client's recipe whose role burns `rounds` before every upload."""

    rounds: int = 0

    def make(self, device: str = "cpu") -> Client:
        """Build the role and wrap it."""
        role: Any = BusyClient(ClientFactory.make(self, device), self.rounds)
        return role


def busy(experiment: PreparedVertical, rounds: int) -> PreparedVertical:
    """Return the experiment with `rounds` added to every piece of client work; 0 returns it as it
    is.
    """
    if rounds == 0:
        return experiment
    recipes = tuple(BusyRecipe(**vars(r), rounds=rounds) for r in experiment.clients)
    return dataclasses.replace(experiment, clients=recipes)
