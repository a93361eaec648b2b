"""How a run's rows are kept and how it ends: models, summary, and what a failure leaves behind."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from raydpzv.errors import DataError, InputError, ReplayMismatch, StoppedEarly, command
from raydpzv.experiment.initial_model import layouts
from raydpzv.experiment.prepare import Prepared
from raydpzv.experiment.run_core import RunControls, StopAt
from raydpzv.experiment.summary import Ending, Outcome, summarise
from raydpzv.files import sha256, write_npz
from raydpzv.lazy_import import torch
from raydpzv.methods.recorded_method import own_method
from raydpzv.notebook import table_html
from raydpzv.privacy.release import Spent
from raydpzv.records.callbacks import Callback, Callbacks, RunStart, StatusCallback
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.environment import environment
from raydpzv.records.recorder import Recorder
from raydpzv.records.run_folder import INITIAL, RunFolder, drop_checkpoints, write_models
from raydpzv.records.run_writer import RunWriter
from raydpzv.records.schema import EMPTY, SCHEMAS
from raydpzv.records.secrets_file import OperatorSecrets, new_key
from raydpzv.records.store import Rows
from raydpzv.records.summary_fields import beside
from raydpzv.segments.started_segments import has_restarted
from raydpzv.settings.party_names import named
from raydpzv.sim.interfaces import USER, Evaluated, Status, unheard
from raydpzv.storage.filesystem import StorageFolder
from raydpzv.storage.link import require_resumable
from raydpzv.storage.run_copy import copied
from raydpzv.zo.kernels import FirstCalls, first_calls

_TERMS = ("epsilon", "delta", "adversary", "relation", "mechanism", "accountant", "holds", "note")
"""What an ε says nothing without."""


@dataclass(frozen=True)
class Run:
    """A finished run: its summary, its rows as Arrow tables, its final parameters by party, its
    folder.
    """

    summary: dict[str, Any] = field(repr=False)
    tables: Rows = field(repr=False)
    models: Mapping[str, np.ndarray] = field(repr=False)
    path: Path | None
    prepared: Prepared | None = field(default=None, repr=False)

    @property
    def accuracy(self) -> float | None:
        """The share of test rows that the last model classifies; None of labels without classes:
        see `measures`.
        """
        return self.measures.get("accuracy")

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to look at before the result is believed, such as that the run diverged."""
        return tuple(self.summary["warnings"])

    @property
    def measures(self) -> dict[str, float]:
        """What the last model scores on test rows, by name: accuracy or concordance, loss, and
        further measures.
        """
        found = {name: self.summary[name] for name in ("accuracy", "concordance", "loss")}
        known = {
            name: float(v)
            for name, v in found.items()
            if v is not None and not math.isnan(float(v))
        }
        return known | self.summary.get("measures", {})

    @property
    def _scores(self) -> dict[str, float]:
        """The measures, and what an accuracy is judged by."""
        against = {name: v for name, v in beside(self.summary).items() if name != "R²"}  # is r2
        return self.measures | against

    @property
    def epsilon(self) -> dict[str, Any] | None:
        """The proved claim against whom the noise is meant, with its terms; or None. All:
        summary["epsilon"].
        """
        plan = self.prepared.setting if self.prepared else None
        meant = [c for c in self.summary["epsilon"] if plan and c["adversary"] == plan.adversary]
        return {name: meant[0][name] for name in _TERMS} if meant and meant[0]["holds"] else None

    def __repr__(self) -> str:
        found, claim = self.summary, self.epsilon
        scores = "".join(f", {name} {value:.4g}" for name, value in self._scores.items())
        epsilon = "no ε is proved"
        if claim:
            epsilon = (
                f"ε = {claim['epsilon']:.4g} at δ = {claim['delta']:.3g} against "
                f"{claim['adversary']}"
            )
        return (
            f"<run of {self._name}: {self._status}, {found['updates']:,} updates{scores}, "
            f"{epsilon}, {f'kept in {self.path}' if self.path else 'in no folder'}>"
        )

    def _repr_html_(self) -> str:
        found = self.summary
        facts: dict[str, object] = {
            "status": self._status,
            "updates": f"{found['updates']:,}",
            **{name: f"{value:.4g}" for name, value in self._scores.items()},
            "bytes": f"{found['bytes_up'] + found['bytes_down']:,}",
            "privacy": found["privacy_verdict"],
            "folder": self.path or "none: give out to raydpzv.run to keep a run",
        }
        return table_html(f"run of {self._name}", facts.items())

    @property
    def _status(self) -> str:
        """How it ended: DIVERGED, rather than done, where its last evaluation is no result."""
        failure = self.summary.get("failure")
        return str(failure).upper() if failure else str(self.summary["status"])

    @property
    def _name(self) -> str:
        return str(self.summary["scenario"] or self.summary["title"] or self.summary["method"])

    def state_dict(
        self, party: str | int | None = None, *, client: int | None = None, at: int | None = None
    ) -> dict[str, torch.Tensor]:
        """Return named weights, float32, and the module's constants.

        party: of a vertical run, a party's name or number, or "server"; client: of a horizontal
        one, whose model it is,
        at: after how many updates; both are rebuilt from the ledger of a run with a folder. Raises
        InputError.
        """
        assert self.prepared is not None  # only runs read from a folder have none
        name = self.prepared.model_name(party)
        flat = self.models.get(name)
        if client is not None or at is not None:
            flat = self._rebuilt(name, client, at)
        assert flat is not None
        return self.prepared.flat_model(name).state_dict(flat)

    def _rebuilt(self, name: str, client: int | None, at: int | None) -> np.ndarray:
        from raydpzv.experiment.rebuild import from_ledger

        if self.path is None:
            raise InputError(
                "state_dict: client and at want a run with a folder; give out to raydpzv.run"
            )
        numbered = int(name.partition(" ")[2]) if name.startswith("client ") else client
        found = from_ledger(self.path, at, numbered)
        if found is None:
            raise InputError(f"state_dict: the ledger of {self.path} cannot rebuild {name}")
        return next(iter(found.models.values()))

    def rows(self, name: str) -> pa.Table:
        """Return the rows of one type, such as "evaluation" or "release"."""
        if name not in SCHEMAS:
            raise DataError(f"no row type {name!r}; there are: {', '.join(SCHEMAS)}")
        return self.tables[name]


