"""Models of a run made again: from the initial key and the ledger alone, or by serving the recorded
order once more.

A rebuild needs no data, no server and no other client. With a snapshot on the way it begins there,
and has the same bits. What a vertical run did as a whole is repeated under the virtual clock, with
its recorded releases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.compute as pc

from raydpzv.config.toml import scenario_sha256
from raydpzv.errors import DataError, InputError, NotRecomputable, ReplayMismatch, command
from raydpzv.experiment.initial_model import MODEL, BottomPlan, ModelPlan
from raydpzv.experiment.local_session import one_thread
from raydpzv.experiment.prepare import Prepared
from raydpzv.experiment.release_ledger import compare, released
from raydpzv.experiment.resuming import (
    check_recomputable,
    check_same,
    check_scenario,
    ledger_of,
    prepared_again,
)
from raydpzv.experiment.run_vertical import parameters
from raydpzv.experiment.vertical import PreparedVertical
from raydpzv.files import sha256
from raydpzv.grouping import grouped
from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.model_averaging import ModelAverage
from raydpzv.methods.roles import VerticalServer
from raydpzv.records.recorder import Recorder
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.secrets_file import OPERATOR
from raydpzv.records.store import Rows
from raydpzv.sim.arrivals import Trace
from raydpzv.sim.delays import DelayModel
from raydpzv.sim.executor import LocalExecutor, split_score
from raydpzv.sim.interfaces import Budget, PrivacyFilter
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.virtual import Scoring, Timing, VirtualRun
from raydpzv.wire.network import instant


@dataclass(frozen=True)
class Rebuilt:
    """Parameters by name after `updates` updates; the ledger's digest; whether the final model's
    record agrees.

    verified: None if the record says nothing about this update.
    """

    models: Mapping[str, np.ndarray]
    updates: int
    digest: str
    verified: bool | None


def rebuild(
    path: Path, at: int | None = None, client: int | None = None, moved: Sequence[str] = ()
) -> Rebuilt:
    """Rebuild what a ledger moves after `at` updates (default: all), or one client's model then.

    That is a horizontal run's model, or the clients' models of a vertical one, with the answers of
    rounds 1 to `at`. Opening the ledger checks every byte of it; no data is needed. moved: see
    `RunFolder.open`. Raises DataError if the ledger is damaged, lacks a step or belongs to another
    model, InputError for what is not on record, ReplayMismatch if the result is not the model that
    the run ended with.
    """
    folder = RunFolder.open(path, moved)
    spec = folder.spec()
    if spec.descriptor.rule is None:
        raise InputError(
            f"{path}: {spec.method.name} sends weights, so this run has no ledger; its last model "
            "is in models.npz"
        )
    plan = recorded_plan(folder)
    with one_thread(spec.model.engine), Ledger.open(folder.ledger, expect=plan.header()) as ledger:
        updates = ledger.version if at is None else at
        if not 0 <= updates <= ledger.version:
            raise InputError(
                f"--at: wanted 0..{ledger.version}, the updates in the ledger of {path}, got {at}"
            )
        if client is not None and not 0 <= client < spec.split.clients:
            raise InputError(f"--client: wanted 0..{spec.split.clients - 1}, got {client}")
        return _REBUILT[spec.kind](folder, plan, ledger, updates, client)


def recorded_plan(folder: RunFolder) -> BottomPlan | ModelPlan:
    """Return the models of a recorded run before its first update, and how they move. Raises
    DataError.

    The record has a user's own models. If it lost them, they are built again: InputError for a
    folder of somebody else.
    """
    spec = folder.spec()
    if spec.descriptor.rule is None:
        raise DataError(
            f"{folder.ledger}: {spec.method.name} keeps no ledger, but there is one: the folder is "
            "damaged; restore it from a copy"
        )
    plan = cast(Any, ModelPlan if spec.one_model else BottomPlan)
    found: BottomPlan | ModelPlan = plan.of(spec, folder.environment(), folder.first_models())
    if found.lost():
        folder.require_trust()
    return found


def _of_all_clients(
    folder: RunFolder, plan: ModelPlan, ledger: Ledger, updates: int, client: int | None
) -> Rebuilt:
    if client is not None and plan.spec.descriptor.drifts(plan.spec.method):
        raise InputError(
            '--client: with method.revert = "add_back" every client had a model of its own that '
            "drifted from the "
            "ledger's and is not on record; leave --client out for the shared model"
        )
    held = updates if client is None else _held_by(folder, client, updates)
    replica = plan.replica()
    if kept := ledger.load_snapshot(MODEL, held):
        replica.adopt(kept[1]["state"], kept[0])
    replica.go_to(held, ledger)
    x = replica.state()[0]
    if client is not None:
        return Rebuilt({f"client {client}": x}, held, ledger.digest, None)
    return Rebuilt({MODEL: x}, held, ledger.digest, _agrees(folder.rows(), MODEL, held, x))


def _held_by(folder: RunFolder, client: int, updates: int) -> int:
    """Return at which version a client's model was after so many updates: where it last read."""
    rows = folder.rows()
    sync = rows["sync"]
    # a kill may have come when one of them had become a part, and the other had not
    known = min(max(rows[name]["round"].to_pylist(), default=0) for name in ("service", "sync"))
    if known < updates:
        raise InputError(
            f"--client: wanted --at {known} or less for one client's model, got {updates}: the "
            f"rows of {folder.path}, which say what each client held, end at update {known}; or "
            "leave --client out for the shared model"
        )
    mine = sync.filter(
        pc.and_(pc.equal(sync["client"], client), pc.less_equal(sync["round"], updates))
    )
    return max(mine["read"].to_pylist(), default=0)


