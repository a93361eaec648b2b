"""Read a run's folder: scenario, environment, rows, checkpoint, models, summary."""

from __future__ import annotations

import json
import shutil
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from raydpzv.config.paths import check_moved
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import overridden, parse, tree_sha256
from raydpzv.config.tree import checked, is_text, read_toml
from raydpzv.errors import DataError, InputError, SpecError, command
from raydpzv.files import is_written, read_small, require_files, write_npz
from raydpzv.foreign import is_foreign
from raydpzv.methods.recorded_method import METHOD, method_on_record
from raydpzv.records.checkpoint import CHECKPOINT, Checkpoint, Found, before, read_checkpoint
from raydpzv.records.environment import DATA_DIGEST
from raydpzv.records.store import Extent, KeptParts, Rows, read_all, read_rows
from raydpzv.records.summary_fields import check_format, faults
from raydpzv.records.write_ahead_log import TAIL, last_round_in_logs
from raydpzv.trust import code_words, require_trust

SCENARIO, ENVIRONMENT = "scenario.toml", "environment.json"
_WORDS = (("method", "name"), ("clock", "kind"), ("data", "source"))
"""Words of a scenario that decide what the rest means."""
INITIAL, MODELS, SUMMARY = "initial.npz", "models.npz", "summary.json"
PUBLISHED = "published.json"
"""In place of the summary in a folder that `publish` wrote."""


