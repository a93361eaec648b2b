"""How a leg of a vertical run under the wall clock begins and ends. Actors' calls are answered
here.
"""

import dataclasses
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

import scenarios
from actors.driver import HEAD_START, RunHooks
from actors.vertical import driver as module
from raydpzv.experiment.finalize import RowWriter, RunOptions
from raydpzv.experiment.vertical import PreparedVertical, prepare_vertical
from raydpzv.records.callbacks import Callbacks
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.run_folder import RunFolder
from raydpzv.sim.interfaces import USER, Status, unheard
from raydpzv.sim.virtual import NOBODY_WAKES
from raydpzv.sim.wall import SegmentStart
from tests.helpers.server_calls import ServerCalls, answer_at_once, log_clock

STEPS = (
    "open_warm_up",
    "bring_segment",
    "evaluate_wall",
    "evaluate",
    "the clock",
    "open_wall",
    "keep_segment",
    "run",
    "stop",
    "close",
)
"""What is asked of actors in an order that matters, and when the clock starts."""
HELD = ((0, 2), (1, 3))


@pytest.fixture(scope="module")
def prepared() -> PreparedVertical:
    small = ("data.train_rows=150", "data.test_rows=40", "privacy.mode=none", "clock.kind=wall")
    return prepare_vertical(scenarios.load("vafl", [*small, "evaluate.every=20"]))


def run(
    prepared: PreparedVertical,
    folder: RunFolder | None,
    leg: SegmentStart,
    statuses: list[Status],
    monkeypatch: pytest.MonkeyPatch,
    stop: threading.Event | None = None,
) -> tuple[ServerCalls, list[ServerCalls], list[str]]:
    """Let a driver go through a leg in which actors end when the statuses do; return what was
    asked, and the order.
    """
    answer_at_once(monkeypatch, "vertical", len(statuses) - 1)
    monkeypatch.setattr(module._Driver, "_warm_up", lambda self: self._server.open_warm_up.remote())
    log = list[str]()
    log_clock(monkeypatch, log)
    server = ServerCalls("server", log, segment_start=leg, keep_segment="a checkpoint", wanted={})
    clients = [
        ServerCalls(f"actor {a}", log, run=f"loop {a}", evaluate_wall=f"held out of {a}")
        for a in range(2)
    ]
    server.statuses = statuses
    actor_set: Any = SimpleNamespace(
        server=server, actors=clients, held=HELD, holder={0: 0, 2: 0, 1: 1, 3: 1}, place=None
    )
    nobody: Any = SimpleNamespace(count=0)
    writer = RowWriter(folder, 1e9, Callbacks())
    hooks = RunHooks(writer, nobody, Callbacks(), stop or RunOptions().stop, unheard, True, nobody)
    module._Driver(prepared, actor_set, hooks)._work()
    return server, clients, [name for name in log if name.split(".")[-1] in STEPS]


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("stopped_by", [USER, "the budget is spent"])
def test_a_segment_begins_where_the_server_says_with_a_checkpoint_and_ends_with_one_if_the_user_stops_it(
    prepared: PreparedVertical,
    folder: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    stopped_by: str,
) -> None:
    folder.write_checkpoint(Checkpoint(40, {}, None))
    leg = SegmentStart(number, 12.5, 40 if number > 1 else 0, {0: 11})
    statuses = [Status(updates=45), Status(updates=45), Status(updates=47, stop_reason=stopped_by)]
    before = time.time()  # noqa: TID251
    server, clients, order = run(prepared, folder, leg, statuses, monkeypatch)
    ((origin,),) = server.asked("open_wall")
    began = origin - HEAD_START + 12.5
    assert before - 1e-3 <= began <= time.time() + 1e-3  # noqa: TID251
    ((checkpoint, keeps),) = server.asked("begin")
    assert (checkpoint.round, keeps) == (40, ("keeps", True))
    assert server.asked("bring_segment") == [[clients, HELD]]
    for actor in clients:
        timeout = prepared.spec.resources.timeout
        assert actor.asked("run") == [[prepared.timing, origin, timeout, "address", leg]]
        assert len(actor.asked("stop")) == 1
    holders = {0: clients[0], 2: clients[0], 1: clients[1], 3: clients[1]}
    assert server.asked("keep_segment")[0] == [holders, ("due", True)]
    assert [holders, ("due", False)] in server.asked("keep_segment"), "and others on the way"
    # the clock starts after the first evaluation, and so does all that may be served
    looks = (
        [*["actor 0.evaluate_wall", "actor 1.evaluate_wall"] * 2, "server.evaluate"]
        if number == 1
        else []
    )
    begins = [
        "server.open_warm_up",
        "server.bring_segment",
        *looks,
        "the clock",
        "server.open_wall",
    ]
    begins += ["server.keep_segment", "actor 0.run", "actor 1.run"]
    assert order[: len(begins)] == begins
    last = ["server.keep_segment"] if stopped_by == USER else []
    looked = [name for name in order if not name.endswith("evaluate_wall")]
    assert looked[-3 - len(last) :][:-1] == ["server.stop", "server.close", *last]
    assert looked[-1] == "server.evaluate"
    assert server.asked("stop") == [[NOBODY_WAKES]]
    assert (server.asked("keep_segment")[-1] == [holders, ("due", True)]) == (stopped_by == USER)
    # of a first leg at its start, after 40 updates, and at the end; of a second those at the end
    # alone
    assert len(server.asked("evaluate")) == (3 if number == 1 else 1)
    assert server.asked("evaluate")[-1] == [["held out of 0", "held out of 1"] * 2], (
        "in client order"
    )


