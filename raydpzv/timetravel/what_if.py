"""What a run would have been without one of its clients, to first order: the same queries, other
pairs.

A model that follows sums of pairs is linear in their scalars: x_T = x_0 - Σ_n c_n s_n u_n, where
c_n is the pair's step size, with momentum that of all later steps too. Without client k, a shared
update is the mean of the others' scalars (of FedKSeed, which joins the clients' pairs, the others'
pairs with the others' weights), and an update of its own does not happen. No query is asked again:
clients would have answered others at other models.
"""

# N pairs of the ledger, K clients, d parameters, T updates

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from raydpzv.engine.split_model import Metrics
from raydpzv.errors import InputError, NotRecomputable, ReplayMismatch
from raydpzv.experiment.initial_model import MODEL
from raydpzv.experiment.local_session import one_thread
from raydpzv.experiment.run_horizontal import repeated
from raydpzv.ledger.entries import SHARED, Slice, bounds
from raydpzv.methods.roles import Upload
from raydpzv.timetravel.history import RunHistory
from raydpzv.zo.update import Descent, Step

_MOST_BYTES = 2**30
"""Memory for the models without each client."""
Progress = Callable[[int, int], None]
"""Called with the clients scored, and how many there are."""


@dataclass(frozen=True)
class Absence:
    """The held-out result of a run without one client; change: of the loss against the run with
    it.
    """

    client: int
    metrics: Metrics
    change: float


class WhatIf(ABC):
    """A run from update `since` on without one of its clients."""

    pushed = "client {client} moved its model by {length:.4g}"
    """What is said of one of the `pushes`."""

    def __init__(self, history: RunHistory, since: int = 0) -> None:
        if not 0 <= since < history.updates:
            raise InputError(f"--since: wanted 0..{history.updates - 1}, got {since}")
        self.history, self.since = history, since
        self.clients: int = history.spec.split.clients

    @abstractmethod
    def without(self, client: int) -> Mapping[str, np.ndarray]:
        """Return the parameters at the run's end that differ without the client."""

    @abstractmethod
    def pushes(self, update: int) -> dict[int, float]:
        """Return how far each client of an update moved a model, by client."""

    def leave_out(self, client: int) -> Absence:
        """Score the run's end without a client. Raises InputError for what cannot be known."""
        if not 0 <= client < self.clients:
            raise InputError(f"--without: wanted 0..{self.clients - 1}, got {client}")
        with one_thread(self.history.spec.model.engine):
            last = self.history.updates
            found = self.history.evaluate(last, self.without(client))
            return Absence(
                client, found, _judged(found).loss - _judged(self.history.evaluate(last)).loss
            )

    def ranked(self, progress: Progress = lambda done, all: None) -> list[Absence]:
        """Return all clients, the one whose absence lowers the held-out loss most first; last those
        without a loss.
        """
        found = []
        for client in range(self.clients):
            found.append(self.leave_out(client))
            progress(client + 1, self.clients)
        return sorted(found, key=lambda absence: (math.isnan(absence.change), absence.change))


class VerticalWhatIf(WhatIf):
    """Without its steps after `since`, a client's bottom model stays as it was; all others are on
    record.
    """

    def without(self, client: int) -> Mapping[str, np.ndarray]:
        name = f"client {client}"
        return {name: self.history.model(name, self.since)}

    def pushes(self, update: int) -> dict[int, float]:
        moved = self.history.moment(update).moved
        return {int(name.removeprefix("client ")): size for name, size in moved.items()}