def folder_of(run: Run | str | Path, verb: str) -> Path:
    """Return a run's folder. Raises InputError for a run without one, and for what is no run; verb:
    who asks.
    """
    if isinstance(run, Run) and run.path is None:
        raise InputError(f"{verb}: wanted a run with a folder; give out to raydpzv.run")
    path = run.path if isinstance(run, Run) else run
    if not isinstance(path, str | Path):
        raise InputError(
            f"{verb}: wanted a run or its folder, got a {type(run).__name__}; make the run first: "
            "raydpzv.run(scenario, out=...)"
        )
    return Path(path)


@dataclass(frozen=True)
class RunOptions:
    """What a run is given beside its scenario.

    out: the run folder to write (None: nothing is written), or the folder of a run that continues.
    scenario: the name on record; left out: the scenario's own. progress: a function of where the
    run stands, for a callback that is told
    so after every update. stop: set it to end the run early, cleanly. address, verbose: for Ray,
    which cluster to join and whether to show what actors print. evaluated: called after every
    evaluation, which a run under the virtual clock waits for, and whose errors end it. callbacks:
    called with the run while it is at work (`Callback`). until: updates after which a run in this
    process under the virtual clock is stopped, as by the user, to resume from there.
    keep_evaluated: write a checkpoint at each evaluation under the virtual clock, before
    `evaluated` is called.
    storage: an unused one, to which a new run folder is copied. A folder that continues knows its
    own.
    """

    out: Path | RunWriter | None = None
    scenario: str = ""
    progress: Callable[[Status], None] | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    address: str | None = None
    verbose: bool = False
    data_key: bytes | None = field(default=None, repr=False)
    evaluated: Evaluated = unheard
    callbacks: Sequence[Callback] = ()
    until: int | None = None
    keep_evaluated: bool = False
    storage: StorageFolder | None = None

    def controls(self, *, keeps: bool) -> RunControls:
        """Return how a run in this process is steered; keeps: whether it takes checkpoints."""
        return RunControls(
            StopAt(self.stop, self.until), self.evaluated, keeps, self.keep_evaluated
        )

    @cached_property
    def watch(self) -> Callbacks:
        """The run's callbacks."""
        each = [StatusCallback(self.progress, interval=0.0)] if self.progress else []
        return Callbacks([*each, *self.callbacks])