def _of_each_client(
    folder: RunFolder, plan: BottomPlan, ledger: Ledger, updates: int, client: int | None
) -> Rebuilt:
    clients = range(plan.spec.split.clients) if client is None else [client]
    models = {f"client {m}": _bottom(plan, ledger, m, updates) for m in clients}
    rows, last = folder.rows(), updates == ledger.version
    agreed = [_agrees(rows, name, updates, x, last=last) for name, x in models.items()]
    return Rebuilt(models, updates, ledger.digest, None if None in agreed else True)


def _bottom(plan: BottomPlan, ledger: Ledger, client: int, updates: int) -> np.ndarray:
    _require_all_steps(ledger, client, updates, plan.updates.perturbations)
    replica, tail = plan.replica(client), ModelAverage(plan.tail())
    replica.go_to(updates, ledger, tail)
    mean = tail.mean()
    return replica.state()[0] if mean is None else mean


_REBUILT: dict[str, Callable[..., Rebuilt]] = {
    "horizontal": _of_all_clients,
    "vertical": _of_each_client,
}


def from_ledger(
    path: Path, at: int | None = None, client: int | None = None, moved: Sequence[str] = ()
) -> Rebuilt | None:
    """Rebuild what a ledger alone can; None for all else: a whole vertical run, but for what was
    published of one.
    """
    folder = RunFolder.open(path, moved)
    spec = folder.spec()
    unaided = spec.one_model or (
        spec.descriptor.rule and folder.ledger.exists() and (client is not None or folder.published)
    )
    return rebuild(path, at, client, moved) if unaided else None