class HorizontalWhatIf(WhatIf):
    """The shared model, from which the differences of all pairs are subtracted."""

    pushed = "client {client}'s scalars moved the model by {length:.4g}"

    def __init__(self, history: RunHistory, since: int = 0) -> None:
        super().__init__(history, since)
        self._replica = history.replica(MODEL)
        rule = self._replica.descent.rule
        if rule.optimizer != "sgd":
            raise InputError(
                f'{history.folder.path}: method.optimizer = "{rule.optimizer}" is not linear in '
                "the scalars, so what would have been without a client cannot be told from the "
                'ledger; only "sgd" is'
            )
        self._plain = replace(rule, momentum=0.0, damped=False)
        size = len(self._replica.x)
        if size * 8 * self.clients > _MOST_BYTES:
            raise InputError(
                f"{history.folder.path}: {self.clients} models of {size:,} parameters are more "
                f"than {_MOST_BYTES >> 30} GiB; too many to leave out each client"
            )

    def without(self, client: int) -> Mapping[str, np.ndarray]:
        change = self._changes.get(client)
        x = self.history.model(MODEL, self.history.updates)
        return {} if change is None else {MODEL: (x + change).astype(np.float32)}

    def pushes(self, update: int) -> dict[int, float]:
        """Return how far each client's scalars of an update alone moved the model, by its share of
        the mean.

        Their vectors add up to the update's, less what the momentum of earlier updates did; lengths
        do not.
        """
        entries = self.history.ledger.since(update - 1, update)
        if int(entries.party[0]) != SHARED:
            parts = {int(entries.party[0]): (1.0, entries.scalar.astype(np.float64))}
        else:
            parts = _parts(entries, self._answers[update])
        weights, directions = self._weights(entries), self._directions(entries)
        return {
            client: float(np.linalg.norm((part * weights) @ directions))
            for client, (_, part) in sorted(parts.items())
        }

    @cached_property
    def _answers(self) -> dict[int, dict[int, tuple[float, np.ndarray]]]:
        return _answers(self.history)

    def _directions(self, update: Slice) -> np.ndarray:
        """Return u_n of an update's pairs, with the step sizes of groups: what a scalar of -1 adds,
        float64 [n, d].
        """
        seeds, size = self._replica.direction_seeds(update), len(self._replica.x)
        found = np.zeros((len(seeds), size), np.float32)
        for seed, u in zip(seeds, found, strict=True):
            Descent(u, self._plain).apply([Step([int(seed)], [-1.0], 1.0)])
        return found.astype(np.float64)

    @cached_property
    def _changes(self) -> dict[int, np.ndarray]:
        """What the absence of each client that took part adds to the last model, float64 [d]
        each.
        """
        history, size = self.history, len(self._replica.x)
        entries = history.ledger.since(self.since, history.updates)
        weights = self._weights(entries)
        found: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(size))
        for first, update in zip(bounds(entries.round).tolist(), entries.each(), strict=False):
            if int(update.party[0]) != SHARED:
                differences = {int(update.party[0]): -update.scalar.astype(np.float64)}
            else:
                differences = _differences(update, self._answers[int(update.round[0])])
            clients = list(differences)
            coefficients = np.array([differences[client] for client in clients])
            coefficients *= weights[first : first + len(update)]
            for client, change in zip(
                clients, coefficients @ self._directions(update), strict=True
            ):
                found[client] -= change
        return dict(found)

    def _weights(self, entries: Slice) -> np.ndarray:
        """Return c_n: by how much each pair's scalar moves the last model along its direction,
        float64 [N].
        """
        rule, begins = self._replica.descent.rule, _step_bounds(entries)
        weights, later = np.zeros(len(entries)), 0.0
        damping = 1 - rule.momentum if rule.damped else 1.0
        for first, last in zip(begins[-2::-1].tolist(), begins[:0:-1].tolist(), strict=True):
            later = float(entries.lr[first]) + rule.momentum * later
            weights[first:last] = (damping if rule.momentum else 1.0) * later / (last - first)
        return weights


def _step_bounds(entries: Slice) -> np.ndarray:
    """Return where each step begins, and the end: int64 [steps + 1]."""
    inner = np.flatnonzero((np.diff(entries.round) != 0) | (np.diff(entries.step) != 0)) + 1
    return np.concatenate(([0], inner, [len(entries)]))


