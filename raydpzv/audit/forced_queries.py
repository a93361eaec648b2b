"""A run's queries, recomputed with the recorded releases given out again.

A query is a released number before its noise. The method gives them away where it asks for noise,
at the source that
`NoiseParts` hands it: that of an audit notes what it is asked for and returns what is on record.
"""

# n releases

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from raydpzv.experiment.rebuild import serve_again
from raydpzv.experiment.vertical import PreparedVertical
from raydpzv.methods.descriptor import NoiseParts
from raydpzv.privacy.integer_release import IntegerNoise, IntegerRelease
from raydpzv.privacy.mechanisms import Address, Noise, Receipt
from raydpzv.privacy.release import PrivacyLoss
from raydpzv.records.recorder import Recorder
from raydpzv.records.store import Rows
from raydpzv.secure.attempts import Attempt
from raydpzv.sim.interfaces import PrivacyFilter

Note = Callable[[Address, float, float], None]
"""Called with an address, the query there and the deviation of its noise."""


class _Noted:
    """Pass on another source's releases and note each query."""

    source = "recorded"

    def __init__(self, inner: Noise, note: Note) -> None:
        self._inner, self._note = inner, note

    def release(self, mean: float, sigma: float, address: Address) -> float:
        self._note(address, mean, sigma)
        return self._inner.release(mean, sigma, address)


class _NotedIntegers:
    """Pass on releases of integers and note their P queries, each with noise of its own."""

    def __init__(self, inner: IntegerNoise, note: Note) -> None:
        self._inner, self._note = inner, note

    def release(
        self,
        sums_P: np.ndarray,
        how: IntegerRelease,
        address: tuple[int, int],
        *,
        batch: int,
        nonfinite: int,
    ) -> tuple[np.ndarray, Receipt]:
        for p, query in enumerate(sums_P.tolist()):
            self._note((*address, p), query, how.scale)
        return self._inner.release(sums_P, how, address, batch=batch, nonfinite=nonfinite)


@dataclass(frozen=True)
class NotingParts(NoiseParts):
    """The noise of a run whose queries somebody wants to know."""

    note: Note = dataclasses.field(default=lambda address, query, sigma: None, repr=False)

    def of_means(self) -> Noise:
        return _Noted(super().of_means(), self.note)

    def of_integers(self) -> IntegerNoise:
        return _NotedIntegers(super().of_integers(), self.note)


class _Batches(PrivacyFilter):
    """Note the rows of each release."""

    def __init__(self) -> None:
        self.rows: defaultdict[int, list[np.ndarray]] = defaultdict(list)

    def charge(
        self, client: int, ids: np.ndarray, releases: int, attempt: Attempt | None = None
    ) -> PrivacyLoss:
        self.rows[client].append(ids)
        return super().charge(client, ids, releases)


@dataclass(frozen=True, eq=False)
class Queries:
    """All queries of a run, [n] in the order of their addresses, and the rows of the batch behind
    each.

    values: float64; sigmas: deviation of each one's noise; models: the parameters that the run
    ended with, by party;
    whole: what is released is a whole number.
    """

    addresses: tuple[Address, ...]
    values: np.ndarray
    sigmas: np.ndarray
    batches: tuple[np.ndarray, ...]
    models: dict[str, np.ndarray]
    whole: bool = False

    def about(self, row: int) -> np.ndarray:
        """Return for each release whether this training row is in its batch, bool [n]."""
        inside = {id(rows): bool(np.isin(row, rows)) for rows in self.batches}
        return np.array([inside[id(rows)] for rows in self.batches])


def forced_queries(
    prepared: PreparedVertical, rows: Rows, updates: int, releases: dict[Address, float]
) -> Queries:
    """Run the recorded order of services again with these releases; return what each of them was
    made of.
    """
    asked: dict[Address, tuple[float, float]] = {}

    def note(address: Address, query: float, sigma: float) -> None:
        asked[address] = query, sigma

    noise = prepared.server.noise
    fields = {field.name: getattr(noise, field.name) for field in dataclasses.fields(noise)}
    noting = NotingParts(**fields | {"recorded": releases, "note": note})
    experiment = dataclasses.replace(
        prepared, server=dataclasses.replace(prepared.server, noise=noting)
    )
    heard = _Batches()
    recorder = Recorder(frozenset({"staleness", "message", "release"}))
    models = serve_again(experiment, rows, updates, recorder, heard)
    addresses = tuple(sorted(asked))
    steps = {client: iter(batches) for client, batches in heard.rows.items()}
    behind: dict[tuple[int, int], np.ndarray] = {}
    for client, step, _ in addresses:
        if (client, step) not in behind:
            behind[client, step] = next(steps[client])
    found = np.array([asked[address] for address in addresses]).reshape(-1, 2)
    batches = tuple(behind[client, step] for client, step, _ in addresses)
    return Queries(addresses, found[:, 0], found[:, 1], batches, models, noise.integers is not None)
