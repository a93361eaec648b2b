"""Run a recorded order again, and continue a run that was stopped or killed.

Both rest on the same facts: under the virtual clock a run is a function of its scenario and its releases, and
the releases are on record. Giving recorded releases out again costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raydpzv.config.scenario import VerticalScenario
from raydpzv.config.toml import scenario_sha256
from raydpzv.errors import DataError, InputError, NotRecomputable, ReplayMismatch
from raydpzv.experiment.local_session import one_thread
from raydpzv.experiment.prepare import Prepared
from raydpzv.experiment.release_ledger import Recorded, compare, recorded, released
from raydpzv.experiment.run_vertical import parameters
from raydpzv.experiment.vertical import PreparedVertical, prepare_vertical
from raydpzv.files import sha256
from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from raydpzv.models.initial_weights import other_weights
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.environment import DATA_DIGEST, LOSS_DIGEST
from raydpzv.records.recorder import Recorder
from raydpzv.records.run_folder import RunFolder, column_rows, drop_checkpoints
from raydpzv.records.run_writer import RunWriter, delete_scratch_files
from raydpzv.records.secrets_file import OPERATOR, read_coins, read_key
from raydpzv.records.store import Rows
from raydpzv.records.summary_fields import shown
from raydpzv.sim.arrivals import Trace
from raydpzv.sim.delays import DelayModel
from raydpzv.sim.executor import LocalExecutor, split_score
from raydpzv.sim.interfaces import Budget, NoPrivacyFilter, PrivacyFilter
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.virtual import Scoring, Timing, VirtualRun
from raydpzv.wire.network import instant


@dataclass(frozen=True)
class Replayed:
    """A replayed run: parameters by party after `updates`, and whether the record could confirm them.

    verified: every server loss on the way, and at the end of the record the final parameters, had the same bits.
    ledger: the digest of the run's ledger, which holds what the rows say was released; None if the run has none.
    unchecked: what could not be checked, and why; "" if all was.
    """

    models: Mapping[str, np.ndarray]
    updates: int
    verified: bool
    ledger: str | None = None
    unchecked: str = ""


def replay(path: Path, at: int | None = None, moved: Sequence[str] = ()) -> Replayed:
    """Run the recorded order of services again under the virtual clock, with the recorded releases.

    at: stop after so many updates (default: all that were recorded); moved: where the data are now, see
    `RunFolder.open`. Raises DataError if the folder is no run, InputError if `at` is outside the record,
    ReplayMismatch at the first update whose bits differ, or if rows and ledger do not agree on what was released.
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
            else f"{path}: no update is on record; there is nothing to replay"
        )
    experiment = prepared_again(_vertical(folder), folder)
    unchecked = _check_what_can_be(experiment, folder)
    check_recomputable(experiment, path)
    if why := experiment.spec.descriptor.unreplayable(experiment.spec.method):
        raise NotRecomputable(f"{path}: {why}")
    digest = _compared(experiment, folder, rows)
    experiment = experiment.with_record(released(rows, None), continues=False)
    recorder = Recorder(frozenset({"staleness", "message"}))
    models = serve_again(experiment, rows, updates, recorder)
    _compare_losses(rows, recorder.drain(), updates)
    return Replayed(models, updates, check_models(rows, models, updates), digest, unchecked)


def _check_what_can_be(experiment: PreparedVertical, folder: RunFolder) -> str:
    """Check scenario and data; return what cannot be checked, since a copy lacks the operator's file.

    A replay may do without: it compares every loss, which other training rows would change.
    """
    if (folder.path / OPERATOR).is_file():
        check_same(experiment, folder)
        return ""
    _check_scenario(folder, scenario_sha256(experiment.spec))
    return f"whether these are the run's data: {folder.path} has no {OPERATOR}, with the key of their digest"


def check_recomputable(experiment: PreparedVertical, path: Path) -> None:
    """Raise NotRecomputable for a run that its record cannot reproduce."""
    if what := experiment.unrecorded:
        raise NotRecomputable(
            f"{path}: {what} came from the operating system and was not kept, so it cannot be computed again; start a "
            "new run"
        )


def _unbroken(rounds: Sequence[int]) -> int:
    """Return up to which round the record is whole: a kill loses the services whose answers were on their way."""
    known, last = set(rounds), 0
    while last + 1 in known:
        last += 1
    return last


