"""The run of one trial of Ray Tune: its folder, and the copies that Tune keeps as its checkpoints.

A copy is the run's folder as it was at an evaluation. Its `trial.json` names the trial and the
branch. A run gets a new branch when it starts and when it takes over another trial's copy. So a
trial that loads a copy of its own branch resumes in its folder, which is at least as far, and
releases nothing twice.

A folder that a trial leaves is set aside. Its releases stay released, and a search charges them.
"""

from __future__ import annotations

import json
import math
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from raydpzv.compare.run_comparison import set_aside
from raydpzv.config.paths import locations
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_tree, override
from raydpzv.errors import DataError, InputError, NotRecomputable
from raydpzv.experiment.diagnostics import DIVERGED
from raydpzv.experiment.finalize import fresh_noise
from raydpzv.experiment.prepare import Prepared, prepare
from raydpzv.experiment.resuming import continued
from raydpzv.files import as_json, is_written, private_folder, write_atomically
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.schedule import changes_of, schedule_of
from raydpzv.records.fork import fork
from raydpzv.records.run_folder import RunFolder, last_round
from raydpzv.records.run_writer import RunWriter
from raydpzv.records.settings_diff import other_setting
from raydpzv.search.schedulers import step_sizes
from raydpzv.search.space import literal
from raydpzv.trust import code_words, trust_code

MEASURED = ("accuracy", "loss", "roc_auc", "pr_auc", "balanced_accuracy", "concordance")
_FACTS = "trial.json"
_RELEASED_WITHIN = 60.0
"""Seconds in which a process that was killed gives up its run's folder."""
_LOOK = 0.1
"""Seconds between looks at a folder that another process writes."""


