"""A horizontal server's leg under the wall clock: where it begins, and what its checkpoints say."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from actors.horizontal.server_actor import HorizontalServerActor
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.experiment.resuming import restarted_horizontal
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.roles import Metrics
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.run_folder import RunFolder, drop_checkpoints
from raydpzv.sim.interfaces import USER
from tests.helpers.kills import kill_at
from tests.helpers.small_users import small

WALL = (
    "clock.kind=wall",
    "arrivals.rate=200",
    "clock.compute=0",
    "resources.hosts=2",
    "budget.updates=400",
    "evaluate.every=10",
    "record.checkpoint_updates=15",
    "record.snapshots=1000",
)


class Opened(Ledger):
    """A ledger that is opened here, of a kind that is taken over from an actor."""

    def adopt(self) -> None:
        """Take over nothing: it is all here."""


class Host:
    """Looks at the model; looked: after how many updates."""

    def __init__(self) -> None:
        self.looked: list[int] = []
        self.look = self

    def remote(self, version: int) -> Metrics:
        self.looked.append(version)
        return Metrics(0.5, 1.0, 0.5)


class Server:
    """A server in this process, brought to where a run's next leg begins, or a run's first."""

    def __init__(
        self,
        folder: Path | None,
        monkeypatch: pytest.MonkeyPatch,
        *changed: str,
        keeps: bool = True,
    ) -> None:
        module = "actors.horizontal.server_actor"
        monkeypatch.setattr(f"{module}.get", lambda reference, timeout, what: reference)
        monkeypatch.setattr("actors.server_actor.claim_device", lambda share: "cpu")
        monkeypatch.setattr(f"{module}.RelayedLedger", lambda actor, header, timeout: actor)
        self.checkpoint, self.host = None, Host()
        prepared = prepare_horizontal(small("asynchronous", *WALL, *changed))
        ledger: Any = Opened.create(None, prepared.plan.header())
        if folder:
            opened = RunFolder.open(folder)
            prepared, self.checkpoint = restarted_horizontal(prepared, opened), opened.checkpoint()
            ledger = Opened.open(opened.ledger, expect=prepared.plan.header())
        self.ledger, self.actor = ledger, HorizontalServerActor(prepared)
        self.actor.begin(ledger, self.checkpoint, keeps=keeps)
        self.actor.bring_segment(self.host)

    def kept(self, *, due: bool) -> list[Checkpoint]:
        """The checkpoints that come of asking for one."""
        self.actor.keep_segment(due=due)
        return [found for _, found in self.actor.drain() if found]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed") / "run"
    kill_at(40, small("asynchronous", *WALL), folder, checkpoints=2)
    return folder


def test_a_second_segment_begins_after_the_ledgers_last_update(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(killed, monkeypatch)
    was: Any = server.checkpoint.state["run"]
    updates, round = server.ledger.version, server.checkpoint.round
    leg = server.actor.segment_start()
    assert (leg.number, leg.time, leg.evaluated) == (2, was["time"], round)
    assert server.actor.status().updates == updates >= round
    spent = server.actor.spent()
    assert spent.releases == updates + 3, (
        "what is on record, and for each silo one that was under way"
    )
    server.actor.open_wall(was["origin"] + 7.0)
    ((rows, _),) = server.actor.drain()
    (begun,) = rows["leg"].to_pylist()
    assert (begun["leg"], begun["time"], begun["recovered"]) == (2, was["time"], updates - round)
    assert begun["gap"] == pytest.approx(7.0)


def test_the_first_evaluation_comes_before_the_server_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(None, monkeypatch)
    server.actor.look(True)
    ((rows, _),) = server.actor.drain()
    assert [(row["round"], row["time"]) for row in rows["evaluation"].to_pylist()] == [(0, 0.0)]


def test_no_segment_evaluates_what_another_has(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    round = Server(killed, monkeypatch).actor.segment_start().evaluated
    server = Server(killed, monkeypatch, f"evaluate.every={round}")
    updates = server.ledger.version
    assert round <= updates < 2 * round
    server.actor.open_wall(time.time())  # noqa: TID251
    server.actor.look()
    assert not server.host.looked, "the leg before has"
    server.actor.look(True)
    assert server.host.looked == [updates]
    after = Host()
    server.actor.show(after)
    server.actor.look(True)
    assert after.looked == [updates], "in another host"


def test_what_no_segment_has_evaluated_is_evaluated_once(
    killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(killed, tmp_path / "run")
    drop_checkpoints(tmp_path / "run")  # so that nobody knows of an evaluation
    server = Server(tmp_path / "run", monkeypatch)
    server.actor.open_wall(time.time())  # noqa: TID251
    for _ in range(2):
        server.actor.look()
    assert server.host.looked == [server.ledger.version]


def test_its_checkpoints_say_which_segment_and_whether_anything_can_be_under_way(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(killed, monkeypatch)
    server.actor.open_wall(time.time())  # noqa: TID251
    (kept,) = server.kept(due=True)
    run: Any = kept.state["run"]
    assert (kept.round, run["leg"], run["stopped"]) == (server.ledger.version, 2, False)
    assert server.actor.status().checkpoints == 1
    assert server.actor.facts()["checkpoints"]["count"] == 1
    server.actor.stop(USER)
    assert not server.kept(due=False), "a continuation would make one update more"
    (kept,) = server.kept(due=True)
    run = kept.state["run"]
    assert run["stopped"], "all hosts have handed in what they had"


def test_of_a_run_that_ended_otherwise_something_may_be_under_way(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(killed, monkeypatch)
    server.actor.open_wall(time.time())  # noqa: TID251
    server.actor.stop("the run broke off")
    (kept,) = server.kept(due=True)
    run: Any = kept.state["run"]
    assert not run["stopped"]
