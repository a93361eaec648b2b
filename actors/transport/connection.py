"""The asking end of a connection to an actor: frames on a socket, or the same frames as arguments
of Ray calls.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from actors.remote import get, stalled
from actors.transport.sockets import TransportAddress, dial
from raydpzv.errors import Stalled


class Connection(Protocol):
    """A connection to an actor that answers frames (`actors.transport.port.TransportPort`)."""

    def ask(self, frame: Sequence[bytes], awaited: str) -> memoryview:
        """Send a frame and return the answer's. awaited: the answer in words. Raises Stalled past
        the time limit.

        TransportError: the connection broke. Ray's error: the called actor was lost.
        """
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class SocketConnection:
    """Frames on a socket, from any thread. hello: the frame that names the asking party; timeout:
    of each answer.
    """

    def __init__(self, address: TransportAddress, timeout: float, hello: Sequence[bytes]) -> None:
        self._socket, self._timeout = dial(address, timeout), timeout
        self._socket.send(*hello)
        self._lock = threading.Lock()

    def ask(self, frame: Sequence[bytes], awaited: str) -> memoryview:
        with self._lock:
            self._socket.send(*frame)
            try:
                return self._socket.receive(begins_within=self._timeout)
            except Stalled:
                self._socket.close()  # a late answer would be taken for the next one
                raise stalled(self._timeout, awaited) from None

    def close(self) -> None:
        self._socket.close()


class CallConnection:
    """Frames in calls of Ray; parameters as of `SocketConnection`."""

    def __init__(self, actor: Any, timeout: float, hello: Sequence[bytes]) -> None:
        self._actor, self._timeout, self._hello = actor, timeout, b"".join(hello)
        self._name = secrets.token_hex(8)

    def ask(self, frame: Sequence[bytes], awaited: str) -> memoryview:
        answer = get(
            self._actor.ask.remote(self._name, self._hello, tuple(frame)), self._timeout, awaited
        )
        return memoryview(b"".join(answer))

    def close(self) -> None:
        """Do nothing: each call ends by itself."""


def connect(
    actor: Any, address: TransportAddress | None, timeout: float, hello: Sequence[bytes]
) -> Connection:
    """Connect to an actor on a socket, or by calls where it does not listen (`address` is None)."""
    return (
        SocketConnection(address, timeout, hello)
        if address
        else CallConnection(actor, timeout, hello)
    )