@contextmanager
def run_folder(
    options: RunOptions, experiment: Prepared, *, runner: str, device: str
) -> Iterator[RunWriter | None]:
    """Give the run folder to write to, new or continued, locked while the block runs; notify
    callbacks of both ends.
    """
    out, scenario = options.out, options.scenario or experiment.spec.name
    folder = out if isinstance(out, RunWriter) else None
    if out is not None and not isinstance(out, RunWriter):
        named = {"engine": experiment.engine, "scenario": scenario}
        operator = OperatorSecrets(options.data_key or new_key(), experiment.secret)
        named |= {"note": experiment.spec.note} if experiment.spec.note else {}
        own = experiment.own_models()
        facts = (
            environment(runner, device)
            | named
            | experiment.fingerprint(operator.key)
            | layouts(own)
            | own_method(experiment.spec, rule=True)
        )
        folder = RunWriter.create(out, experiment.spec, facts, operator)
        if own:
            write_npz(folder.path / INITIAL, {name: model.flat for name, model in own.items()})
    start = RunStart(experiment.spec, scenario, runner, folder.path if folder else None)
    with folder or nullcontext():
        if folder and folder is out:
            folder.begin_leg()
        with _copied(options.storage, experiment, folder), options.watch.told(start):
            yield folder


def keep_first_models(experiment: Prepared, folder: RunFolder) -> None:
    """Write a run's initial.npz again if it is missing or damaged; the ledger's header holds the
    models' digests.
    """
    own = {name: model.flat for name, model in experiment.own_models().items()}
    try:
        kept = folder.first_models()
    except DataError:
        kept = {}
    if any(not np.array_equal(kept.get(name, ()), flat) for name, flat in own.items()):
        write_npz(folder.path / INITIAL, own)


@contextmanager
def _copied(
    place: StorageFolder | None, experiment: Prepared, folder: RunWriter | None
) -> Iterator[None]:
    """Copy the folder to its storage while the block runs, if there is one."""
    if folder is not None and (found := require_resumable(folder.path)):
        place, _ = found
    if place is None or folder is None:
        yield
        return
    fresh = fresh_noise(experiment)
    if fresh:
        warnings.warn(
            f"{place.uri}: this run's noise is the system's, so no other machine can continue it "
            "if this one is lost with the run's folder: releases would be drawn twice; keep --out "
            "on a disk that lasts",
            RuntimeWarning,
            stacklevel=2,
        )
    with copied(folder.path, place, fresh_noise=fresh) as copy:
        folder.checkpointed = copy.checkpointed
        yield


def fresh_noise(experiment: Prepared) -> bool:
    """Return whether a run that is made again after a loss would release its updates with other
    noise.

    Seeded noise is drawn to the same bits. A run whose noise no record keeps never resumes.
    """
    setting = experiment.setting
    return setting is not None and setting.noise == "system" and not experiment.unrecorded


def contradicts(error: BaseException, folder: RunWriter | None) -> bool:
    """Return whether an error shows that the checkpoint from which a run resumed contradicts its
    ledger.
    """
    return isinstance(error, ReplayMismatch) and folder is not None and folder.resumed_from != ""


