"""When each client activates, by a clock of its own or as soon as it is free, and how long its work
takes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from typing import ClassVar, NoReturn, Protocol

import numpy as np

from raydpzv.errors import DataError, SpecError
from raydpzv.keys import Key


class Arrivals(Protocol):
    """Gives every client the endless (or, for a trace, ending) sequence of its activation epochs.

    closed_loop: there are no epochs to wait for, a client is due whenever it is free. Else the loop
    is open: epochs do not wait for the client's work.
    """

    closed_loop: ClassVar[bool]

    def epochs(self, client: int) -> Iterator[float]:
        """Yield the client's epochs in seconds since the run began, ascending, from the first."""
        ...

    def merged(self, part: int = 0, parts: int = 1) -> Iterator[tuple[float, int]]:
        """Yield (epoch, client) of every client m with m mod `parts` = `part`, ascending in
        time.
        """
        ...


_GAPS = 64
"""Gaps that are drawn at once: the numbers that come of drawing one by one, in a tenth of the
time.
"""


class Poisson:
    """Independent Poisson processes: exponential gaps with the client's own rate, in activations
    per second.
    """

    closed_loop: ClassVar[bool] = False

    def __init__(self, rates: Sequence[float], key: Key) -> None:
        self._rates, self._key = rates, key / "arrivals"

    def epochs(self, client: int) -> Iterator[float]:
        """Yield epochs; the gaps have mean 1/rate."""
        generator, time = (self._key / client).generator(), 0.0
        while True:
            for gap in generator.exponential(1 / self._rates[client], _GAPS).tolist():
                time += gap
                yield time

    def merged(self, part: int = 0, parts: int = 1) -> Iterator[tuple[float, int]]:
        """Yield (epoch, client), drawn as one process: gaps of the summed rate, clients in
        proportion to theirs.

        The same law as merging `epochs`, but other numbers, and nothing is kept per client but its
        rate.
        """
        clients = np.arange(part, len(self._rates), parts)
        if not len(clients):
            return
        reached = np.cumsum(np.asarray(self._rates, np.float64)[clients])
        generator, time = (self._key / "merged" / part / parts).generator(), 0.0
        while True:
            time += generator.exponential(1 / reached[-1])
            place = np.searchsorted(reached, generator.random() * reached[-1], side="right")
            yield time, int(clients[min(place, len(clients) - 1)])


class Constant:
    """Regular activations, 1/rate apart."""

    closed_loop: ClassVar[bool] = False

    def __init__(self, rates: Sequence[float]) -> None:
        self._rates = rates

    def epochs(self, client: int) -> Iterator[float]:
        """Yield 1/rate, 2/rate, ..."""
        count = 0
        while True:
            count += 1
            yield count / self._rates[client]

    def merged(self, part: int = 0, parts: int = 1) -> Iterator[tuple[float, int]]:
        """Yield (epoch, client), clients with equal epochs in their order."""
        return _merge(self, range(part, len(self._rates), parts))


class Trace:
    """Activations as recorded: a client whose trace has ended never wakes again."""

    closed_loop: ClassVar[bool] = False

    def __init__(self, epochs: Mapping[int, Iterable[float]]) -> None:
        self._epochs = {client: list(times) for client, times in epochs.items()}
        for client, times in self._epochs.items():
            ascending = all(a <= b for a, b in pairwise(times))
            if not ascending or not all(map(math.isfinite, times)):
                raise DataError(
                    f"the trace of client {client} is not in ascending finite order: sort its times"
                )

    def epochs(self, client: int) -> Iterator[float]:
        """Yield the recorded times."""
        return iter(self._epochs.get(client, ()))

    def merged(self, part: int = 0, parts: int = 1) -> Iterator[tuple[float, int]]:
        """Yield (epoch, client), clients with equal epochs in their order."""
        return _merge(self, [client for client in sorted(self._epochs) if client % parts == part])


class Immediate:
    """No activation clock: a client begins its next work as soon as it is free, so that its delays
    set its pace.
    """

    closed_loop: ClassVar[bool] = True

    def epochs(self, client: int) -> Iterator[float]:
        """Yield 0 for ever: the client is due from the beginning on."""
        return repeat(0.0)

    def merged(self, part: int = 0, parts: int = 1) -> NoReturn:
        """Raise SpecError: without a clock there is no process of epochs to merge."""
        raise SpecError(
            'arrivals.kind: "immediate" has no epochs for clients that pull; use "poisson", '
            '"constant" or "trace"'
        )


def _merge(arrivals: Arrivals, clients: Sequence[int]) -> Iterator[tuple[float, int]]:
    return heapq.merge(*(zip(arrivals.epochs(client), repeat(client)) for client in clients))
