"""Continue a run that was stopped or killed, of either kind and by any runner.

Under the virtual clock a run is a function of its scenario and its releases, and the releases are
on record. Giving recorded releases out again costs no privacy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from raydpzv.errors import DataError, InputError, NotRecomputable, ReplayMismatch
from raydpzv.experiment.finalize import RowWriter, fresh_noise, keep_first_models
from raydpzv.experiment.initial_model import BASE, RESUMED
from raydpzv.experiment.prepare import Prepared
from raydpzv.experiment.release_ledger import Recorded, recorded
from raydpzv.foreign import is_foreign
from raydpzv.ledger.ledger import Ledger
from raydpzv.models.initial_weights import other_weights
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.environment import DATA_DIGEST, OWN_DIGESTS
from raydpzv.records.run_folder import (
    SCENARIO,
    RunFolder,
    changed,
    column_rows,
    drop_checkpoints,
    last_round,
)
from raydpzv.records.run_writer import RunWriter, delete_scratch_files
from raydpzv.records.secrets_file import read_coins, read_key
from raydpzv.records.summary_fields import shown
from raydpzv.registry import PREPARERS, RESTARTERS
from raydpzv.segments.started_segments import note_fall_back, note_segment, segments_started
from raydpzv.storage.download import copy_rest

if TYPE_CHECKING:
    from raydpzv.experiment.horizontal import PreparedHorizontal
    from raydpzv.experiment.vertical import PreparedVertical


CONTRADICTION = "Contradiction"
"""Kind of the fault of a checkpoint that is not what its run's ledger says."""
Continued = tuple[Prepared, RunWriter, str]
"""What resumes, the folder that it writes to, and the scenario's name."""


def continued(path: Path, moved: Sequence[str] = ()) -> Continued:
    """Return what continues, the folder it writes to (locked), and the scenario's name.

    moved: where its data are now, see `RunFolder.open`. Raises InputError if the run is complete or
    cannot be continued, DataError if its folder is damaged.
    """
    copy_rest(path)
    return resuming(path, moved)


def go_back(prepared: Prepared, writer: RowWriter, fault: Mapping[str, Any]) -> Prepared:
    """Restore the folder that a run writes to its last checkpoint; return what resumes from there.

    fault: a row of what happened, whose message ends with the place. Raises as `restarted` does.
    """
    folder = writer.folder
    assert folder is not None
    prepared = restarted(prepared, folder)
    folder.read_ledger = None  # what reads the ledger on is open elsewhere, or opens it anew
    checkpoint = folder.checkpoint()
    place = f"its checkpoint after update {checkpoint.round}" if checkpoint else "its start"
    again = prepared.spec.clock.kind == "virtual"
    writer.go_back({**fault, "message": f"{fault['message']} {place}"}, again=again)
    if prepared.counts_segments:  # before it releases anything
        note_segment(folder)
    return prepared


def fall_back(
    prepared: Prepared, writer: RowWriter, error: ReplayMismatch, time: float
) -> Prepared:
    """Return what resumes where a checkpoint contradicts the ledger.

    That is from the checkpoint before it, else from the run's start with all updates of the ledger.
    time: of the run's clock. Raises as `restarted` does.
    """
    folder = writer.folder
    assert folder is not None
    if prepared.counts_segments:
        note_fall_back(folder, prepared.under_way)
    folder.fall_back()
    said = " ".join(str(error).split(";")[0].split())
    message = (
        f"the last one contradicts the ledger ({said}), which keeps all updates; the run resumes "
        "from"
    )
    return go_back(
        prepared,
        writer,
        {"time": time, "party": "checkpoint", "kind": CONTRADICTION, "message": message},
    )


def resuming(path: Path, moved: Sequence[str] = ()) -> Continued:
    """Return what continues a run, whatever storage it is a copy of.

    It resumes from its last checkpoint, without one from its start, to the same bits. Releases on
    record are given out again, then the run draws fresh noise. What only the ledger knows of, since
    a kill lost its rows, counts as recorded too. All is read and checked before anything is
    changed. Under the wall clock it resumes as a new segment (`raydpzv.segments.run_segments`).
    Raises InputError if the run is complete, is being written by another process, or if its
    scenario or data are not what they were; DataError if rows, ledger or checkpoints are damaged or
    do not belong together.
    """
    # locked first of all: else a segment of another process, started and lost meanwhile, would not
    # count
    folder = RunWriter.locked(path, moved)
    try:
        check_resumable(folder)
        prepared = prepared_again(folder)
        check_same(prepared, folder)
        prepared = restarted(prepared, folder)
        keep_first_models(prepared, folder)
        folder.go_back()
        delete_scratch_files(path)
        if prepared.counts_segments:
            note_segment(folder)
    except BaseException:
        folder.__exit__()
        raise
    return prepared, folder, str(folder.environment().get("scenario", ""))