_Answers = Mapping[int, tuple[float, np.ndarray]]
"""The weight and the scalars, float64 [n], of each client of a round."""


def _parts(update: Slice, answers: _Answers) -> dict[int, tuple[float, np.ndarray]]:
    """Return each client's share of a round's weight, and its part of the round's scalars, float64
    [N].

    The parts add up to the scalars: shares of a mean along the same directions, or, as FedKSeed's
    clients draw their own, each client's stretch. Raises NotRecomputable for scalars that are
    neither.
    """
    answers = dict(sorted(answers.items()))  # the server adds, and joins, in client order
    total = sum(weight for weight, _ in answers.values())
    shares = {client: weight / total for client, (weight, _) in answers.items()}
    mean = {client: shares[client] * values for client, (_, values) in answers.items()}
    summed = cast(np.ndarray, sum(weight * values for weight, values in answers.values()))
    if np.array_equal((summed / total).astype(np.float32), update.scalar):
        return {client: (shares[client], part) for client, part in mean.items()}
    ends = np.cumsum([len(part) for part in mean.values()])
    if ends[-1] != len(update) or not np.array_equal(
        np.concatenate(list(mean.values())).astype(np.float32), update.scalar
    ):
        raise _not_a_mean(int(update.round[0]))
    found = {}
    for (client, part), end in zip(mean.items(), ends.tolist(), strict=True):
        own = np.zeros(len(update))
        own[end - len(part) : end] = part
        found[client] = shares[client], own
    return found


def _differences(update: Slice, answers: _Answers) -> dict[int, np.ndarray]:
    """Return by how much a round's scalars differ without each client: the others' mean, or 0 if
    there are none.
    """
    parts = _parts(update, answers)
    summed = cast(np.ndarray, sum(part for _, part in parts.values()))
    return {
        client: ((summed - part) / (1 - share) if share < 1 else 0 * summed) - update.scalar
        for client, (share, part) in parts.items()
    }


def _not_a_mean(update: int) -> NotRecomputable:
    return NotRecomputable(
        f"update {update} is not linear in its clients' scalars (noise, votes, or another rule): "
        "what it would have been without one of them cannot be told"
    )


def _answers(history: RunHistory) -> dict[int, dict[int, tuple[float, np.ndarray]]]:
    """Run again and return what each client answered in each round, which the server has and no
    ledger keeps.
    """
    prepared: Any = history.prepared
    if prepared.setting is not None:  # noise, which nobody can draw again
        raise _not_a_mean(1)
    uniform = getattr(history.spec.method, "weights", "uniform") == "uniform"
    weights = np.ones(prepared.parts.clients) if uniform else prepared.parts.sizes
    found: dict[int, dict[int, tuple[float, np.ndarray]]] = defaultdict(dict)

    def seen(upload: Upload) -> None:
        if (sent := getattr(upload.body, "values", None)) is None:
            raise _not_a_mean(upload.step + 1)
        values = np.asarray(sent, np.float64).ravel()
        found[upload.step + 1][upload.client] = float(weights[upload.client]), values

    with one_thread(prepared.engine):
        digest = repeated(prepared, history.updates, seen)
    if digest != history.ledger.digest:
        raise ReplayMismatch(
            f"{history.folder.path}: run again, it has another ledger: another machine or other "
            "library versions (compare environment.json)"
        )
    return found


_KINDS: dict[str, type[WhatIf]] = {"horizontal": HorizontalWhatIf, "vertical": VerticalWhatIf}


def what_if(history: RunHistory, since: int = 0) -> WhatIf:
    """Return the run from update `since` on without one of its clients. Raises InputError for what
    cannot be told.
    """
    return _KINDS[history.spec.kind](history, since)


def _judged(metrics: Metrics) -> Metrics:
    """Return the result on the validation rows, where some are held out, else on the test rows."""
    return metrics.validation or metrics
