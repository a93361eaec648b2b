"""Models rebuilt from the initial key and the ledger alone, of either kind of run; and how a horizontal run resumes.

A rebuild needs no data, no server and no other client. With a snapshot on the way it begins there, and has the same
bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow.compute as pc

from raydpzv.config.scenario import HorizontalScenario, VerticalScenario
from raydpzv.errors import DataError, InputError, ReplayMismatch
from raydpzv.experiment.horizontal import PreparedHorizontal, prepare_horizontal
from raydpzv.experiment.initial_model import MODEL, BottomPlan, ModelPlan
from raydpzv.experiment.local_session import one_thread
from raydpzv.experiment.model_evaluator import RESUMED
from raydpzv.experiment.privacy_setting import has_secret_coins
from raydpzv.experiment.reexecute import check_new_segment, check_resumable, check_same
from raydpzv.files import sha256
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.model_averaging import ModelAverage
from raydpzv.records.run_folder import RunFolder, last_round
from raydpzv.records.run_writer import RunWriter, delete_scratch_files
from raydpzv.records.secrets_file import read_coins
from raydpzv.records.store import Rows
from raydpzv.segments.started_segments import note_segment, segments_started
from raydpzv.storage.download import link_of


@dataclass(frozen=True)
class Rebuilt:
    """Parameters by name after `updates` updates; the ledger's digest; whether the final model's record agrees.

    verified: None if the record says nothing about this update.
    """

    models: Mapping[str, np.ndarray]
    updates: int
    digest: str
    verified: bool | None


def rebuild(
    path: Path, at: int | None = None, client: int | None = None, moved: Sequence[str] = ()
) -> Rebuilt:
    """Rebuild the model after `at` updates (default: all), or the one that a client held then.

    Opening the ledger checks every byte of it; no data is needed. moved: see `RunFolder.open`. Raises DataError if
    the ledger is damaged or belongs to another model, InputError for what is not on record, ReplayMismatch if the
    result is not the model that the run ended with.
    """
    folder = RunFolder.open(path, moved)
    spec = cast(HorizontalScenario, folder.spec())
    if spec.descriptor.rule is None:
        raise InputError(
            f"{path}: {spec.method.name} sends weights, so this run has no ledger; its last model is in models.npz"
        )
    if client is not None and spec.descriptor.drifts(spec.method):
        raise InputError(
            '--client: with method.revert = "add_back" every client had a model of its own that drifted from the '
            "ledger's and is not on record; leave --client out for the shared model"
        )
    plan = ModelPlan.of(spec, folder.environment(), folder.first_models())
    with one_thread(spec.model.engine), Ledger.open(folder.ledger, expect=plan.header()) as ledger:
        updates = ledger.version if at is None else at
        if not 0 <= updates <= ledger.version:
            raise InputError(
                f"--at: wanted 0..{ledger.version}, the updates in the ledger of {path}, got {at}"
            )
        held = updates if client is None else _held_by(folder, spec, client, updates)
        x = _replayed(plan, ledger, held)
    if client is not None:
        return Rebuilt({f"client {client}": x}, held, ledger.digest, None)
    return Rebuilt({MODEL: x}, held, ledger.digest, _agrees(folder.rows(), MODEL, held, x))


def _replayed(plan: ModelPlan, ledger: Ledger, version: int) -> np.ndarray:
    replica = plan.replica()
    if kept := ledger.load_snapshot(MODEL, version):
        replica.adopt(kept[1]["state"], kept[0])
    replica.go_to(version, ledger)
    return replica.state()[0]


def _held_by(folder: RunFolder, spec: HorizontalScenario, client: int, updates: int) -> int:
    """Return at which version a client's model was after so many updates: where it last read."""
    if not 0 <= client < spec.split.clients:
        raise InputError(f"--client: wanted 0..{spec.split.clients - 1}, got {client}")
    rows = folder.rows()
    sync = rows["sync"]
    # a kill may have come when one of them had become a part, and the other had not
    known = min(max(rows[name]["round"].to_pylist(), default=0) for name in ("service", "sync"))
    if known < updates:
        raise InputError(
            f"--client: wanted --at {known} or less for one client's model, got {updates}: the rows of {folder.path}, "
            f"which say what each client held, end at update {known}; or leave --client out for the shared model"
        )
    mine = sync.filter(pc.and_(pc.equal(sync["client"], client), pc.less_equal(sync["round"], updates)))
    return max(mine["read"].to_pylist(), default=0)