def restarted(prepared: Prepared, folder: RunWriter) -> Prepared:
    """Return what resumes in a run's folder, from its last checkpoint or its start; reads alone.

    prepared: as the run was started or resumed with. Raises InputError if no run can resume from a
    record, DataError if it is damaged.
    """
    check_recomputable(prepared, folder.path)
    check_new_segment(prepared, folder)
    return cast(Prepared, RESTARTERS[prepared.spec.kind](prepared, folder))


def restarted_vertical(prepared: PreparedVertical, folder: RunWriter) -> PreparedVertical:
    """Return what gives out the releases on record that the run may come to; the folder keeps the
    ledger as read.
    """
    with ledger_of(prepared, folder) as ledger:
        releases = _releases_on_record(folder, folder.checkpoint(), ledger)
        if ledger is None and len(releases.value) and fresh_noise(prepared):
            raise DataError(
                f"{folder.ledger}: wanted the run's ledger, which holds what was released, but "
                "there is none: restore it from a copy, or start a new run with --out"
            )
    folder.read_ledger = ledger
    return prepared.with_record(releases.by_address, continues=True)


def restarted_horizontal(prepared: PreparedHorizontal, folder: RunFolder) -> PreparedHorizontal:
    """Return what knows of the releases on record, and of those that lost segments may have
    made.
    """
    if prepared.setting:  # the one before the last knows of fewer releases than were made
        folder.checkpoint(only_last=True)
        if not (prepared.releases_again or prepared.asynchronous):
            _require_newest(folder)
    recorded = _checked_updates(prepared, folder)
    if (
        prepared.counts_segments
    ):  # each segment that wrote no checkpoint may have released what was under way
        segments = segments_started(folder) + (folder.checkpoint() is None)
        prepared = replace(prepared, lost=segments * prepared.under_way)
    return replace(prepared, recorded=recorded) if prepared.releases_again else prepared


def _require_newest(folder: RunFolder) -> None:
    """Raise DataError for an account that knows of fewer releases than were made, which no ledger
    holds.

    A checkpoint follows each round that releases something, so that no row can be of more than the
    round after it.
    """
    checkpoint = folder.checkpoint()
    made = checkpoint.round if checkpoint else 0
    seen = last_round(folder.path, "user_epsilon")
    if seen > made + 1:
        raise DataError(
            f"{folder.path}: has rows of round {seen}, but "
            + (f"its checkpoint is one after {made}" if made else "no checkpoint")
            + ": what was released since is on no record, so the run cannot continue: restore the"
            " newest checkpoint from a copy, or start a new run"
        )


def _checked_updates(prepared: PreparedHorizontal, folder: RunFolder) -> int:
    """Return how many updates a run's ledger has; raise what keeps it from continuing, before any
    row is dropped.

    DataError: its ledger is damaged or ends before its checkpoint.
    """
    checkpoint = folder.checkpoint()
    if not prepared.seeded or (checkpoint is None and not (folder.ledger / "header.json").exists()):
        return 0
    made = checkpoint.round if checkpoint else 0
    with Ledger.open(folder.ledger, expect=prepared.plan.header()) as ledger:
        if ledger.version < made:
            raise DataError(
                f"{folder.ledger}: holds {ledger.version} updates, but the run's checkpoint is one "
                f"after {made}: its end was lost, so the run cannot continue; start a new one with "
                "--out"
            )
        ledger.load_snapshot(RESUMED, made)  # where it resumes is checked before any row is dropped
        return ledger.version


def _releases_on_record(
    folder: RunFolder, checkpoint: Checkpoint | None, ledger: Ledger | None
) -> Recorded:
    """Return the releases that a run may come to which continues from a checkpoint (None: from its
    start).

    Raises DataError if the ledger lacks updates that the checkpoint counts.
    """
    entered = checkpoint.state["server"].get("entered") if checkpoint else None
    if entered is not None and (ledger is None or ledger.version < entered):
        held = "there is none" if ledger is None else f"it holds {ledger.version}"
        raise DataError(
            f"{folder.ledger}: wanted the ledger of the run's checkpoint, with {entered} updates "
            f"or more, but {held}: restore it from a copy, or start a new run with --out"
        )
    releases = recorded(column_rows(folder, "release", Recorded._fields), ledger)
    _check_gaps(releases, folder.path)
    if ledger is None or entered is None:
        return releases
    before = ledger.since(0, entered)
    steps = np.zeros(max(releases.client.max(initial=0), before.party.max(initial=0)) + 1, np.int64)
    np.maximum.at(steps, before.party, before.step + 1)
    return releases.where(releases.step >= steps[releases.client])