@dataclass(frozen=True)
class _Facts:
    """What `trial.json` says of a folder or a copy."""

    trial: str = ""
    """Whose it is."""
    branch: str = ""
    """See above."""
    folder: str = ""
    """The path of the run's folder."""
    settings: Sequence[str] = ()
    """What the trial tries, "key=value" each."""
    copied: Sequence[Sequence[Any]] = ()
    """Trials whose runs this one took over, each with the updates they had made."""
    replaces: str = ""
    """The folder set aside for this copy, if the copy released each record at least as often."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """What the trial reported last."""


class TrialRun:
    """One trial's run. path: its folder; spec: the scenario with the trial's settings; trial: its
    name.

    settings: what the trial tries. charged: is what the trial sets aside charged by a search? Then
    a run that cannot resume is set aside and starts again.
    """

    def __init__(
        self,
        path: Path,
        spec: AnyScenario,
        trial: str,
        settings: Sequence[str] = (),
        *,
        charged: bool = False,
    ) -> None:
        self.path, self._spec, self._trial = path, spec, trial
        self._settings, self._charged = tuple(settings), charged

    @property
    def spec(self) -> AnyScenario:
        """The scenario with the trial's settings."""
        return self._spec

    def started(self) -> tuple[Prepared, Path | RunWriter]:
        """Return what runs next, and its folder: a new run, or the one on record.

        Raises InputError if the folder holds a run with other settings, or one that cannot be
        resumed, unless it is charged.
        """
        if RunFolder.begun(self.path):
            # a process that was killed holds the folder's lock for a while
            until = time.monotonic() + _RELEASED_WITHIN
            while is_written(self.path) and time.monotonic() < until:
                time.sleep(_LOOK)
            try:
                return self._continued()
            except (NotRecomputable, _OtherSettings):
                if not self._charged:
                    raise
                self.path.rename(set_aside(self.path)[0])

        # prepared first: what is refused has released nothing, and leaves no folder
        prepared = prepare(self._spec)
        self._note(_Facts())
        return prepared, self.path

    def _continued(self) -> tuple[Prepared, RunWriter]:
        there = RunFolder.open(self.path, self._moved())
        with self._trust(there):
            if self._changed(there.spec(code=True)):
                raise _OtherSettings(
                    f"{self.path}: holds the run of this trial with other step sizes; choose "
                    "another out folder"
                )
            experiment, folder, _ = continued(self.path, self._moved())
        return experiment, folder

    def final_report(self) -> dict[str, Any] | None:
        """Return what a run measured at its end; None if it would resume.

        A run that diverged would do so again.
        """
        if not RunFolder.begun(self.path) or not RunFolder(self.path).has_summary():
            return None
        summary = RunFolder(self.path).summary()
        if summary["status"] != "done" and summary.get("failure") != DIVERGED:
            return None

        names = [f"{part}{name}" for part in ("", "validation_") for name in MEASURED]
        found = {name: summary.get(name) for name in (*names, "updates", "simulated_seconds")}
        return {
            name: value
            for name, value in found.items()
            if value is not None and not math.isnan(value)
        }

    def save(self, copy: Path, report: Mapping[str, Any], *, paused: bool) -> None:
        """Copy the run's folder into an existing folder.

        report: what the trial reported last; paused: nothing writes the folder now. A run that is
        not paused, under
        the wall clock, is not copied: the copy then only says where the run's folder is.
        """
        if paused and RunFolder.begun(self.path):
            shutil.copytree(
                self.path, copy, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True
            )
        mine = _facts(self.path)
        _write(copy, replace(mine, trial=self._trial, folder=str(self.path), report=report))

    def load(self, copy: Path) -> dict[str, Any]:
        """Make the trial's folder that of a run that resumes from a copy; return what was reported
        then.

        Raises InputError if no run can resume from it under this trial's settings.
        """
        facts = _facts(copy)
        if facts.branch == _facts(self.path).branch:
            return dict(facts.report)
        if not RunFolder.begun(copy):
            raise InputError(
                f"{copy}: names {facts.folder} as the run's folder and holds no copy of it, since "
                "real time does not stand still; give trainable() an out folder that all machines "
                "see, and leave it in its place"
            )

        there = RunFolder.open(copy, self._moved())
        with self._trust(there):
            changed = self._changed(there.spec(code=True))
        if facts.trial == self._trial and not changed:
            self._take_back(copy, facts)
        else:
            self._take_over(copy, there, changed)
        return dict(facts.report)

    def _take_back(self, copy: Path, facts: _Facts) -> None:
        """Resume the trial's own run, whose folder is lost."""
        complete = RunFolder(copy).completed_by() is not None
        uncharged = not (self._charged and self.path.is_dir())
        if not complete and uncharged and fresh_noise(prepare(self._spec)):
            raise InputError(
                f"{self.path}: wanted the run's own folder, which may hold releases that {copy} "
                "lacks: noise of the system's would be drawn a second time and not charged; give "
                "trainable() an out folder that lasts and that all machines see, or start the "
                "trial anew"
            )

        made = self.path.with_name(f"{self.path.name}.copy")
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(copy, made)
        if self.path.is_dir():
            self.path.rename(set_aside(self.path)[0])
        made.rename(self.path)
        self._note(facts)

    def _take_over(self, copy: Path, there: RunFolder, changed: Mapping[str, float]) -> None:
        """Resume from another run, with these step sizes after the updates that it had made.

        Those are more than its checkpoint counts where they were its last ones.
        """
        facts, mine = _facts(copy), _facts(self.path)
        with self._trust(there):
            checkpoint, method = there.checkpoint(), there.spec(code=True).method
        if checkpoint is None:
            raise DataError(
                f"{copy}: has no checkpoint from which another trial could resume: the run is "
                "finished, or its noise on rows came from the system and was not kept"
            )
        made = max(checkpoint.round, int(facts.report.get("updates", 0)))

        later = {
            name: [*changes_of(method, name), (made + 1, value)] for name, value in changed.items()
        }
        changes = [f"method.{name}_at={json.dumps(each)}" for name, each in later.items()]

        left, replaces = set_aside(self.path)[0], ""
        # trials differ in step sizes alone, so as many updates released each record as often
        if RunFolder.begun(self.path) and self._spec.clock.kind == "virtual":
            replaces = left.name if updates_made(self.path) <= made else ""
        fork(copy, self.path, changes, left)
        self._note(_Facts(copied=[*mine.copied, (facts.trial, made)], replaces=replaces))

    def _changed(self, there: AnyScenario) -> dict[str, float]:
        """Return the trial's step sizes that differ from those that a run has by now.

        Raises InputError if any other setting differs.
        """
        mine, method = self._spec.method, there.method
        names = step_sizes(method) if mine.name == method.name else []
        names = [name for name in names if schedule_of(mine, name) != schedule_of(method, name)]
        same = [f"method.{name}={literal(getattr(method, name))}" for name in names]
        same += [
            f"method.{n}_at={json.dumps(made)}" for n in names if (made := changes_of(method, n))
        ]

        planned = [f"method.{name}_at" for name in names if changes_of(mine, name)]
        if other := other_setting(there, self._spec if planned else override(self._spec, same)):
            able = " and ".join(f"method.{name}" for name in sorted(step_sizes(method))) or "none"
            raise _OtherSettings(
                f"the run of trial {self._trial} cannot resume with other settings: {other}; "
                f"settings that may change in mid-run: {able}"
            )

        now = {name: schedule_of(method, name).at(2**63) for name in names}
        return {
            name: getattr(mine, name) for name, value in now.items() if getattr(mine, name) != value
        }

    def _trust(self, there: RunFolder) -> AbstractContextManager[None]:
        """Trust a folder whose scenario names no other code than the trial's own."""
        return trust_code(set(code_words(there.settings())) <= set(code_words(as_tree(self._spec))))

    def _moved(self) -> list[str]:
        return locations(as_tree(self._spec))

    def _note(self, facts: _Facts) -> None:
        """Write whose the folder is, with a new branch unless `facts` has one."""
        private_folder(self.path)
        mine = replace(
            facts,
            trial=self._trial,
            branch=facts.branch or uuid.uuid4().hex,
            folder=str(self.path),
            settings=self._settings,
        )
        _write(self.path, mine)


