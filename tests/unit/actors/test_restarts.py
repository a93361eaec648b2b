"""How a run whose actors were lost goes back in place: what is charged, what is told, and when it does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

import actors.restarts
from actors.restarts import Restarts
from raydpzv.errors import Lost, RunError, Stalled
from raydpzv.experiment.finalize import RowWriter
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.methods.roles import Metrics
from raydpzv.records.callbacks import Callbacks
from raydpzv.records.run_folder import RunFolder
from raydpzv.sim.interfaces import Status, unheard
from tests.helpers.kills import kill_at
from tests.helpers.small_horizontal import small as small_rounds
from tests.integration.resume.test_uldp_zo import small

LOSS = Lost("an actor was lost", "")


@contextmanager
def restarts(spec, folder, evaluated=unheard) -> Iterator[Restarts]:
    """What a driver has of a run that was lost after four updates."""
    kill_at(4, spec, folder, checkpoints=1)
    with RunFolder.reopened(folder) as opened:
        writer = RowWriter(opened, spec.record.flush, Callbacks(()))
        yield Restarts(prepare_horizontal(spec), writer, evaluated)


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize(("kind", "each"), [("rounds", 1), ("asynchronous", 3)])
def test_every_leg_that_came_no_further_is_charged_to_a_run_of_users(
    tmp_path: Path, kind: str, each: int, *, checkpoint: bool
) -> None:
    """Each may have released what was under way; of the leg that wrote the checkpoint the account itself knows."""
    with restarts(small(kind, "record.checkpoint_updates=2"), tmp_path / "run") as lost:
        if not checkpoint:
            for path in tmp_path.glob("run/checkpoint*"):
                path.unlink()
        found = [lost.go_back(LOSS, "server", Status(updates=4)) for _ in range(3)]
    first = 0 if checkpoint else 1
    assert [each * legs for legs in range(first, first + 3)] == [prepared.lost for prepared in found]
    assert found[-1].privacy_filter().spent().releases == each * (first + 2)


def test_a_run_without_an_account_notes_no_legs(tmp_path: Path) -> None:
    with restarts(small_rounds("decomfl", "record.checkpoint_updates=2"), tmp_path / "run") as lost:
        lost.go_back(LOSS, "server", Status(updates=4))
    assert not (tmp_path / "run" / "begun_legs.json").exists()


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_who_watches_hears_of_an_evaluation_once_unless_a_new_leg_makes_it(
    tmp_path: Path, clock: str
) -> None:
    heard, metrics = list[int](), Metrics(0.5, 1.0, 0.5)
    spec = small_rounds(
        "asynchronous", f"clock.kind={clock}", "arrivals.rate=200", "record.checkpoint_updates=2"
    )
    with restarts(spec, tmp_path / "run", lambda status, _: heard.append(status.updates)) as lost:
        lost.evaluated(Status(updates=0), metrics)
        lost.evaluated(Status(updates=4), metrics)
        lost.go_back(LOSS, "server", Status(updates=4))
        for updates in (2, 4, 5):
            lost.evaluated(Status(updates=updates), metrics)
    assert heard == ([0, 4, 5] if clock == "virtual" else [0, 4, 2, 4, 5])


def test_a_loss_is_survived_as_often_as_is_allowed(tmp_path: Path) -> None:
    spec = small_rounds("decomfl", "record.checkpoint_updates=2", "resources.restarts=3")
    with restarts(spec, tmp_path / "run") as lost:
        assert not lost.allow(RunError("wrong"), "server", Status(updates=4), 0), "no actor was lost"
        assert lost.allow(LOSS, "server", Status(updates=4), 0)
        assert not lost.allow(LOSS, "server", Status(updates=4), 0), "it came no further"
        assert lost.allow(LOSS, "client group 0", Status(updates=4), 0), "somebody else"
        assert lost.allow(Stalled("waited"), "client group 0", Status(updates=4), 0), "for another reason"
        assert not lost.allow(LOSS, "client group 0", Status(updates=8), 0), "three are allowed"
    with restarts(spec, tmp_path / "another") as lost:
        assert not lost.allow(LOSS, "server", Status(updates=4), 3), "that were made again in place"
    with restarts(
        spec.model_copy(update={"resources": spec.resources.model_copy(update={"restarts": 0})}),
        tmp_path / "none",
    ) as lost:
        assert not lost.possible


def test_a_run_whose_ledger_somebody_still_writes_does_not_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.restarts, "_UNLOCKED_WITHIN", 0.05)
    folder = tmp_path / "run"
    with (
        restarts(small_rounds("decomfl", "record.checkpoint_updates=2"), folder) as lost,
        FileLock(folder / "ledger" / ".lock"),
        pytest.raises(RunError, match=r"waited 0\.05 s for the process that wrote this ledger to end"),
    ):
        lost.go_back(LOSS, "server", Status(updates=4))