def _check_gaps(releases: Recorded, path: Path) -> None:
    """A release that is missing in the midst of the record would be drawn a second time."""
    client, step = releases.client, releases.step
    before = np.concatenate([[-1], step[:-1]])
    before[np.flatnonzero(client[1:] != client[:-1]) + 1] = -1
    for place in np.flatnonzero(step > before + 1)[:1]:
        raise DataError(
            f"{path}: the record lacks the release for client {client[place]}, step "
            f"{before[place] + 1}: rows are missing"
        )


def prepared_again(folder: RunFolder) -> Prepared:
    """Return a run's experiment with the coins that it began with.

    The one way from a folder to the code that its scenario names. Raises InputError for a folder
    of somebody else that names some.
    """
    spec = folder.spec(code=True)
    return cast(
        Prepared,
        PREPARERS[spec.kind](spec, read_coins(folder.path) if spec.secret_coins else None),
    )


def check_recomputable(experiment: Prepared, path: Path) -> None:
    """Raise NotRecomputable for a run that its record cannot reproduce."""
    if what := experiment.unrecorded:
        raise NotRecomputable(
            f"{path}: {what} came from the operating system and was not kept, so it cannot be "
            "computed again; start a new run"
        )


def drop_left_over(folder: RunFolder) -> None:
    """Delete what a kill left in the folder of a run that has come to its end."""
    drop_checkpoints(folder.path)
    delete_scratch_files(folder.path)


def check_resumable(folder: RunFolder) -> None:
    """Raise InputError for a run that has come to its end; what a kill after that left in its
    folder is deleted.
    """
    if complete := folder.completed_by():
        drop_left_over(folder)
        raise InputError(
            f"{folder.path}: this run is complete ({shown(complete)}); nothing to resume"
        )


def check_new_segment(experiment: Prepared, folder: RunFolder) -> None:
    """Raise NotRecomputable for a run under the wall clock that no new segment can continue, or not
    from its folder.
    """
    if experiment.spec.clock.kind != "wall":
        return
    if why := experiment.no_segment:
        raise NotRecomputable(
            f"{folder.path}: this wall-clock run cannot be continued: {why}; start a new one with "
            "--out"
        )
    ledger = folder.ledger.exists()
    if folder.checkpoint() is None and not ledger and folder.rows()["service"].num_rows:
        raise NotRecomputable(
            f"{folder.path}: has rows of a wall-clock run and no checkpoint to continue from; "
            "start a new run with --out, or look at this one with: raydpzv replay"
        )


def check_same(experiment: Prepared, folder: RunFolder) -> None:
    """Raise InputError if the scenario, the data or a user's own code are not those with which the
    run began.

    Raises DataError where the data cannot be identified, since the operator's file is away.
    """
    now = experiment.fingerprint(read_key(folder.path))
    check_scenario(folder, now["scenario_sha256"])
    before = folder.environment()
    if before.get(DATA_DIGEST) != now.get(DATA_DIGEST):
        raise changed(folder.path, "the data")
    if code := other_code(before, now):
        raise changed(folder.path, f"your own {code if is_foreign(code) else f'module {code}'}")
    if other := other_weights(folder.environment(), now):
        raise changed(folder.path, f"the weights (model.weights) of {other}")
    if folder.environment().get(BASE) != now.get(BASE):
        raise changed(folder.path, "the base of the adapters (model.lora)")


def other_code(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return the first of a user's modules, or else of the objects, in which two fingerprints
    differ, None: none.
    """
    there, here = before.get(OWN_DIGESTS, {}), now.get(OWN_DIGESTS, {})
    names = sorted({*there, *here}, key=lambda name: (is_foreign(name), name))
    return next((name for name in names if there.get(name) != here.get(name)), None)


def check_scenario(folder: RunFolder, now: str) -> None:
    """Raise InputError for a scenario with another digest than the run's."""
    if folder.environment().get("scenario_sha256") != now:
        raise changed(folder.path, SCENARIO)


@contextmanager
def ledger_of(experiment: PreparedVertical, folder: RunFolder) -> Iterator[Ledger | None]:
    """Give the run's ledger to read, if it has one."""
    plan = experiment.plan()
    if plan is None or not (folder.ledger / "header.json").exists():
        yield None
        return
    with Ledger.open(folder.ledger, expect=plan.header()) as ledger:
        yield ledger