def resuming_horizontal(
    path: Path, moved: Sequence[str] = (), *, in_place: bool = False
) -> tuple[PreparedHorizontal, RunWriter, str]:
    """Return the prepared scenario that resumes, the folder it writes to (locked), and the scenario's name.

    It resumes after the last checkpoint; without one it starts again (`in_place` or not), to the same bits. Raises
    InputError as `raydpzv.experiment.reexecute.resuming` does.
    """
    # first of all: else a segment of another process, started and lost meanwhile, would not count
    folder = RunWriter.locked(path, moved)
    try:
        spec = cast(HorizontalScenario, folder.spec())
        check_resumable(folder)
        prepared = prepare_horizontal(spec, read_coins(folder.path) if has_secret_coins(spec) else None)
        check_same(prepared, folder)
        prepared = restarted_horizontal(prepared, folder)
        folder.go_back()
        delete_scratch_files(path)
        if prepared.counts_segments:
            note_segment(folder)
    except BaseException:
        folder.__exit__()
        raise
    return prepared, folder, str(folder.environment().get("scenario", ""))


def restarted_horizontal(prepared: PreparedHorizontal, folder: RunFolder) -> PreparedHorizontal:
    """Return what resumes in a run's folder, from its last checkpoint or its start; reads alone.

    Raises DataError and InputError where a record is damaged or no run can resume from it.
    """
    check_new_segment(prepared, folder)
    if prepared.setting:  # the one before the last knows of fewer releases than were made
        folder.checkpoint(only_last=True)
        # a copy from a storage may hold rows of later rounds, which were read last; these rounds are made again to the
        # same bits, since a storage is not resumed from where noise of the system may have followed
        if not (prepared.releases_again or prepared.asynchronous or link_of(folder.path)):
            _require_newest(folder)
    recorded = _checked_updates(prepared, folder)
    if prepared.counts_segments:  # each segment that wrote no checkpoint may have released what was under way
        segments = segments_started(folder) + (folder.checkpoint() is None)
        prepared = replace(prepared, lost=segments * prepared.under_way)
    return replace(prepared, recorded=recorded) if prepared.releases_again else prepared


def _require_newest(folder: RunFolder) -> None:
    """Raise DataError for an account that knows of fewer releases than were made, which no ledger holds.

    A checkpoint follows each round that releases something, so that no row can be of more than the round after it.
    """
    checkpoint = folder.checkpoint()
    made = checkpoint.round if checkpoint else 0
    seen = last_round(folder.path, "user_epsilon")
    if seen > made + 1:
        raise DataError(
            f"{folder.path}: has rows of round {seen}, but "
            + (f"its checkpoint is one after {made}" if made else "no checkpoint")
            + ": what was released since is on no record, so the run cannot go on: bring the newest checkpoint back "
            "from a copy, or start a new run"
        )


def _checked_updates(prepared: PreparedHorizontal, folder: RunFolder) -> int:
    """Return how many updates a run's ledger has; raise what keeps it from continuing, before any row is dropped.

    DataError: its ledger is damaged or ends before its checkpoint.
    """
    checkpoint = folder.checkpoint()
    if not prepared.seeded or (checkpoint is None and not (folder.ledger / "header.json").exists()):
        return 0
    made = checkpoint.round if checkpoint else 0
    with Ledger.open(folder.ledger, expect=prepared.plan.header()) as ledger:
        if ledger.version < made:
            raise DataError(
                f"{folder.ledger}: holds {ledger.version} updates, but the run's checkpoint is one after {made}: its "
                "end was lost, so the run cannot go on; start a new one with --out"
            )
        ledger.load_snapshot(RESUMED, made)  # what it goes on from is checked before any row is dropped
        return ledger.version