class _OtherSettings(InputError):
    """A folder holds a run with other settings than the trial's."""


def settings_of_trial(folder: Path) -> tuple[str, ...]:
    """Return what the trial of a run's folder tries."""
    return tuple(_facts(folder).settings)


def runs_copied(folder: Path) -> list[tuple[str, int]]:
    """Return the trials whose runs a trial took over, each with the updates they had made."""
    return [(str(trial), int(updates)) for trial, updates in _facts(folder).copied]


def left_runs(folder: Path) -> Iterator[Path]:
    """Yield the folders that a trial has set aside and that no copy stands for."""
    left = [
        folder.with_name(f"{folder.name}.set-aside-{n}") for n in range(1, set_aside(folder)[1] + 1)
    ]
    replaced = {_facts(path).replaces for path in (folder, *left)}
    yield from (path for path in left if path.name not in replaced)


def updates_made(run: Path) -> int:
    """Return how many updates a run may have made, by all that is on its record."""
    folder = RunFolder(run)
    checkpoint = folder.checkpoint()
    made = [checkpoint.round if checkpoint else 0, last_round(run, "release")]
    if folder.has_summary():
        made.append(int(folder.summary()["updates"]))
    if (folder.ledger / "header.json").exists():
        with Ledger.open(folder.ledger) as ledger:
            made.append(ledger.version)
    return max(made)


def _write(folder: Path, facts: _Facts) -> None:
    write_atomically(folder / _FACTS, as_json(asdict(facts)).encode())


def _facts(folder: Path) -> _Facts:
    """Return whose a folder is. Raises DataError if the file that says so is damaged."""
    path = folder / _FACTS
    if not path.is_file():
        return _Facts()
    try:
        return _Facts(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: is damaged ({error}); start the trial anew") from None
