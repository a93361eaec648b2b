"""The asking end of a connection to an actor: frames on a socket."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from actors.remote import stalled
from actors.transport.sockets import TransportAddress, dial
from raydpzv.errors import Stalled


class Connection:
    """A connection to an actor that answers frames (`actors.transport.port.TransportPort`), for any
    thread. hello: the frame that names the asking party; timeout: of each answer.
    """

    def __init__(self, address: TransportAddress, timeout: float, hello: Sequence[bytes]) -> None:
        self._socket, self._timeout = dial(address, timeout), timeout
        self._socket.send(*hello)
        self._lock = threading.Lock()

    def ask(self, frame: Sequence[bytes], awaited: str) -> memoryview:
        """Send a frame and return the answer's. awaited: the answer in words. Raises Stalled past
        the time limit.

        TransportError: the connection broke.
        """
        with self._lock:
            self._socket.send(*frame)
            try:
                return self._socket.receive(begins_within=self._timeout)
            except Stalled:
                self._socket.close()  # a late answer would be taken for the next one
                raise stalled(self._timeout, awaited) from None

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