class RowWriter:
    """Where rows go: the run folder if there is one, else memory; and to whom watches the run."""

    def __init__(self, folder: RunWriter | None, every: float, watch: Callbacks) -> None:
        self.folder, self._watch = folder, watch
        self._every, self._last = every, time.monotonic()
        self._kept: list[Rows] = []
        self._bytes, self._seconds = 0, 0.0  # of the last checkpoint; of writing all of them
        self._told = Counter[str]()  # rows of each type, those of earlier writers left out

    def due(self) -> bool:
        """Return whether rows should be written by now."""
        return time.monotonic() - self._last >= self._every

    def add(self, rows: Rows, *, last: bool = False) -> None:
        """Take in rows; last: the summary follows, which needs all of them."""
        self._last = time.monotonic()
        if self.folder:
            rows, given = self._untold(rows, self.folder.counts), rows
            self.folder.append(given, keep=last)
        else:
            self._kept.append(rows)
        self._watch.rows(rows)

    def go_back(self, fault: dict[str, Any], *, again: bool = True) -> None:
        """Drop the rows beyond the last checkpoint, but for those of faults; add one of these.

        again: the same rows come again, and callbacks do not get them twice; else others come, of a
        new leg.
        """
        assert self.folder is not None
        faults = self.folder.so_far("fault")
        self.folder.go_back()
        if not again:
            self._told = Counter({"fault": self._told["fault"]})
        kept = self.folder.counts.get("fault", 0)
        self.folder.append(_rows() | {"fault": faults.slice(kept)})
        self.add(_rows(fault=[fault]))

    def _untold(self, rows: Rows, counts: Mapping[str, int]) -> Rows:
        """Return those of some rows that were not reported; counts: rows of each type before
        them.
        """
        found = {}
        for name, table in rows.items():
            at = counts.get(name, 0)
            new = max(0, self._told[name] - at)
            found[name] = table.slice(new) if new else table
            self._told[name] = max(self._told[name], at + table.num_rows)
        return found

    def hold(self, rows: Rows) -> None:
        if self.folder is None:
            self.add(rows)
            return
        untold = self._untold(rows, self.folder.counts)
        self.folder.hold(rows)
        self._watch.rows(untold)

    def write_checkpoint(self, checkpoint: Checkpoint) -> int:
        """Write, if there is a folder, where the run can continue after the rows so far; return the
        bytes of that.
        """
        if self.folder:
            begun = time.monotonic()
            self._bytes = self.folder.write_checkpoint(checkpoint)
            self._seconds += time.monotonic() - begun
        return self._bytes

    def settle(self) -> None:
        """Do nothing: the checkpoint is written."""

    @property
    def checkpoint_seconds(self) -> float:
        """Seconds that writing checkpoints has taken."""
        return self._seconds

    def with_writing(self, taken: Mapping[str, Any]) -> dict[str, Any]:
        """Return what checkpoints cost in all, given what it cost to take them in another
        process.
        """
        return {
            **taken,
            "seconds": taken["seconds"] + round(self._seconds, 6),
            "bytes": self._bytes,
        }

    def all(self) -> Rows:
        """Return every row so far."""
        if self.folder:
            return self.folder.written()
        return {
            name: pa.concat_tables([empty, *(rows[name] for rows in self._kept)])
            for name, empty in EMPTY.items()
        }