class RunFolder:
    """A run's folder, for reading. All files are written atomically, so a reader never sees half a
    file.

    All code reads run folders through this class, so that a damaged one raises the same DataError
    everywhere. Use `raydpzv.records.run_writer.RunWriter` to write.
    """

    def __init__(self, path: Path, moved: Sequence[str] = ()) -> None:
        self.path = path
        self._moved = check_moved(moved)
        self._stat: tuple[int, int, int, bool] | None = None
        self._found: Found | None = None  # the checkpoint of the file with this stat

    @classmethod
    def open(cls, path: Path, moved: Sequence[str] = ()) -> Self:
        """Open an existing run's folder, whose scenario must have the digest on record.

        moved: where its data are now, as "data.folder=...", "data.file=..." or "arrivals.file=...".
        Raises DataError if there is no run, SpecError if `moved` has another setting, InputError if
        the scenario was changed.
        """
        if not cls.begun(path):
            why = f"no {SCENARIO} in it" if path.exists() else "it does not exist"
            raise DataError(f"{path}: not a run folder ({why}); give the folder of a run")
        require_files(path)
        found = cls(path, moved)
        found.check_scenario()
        return found

    def check_scenario(self) -> None:
        """Raise InputError if scenario.toml has another digest than the one on record, if one is.

        It is what the file holds that counts: nothing that it names is looked up.
        """
        try:
            recorded = self.environment().get("scenario_sha256")
        except DataError:  # what reads the file says so
            return
        if recorded is not None and recorded != tree_sha256(self._tree()):
            raise changed(self.path, SCENARIO)

    @staticmethod
    def begun(path: Path) -> bool:
        """Return whether a run has started in this folder."""
        return (path / SCENARIO).is_file()

    @property
    def published(self) -> bool:
        """Whether `publish` wrote this folder, and not the run itself."""
        return (self.path / PUBLISHED).is_file()

    @property
    def ledger(self) -> Path:
        """The path of the run's ledger."""
        return self.path / "ledger"

    def found_checkpoint(self, *, only_last: bool = False) -> Found | None:
        """Return `read_checkpoint`'s result; read a file only once while it does not change."""
        path = self.path / CHECKPOINT
        stat = path.stat() if path.is_file() else None
        key = (stat.st_ino, stat.st_size, stat.st_mtime_ns, only_last) if stat else None
        if key is None or key != self._stat:
            self._stat, self._found = key, read_checkpoint(path, self.identity, only_last=only_last)
        return self._found

    def checkpoint(self, *, only_last: bool = False) -> Checkpoint | None:
        """Return the checkpoint that the run resumes from, if there is one; see
        `read_checkpoint`.
        """
        found = self.found_checkpoint(only_last=only_last)
        return found.checkpoint if found else None

    def checkpoint_sha256(self) -> str:
        """Return the digest of the checkpoint that `checkpoint` returns; "" without one."""
        found = self.found_checkpoint()
        return found.sha256 if found else ""

    @cached_property
    def identity(self) -> str:
        """The digest of the run's data, whose key each run has of its own: it identifies the
        run.
        """
        if not (self.path / ENVIRONMENT).is_file():
            return ""
        return str(self.environment().get(DATA_DIGEST, ""))

    def scenario(self) -> str:
        """Return the text of scenario.toml."""
        try:
            return read_small(self.path / SCENARIO).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise damaged(self.path / SCENARIO, "text in UTF-8", error) from None

    def settings(self) -> dict[str, Any]:
        """Return the tables of scenario.toml, not validated, with the data where they are now."""
        return overridden(self._tree(), self._moved)

    def _tree(self) -> dict[str, Any]:
        try:
            tree = checked(read_toml(self.scenario()), SCENARIO)
            for table, word in _WORDS:
                section = tree.get(table, {})
                if not isinstance(section, dict) or not isinstance(section.get(word, ""), str):
                    raise SpecError(f"{table}.{word} is no text")
            return tree
        except (tomllib.TOMLDecodeError, SpecError) as error:
            raise damaged(self.path / SCENARIO, "a TOML file", error) from None

    def spec(self, *, code: bool = False) -> AnyScenario:
        """Return the resolved scenario, with the data where they are now and the note of the run's
        start.

        code: what it names is imported as it is needed. Else a user's own method is the one that
        the record describes, which has no roles. Raises InputError as `require_trust` does.
        """
        tree = {"name": "scenario", **self.settings()}
        facts = self.environment() if (self.path / ENVIRONMENT).is_file() else {}
        own, recorded = _names_method(tree), None
        if own and METHOD in facts and not code:
            recorded = method_on_record(tree["method"], facts[METHOD])
        elif own or code:
            self.require_trust()
        return parse(tree, str(self.path / SCENARIO), recorded).noted(str(facts.get("note", "")))

    def require_trust(self) -> None:
        """Raise InputError if the scenario names code and this user did not make the folder here.

        See `raydpzv.trust`. Nothing of that code is imported before.
        """
        require_trust(self.path, SCENARIO, code_words(self.settings()))

    def environment(self) -> dict[str, Any]:
        """Return environment.json."""
        return _json(self.path / ENVIRONMENT, lambda: "it was deleted; restore it from a copy")

    def rows(self, kept: KeptParts | None = None) -> Rows:
        """Return the rows of the record; of an unfinished run, also those that only its checkpoint
        has.

        If the parts hold more rows than the checkpoint counts, they hold those of the checkpoint.
        kept: of `read_rows`.
        """
        found = None if self.has_summary() else self.found_checkpoint()
        parts = read_all(
            self.path, kept
        )  # after the checkpoint: its log may become parts meanwhile
        if not found or not found.packed:
            return parts
        tail, counted = found.tail, {name: found.extents.get(name, Extent()).rows for name in parts}
        return {
            name: pa.concat_tables([rows, tail[name]]) if rows.num_rows == counted[name] else rows
            for name, rows in parts.items()
        }

    def has_summary(self) -> bool:
        """Return whether the run ended in any way; a killed run did not."""
        return (self.path / self._summary).is_file()

    def summary(self) -> dict[str, Any]:
        """Return summary.json, or what was published of it; DataError if there is none yet."""
        path = self.path / self._summary
        found = _json(path, lambda: unended(self.path))
        check_format(found, path)
        for fault in faults(found):
            raise damaged(path, "what a run writes", fault)
        return found

    def completed_by(self) -> str | None:
        """Return which budget ended the run; None if it was stopped, failed or was killed."""
        if not self.has_summary() or (summary := self.summary()).get("status") != "done":
            return None
        return str(summary.get("stopped_by") or "its budget is spent")

    @property
    def _summary(self) -> str:
        return PUBLISHED if self.published else SUMMARY

    def require_own_record(self) -> None:
        """Raise InputError for a folder that `publish` wrote."""
        if self.published:
            raise InputError(
                f"{self.path}: holds what was published of a run, which is too little to continue "
                "from or to run again; take the run's own folder"
            )

    def models(self) -> dict[str, np.ndarray]:
        """Return every party's flat parameters, float32 [d], by its name. Raises DataError."""
        return _vectors(self.path / MODELS)

    def first_models(self) -> dict[str, np.ndarray]:
        """Return models before the first update, float32 [d], that only their user can make again.
        Raises DataError.
        """
        path = self.path / INITIAL
        return _vectors(path) if path.exists() else {}


