"""Which runs wait until their checkpoint is written; how a leg begins and ends. Actors' calls are
answered here.
"""

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

import actors.driver
import scenarios
from actors.driver import HEAD_START, RunHooks
from actors.horizontal import driver as module
from raydpzv.config.scenario import HorizontalScenario
from raydpzv.experiment.finalize import RowWriter, RunOptions
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.records.callbacks import Callbacks
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.run_folder import RunFolder
from raydpzv.sim.interfaces import USER, Status, unheard
from raydpzv.sim.pull import HostShare
from raydpzv.sim.virtual import NOBODY_WAKES
from raydpzv.sim.wall import SegmentStart
from tests.helpers.numbered_rows import evaluations
from tests.helpers.server_calls import ServerCalls, answer_at_once, log_clock

SMALL = ("data.train_rows=150", "data.test_rows=60", "split.clients=3", "users.count=12")
PRIVATE = (
    "privacy={}",
    "privacy.mode=user",
    "privacy.multiplier=2.0",
    "privacy.delta=1e-3",
    "privacy.clip=0.1",
)
WAITS = {
    "rounds of sums": ("digits_users", PRIVATE, True),
    "rounds without noise": (
        "digits_users",
        ("privacy={}", "privacy.mode=none", "privacy.clip=0.1"),
        False,
    ),
    "rounds of scalars, which the ledger has": ("digits_users_zo", PRIVATE, False),
    "silos that wake by themselves": ("digits_users_async", PRIVATE, False),
    "real time": ("digits_users_async", (*PRIVATE, "clock.kind=wall", "arrivals.rate=200"), False),
}


WALL = (
    "digits_users_async",
    [*SMALL, *PRIVATE, "clock.kind=wall", "arrivals.rate=200"],
)

STEPS = (
    "warm_up",
    "bring_segment",
    "the clock",
    "open_wall",
    "keep_segment",
    "run",
    "look",
    "stop",
    "close",
)
"""What is asked of actors in an order that matters, and when the clock starts."""


def actors_of(server: ServerCalls, pool: Any) -> Any:
    return SimpleNamespace(server=server, ledger=None, pool=pool)


def hooks(folder: RunFolder, seen: Callbacks | None = None) -> RunHooks:
    nobody: Any = None
    writer = RowWriter(folder, 1e9, Callbacks())
    return RunHooks(writer, nobody, seen or Callbacks(), RunOptions().stop, unheard, True, nobody)


@pytest.mark.parametrize("kind", WAITS)
def test_a_private_round_waits_until_its_checkpoint_is_written(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """One that noise of the system's hides and that no record brings back; and server and driver
    agree on it.
    """
    monkeypatch.setattr(actors.driver, "get", lambda reference, timeout, what: reference)
    name, changed, waits = WAITS[kind]
    spec = scenarios.load(name, [*SMALL, *changed])
    assert isinstance(spec, HorizontalScenario)
    prepared, server = prepare_horizontal(spec), ServerCalls(next_piece="a call")
    pool: Any = None
    found = module._Driver(prepared, actors_of(server, pool), hooks(folder))
    assert found._awaited() == (["a call"] if waits else [])
    found._write([(evaluations(0), None)])
    assert not server.asked("written")
    found._write([(evaluations(1), Checkpoint(1, {}, None)), (evaluations(2), None)])
    assert server.asked("written") == ([[]] if waits else [])
    written = folder.checkpoint()
    assert written.round == 1, "before the server goes on"
    monkeypatch.setattr("actors.server_actor.claim_device", lambda share: "cpu")
    assert prepared.awaits_checkpoints == waits


def led(
    folder: RunFolder,
    leg: SegmentStart,
    statuses: list[Status],
    monkeypatch: pytest.MonkeyPatch,
    *changed: str,
) -> tuple[ServerCalls, list[ServerCalls], list[str]]:
    """Let a driver go through a leg whose hosts end after the statuses; return what was asked, and
    the order.
    """
    answer_at_once(monkeypatch, "horizontal", len(statuses) - 1)
    log = list[str]()
    log_clock(monkeypatch, log)
    server = ServerCalls(
        "server", log, segment_start=leg, look="an evaluation", keep_segment="a checkpoint"
    )
    hosts = [ServerCalls(f"host {host}", log, run=f"loop {host}") for host in range(2)]
    server.statuses = statuses
    spec = scenarios.load(WALL[0], [*WALL[1], *changed])
    assert isinstance(spec, HorizontalScenario)
    pool: Any = SimpleNamespace(actors=hosts)
    module._Driver(prepare_horizontal(spec), actors_of(server, pool), hooks(folder))._work()
    return server, hosts, [name for name in log if name.split(".")[-1] in STEPS]


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("stopped_by", [USER, "the budget is spent"])
def test_a_segment_begins_where_the_server_says_with_a_checkpoint_and_ends_with_one_if_the_user_stops_it(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, number: int, stopped_by: str
) -> None:
    statuses = [Status(updates=50), Status(updates=51), Status(updates=52, stop_reason=stopped_by)]
    before = time.time()  # noqa: TID251
    server, hosts, order = led(folder, SegmentStart(number, 12.5, 40, {}), statuses, monkeypatch)
    ((origin,),) = server.asked("open_wall")
    began = origin - HEAD_START + 12.5
    assert before - 1e-3 <= began <= time.time() + 1e-3  # noqa: TID251
    assert server.asked("bring_segment") == [[hosts[0]]], "where the model is seen"
    begins = math.nextafter(12.5, math.inf) if number > 1 else 0.0
    for host, actor in enumerate(hosts):
        assert actor.asked("run") == [[origin, HostShare(host, 2, begins), "address"]]
        assert len(actor.asked("stop")) == 1
    first = order.index("server.keep_segment")
    warmed = ["server.warm_up", "host 0.warm_up", "host 1.warm_up"]
    # the clock starts after the first evaluation, and so does all that may be served
    looks = ["server.look"] if number == 1 else []
    assert order[:first] == [
        *warmed,
        "server.bring_segment",
        *looks,
        "the clock",
        "server.open_wall",
    ]
    assert order[first + 1 : first + 3] == ["host 0.run", "host 1.run"]
    assert server.asked("look") == [*([[True]] if number == 1 else []), [], [True]]
    assert server.asked("stop") == [[NOBODY_WAKES]]
    due = [("due", True)]
    assert server.asked("keep_segment")[0] == due
    last = "server.keep_segment" if stopped_by == USER else "server.close"
    assert order[-2:] == [last, "server.look"]
    assert (server.asked("keep_segment")[-1] == due) == (stopped_by == USER)
    assert [("due", False)] in server.asked("keep_segment"), "and others on the way"