class RunFinalizer:
    """Writes a run's end, whatever it is."""

    def __init__(self, experiment: Prepared, writer: RowWriter, options: RunOptions) -> None:
        self._experiment, self._writer = experiment, writer
        self._scenario = options.scenario or experiment.spec.name
        self._watch = options.watch
        self._started, self._kernels = time.monotonic(), first_calls()

    def done(
        self,
        models: Mapping[str, np.ndarray],
        status: Status,
        spent: Spent | None,
        facts: Mapping[str, Any] = MappingProxyType({}),
    ) -> Run:
        """Close a run that ended by a budget or was stopped by the user; facts: more for
        summary.json.
        """
        self._watch.last_status(status)
        spent = self._whole(spent, status, facts)
        ends = [
            {"party": name, "round": status.updates, "parameters": x.size, "sha256": sha256(x)}
            for name, x in models.items()
        ]
        self._writer.add(_rows(model=ends, pair=_pairs(self._experiment)), last=True)
        folder, reason = self._writer.folder, status.stop_reason or ""
        if folder:
            if not folder.holds(self._released(facts)):
                raise StoppedEarly(
                    f"{folder.path}: stopped before it had made again all releases of its ledger; "
                    f"continue with: {command('resume', folder.path)}"
                )
            write_models(folder.path, models)
        stopped = reason == USER
        outcome = Outcome("stopped" if stopped else "done", reason)
        run = self._summary(outcome, status, spent, models, facts)
        if folder and not stopped:
            drop_checkpoints(folder.path)
        return run

    def failed(
        self,
        error: BaseException,
        status: Status,
        spent: Spent | None,
        facts: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Close a run that broke off; its folder stays readable."""
        text = " ".join(f"{type(error).__name__}: {error}".split())
        text = named(text, self._experiment.spec.party_names)
        fault = {"time": status.time, "party": "run", "kind": type(error).__name__, "message": text}
        self._writer.add(_rows(fault=[fault]))
        if self._writer.folder and not self._writer.folder.holds(self._released(facts)):
            return
        interrupted = isinstance(error, KeyboardInterrupt)
        outcome = Outcome(
            *(("stopped", USER) if interrupted else ("failed", text)), type(error).__name__
        )
        self._summary(outcome, status, self._whole(spent, status, facts), {}, facts)

    def failing(self, status: Status) -> AbstractContextManager[None]:
        """Close a run if the block fails; what it has released is unknown then."""
        return self._failing(status, None, {})

    @contextmanager
    def _failing(
        self, status: Status, spent: Spent | None, facts: Mapping[str, Any]
    ) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.failed(error, status, spent, facts)
            raise

    def _whole(self, spent: Spent | None, status: Status, facts: Mapping[str, Any]) -> Spent | None:
        """Return the account; None if the ledger may hold releases that a resumed run has not made
        again yet.
        """
        if not self._experiment.releases_again:
            return spent
        return spent if "ledger" in facts and status.updates >= facts["ledger"]["updates"] else None

    def _released(self, facts: Mapping[str, Any]) -> int:
        """Return how many releases the ledger holds, if the run has one that holds releases."""
        kept = self._experiment.ledger_of_releases and "ledger" in facts
        return int(facts["ledger"]["pairs"]) if kept else 0

    def _summary(
        self,
        outcome: Outcome,
        status: Status,
        spent: Spent | None,
        models: Mapping[str, np.ndarray],
        facts: Mapping[str, Any],
    ) -> Run:
        rows = self._writer.all()
        seconds = time.monotonic() - self._started
        kernels = first_calls().since(self._kernels).beside(facts.get("kernels", FirstCalls()))
        rest = {name: fact for name, fact in facts.items() if name != "kernels"}
        if kernels.compiled:
            rest["kernels"] = {"compiled": kernels.compiled, "seconds": round(kernels.seconds, 3)}
        folder = self._writer.folder
        if folder and folder.updates_before:
            rest["updates_before"] = folder.updates_before
        beyond = folder is not None and has_restarted(folder)
        ending = Ending(outcome, seconds, status.time, status.updates, spent, rest, beyond)
        summary = summarise(self._scenario, self._experiment, rows, ending)
        if folder:
            folder.write_summary(summary)
        self._watch.summary(summary)
        return Run(summary, rows, models, folder.path if folder else None, self._experiment)


def _rows(**given: list[dict[str, Any]]) -> Rows:
    recorder = Recorder()
    for name, rows in given.items():
        for row in rows:
            recorder.emit(name, **row)
    return recorder.drain()


def _pairs(experiment: Prepared) -> list[dict[str, Any]]:
    """Rows that say how many records each user has in each silo; none of a run that protects no
    users.
    """
    parts = experiment.user_parts
    if parts is None:
        return []
    return [
        {"user": user, "silo": silo, "records": records}
        for silo in range(parts.clients)
        for pairs in (parts.pairs(silo),)
        for user, records in zip(pairs.users.tolist(), pairs.counts.tolist(), strict=True)
    ]