def from_ledger(
    path: Path, at: int | None = None, client: int | None = None, moved: Sequence[str] = ()
) -> Rebuilt | None:
    """Rebuild what a ledger alone can; None for all else.

    That is a horizontal run's model, one client of a vertical run, or of what was published of one, all its clients.
    """
    folder = RunFolder.open(path, moved)
    spec = folder.spec()
    if spec.one_model:
        return rebuild(path, at, client, moved)
    if spec.descriptor.rule is None or not folder.ledger.exists():
        return None
    if client is None:
        return rebuild_clients(folder, range(spec.split.clients), at) if folder.published else None
    return rebuild_client(path, client, at, moved)


def rebuild_client(path: Path, client: int, at: int | None = None, moved: Sequence[str] = ()) -> Rebuilt:
    """Rebuild a client's model with the answers of rounds 1 to `at` (default: all) in one pass; no data is needed.

    Raises DataError if the ledger is damaged or lacks a step, InputError for what is not on record, ReplayMismatch if
    the result is not the model that the run ended with.
    """
    return rebuild_clients(RunFolder.open(path, moved), [client], at)


def rebuild_clients(folder: RunFolder, clients: Sequence[int], at: int | None = None) -> Rebuilt:
    """Rebuild several clients' models, as `rebuild_client` does."""
    spec = cast(VerticalScenario, folder.spec())
    if wrong := [m for m in clients if not 0 <= m < spec.split.clients]:
        raise InputError(f"--client: wanted 0..{spec.split.clients - 1}, got {wrong[0]}")
    plan, rows = BottomPlan.of(spec, folder.environment(), folder.first_models()), folder.rows()
    with one_thread(spec.model.engine), Ledger.open(folder.ledger, expect=plan.header()) as ledger:
        updates = ledger.version if at is None else at
        if not 0 <= updates <= ledger.version:
            raise InputError(
                f"--at: wanted 0..{ledger.version}, the updates in the ledger of {folder.path}, got {at}"
            )
        models = {f"client {m}": _rebuilt(plan, ledger, m, updates) for m in clients}
        digest, last = ledger.digest, updates == ledger.version
    agreed = [_agrees(rows, name, updates, x, last=last) for name, x in models.items()]
    return Rebuilt(models, updates, digest, None if None in agreed else True)


def check_rebuilt(folder: RunFolder, progress: Callable[[str, int, int], None]) -> None:
    """Rebuild a run's model, of a vertical one every client's, and compare it with the one on record.

    Does nothing without a ledger. progress: called with what is being done, how much of it is, and how much there is.
    Raises as `rebuild` and `rebuild_clients` do.
    """
    if not folder.ledger.exists():
        return
    spec = folder.spec()
    if spec.one_model:
        rebuild(folder.path)
        progress("model rebuilt from it", 1, 1)
        return
    clients = spec.split.clients
    for client in range(clients):
        rebuild_clients(folder, [client])
        progress("client rebuilt from it", client + 1, clients)


def _rebuilt(plan: BottomPlan, ledger: Ledger, client: int, updates: int) -> np.ndarray:
    _require_all_steps(ledger, client, updates, plan.updates.perturbations)
    replica, tail = plan.replica(client), ModelAverage(plan.tail())
    replica.go_to(updates, ledger, tail)
    mean = tail.mean()
    return replica.state()[0] if mean is None else mean


def _require_all_steps(ledger: Ledger, client: int, updates: int, count: int) -> None:
    """A client's steps follow one another: a gap is no ledger of a run."""
    step = ledger.since(0, updates).of(client).step
    if not np.array_equal(step, np.repeat(np.arange(len(step) // count), count)):
        raise DataError(
            f"the ledger lacks steps of client {client}: it is damaged; bring it back from a copy"
        )


def _agrees(rows: Rows, party: str, updates: int, x: np.ndarray, *, last: bool = False) -> bool | None:
    """last: these are all updates, which are fewer than the uploads by which models are recorded if some gather."""
    mine = [r for r in rows["model"].to_pylist() if r["party"] == party]
    recorded = [r["sha256"] for r in mine if last or r["round"] == updates]
    if not recorded:
        return None
    if recorded[-1] != sha256(x):
        raise ReplayMismatch(
            f"the model of {party} rebuilt from the ledger after update {updates} is not the one on record; another "
            "machine or other library versions (compare environment.json)"
        )
    return True
