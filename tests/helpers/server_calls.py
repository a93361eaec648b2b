"""Calls of actors, answered here: what a driver asks of a server and of others, in which order."""

from collections.abc import Callable
from typing import Any

import pytest
import ray

from raydpzv.sim.clock import WallClock
from raydpzv.sim.interfaces import Status


class ServerCalls:
    """Stands for an actor's handle; a call's answer is its reference.

    calls: what was asked, in order; `log` has the same of several actors, by name. `statuses` come
    one after the other, the last one again and again; `pieces` once.
    """

    def __init__(self, name: str = "server", log: list[str] | None = None, **answers: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.statuses = [Status()]
        self.pieces: list[Any] = []
        self._name, self._log, self._answers = name, [] if log is None else log, answers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # who copies or looks at it asks for none
            raise AttributeError(name)
        return _Call(lambda *given, **named: self._answer(name, given, named))

    def asked(self, name: str) -> list[tuple[Any, ...]]:
        """Return what this call was given each time."""
        return [given for called, *given in self.calls if called == name]

    def _answer(self, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self.calls.append((name, *given, *sorted(named.items())))
        self._log.append(f"{self._name}.{name}")
        if name == "status":
            return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if name == "drain":
            pieces, self.pieces = self.pieces, []
            return pieces
        return self._answers.get(name)


def answer_at_once(monkeypatch: pytest.MonkeyPatch, room: str, looks: int) -> None:
    """Let drivers of a room have references as answers; loops 0 and 1 end after so many looks at
    what is done.
    """
    ended = iter([*([] for _ in range(looks)), ["loop 0"], ["loop 1"]])

    def wait(calls: list[Any], timeout: float, **_: Any) -> tuple[list[Any], list[Any]]:
        return [call for call in calls if "loop" not in str(call)] or next(ended), []

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", lambda reference: reference)
    for place in ("actors.driver.get", f"actors.{room}.driver.get"):
        monkeypatch.setattr(place, lambda reference, timeout, what: reference)
    monkeypatch.setattr(f"actors.{room}.driver.open_transport", lambda *given: "address")
    monkeypatch.setattr("actors.driver.offsets", lambda server, parties: [])


def log_clock(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> None:
    """Add to the log when a run's clock starts."""
    starting_in = WallClock.starting_in

    def started(seconds: float, at: float = 0.0) -> WallClock:
        log.append("the clock")
        return starting_in(seconds, at)

    monkeypatch.setattr(WallClock, "starting_in", started)


class _Call:
    def __init__(self, answer: Callable[..., Any]) -> None:
        self.remote = answer
