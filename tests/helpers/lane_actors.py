"""Actors at the end of a lane's line, in threads of this process: what Ray says of them is a stand-in."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from types import SimpleNamespace

from actors.transport import connections as actor_lines
from actors.transport import requests
from actors.transport.connection import dial
from actors.transport.server import TransportServer
from raydpzv.errors import TransportError


class Lost(Exception):
    """What Ray says of an actor that is lost."""


class LaneActor:
    """`join` and `serve_orders` as of an actor that serves a line; killed at its n-th piece of work, or before (-1).

    A subclass serves the line (`_serve_line`) and calls `_count` for each piece of work.
    """

    def __init__(self, killed_at=0):
        self._left, self._line, self.dead = killed_at, None, killed_at < 0
        self.join = SimpleNamespace(remote=lambda *given: lambda: self._join(*given))
        self.serve_orders = SimpleNamespace(remote=self._serve)

    def _join(self, address, number):
        if self.dead:
            raise Lost
        self._line = dial(address, 30.0)
        self._line.send(*requests.join(number))

    def _serve(self):
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()

        def told():
            thread.join(5)
            if self.dead:
                raise Lost

        return told

    def _work(self):
        with suppress(TransportError):
            self._serve_line(self._line)
        self._line.close()

    def _count(self):
        self._left -= 1
        if self._left == 0:
            self.dead = True
            self._line.close()


@contextmanager
def lane_server(monkeypatch, secret, timeout):
    """A lane for two such actors."""
    monkeypatch.setattr(actor_lines, "get", lambda call, timeout, what: call())
    monkeypatch.setattr(actor_lines, "lost", lambda error: isinstance(error, Lost))
    server = TransportServer(None, "", secret, timeout, peers=2)
    yield server
    server.close()