def _vectors(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path) as stored:
            return {name.replace("_", " "): stored[name] for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise damaged(path, "parameters by party", error) from None


def column_rows(folder: RunFolder, name: str, columns: Sequence[str]) -> pa.Table:
    """Return these columns of the record's rows of one type, with those that only the checkpoint
    has.

    Rows that became parts after that checkpoint are there twice, as parts the second time.
    """
    columns, found = list(columns), folder.found_checkpoint()
    parts = read_rows(folder.path, name, columns=columns)
    return pa.concat_tables([found.tail[name].select(columns), parts]) if found else parts


def last_round(run: Path, name: str) -> int:
    """Return the last round of a run's rows of one type, also beyond the checkpoint; 0: there are
    none.
    """
    parts = read_rows(run, name, columns=["round"])["round"].to_pylist()
    return max([last_round_in_logs(run, name), *parts])


def changed(run: Path, what: str) -> InputError:
    """Return the error of a folder whose record belongs to something else than is there now."""
    return InputError(
        f"{run}: {what} changed since the run began, so its record does not belong to it; "
        "start a new run with --out"
    )


def _names_method(tree: Mapping[str, Any]) -> bool:
    method = tree.get("method")
    return isinstance(method, Mapping) and is_foreign(method.get("name"))


def unended(run: Path) -> str:
    """Return why a run has no summary, and what to do."""
    if written := is_written(run):
        return "another process is writing this run; wait for it, or stop it"
    what = "came to no end here" if written is None else "was killed"
    return f"the run {what}; continue it first: {command('resume', run)}"


def write_models(run: Path, models: Mapping[str, np.ndarray]) -> None:
    """Write every party's flat parameters to models.npz."""
    write_npz(run / MODELS, models)


def drop_checkpoints(run: Path) -> None:
    """Delete the checkpoints of a run that has ended."""
    last = run / CHECKPOINT
    # in this order: a reader that finds an older one finds the last one too
    for path in (before(last), last):
        path.unlink(missing_ok=True)
    if (run / TAIL).is_dir():
        shutil.rmtree(run / TAIL)


def damaged(path: Path, wanted: str, why: object) -> DataError:
    """Return the error of a file that does not hold what a run writes."""
    reason = " ".join(str(why).split())[:150]
    return DataError(
        f"{path}: is damaged: wanted {wanted} ({reason}); restore it from a copy, or run it again"
    )


def _plain(value: Any) -> Any:
    """Return what JSON holds, with what a terminal would obey escaped in each text."""
    if isinstance(value, str):
        escaped = (c if is_text(c) else ascii(c)[1:-1] for c in value)
        return value if is_text(value) else "".join(escaped)
    if isinstance(value, dict):
        return {_plain(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _json(path: Path, why: Callable[[], str]) -> dict[str, Any]:
    if not path.is_file():
        raise DataError(f"{path.parent}: has no {path.name}: {why()}")
    try:
        value = _plain(json.loads(read_small(path)))
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, "a JSON object", error) from None
    if not isinstance(value, dict):
        raise damaged(path, "a JSON object", f"it holds a {type(value).__name__}")
    return value
