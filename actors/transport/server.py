"""The server's end of the lane: it listens, and serves every peer's line in a thread of its own.

A line on which the server is to order (virtual clock) is not served but handed over to whoever expects it.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from actors.transport import requests
from actors.transport.connection import HANDSHAKE_TIMEOUT, Connection, from_another_user, listen, prove
from actors.transport.requests import HELLO, JOIN, TransportRequest
from raydpzv.errors import Stalled, TransportError

MOST_STRANGERS = 64
"""Peers at a time, beside as many as are to come, that have not proved themselves; past them one is hung up on.

It is the first of those whom other users of the machine opened, else the first of all: actors prove themselves within
milliseconds. So no flood of strangers takes the threads and the places that actors need.
"""
_PAUSE = 0.05
"""Seconds until a peer is accepted after one could not be, as when the process has no more files to open."""


class Conversation(Protocol):
    """What is said on one peer's line, request by request, after the peer's first words."""

    def most(self) -> int:
        """Return how many bytes the next request may have."""
        ...

    def answer(self, frame: memoryview) -> Sequence[bytes]:
        """Return the answer's frame. Raises TransportError where the peer breaks its word: its line is ended."""
        ...


Talk = Callable[[TransportRequest], Conversation]
"""Begins a conversation with who says who it is."""


class TransportServer:
    """Serves lines until it is closed. timeout: seconds for a frame that has begun; peers: how many will come.

    What a peer does wrong ends its line and nobody else's; a client whose line is ended fails, and with it the run,
    unless its process is gone and is replaced.
    """

    def __init__(self, talk: Talk, host: str, secret: bytes, timeout: float, peers: int) -> None:
        self._talk, self._secret, self._timeout = talk, secret, timeout
        self._listener, self.address = listen(host, secret, peers)
        self._lines: set[Connection] = set()
        self._most_unproved = MOST_STRANGERS + peers
        self._unproved: dict[Connection, bool] = {}  # in the order in which they came; is it another user's?
        self._joined: dict[int, Connection] = {}
        self._lock = threading.Condition()
        self._closed = False
        threading.Thread(target=self._accept, name="lane", daemon=True).start()

    def joined(self, number: int) -> Connection:
        """Wait for the peer with this number and return its connection. Raises TransportError."""
        with self._lock:
            if not self._lock.wait_for(lambda: number in self._joined, HANDSHAKE_TIMEOUT):
                raise TransportError(
                    f"line {number} to the server was opened but did not arrive in {HANDSHAKE_TIMEOUT:g} s"
                )
            return self._joined.pop(number)

    def close(self) -> None:
        """Listen no more and end every line."""
        with self._lock:
            self._closed = True
            lines = list(self._lines)
        with suppress(
            OSError
        ):  # on some systems a listening socket cannot be shut down; there, closing wakes it
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        for line in lines:
            line.cut()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(_PAUSE)
                continue
            line, foreign = Connection(connected, self._timeout), from_another_user(connected)
            with self._lock:
                if self._closed:
                    line.close()
                    return
                if len(self._unproved) >= self._most_unproved:
                    first = max(self._unproved, key=self._unproved.__getitem__)
                    del self._unproved[first]
                    first.cut()
                self._lines.add(line)
                self._unproved[line] = foreign
            threading.Thread(target=self._serve, args=(line,), name="lane of a peer", daemon=True).start()

    def _serve(self, line: Connection) -> None:
        handed_over = False
        try:
            prove(line, self._secret, listens=True)
            self._proved(line)
            who = requests.read_request(line.receive(requests.OVERHEAD, begins_within=self._timeout))
            if who.kind == JOIN:
                with self._lock:
                    self._joined[who.number] = line
                    self._lock.notify_all()
                handed_over = True
            elif who.kind == HELLO:
                self._converse(line, who)
            else:
                raise TransportError("a peer's first words are who it is")
        except (
            TransportError,
            Stalled,
        ):  # the peer has gone, is no client, or broke its word; it sees its line end
            return
        finally:
            self._proved(line)
            if not handed_over:
                line.close()
                with self._lock:
                    self._lines.discard(line)

    def _proved(self, line: Connection) -> None:
        """Be no longer among those who are hung up on for their number."""
        with self._lock:
            self._unproved.pop(line, None)

    def _converse(self, line: Connection, who: TransportRequest) -> None:
        conversation = self._talk(who)
        while True:
            request = line.receive(conversation.most())
            try:
                answer = conversation.answer(request)
            except TransportError as error:
                line.send(*requests.failed(error))
                raise
            except Exception as error:
                answer = requests.failed(error)
            line.send(*answer)