def test_a_wish_to_stop_that_came_before_the_server_opened_is_passed_on_again(
    prepared: PreparedVertical, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, pressed = RunOptions().stop, module._Driver._bring_segment

    def press(driver: Any) -> Any:
        stop.set()
        driver._poll()
        return pressed(driver)

    monkeypatch.setattr(module._Driver, "_bring_segment", press)
    over = [Status(updates=3, stop_reason=USER)]
    _, _, order = run(prepared, folder, SegmentStart(1, 0.0, 0, {}), over, monkeypatch, stop)
    opens = order.index("server.open_wall")
    assert "server.stop" in order[:opens]
    assert order[opens:].index("server.stop") < order[opens:].index("actor 0.run")


def test_it_is_evaluated_when_so_many_updates_more_were_made(
    prepared: PreparedVertical, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses = [Status(updates=updates) for updates in (41, 59, 60, 79, 85, 99, 120)]
    statuses += [Status(updates=145, stop_reason="over")]
    server, _, _ = run(prepared, folder, SegmentStart(2, 12.5, 40, {}), statuses, monkeypatch)
    assert len(server.asked("evaluate")) == 3 + 1, "and at the end, however many there were"


@pytest.mark.parametrize(("seconds", "spent"), [(9000, False), (11, True)])
def test_the_runs_clock_ends_it_in_every_segment(
    prepared: PreparedVertical,
    folder: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    seconds: int,
    *,
    spent: bool,
) -> None:
    spec = prepared.spec
    budget = spec.budget.model_copy(update={"seconds": float(seconds)})
    short = dataclasses.replace(prepared, spec=spec.model_copy(update={"budget": budget}))
    statuses = [Status(updates=3), Status(updates=4, stop_reason="over")]
    server, _, _ = run(short, folder, SegmentStart(2, 12.5, 0, {}), statuses, monkeypatch)
    said = [f"the budget of {seconds} seconds is spent"]
    assert (said in server.asked("stop")) == spent


def test_without_a_record_of_its_own_a_run_takes_no_checkpoints(
    prepared: PreparedVertical, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = [Status(updates=3, stop_reason=USER)]
    server, _, order = run(prepared, None, SegmentStart(1, 0.0, 0, {}), over, monkeypatch)
    assert server.asked("begin") == [[None, ("keeps", False)]]
    assert "server.keep_segment" not in order
