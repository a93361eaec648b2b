import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import scenarios
from raydpzv.errors import DataError
from raydpzv.experiment.finalize import RunFinalizer
from raydpzv.experiment.resuming import resuming
from raydpzv.records.checkpoint import CHECKPOINT, before
from raydpzv.records.run_writer import RunWriter
from raydpzv.sim.privacy_filter import PlanFilter
from tests.helpers.kills import Killed, kill_at
from tests.helpers.runs import run_prepared

SMALL = (
    "data.train_rows=150",
    "data.test_rows=60",
    "split.clients=3",
    "users.count=12",
    "evaluate.every=5",
    "budget.updates=8",
    "record.flush=1e-3",
    "privacy={}",
    "privacy.mode=user",
    "privacy.multiplier=2.0",
    "privacy.delta=1e-3",
    "privacy.clip=0.1",
)


def small(*overrides: str) -> Any:
    return scenarios.load("digits_users", [*SMALL, *overrides])


def resume(folder: Path) -> Any:
    prepared, opened, _ = resuming(folder)
    return run_prepared(prepared, opened)


class Releases:
    """Counts each silo's releases as they are charged, and ends the program at one of them."""

    def __init__(self) -> None:
        self.of = Counter[int]()
        self.last: int | None = None
        self._charge = PlanFilter.charge

    def __call__(self, account: PlanFilter, client: int, *given: Any, **named: Any) -> Any:
        found = self._charge(account, client, *given, **named)
        self.of[client] += 1
        if self.last is not None and sum(self.of.values()) >= self.last:
            raise Killed
        return found


def charged(summary: dict[str, Any]) -> int:
    return int(summary["epsilon"][0]["scope"].split()[0])


@pytest.fixture
def releases(monkeypatch: pytest.MonkeyPatch) -> Releases:
    counts = Releases()
    monkeypatch.setattr(PlanFilter, "charge", lambda *a, **k: counts(*a, **k))
    return counts


@contextmanager
def unsettled() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFinalizer, "failed", lambda *_: None)
        yield patch


def killed(releases: Releases, after: int, begin: Any) -> None:
    """End a leg after so many more releases, without any settling."""
    releases.last = sum(releases.of.values()) + after
    with unsettled(), pytest.raises(Killed):
        begin()
    releases.last = None


def ending_at_checkpoints(operation: Any, error: type[BaseException]) -> Any:
    def ending(*names: Any) -> Any:
        if "checkpoint" in str(names[0]):
            raise error(28, "No space left on device")
        return operation(*names)

    return ending


@pytest.mark.parametrize("ended", [Killed, OSError])
def test_segments_that_end_within_a_checkpoints_writing_are_charged(
    tmp_path: Path, releases: Releases, ended: type[BaseException]
) -> None:
    """Twice at one place a leg is lost in a round, then others at each step by which a checkpoint
    takes its name.
    """
    run = tmp_path / "run"
    killed(releases, 3 * 3 + 2, lambda: scenarios.run(small(), run))
    for _ in range(2):
        killed(releases, 2, lambda: resume(run))
    for step in ((Path, "rename"), (os, "link"), (Path, "replace")):
        if step == (os, "link") and ended is OSError:
            continue  # there are file systems without links

        with unsettled() as patch:
            patch.setattr(*step, ending_at_checkpoints(getattr(*step), ended))
            with pytest.raises(BaseException, match="No space left"):
                resume(run)
        assert (run / CHECKPOINT).is_file()
    summary = resume(run).summary
    assert summary["updates"] == 8
    assert charged(summary) >= max(releases.of.values()) > 8 + 2


def test_a_segment_of_another_process_that_was_begun_and_lost_meanwhile_is_charged(
    tmp_path: Path, releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What legs were begun is read by whoever holds the folder."""
    run, locked, waiting, go_on = (
        tmp_path / "run",
        RunWriter.locked,
        threading.Event(),
        threading.Event(),
    )
    killed(releases, 3 * 3 + 2, lambda: scenarios.run(small(), run))
    found: list[Any] = []

    def late(*given: Any) -> RunWriter:
        waiting.set()
        assert go_on.wait(60)
        return locked(*given)

    monkeypatch.setattr(RunWriter, "locked", late)
    other = threading.Thread(target=lambda: found.append(resuming(run)))
    other.start()
    assert waiting.wait(60)
    monkeypatch.setattr(RunWriter, "locked", locked)
    for _ in range(2):
        killed(releases, 2, lambda: resume(run))
    go_on.set()
    other.join()
    ((prepared, opened, _),) = found
    assert charged(run_prepared(prepared, opened).summary) >= max(releases.of.values())


def test_a_run_whose_newest_checkpoints_are_gone_does_not_continue(tmp_path: Path) -> None:
    kill_at(6, small(), tmp_path / "run", checkpoints=5)
    run, older = tmp_path / "run", tmp_path / "older"
    whole = shutil.copytree(run / "rows", tmp_path / "rows")
    kill_at(2, small(), older, checkpoints=1)
    (run / CHECKPOINT).rename(tmp_path / "newest")
    with pytest.raises(DataError, match="is missing, and checkpoint"):
        resuming(run)
    before(run / CHECKPOINT).unlink()
    with pytest.raises(DataError, match=r"has rows of round \d, but no checkpoint"):
        resuming(run)
    shutil.rmtree(run / "rows")
    (run / "rows").mkdir()
    with pytest.raises(
        DataError, match=r"has rows of round 6, but no checkpoint"
    ):  # those in no part yet
        resuming(run)
    shutil.rmtree(run / "rows")
    whole.rename(run / "rows")
    (older / CHECKPOINT).rename(run / CHECKPOINT)
    with pytest.raises(DataError, match="is a checkpoint of another run"):
        resuming(run)
    (tmp_path / "newest").replace(run / CHECKPOINT)
    assert resume(run).summary["updates"] == 8