def check_rebuilt(folder: RunFolder, progress: Callable[[str, int, int], None]) -> None:
    """Rebuild a run's model, of a vertical one every client's, and compare it with the one on
    record.

    Does nothing without a ledger. progress: called with what is being done, how much of it is, and
    how much there is. Raises as `rebuild` does.
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
        rebuild(folder.path, client=client)
        progress("client rebuilt from it", client + 1, clients)


def _require_all_steps(ledger: Ledger, client: int, updates: int, count: int) -> None:
    """A client's steps follow one another: a gap is no ledger of a run."""
    step = ledger.since(0, updates).of(client).step
    if not np.array_equal(step, np.repeat(np.arange(len(step) // count), count)):
        raise DataError(
            f"the ledger lacks steps of client {client}: it is damaged; restore it from a copy"
        )


def _agrees(
    rows: Rows, party: str, updates: int, x: np.ndarray, *, last: bool = False
) -> bool | None:
    """last: these are all updates, which are fewer than the uploads by which models are recorded if
    some gather.
    """
    mine = [r for r in rows["model"].to_pylist() if r["party"] == party]
    recorded = [r["sha256"] for r in mine if last or r["round"] == updates]
    if not recorded:
        return None
    if recorded[-1] != sha256(x):
        raise ReplayMismatch(
            f"the model of {party} rebuilt from the ledger after update {updates} is not the one "
            "on record; another machine or other library versions (compare environment.json)"
        )
    return True


@dataclass(frozen=True)
class Replayed:
    """A replayed run: parameters by party after `updates`, and whether the record could confirm
    them.

    verified: every server loss on the way, and at the end of the record the final parameters, had
    the same bits.
    ledger: the digest of the run's ledger, which holds what the rows say was released; None if the
    run has none.
    unchecked: what could not be checked, and why; "" if all was.
    """

    models: Mapping[str, np.ndarray]
    updates: int
    verified: bool
    ledger: str | None = None
    unchecked: str = ""


def replay(path: Path, at: int | None = None, moved: Sequence[str] = ()) -> Replayed:
    """Run the recorded order of services again under the virtual clock, with the recorded releases.

    at: stop after so many updates (default: all that were recorded); moved: where the data are now,
    see `RunFolder.open`. Raises DataError if the folder is no run, InputError if `at` is outside
    the record, ReplayMismatch at the first update whose bits differ, or if rows and ledger do not
    agree on what was released.
    """
    folder = RunFolder.open(path, moved)
    folder.require_own_record()
    rows = folder.rows()
    recorded = _unbroken(rows["service"].column("round").to_pylist())
    updates = recorded if at is None else at
    if not 0 < updates <= recorded:
        raise InputError(
            f"--at: wanted 1..{recorded}, the updates on record in {path}, got {updates}"
            if recorded
            else (
                f"{path}: its rows hold no update, so there is nothing to replay; resume a killed "
                f"run first: {command('resume', path)}"
            )
        )
    spec = folder.spec()
    if spec.one_model:
        raise TypeError(
            f"{spec.method.name} is a horizontal method: its runs are rebuilt from their ledger"
        )
    experiment = cast(PreparedVertical, prepared_again(folder))
    unchecked = check_possible(experiment, folder)
    check_recomputable(experiment, path)
    if why := experiment.spec.descriptor.unreplayable(experiment.spec.method):
        raise NotRecomputable(f"{path}: {why}")
    digest = _compared(experiment, folder, rows)
    experiment = experiment.with_record(released(rows, None), continues=False)
    recorder = Recorder(frozenset({"staleness", "message"}))
    models = serve_again(experiment, rows, updates, recorder)
    _compare_losses(rows, recorder.drain(), updates)
    return Replayed(models, updates, check_models(rows, models, updates), digest, unchecked)


def check_possible(experiment: Prepared, folder: RunFolder) -> str:
    """Check scenario and data; return what cannot be checked, since a copy lacks the operator's
    file.

    A replay may do without: it compares every loss, which other training rows would change.
    """
    if (folder.path / OPERATOR).is_file():
        check_same(experiment, folder)
        return ""
    check_scenario(folder, scenario_sha256(experiment.spec))
    return (
        f"whether these are the run's data: {folder.path} has no {OPERATOR}, with the key of their "
        "digest"
    )


def _unbroken(rounds: Sequence[int]) -> int:
    """Return up to which round the record is whole: a kill loses the services whose answers were on
    their way.
    """
    known, last = set(rounds), 0
    while last + 1 in known:
        last += 1
    return last


def _compared(experiment: PreparedVertical, folder: RunFolder, rows: Rows) -> str | None:
    """Compare ledger and rows; return the ledger's digest."""
    with ledger_of(experiment, folder) as ledger:
        if ledger is None:
            return None
        compare(rows, ledger)
        return ledger.digest


def serve_again(
    experiment: PreparedVertical,
    rows: Rows,
    updates: int,
    recorder: Recorder,
    privacy_filter: PrivacyFilter | None = None,
    *,
    tap: Callable[[VerticalServer], Any] = lambda server: server,
) -> dict[str, np.ndarray]:
    """Serve the recorded order: each client wakes when its services' round numbers strike. Return
    all parameters.

    privacy_filter: hears of every release and the rows that it is about; tap: gives the server that
    serves.
    """
    service = rows["service"].sort_by("round")
    epochs = grouped(
        zip(
            service.column("client").to_pylist(),
            map(float, service.column("round").to_pylist()),
            strict=True,
        )
    )
    clients = len(experiment.clients)
    none = DelayModel([0.0] * clients, "constant", Key(0))
    timing = Timing(Trace(epochs), none, none, instant(clients))
    device = experiment.local_device
    with one_thread(experiment.engine):
        server = tap(experiment.server.make(device))
        roles = [factory.make(device) for factory in experiment.clients]
        server_loop = ServerLoop(
            server, privacy_filter or PrivacyFilter(), recorder, Budget(updates=updates)
        )
        with closing(LocalExecutor(roles)) as host:
            VirtualRun(
                server_loop, host, timing, Scoring(split_score(server, host, clients), updates)
            ).run()
    return parameters(server, roles)


def _compare_losses(recorded: Rows, again: Rows, updates: int) -> None:
    """The server's training loss depends on every bit that came before it."""

    def losses(rows: Rows) -> dict[int, float]:
        table = rows["service"]
        return dict(
            zip(table.column("round").to_pylist(), table.column("loss").to_pylist(), strict=True)
        )

    was, now = losses(recorded), losses(again)
    for round in range(1, updates + 1):
        a, b = was[round], now.get(round, math.nan)
        if a != b and not (math.isnan(a) and math.isnan(b)):
            raise ReplayMismatch(
                f"update {round}: the server's loss was {a!r} and is {b!r} on replay; another "
                "machine, other library versions or other data (compare environment.json)"
            )


def check_models(rows: Rows, models: Mapping[str, np.ndarray], updates: int) -> bool:
    """Return whether the record has the models after this update. Raises ReplayMismatch if they are
    others.
    """
    recorded = {
        row["party"]: row["sha256"] for row in rows["model"].to_pylist() if row["round"] == updates
    }
    if not recorded:
        return False
    for party, values in models.items():
        if recorded.get(party) != sha256(values):
            raise ReplayMismatch(
                f"the final parameters of {party} are not those on record, though all losses agree"
            )
    return True
