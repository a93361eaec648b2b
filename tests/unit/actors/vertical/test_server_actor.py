"""A vertical server's leg under the wall clock: where it begins, what its clients get, what its
checkpoints hold.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import raydpzv
import scenarios
from actors.horizontal.server_actor import HorizontalServerActor
from actors.vertical.client_actor import ClientActor
from actors.vertical.server_actor import VerticalServerActor
from raydpzv.experiment.prepare import Prepared, prepare
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.records import checkpoint_policy as checkpoint_pace
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.run_folder import RunFolder
from raydpzv.sim.interfaces import USER
from tests.helpers.actors_here import Here
from tests.helpers.kills import kill_at

SMALL = (
    "data.train_rows=150",
    "data.test_rows=40",
    "budget.updates=150",
    "evaluate.every=40",
    "clock.kind=wall",
    "arrivals.rate=40",
    "record.checkpoint_updates=20",
    "record.flush=1000",
    "privacy.mode=none",
)
HELD = ((0, 2), (1, 3))


class Serving(Here):
    """A handle of a client actor, which does the server's orders in a thread of its own."""

    @property
    def serve_orders(self) -> Any:
        thread = threading.Thread(target=self._role.serve_orders, daemon=True)
        return SimpleNamespace(remote=thread.start)


class Server:
    """A server and its clients in this process, brought to where a run's next leg begins."""

    def __init__(
        self, folder: Path | None, monkeypatch: pytest.MonkeyPatch, *, keeps: bool = True
    ) -> None:
        for module in ("vertical.server_actor", "transport.peers"):
            monkeypatch.setattr(
                f"actors.{module}.get", lambda reference, timeout, awaited: reference
            )
        for module in ("server_actor", "vertical.client_actor"):
            monkeypatch.setattr(f"actors.{module}.claim_device", lambda share: "cpu")
        self.checkpoint = RunFolder.open(folder).checkpoint() if folder else None
        prepared = prepare_vertical(scenarios.load("vafl", SMALL))
        self.actor = VerticalServerActor(prepared, 0.0)
        clients = [Serving(ClientActor([prepared.clients[m] for m in held], 0.0)) for held in HELD]
        self.holders = {m: clients[a] for a, held in enumerate(HELD) for m in held}
        self.actor.begin(self.checkpoint, keeps=keeps)
        self.actor.open_transport("", b"k" * 32, len(clients))
        self.actor.bring_segment(clients, HELD)
        self.actor.close_transport()

    def kept(self, *, due: bool) -> list[Checkpoint]:
        """The checkpoints that come of asking for one."""
        self.actor.keep_segment(self.holders, due=due)
        return [found for _, found in self.actor.drain() if found]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed") / "run"
    kill_at(30, scenarios.load("vafl", SMALL), folder, checkpoints=2)
    return folder


