"""Bytes and CPU seconds by phase of a run whose silos and server follow a protocol, from `message` and `work` rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

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
    """What a phase took in a run: messages and their bytes, CPU seconds of all silos together and of the server."""

    name: str
    messages: int
    up: int
    down: int
    silos: float
    server: float


def phases(message: pa.Table, work: pa.Table) -> list[Phase]:
    """Return the phases that a run went through, in their order, the rounds last.

    CPU time of a silo is of the message that it ends with, that of the server of the one that it serves.
    """
    of_message, of_work = (_phases(table.column("kind").to_pylist()) for table in (message, work))
    size, up = message.column("bytes").to_numpy(), _is(message, "direction", "up")
    cpu, server = work.column("cpu").to_numpy(), work.column("client").to_numpy() < 0
    found = []
    for name in (*PHASES, ROUNDS):
        sent, done = of_message == name, of_work == name
        if sent.any():
            sizes = int(size[sent & up].sum()), int(size[sent & ~up].sum())
            seconds = float(cpu[done & ~server].sum()), float(cpu[done & server].sum())
            found.append(Phase(name, int(sent.sum()), *sizes, *seconds))
    return found


def _phases(kinds: list[str]) -> np.ndarray:
    return np.array([_PHASE_OF.get(kind, ROUNDS) for kind in kinds], dtype=object)


def _is(table: pa.Table, column: str, value: str) -> np.ndarray:
    return np.array(table.column(column).to_pylist(), dtype=object) == value
