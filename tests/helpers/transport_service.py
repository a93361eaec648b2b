"""Actors that answer or do tasks on sockets, in this process."""

import threading
from contextlib import contextmanager, suppress
from types import SimpleNamespace

from actors.transport import peers
from actors.transport.peers import Peers, TaskPort
from actors.transport.port import TransportPort
from actors.transport.server import TransportServer
from raydpzv.errors import TransportError

SECRET = b"k" * 32


@contextmanager
def served(talk, timeout=2.0):
    """Yield the address of an answering actor."""
    port = TransportPort(talk, timeout)
    yield port.open_transport("", SECRET, peers=4)
    port.close_transport()


class Lost(Exception):
    """Stands in for Ray's error of an actor that is lost."""


class TaskActor(TaskPort):
    """An actor that does tasks; killed at its n-th one, or before its first (-1). `do` decodes and
    does a task.
    """

    def __init__(self, do, killed_at=0):
        super().__init__()
        self._do, self._left, self.dead = do, killed_at, killed_at < 0

    def _task(self, frame):
        task = self._do(frame)
        if task is None:
            return None
        self._left -= 1
        if self._left == 0:
            self.dead = True
            if self._socket:
                self._socket.close()
        return task

    def cut(self):
        """Break the socket of an actor that lives."""
        self._socket.cut()


class Handle:
    """Ray's handle of a task actor: a call's reference is a function that returns the result."""

    def __init__(self, actor):
        self.join = SimpleNamespace(remote=lambda *given: lambda: self._alive(actor.join, *given))
        self.serve_orders = SimpleNamespace(remote=self._serve)
        self.actor = actor

    def _alive(self, call, *given):
        if self.actor.dead:
            raise Lost
        return call(*given)

    def _serve(self):
        def work():
            with suppress(TransportError):
                self.actor.serve_orders()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()

        def ended():
            thread.join(0.2)  # the actor is dead before its socket closes
            if self.actor.dead:
                raise Lost

        return ended


@contextmanager
def ordering(monkeypatch, timeout=30.0):
    """Yield a function that returns the peers for such handles."""
    monkeypatch.setattr(peers, "get", lambda call, timeout, awaited: call())
    monkeypatch.setattr(peers, "lost", lambda error: isinstance(error, Lost))
    server = TransportServer(None, "", SECRET, timeout, peers=2)
    yield lambda *handles: Peers(server, handles, timeout, "actor")
    server.close()
