"""Folds over messages: bytes of each update and client, the cost of an accuracy, and of each phase
of secure sums.
"""

# M clients, R the highest round

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydpzv.arrow_columns import array, equal
from raydpzv.records import metrics

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Reached:
    """The first evaluation at a target: its update, seconds of the run's clock, bytes up to there;
    NaN: never.
    """

    round: float
    time: float
    up: float
    down: float

    def __bool__(self) -> bool:
        return not math.isnan(self.round)


def bytes_by_client(message: pa.Table, clients: int | None = None) -> tuple[IntArray, IntArray]:
    """Return the bytes up and down of every client, [M] each; M is one more than the highest client
    if left out.
    """
    return _summed(message, array(message.column("client")), clients)


def bytes_of_participants(message: pa.Table) -> tuple[IntArray, IntArray]:
    """Return the bytes up and down of every client with a message, in order of their numbers.

    Costs what the messages cost, however many clients there are beside.
    """
    clients, places = np.unique(array(message.column("client")), return_inverse=True)
    return _summed(message, places, len(clients))


def to_target(evaluation: pa.Table, message: pa.Table, target: float) -> Reached:
    """Return time and bytes until an evaluation's test accuracy first reached `target` (a share of
    1).

    Bytes count all messages up to and including that evaluation's round.
    """
    chosen = evaluation.filter(equal(evaluation.column("part"), "test")).sort_by("round")
    reached = np.flatnonzero(array(chosen.column("accuracy")) >= target)
    if not len(reached):
        return Reached(math.nan, math.nan, math.nan, math.nan)
    first = int(reached[0])
    at, time = chosen.column("round")[first].as_py(), chosen.column("time")[first].as_py()
    rounds, up, down = metrics.bytes_by_round(message)
    before = int(np.searchsorted(rounds, at, "right"))
    spent = (float(up[before - 1]), float(down[before - 1])) if before else (0.0, 0.0)
    return Reached(float(at), time, *spent)


def _summed(
    message: pa.Table, places: NDArray[Any], count: int | None
) -> tuple[IntArray, IntArray]:
    """Return bytes up and down by each message's place, small whole numbers; exact below 2^53,
    where float64 is.
    """
    size = array(message.column("bytes"))
    up = array(equal(message.column("direction"), "up"))
    least = int(places.max(initial=-1)) + 1 if count is None else count
    sums = [
        np.bincount(places[chosen], size[chosen], least).astype(np.int64) for chosen in (up, ~up)
    ]
    return sums[0], sums[1]


PHASES = {
    "key agreement": ("Modulus", "AgreementKey", "AgreementKeys"),
    "common seed": ("SealedSeeds", "SealedSeed"),
    "blinded counts": ("BlindedCounts",),
    "converted weights": ("EncryptedInverses", "ShiftedWeights"),
    "end of the set-up": ("EncryptedWeights", "Acknowledged"),
    "failed silos": ("DroppedOut", "LateUpload", "KeysLost"),
}
"""Names of messages by phase; all others are the rounds' own."""
ROUNDS = "rounds"
_PHASE_OF = {kind: phase for phase, kinds in PHASES.items() for kind in kinds}


@dataclass(frozen=True)
class Phase:
    """Cost of a phase: messages and their bytes, CPU seconds of all silos together and of the
    server.
    """

    name: str
    messages: int
    up: int
    down: int
    silos: float
    server: float


def phases(message: pa.Table, work: pa.Table) -> list[Phase]:
    """Return the phases of a run in their order, the rounds last.

    A silo's CPU time belongs to the message that it sends, the server's to the message that it
    serves.
    """
    of_message, of_work = (_phases(table.column("kind").to_pylist()) for table in (message, work))
    size, up = array(message.column("bytes")), _is(message, "direction", "up")
    cpu, server = array(work.column("cpu")), array(work.column("client")) < 0
    found = []
    for name in (*PHASES, ROUNDS):
        sent, done = of_message == name, of_work == name
        if sent.any():
            found.append(
                Phase(
                    name,
                    int(sent.sum()),
                    int(size[sent & up].sum()),
                    int(size[sent & ~up].sum()),
                    float(cpu[done & ~server].sum()),
                    float(cpu[done & server].sum()),
                )
            )
    return found


def _phases(kinds: list[str]) -> np.ndarray:
    return np.array([_PHASE_OF.get(kind, ROUNDS) for kind in kinds], dtype=object)


def _is(table: pa.Table, column: str, value: str) -> np.ndarray:
    return np.array(table.column(column).to_pylist(), dtype=object) == value
