"""A server actor's calls, answered here: what a driver asks of a server, in which order, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raydpzv.sim.interfaces import Status


class ServerCalls:
    """Stands for the handle of a server actor; a call's answer is its reference. calls: what was asked, in order."""

    def __init__(self, **answers: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.status_now = Status()
        self.pieces: list[Any] = []
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return _Call(lambda *given, **named: self._answer(name, given, named))

    def asked(self, name: str) -> list[tuple[Any, ...]]:
        """Return what this call was given each time."""
        return [given for called, *given in self.calls if called == name]

    def _answer(self, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self.calls.append((name, *given, *sorted(named.items())))
        if name == "status":
            return self.status_now
        if name == "drain":
            pieces, self.pieces = self.pieces, []
            return pieces
        return self._answers.get(name)


class _Call:
    def __init__(self, answer: Callable[..., Any]) -> None:
        self.remote = answer