def resuming(
    path: Path, moved: Sequence[str] = (), *, in_place: bool = False
) -> tuple[PreparedVertical, RunWriter, str]:
    """Return the experiment that continues a run, the folder it writes to (locked), and the scenario's name.

    It resumes from its last checkpoint. Without one everything on record is computed again, bit for bit (that takes
    its time): beside the record or, with `in_place`, over it, so that checkpoints are taken, where the ledger holds
    all that was released. Releases on record are given out again, then the run draws fresh noise. What only the ledger
    knows of, since a kill lost its rows, counts as recorded too. All is read and checked before anything is changed.
    Under the wall clock it resumes as a new segment (`raydpzv.segments.wall_segment`). Raises InputError if the
    run is complete, is being written by another process, or if its scenario or data are not what they were; DataError
    if rows, ledger or checkpoints are damaged or do not belong together.
    """
    folder = RunWriter.locked(path, moved)
    try:
        checkpoint = folder.checkpoint()
        restarts_in_place = checkpoint is not None or (in_place and not _releases_beside_ledger(folder))
        restarts_in_place = restarts_in_place or folder.spec().clock.kind == "wall"
        if not restarts_in_place:
            folder.go_beside()
        spec = _vertical(folder)
        check_resumable(folder)
        experiment = prepared_again(spec, folder)
        check_same(experiment, folder)
        check_recomputable(experiment, path)
        check_new_segment(experiment, folder)
        with _ledger(experiment, folder) as ledger:
            releases = _releases_on_record(folder, checkpoint, ledger)
        folder.read_ledger = ledger
        if restarts_in_place:
            folder.go_back()
        delete_scratch_files(path)
    except BaseException:
        folder.__exit__()
        raise
    return (
        experiment.with_record(releases.by_address, continues=True),
        folder,
        str(folder.environment().get("scenario", "")),
    )


def _releases_beside_ledger(folder: RunFolder) -> bool:
    """Return whether a run keeps what it releases in its rows alone."""
    return not folder.ledger.exists() and folder.rows()["release"].num_rows > 0


def restarted(experiment: PreparedVertical, folder: RunWriter) -> PreparedVertical:
    """Return what resumes in the folder that a run writes, from its last checkpoint or its start; reads alone.

    Raises as `resuming` does where a record is damaged or no run can resume from it.
    """
    check_recomputable(experiment, folder.path)
    check_new_segment(experiment, folder)
    checkpoint = None if folder.is_recomputed else folder.checkpoint()
    with _ledger(experiment, folder) as ledger:
        releases = _releases_on_record(folder, checkpoint, ledger)
    return experiment.with_record(releases.by_address, continues=True)


def _releases_on_record(folder: RunFolder, checkpoint: Checkpoint | None, ledger: Ledger | None) -> Recorded:
    """Return the releases that a run may come to which continues from a checkpoint (None: from its start)."""
    if checkpoint:
        _require_ledger(checkpoint, ledger.version if ledger else None, folder)
    releases = recorded(column_rows(folder, "release", Recorded._fields), ledger)
    _check_gaps(releases, folder.path)
    return _beyond(checkpoint, releases, ledger) if checkpoint else releases


def _require_ledger(checkpoint: Checkpoint, updates: int | None, folder: RunFolder) -> None:
    """Raise DataError if the ledger lacks updates that a checkpoint counts; updates: None without a ledger."""
    counted = checkpoint.state["server"].get("entered")
    if counted is None or (updates is not None and updates >= counted):
        return
    held = "there is none" if updates is None else f"it holds {updates}"
    raise DataError(
        f"{folder.ledger}: wanted the ledger of the run's checkpoint, with {counted} updates or more, but {held}: "
        "restore it from a copy, or start a new run with --out"
    )


def _beyond(checkpoint: Checkpoint, releases: Recorded, ledger: Ledger | None) -> Recorded:
    """Return the releases that a run which continues from a checkpoint may come to: those after it."""
    entered = checkpoint.state["server"].get("entered")
    if ledger is None or entered is None:
        return releases
    before = ledger.since(0, entered)
    steps = np.zeros(max(releases.client.max(initial=0), before.party.max(initial=0)) + 1, np.int64)
    np.maximum.at(steps, before.party, before.step + 1)
    return releases.where(releases.step >= steps[releases.client])


def _vertical(folder: RunFolder) -> VerticalScenario:
    spec = folder.spec()
    if not isinstance(spec, VerticalScenario):
        raise TypeError(f"{spec.method.name} is a horizontal method: its runs are rebuilt from their ledger")
    return spec


def prepared_again(spec: VerticalScenario, folder: RunFolder) -> PreparedVertical:
    """Return a run's experiment with the coins that it began with."""
    return prepare_vertical(spec, read_coins(folder.path) if spec.method.coins == "system" else None)


def drop_left_over(folder: RunFolder) -> None:
    """Delete what a kill left in the folder of a run that has come to its end."""
    drop_checkpoints(folder.path)
    delete_scratch_files(folder.path)


def check_resumable(folder: RunFolder) -> None:
    """Raise InputError for a run that has come to its end; what a kill after that left in its folder is deleted."""
    if complete := folder.completed_by():
        drop_left_over(folder)
        raise InputError(f"{folder.path}: this run is complete ({shown(complete)}); nothing to resume")


