"""What a driver asks a server for and when, and what it writes of the answers. The server's calls
are answered here.
"""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

import actors.driver
from actors.driver import Driver, RunHooks
from raydpzv.experiment.finalize import RowWriter
from raydpzv.methods.roles import Metrics
from raydpzv.records.callbacks import Callbacks, StatusCallback
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.run_folder import RunFolder
from raydpzv.sim.interfaces import USER, Evaluated, Status, unheard
from tests.helpers.numbered_rows import evaluations, numbers
from tests.helpers.server_calls import ServerCalls


class Polling(Driver):
    """A driver that looks at its server when the test says so."""

    def poll(self) -> None:
        """Look once."""
        self._poll()

    def wait_for(self, work: str, awaited: list[list[str]]) -> None:
        """Wait for a loop; awaited: the calls that end when the server is to be looked at, one
        after the other.
        """
        self.awaits = awaited
        self._await(work)

    def _awaited(self) -> list[Any]:
        return self.awaits.pop(0)

    def keep_segment(self, *, due: bool = False) -> None:
        """Have a checkpoint taken."""
        self._keep_segment(due=due)

    def _keep_arguments(self) -> list[Any]:
        return ["holders"]


@pytest.fixture(autouse=True)
def _answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors.driver, "get", lambda reference, timeout, what: reference)


def driver(server: ServerCalls, folder: RunFolder, flush: float = 1e9, **changed: Any) -> Polling:
    seen, evaluated = changed.get("seen", []), changed.get("evaluated", unheard)
    writer, watch = (
        RowWriter(folder, flush, Callbacks()),
        Callbacks([StatusCallback(seen.append, 0.0)]),
    )
    stop = changed.get("stop", threading.Event())
    finalizer: Any = None
    restarts: Any = None
    hooks = RunHooks(writer, finalizer, watch, stop, evaluated, True, restarts)
    spec: Any = SimpleNamespace(resources=SimpleNamespace(timeout=5.0))
    return Polling(server, hooks, spec)


def test_a_checkpoint_is_fetched_as_soon_as_there_is_one(folder: RunFolder) -> None:
    """One that is not written would be lost with the server; rows alone wait until they are due."""
    server = ServerCalls()
    found = driver(server, folder)
    for checkpoints in (0, 0, 1, 1, 3, 3):
        server.statuses = [Status(updates=7, checkpoints=checkpoints)]
        server.pieces = [(evaluations(checkpoints), Checkpoint(checkpoints, {}, None))]
        found.poll()
    assert server.asked("drain") == [[("rest", False)]] * 2
    written = folder.checkpoint()
    assert written.round == 3
    assert numbers(folder.so_far("evaluation")) == [1, 3]


def test_rows_are_fetched_when_they_are_due(folder: RunFolder) -> None:
    server = ServerCalls()
    found = driver(server, folder, flush=0.0)
    for number in range(3):
        server.pieces = [(evaluations(number), None)]
        found.poll()
    assert server.asked("drain") == [[("rest", True)]] * 3
    assert numbers(RunFolder.open(folder.path).rows()["evaluation"]) == [0, 1, 2]


def test_of_several_checkpoints_the_last_one_is_written_after_the_rows_before_it(
    folder: RunFolder,
) -> None:
    server = ServerCalls()
    found = driver(server, folder, flush=0.0)
    first, last = (Checkpoint(round, {}, None) for round in (1, 2))
    server.pieces = [
        (evaluations(0), None),
        (evaluations(1), first),
        (evaluations(2), last),
        (evaluations(3), None),
    ]
    found.poll()
    assert numbers(folder.so_far("evaluation")) == [0, 1, 2, 3]
    folder.go_back()
    assert numbers(folder.so_far("evaluation")) == [0, 1, 2]
    written = folder.checkpoint()
    assert written.round == 2


def test_who_watches_hears_where_the_run_stands_and_what_writing_took(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, seen = ServerCalls(), list[Status]()
    found = driver(server, folder, seen=seen)
    monkeypatch.setattr(RowWriter, "checkpoint_seconds", 0.5)
    server.statuses = [Status(updates=3, checkpoint_seconds=0.25)]
    found.poll()
    assert [(status.updates, status.checkpoint_seconds) for status in seen] == [(3, 0.75)]


def test_a_wish_to_stop_is_passed_on_once(folder: RunFolder) -> None:
    server, stop = ServerCalls(), threading.Event()
    found = driver(server, folder, stop=stop)
    found.poll()
    assert not server.asked("stop")
    stop.set()
    for _ in range(2):
        found.poll()
    assert server.asked("stop") == [[USER]]


def test_evaluations_are_told_and_a_wish_that_they_lead_to_comes_before_the_server_continues(
    folder: RunFolder,
) -> None:
    stop, heard = threading.Event(), list[int]()

    def evaluated(status: Status, metrics: Metrics) -> None:
        heard.append(status.updates)
        stop.set()

    told: Evaluated = evaluated
    server = ServerCalls(heard=[(Status(updates=4), Metrics(0.5, 1.0, 0.5))])
    driver(server, folder, evaluated=told, stop=stop).poll()
    assert heard == [4]
    asked = [name for name, *_ in server.calls]
    assert asked.index("stop") < asked.index("go_on")
    server = ServerCalls(heard=[])
    driver(server, folder, evaluated=told).poll()
    assert not server.asked("go_on"), "it does not wait"
    server = ServerCalls()
    driver(server, folder).poll()
    assert not server.asked("heard"), "nobody listens"


def test_one_checkpoint_is_taken_at_a_time_and_one_that_is_due_is_waited_for(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    done, waited = False, list[str]()
    monkeypatch.setattr(ray, "wait", lambda calls, timeout: (calls if done else [], []))
    monkeypatch.setattr(
        actors.driver, "get", lambda reference, timeout, what: waited.append(what) or reference
    )
    server = ServerCalls(keep_segment="a call")
    found = driver(server, folder)
    for _ in range(3):
        found.keep_segment()
    assert server.asked("keep_segment") == [["holders", ("due", False)]], (
        "the first is not done yet"
    )
    assert not waited
    done = True
    found.keep_segment()
    assert len(server.asked("keep_segment")) == 2
    assert waited == ["a checkpoint"], "whose error is told"
    done, before = False, len(server.asked("status"))
    server.statuses = [Status(checkpoints=1)]
    server.pieces = [(evaluations(0), Checkpoint(5, {}, None))]
    found.keep_segment(due=True)
    assert server.asked("keep_segment")[-1] == ["holders", ("due", True)]
    assert waited.count("a checkpoint") == 3
    assert len(server.asked("status")) == before + 1
    written = folder.checkpoint()
    assert written.round == 5


def test_a_loop_is_looked_at_until_it_is_over_and_when_it_says_so(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    asked = list[list[str]]()
    ends = iter([[], ["a piece"], [], ["the loop"]])

    def wait(calls: list[str], timeout: float) -> tuple[list[str], list[str]]:
        asked.append(calls)
        return next(ends), []

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", lambda work: asked.append([work]))
    server = ServerCalls()
    driver(server, folder).wait_for("the loop", [["a piece"], ["another"]])
    first, second = ["the loop", "a piece"], ["the loop", "another"]
    assert asked == [first, first, second, second, ["the loop"]], "whose error is told at last"
    assert len(server.asked("status")) == 3
