"""How a run whose actors were lost goes back in place: what is charged, what is told, and when it
does not.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

import actors.restarts
import scenarios
from actors.restarts import RestartFromCheckpoint, Restarts
from raydpzv.errors import Lost, ReplayMismatch, RunError, Stalled
from raydpzv.experiment.finalize import RowWriter
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.experiment.prepare import prepare
from raydpzv.methods.roles import Metrics
from raydpzv.records.callbacks import Callbacks
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.run_writer import RunWriter
from raydpzv.records.secrets_file import OperatorSecrets
from raydpzv.sim.interfaces import Status, unheard
from tests.helpers.kills import kill_at
from tests.helpers.reopened import reopened
from tests.helpers.small_horizontal import small as small_rounds
from tests.helpers.small_users import small

LOSS = Lost("an actor was lost", "")


@contextmanager
def restarts(spec, folder, evaluated=unheard, checkpoints=1) -> Iterator[Restarts]:
    """What a driver has of a run that was lost after four updates."""
    kill_at(4, spec, folder, checkpoints=checkpoints)
    with reopened(folder) as opened:
        writer = RowWriter(opened, spec.record.flush, Callbacks(()))
        yield Restarts(prepare_horizontal(spec), writer, evaluated)


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize(("kind", "each"), [("rounds", 1), ("asynchronous", 3)])
def test_every_segment_that_came_no_further_is_charged_to_a_run_of_users(
    tmp_path: Path, kind: str, each: int, *, checkpoint: bool
) -> None:
    """Each may have released what was under way; of the leg that wrote the checkpoint the account
    itself knows.
    """
    spec = small(kind, "record.checkpoint_updates=2", "record.flush=1e-3")
    with restarts(spec, tmp_path / "run") as lost:
        if not checkpoint:
            for path in tmp_path.glob("run/checkpoint*"):
                path.unlink()
        found = [lost.go_back(LOSS, "server", Status(updates=4)) for _ in range(3)]
    first = 0 if checkpoint else 1
    assert [each * legs for legs in range(first, first + 3)] == [
        prepared.lost for prepared in found
    ]
    assert found[-1].privacy_filter().spent().releases == each * (first + 2)
    *_, fault = RunFolder.open(tmp_path / "run").rows()["fault"].to_pylist()
    assert (fault["party"], fault["kind"]) == ("server", "Lost")
    place = "its checkpoint after update \\d" if checkpoint else "its start"
    assert re.search(
        rf"^an actor was lost; .* \(0 of 3\), and the run continues from {place}$", fault["message"]
    )


def test_a_contradicted_checkpoint_is_given_up_whatever_was_lost_before(tmp_path: Path) -> None:
    spec = small(
        "asynchronous", "record.checkpoint_updates=2", "record.flush=1e-3", "resources.restarts=1"
    )
    wrong = ReplayMismatch(
        "update 5: its party is not what the ledger has; another machine or other versions"
    )
    with restarts(spec, tmp_path / "run", checkpoints=2) as lost:
        found, places = [], []
        while lost.allow(wrong, "server", Status(updates=4), 0):
            found.append(lost.go_back(wrong, "server", Status(updates=4)).lost)
            places.append(RunFolder.open(tmp_path / "run").checkpoint())
        assert lost.allow(LOSS, "server", Status(updates=4), 0), "the one loss that is allowed"
    assert [place and place.round for place in places] == [2, None]
    assert found[0] >= 3, "the leg that continued from the checkpoint that was given up"
    assert found[1] >= found[0] + 3
    *_, fault = RunFolder.open(tmp_path / "run").rows()["fault"].to_pylist()
    assert (fault["party"], fault["kind"]) == ("checkpoint", "Contradiction")
    assert fault["message"] == (
        "the last one contradicts the ledger (update 5: its party is not what the ledger has), "
        "which keeps all updates; the run resumes from its start"
    )


@pytest.mark.parametrize(("method", "name"), [("decomfl", "begun_legs.json"), ("fedavg", "ledger")])
def test_a_run_without_an_account_or_a_ledger_gets_none(
    tmp_path: Path, method: str, name: str
) -> None:
    with restarts(small_rounds(method, "record.checkpoint_updates=2"), tmp_path / "run") as lost:
        lost.go_back(LOSS, "server", Status(updates=4))
    assert not (tmp_path / "run" / name).exists()


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_who_watches_hears_of_an_evaluation_once_unless_a_new_segment_makes_it(
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
        assert not lost.allow(RunError("wrong"), "server", Status(updates=4), 0), (
            "no actor was lost"
        )
        assert lost.allow(LOSS, "server", Status(updates=4), 0)
        assert not lost.allow(LOSS, "server", Status(updates=4), 0), "it came no further"
        assert lost.allow(LOSS, "client group 0", Status(updates=4), 0), "somebody else"
        assert lost.allow(Stalled("waited"), "client group 0", Status(updates=4), 0), (
            "for another reason"
        )
        assert not lost.allow(LOSS, "client group 0", Status(updates=8), 0), "three are allowed"
    with restarts(spec, tmp_path / "another") as lost:
        assert not lost.allow(LOSS, "server", Status(updates=4), 3), "that were made again in place"


def test_who_dies_again_is_replaced_if_the_run_came_further(tmp_path: Path) -> None:
    spec = small_rounds("decomfl", "record.checkpoint_updates=2", "resources.restarts=9")
    with restarts(spec, tmp_path / "run") as lost:
        for updates, goes_on in ((4, True), (8, True), (6, False), (8, False), (9, True)):
            assert lost.allow(LOSS, "server", Status(updates=updates), 0) == goes_on, updates


def test_actors_that_were_made_again_in_place_count_and_those_of_earlier_sessions_do_not(
    tmp_path: Path,
) -> None:
    spec = small_rounds("decomfl", "record.checkpoint_updates=2", "resources.restarts=3")
    with restarts(spec, tmp_path / "run") as first:
        first.go_back(LOSS, "server", Status(updates=4))  # which puts a fault on record
    with reopened(tmp_path / "run") as opened:
        writer = RowWriter(opened, spec.record.flush, Callbacks(()))
        second = Restarts(prepare_horizontal(spec), writer, unheard)
        for _ in range(2):
            second.go_back(LOSS, "host 0", Status(updates=4))
        assert second.allow(LOSS, "server", Status(updates=4), 0)
        assert second.count == 3
        assert not second.allow(LOSS, "host 1", Status(updates=4), 0)


NOISE = ("privacy.mode=paper", "privacy.epsilon=1.0", "privacy.delta=1e-5", "privacy.clip=1.0")
UNABLE = {
    "": ("privacy.noise=seeded",),
    "its noise on every embedding row came from the operating system and was not kept": (),
    "keeps no ledger of what it releases": ("privacy.noise=seeded", "clock.kind=wall"),
}


@pytest.mark.parametrize("why", UNABLE)
def test_a_run_that_cannot_continue_says_why_it_ends_with_a_loss(tmp_path: Path, why: str) -> None:
    small = ("data.train_rows=150", "data.test_rows=40")
    spec = scenarios.load("vafl", [*small, *NOISE, *UNABLE[why]])
    with RunWriter.create(tmp_path / "run", spec, {}, OperatorSecrets(bytes(16), None)) as folder:
        lost = Restarts(prepare(spec), RowWriter(folder, 1.0, Callbacks(())), unheard)
        assert lost.possible == (not why)
        assert lost.allow(LOSS, "server", Status(), 0) == (not why)
        said = lost.explained(Lost("an actor was lost", "f00"))
        assert isinstance(said, Lost)
        assert said.actor == "f00"
        assert re.fullmatch(
            f"an actor was lost; the run cannot continue: .*{why}.*"
            if why
            else "an actor was lost",
            str(said),
        )
        wrong = RunError("wrong")
        assert lost.explained(wrong) is wrong


def test_nowhere_to_continue_from_and_nobody_to_continue_with(tmp_path: Path) -> None:
    spec = small_rounds("decomfl")
    prepared = prepare_horizontal(spec)
    assert not Restarts(prepared, RowWriter(None, 1.0, Callbacks(())), unheard).possible
    with restarts(
        small_rounds("decomfl", "resources.restarts=0"), tmp_path / "none", checkpoints=0
    ) as lost:
        assert not lost.possible
    with restarts(
        small_rounds("decomfl", "resources.restarts=1"), tmp_path / "one", checkpoints=0
    ) as lost:
        assert lost.possible


def test_a_loss_says_who_was_lost_and_where_the_run_stood() -> None:
    loss = RestartFromCheckpoint(LOSS, "server", Status(updates=7))
    assert (loss.failure, loss.party, loss.status.updates) == (LOSS, "server", 7)
    assert str(loss) == str(LOSS)


def test_a_run_whose_ledger_somebody_still_writes_does_not_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.restarts, "_UNLOCKED_WITHIN", 0.05)
    folder = tmp_path / "run"
    with (
        restarts(small_rounds("decomfl", "record.checkpoint_updates=2"), folder) as lost,
        FileLock(folder / "ledger" / ".lock"),
        pytest.raises(
            RunError, match=r"waited 0\.05 s for the process that wrote this ledger to end"
        ),
    ):
        lost.go_back(LOSS, "server", Status(updates=4))
