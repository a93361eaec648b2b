"""The server's lines to the actors of a run on which it orders (virtual clock), each opened when it is first used."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from actors.remote import get, lost
from actors.transport.connection import TransportAddress
from actors.transport.orders import OrderSession, Sent
from actors.transport.server import TransportServer
from raydpzv.errors import TransportError


class Connections:
    """One line to each actor. party: what an actor is called before its number.

    An actor serves its line in a call: where a line breaks, that tells whether the actor was lost.
    """

    def __init__(self, lane: TransportServer, actors: Sequence[Any], timeout: float, party: str) -> None:
        self._lane, self._actors, self._timeout, self._party = lane, list(actors), timeout, party
        self._lines: dict[int, OrderSession] = {}
        self._calls: dict[int, Any] = {}
        self._numbers = itertools.count()

    def send(self, actor: int, sent: Sent, frame: Sequence[bytes]) -> Sent:
        """Send an order's frame; where the actor is lost, waiting for what comes of it will tell."""
        try:
            return self._line(actor).send(sent, frame)
        except Exception as error:
            if not lost(error):
                raise
            sent.outcome = error
            return sent

    def result(self, actor: int, sent: Sent) -> Any:
        """Wait for what comes of an order. TransportError: the line broke, but the actor is not lost."""
        while sent.outcome is None:
            try:
                self._lines[actor].receive()
            except TransportError:
                get(self._calls[actor], self._timeout, f"{self._party} {actor}, whose line broke")
                raise
        if isinstance(sent.outcome, BaseException):
            raise sent.outcome
        return sent.outcome

    def replace(self, actor: int, new: Any) -> None:
        """Send to a new actor, over a line of its own."""
        self._actors[actor] = new
        if line := self._lines.pop(actor, None):
            line.close()

    def finish(self) -> None:
        """Let the actors end their calls; one that is lost by now is found when it is next called."""
        for line in self._lines.values():
            with suppress(TransportError):
                line.finish()

    def _line(self, actor: int) -> OrderSession:
        if actor not in self._lines:
            number, new = next(self._numbers), self._actors[actor]
            joining = new.join.remote(self._lane.address, number)
            get(joining, self._timeout, f"{self._party} {actor} to open its line")
            self._calls[actor] = new.serve_orders.remote()
            self._lines[actor] = OrderSession(self._lane.joined(number), self._timeout)
        return self._lines[actor]


def open_transport(server: Any, actors: Sequence[Any], timeout: float, peers: int) -> TransportAddress:
    """Let the server listen for so many lines of its actors, beyond its machine only if one of them is on another."""
    nodes = get([actor.node.remote() for actor in (server, *actors)], timeout, "the actors")
    host = "" if len(set(nodes)) == 1 else get(server.host.remote(), timeout, "the server's address")
    opened: TransportAddress = get(
        server.open_transport.remote(host, secrets.token_bytes(32), peers), timeout, "the server to listen"
    )
    return opened
