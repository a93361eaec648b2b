"""Rebuild a client of a vertical run from its key and the ledger alone: no data, no server, no other client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from raydpzv.config.scenario import VerticalScenario
from raydpzv.errors import DataError, InputError, ReplayMismatch
from raydpzv.experiment.initial_model import BottomPlan
from raydpzv.experiment.rebuild import Rebuilt, rebuild
from raydpzv.experiment.run_vertical import one_thread
from raydpzv.files import sha256
from raydpzv.ledger.ledger import Ledger
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.store import Rows


def from_ledger(
    path: Path, at: int | None = None, client: int | None = None, moved: Sequence[str] = ()
) -> Rebuilt | None:
    """Rebuild what a ledger alone can: a horizontal run's model, or one client of a vertical run; None for all else."""
    folder = RunFolder.open(path, moved)
    spec = folder.spec()
    if not isinstance(spec, VerticalScenario):
        return rebuild(path, at, client, moved)
    if client is None or spec.descriptor.rule is None or not folder.ledger.exists():
        return None
    return rebuild_client(path, client, at, moved)


def rebuild_client(path: Path, client: int, at: int | None = None, moved: Sequence[str] = ()) -> Rebuilt:
    """Rebuild a client's model with the answers of rounds 1 to `at` (default: all) in one pass; no data is needed.

    Raises DataError if the ledger is damaged or lacks a step, InputError for what is not on record, ReplayMismatch if
    the result is not the model that the run ended with.
    """
    folder = RunFolder.open(path, moved)
    spec = folder.spec()
    assert isinstance(spec, VerticalScenario)
    if not 0 <= client < spec.split.clients:
        raise InputError(f"--client: wanted 0..{spec.split.clients - 1}, got {client}")
    plan = BottomPlan.of(spec, folder.environment())
    with one_thread(), Ledger.open(folder.ledger, expect=plan.header()) as ledger:
        updates = ledger.version if at is None else at
        if not 0 <= updates <= ledger.version:
            raise InputError(
                f"--at: wanted 0..{ledger.version}, the updates in the ledger of {path}, got {at}"
            )
        _require_all_steps(ledger, client, updates, plan.updates.perturbations)
        replica = plan.replica(client)
        replica.go_to(updates, ledger)
        x, digest = replica.state()[0], ledger.digest
    name = f"client {client}"
    return Rebuilt({name: x}, updates, digest, _agrees(folder.rows(), name, updates, x))


def _require_all_steps(ledger: Ledger, client: int, updates: int, count: int) -> None:
    """A client's steps follow one another: a gap is no ledger of a run."""
    step = ledger.since(0, updates).of(client).step
    if not np.array_equal(step, np.repeat(np.arange(len(step) // count), count)):
        raise DataError(
            f"the ledger lacks steps of client {client}: it is damaged; bring it back from a copy"
        )


def _agrees(rows: Rows, party: str, updates: int, x: np.ndarray) -> bool | None:
    recorded = [
        r["sha256"] for r in rows["model"].to_pylist() if r["party"] == party and r["round"] == updates
    ]
    if not recorded:
        return None
    if recorded[-1] != sha256(x):
        raise ReplayMismatch(
            f"the model of {party} rebuilt from the ledger after update {updates} is not the one on record; another "
            "machine or other library versions (compare environment.json)"
        )
    return True