def check_new_segment(experiment: Prepared, folder: RunFolder) -> None:
    """Raise NotRecomputable for a run under the wall clock that no new segment can continue, or not from its folder."""
    if experiment.spec.clock.kind != "wall":
        return
    if why := experiment.no_segment:
        raise NotRecomputable(
            f"{folder.path}: this wall-clock run cannot be continued: {why}; start a new one with --out"
        )
    ledger = folder.ledger.exists()
    if folder.checkpoint() is None and not ledger and folder.rows()["service"].num_rows:
        raise NotRecomputable(
            f"{folder.path}: has rows of a wall-clock run and no checkpoint to continue from; "
            "start a new run with --out, or look at this one with: raydpzv replay"
        )


def check_same(experiment: Prepared, folder: RunFolder) -> None:
    """Raise InputError if the scenario, the data or a user's own loss are not those with which the run began.

    Raises DataError where the data cannot be identified, since the operator's file is away.
    """
    now = experiment.fingerprint(read_key(folder.path))
    _check_scenario(folder, now["scenario_sha256"])
    for name, title in ((DATA_DIGEST, "the data"), (LOSS_DIGEST, f"your own loss {experiment.spec.loss}")):
        if folder.environment().get(name) != now.get(name):
            raise _changed(folder, title)
    if other := other_weights(folder.environment(), now):
        raise _changed(folder, f"the weights (model.weights) of {other}")


def _check_scenario(folder: RunFolder, now: str) -> None:
    if folder.environment().get("scenario_sha256") != now:
        raise _changed(folder, "scenario.toml")


def _changed(folder: RunFolder, what: str) -> InputError:
    return InputError(
        f"{folder.path}: {what} changed since the run began, so its record does not belong to it; start a "
        "new run with --out"
    )


def _check_gaps(releases: Recorded, path: Path) -> None:
    """A release that is missing in the midst of the record would be drawn a second time."""
    client, step = releases.client, releases.step
    before = np.concatenate([[-1], step[:-1]])
    before[np.flatnonzero(client[1:] != client[:-1]) + 1] = -1
    for place in np.flatnonzero(step > before + 1)[:1]:
        raise DataError(
            f"{path}: the record lacks the release for client {client[place]}, step {before[place] + 1}: rows are "
            "missing"
        )


@contextmanager
def _ledger(experiment: PreparedVertical, folder: RunFolder) -> Iterator[Ledger | None]:
    """Give the run's ledger to read, if it has one."""
    plan = experiment.plan()
    if plan is None or not (folder.ledger / "header.json").exists():
        yield None
        return
    with Ledger.open(folder.ledger, expect=plan.header()) as ledger:
        yield ledger


def _compared(experiment: PreparedVertical, folder: RunFolder, rows: Rows) -> str | None:
    """Compare ledger and rows; return the ledger's digest."""
    with _ledger(experiment, folder) as ledger:
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
) -> dict[str, np.ndarray]:
    """Serve the recorded order: each client wakes when its services' round numbers strike. Return all parameters.

    privacy_filter: hears of every release and the rows that it is about.
    """
    epochs: dict[int, list[float]] = {}
    service = rows["service"].sort_by("round")
    for client, round in zip(
        service.column("client").to_pylist(), service.column("round").to_pylist(), strict=True
    ):
        epochs.setdefault(client, []).append(float(round))
    clients = len(experiment.clients)
    none = DelayModel([0.0] * clients, "constant", Key(0))
    timing = Timing(Trace(epochs), none, none, instant(clients))
    device = experiment.local_device
    with one_thread(experiment.engine):
        server = experiment.server.make(device)
        roles = [factory.make(device) for factory in experiment.clients]
        server_loop = ServerLoop(
            server, privacy_filter or NoPrivacyFilter(), recorder, Budget(updates=updates)
        )
        host = LocalExecutor(roles)
        VirtualRun(server_loop, host, timing, Scoring(split_score(server, host, clients), updates)).run()
    return parameters(server, roles)


def _compare_losses(recorded: Rows, again: Rows, updates: int) -> None:
    """The server's training loss depends on every bit that came before it."""

    def losses(rows: Rows) -> dict[int, float]:
        table = rows["service"]
        return dict(zip(table.column("round").to_pylist(), table.column("loss").to_pylist(), strict=True))

    was, now = losses(recorded), losses(again)
    for round in range(1, updates + 1):
        a, b = was[round], now.get(round, math.nan)
        if a != b and not (math.isnan(a) and math.isnan(b)):
            raise ReplayMismatch(
                f"update {round}: the server's loss was {a!r} and is {b!r} on replay; another machine, other library "
                "versions or other data (compare environment.json)"
            )


def check_models(rows: Rows, models: Mapping[str, np.ndarray], updates: int) -> bool:
    """Return whether the record has the models after this update. Raises ReplayMismatch if they are others."""
    recorded = {row["party"]: row["sha256"] for row in rows["model"].to_pylist() if row["round"] == updates}
    if not recorded:
        return False
    for party, values in models.items():
        if recorded.get(party) != sha256(values):
            raise ReplayMismatch(
                f"the final parameters of {party} are not those on record, though all losses agree"
            )
    return True