def test_a_second_segment_begins_where_the_checkpoint_is(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(killed, monkeypatch)
    was: Any = server.checkpoint.state["run"]
    leg = server.actor.segment_start()
    assert (leg.number, leg.time, leg.evaluated) == (2, was["time"], server.checkpoint.round)
    assert dict(leg.served) == dict(was["served"])
    assert server.actor.status().updates == server.checkpoint.round > 0
    server.actor.open_wall(was["origin"] + 7.0)
    ((rows, _),) = server.actor.drain()
    (begun,) = rows["leg"].to_pylist()
    assert (begun["leg"], begun["time"], begun["recovered"]) == (2, was["time"], 0)
    assert begun["gap"] == pytest.approx(7.0)
    handed = {order.client: order for order, _ in was["orders"]}
    for client in range(4):
        answer = server.actor.first(client)
        order = answer.order
        assert not answer.over
        assert (order is not None) == (client in handed)
        if order is not None:
            assert order.round == handed[client].round


def test_the_first_evaluation_comes_before_the_server_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(None, monkeypatch)
    server.actor.evaluate([server.holders[m].evaluate_wall.remote(m) for m in range(4)])
    ((rows, _),) = server.actor.drain()
    assert [(row["round"], row["time"]) for row in rows["evaluation"].to_pylist()] == [(0, 0.0)]


def test_its_checkpoints_hold_what_was_served_in_all_segments_and_every_clients_state(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(killed, monkeypatch)
    was: Any = server.checkpoint.state
    server.actor.open_wall(time.time())  # noqa: TID251
    (kept,) = server.kept(due=True)
    now: Any = kept.state
    assert (kept.round, now["run"]["leg"]) == (server.checkpoint.round, 2)
    assert dict(now["run"]["served"]) == dict(was["run"]["served"])
    assert now["run"]["time"] >= was["run"]["time"]
    for before, after in zip(was["clients"], now["clients"], strict=True):
        assert np.array_equal(before.vectors, after.vectors)
    assert server.actor.status().checkpoints == 1
    assert server.actor.checkpoint_facts()["checkpoints"]["count"] == 1


def test_a_checkpoint_is_taken_when_it_is_due_and_after_the_end_only_if_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(None, monkeypatch)
    assert server.actor.segment_start().number == 1
    server.actor.open_wall(time.time())  # noqa: TID251
    assert not server.kept(due=False), "20 updates are to come first"
    assert len(server.kept(due=True)) == 1
    monkeypatch.setattr(server.actor.core._policy, "due", lambda updates: True)
    assert len(server.kept(due=False)) == 1
    server.actor.stop(USER)
    assert not server.kept(due=False), "a continuation would make one update more"
    assert len(server.kept(due=True)) == 1
    server = Server(None, monkeypatch, keeps=False)
    server.actor.open_wall(time.time())  # noqa: TID251
    assert not server.kept(due=True), "of a run that has no folder"


def test_what_a_checkpoint_costs_begins_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 50.0
    monkeypatch.setattr(checkpoint_pace, "own_seconds", lambda: now)
    server = Server(None, monkeypatch)
    server.actor.open_wall(time.time())  # noqa: TID251
    for _ in range(2):
        now += 100.0
        assert len(server.kept(due=True)) == 1
    assert server.actor.status().checkpoint_seconds == 0.0
    assert server.actor.checkpoint_facts()["checkpoints"]["seconds"] == 0.0


# What a server takes of memory it takes before the run begins, or gives back.


def vertical(prepared: Any) -> VerticalServerActor:
    server = VerticalServerActor(prepared, 0.0)
    server.begin(None, keeps=False)
    return server


def horizontal(prepared: Any) -> HorizontalServerActor:
    server = HorizontalServerActor(prepared)
    server.begin(None, None, keeps=False)
    return server


CASES: dict[str, Callable[[Any], Any]] = {"digits_dpzv": vertical, "digits_users": horizontal}


@pytest.fixture(params=CASES)
def made(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, list[np.ndarray]]:
    """A server in this process, and the privacy losses of which it asked for ε."""
    asked = []

    class Noted:
        def __init__(self, real: Any) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def epsilons(self, mus: np.ndarray) -> np.ndarray:
            asked.append(mus)
            return self._real.epsilons(mus)

    prepared: Prepared = prepare(raydpzv.load(request.param))
    real = type(prepared).privacy_filter
    monkeypatch.setattr(type(prepared), "privacy_filter", lambda self: Noted(real(self)))
    monkeypatch.setattr("actors.server_actor.claim_device", lambda gpus: "cpu")
    return CASES[request.param](prepared), asked


def test_what_works_out_epsilon_is_imported_before_the_run(
    made: tuple[Any, list[np.ndarray]],
) -> None:
    """20 MB, and a quarter of a second: the first checkpoint was held up so long, and those after
    it rarer for it.
    """
    _, ((mu,),) = made
    assert np.isfinite(mu)
    assert mu > 0


def test_each_drain_gives_back_what_those_before_it_took(
    made: tuple[Any, list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    class Pool:
        def release_unused(self) -> None:
            given.append(self)

    server, _ = made
    monkeypatch.setattr(pa, "default_memory_pool", Pool)
    server.drain()
    server.drain(rest=False)
    assert len(given) == 2
