"""The answering end of sockets: it listens, and serves each peer in a thread of its own.

A socket on which the server orders (virtual clock) is not served but handed to the code that waits
for it.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from actors.transport import frames
from actors.transport.frames import HELLO, JOIN, TransportRequest
from actors.transport.sockets import (
    HANDSHAKE_TIMEOUT,
    FrameSocket,
    from_another_user,
    listen,
    prove,
)
from raydpzv.errors import Stalled, TransportError

MOST_STRANGERS = 64
"""Peers at a time, beyond the expected number, that have not proved themselves. One more, and one
is hung up on.

That is the first one that another user of the machine opened, else the first of all: actors prove
themselves within milliseconds. So a flood of strangers cannot take the threads and places that
actors need.
"""
_PAUSE = 0.05
"""Seconds to wait after accepting a peer failed, for example because the process has no file left
to open.
"""


class Conversation(Protocol):
    """The answers to one peer's requests, after the frame that named the peer."""

    def most(self) -> int:
        """Return how many bytes the next request may have."""
        ...

    def answer(self, frame: memoryview) -> Sequence[bytes]:
        """Return the answer's frame. Raises TransportError if the peer breaks the protocol, which
        ends its socket.
        """
        ...


Talk = Callable[[TransportRequest], Conversation]
"""Starts a conversation with the peer that a request names."""


class TransportServer:
    """Serves sockets until it is closed. timeout: seconds for a frame that has started; peers: the
    expected number.

    A peer's mistake ends its own socket alone. That client fails, and with it the run, unless its
    process is gone and is replaced.
    """

    def __init__(self, talk: Talk, host: str, secret: bytes, timeout: float, peers: int) -> None:
        self._talk, self._secret, self._timeout = talk, secret, timeout
        self._listener, self.address = listen(host, secret, peers)
        self._sockets: set[FrameSocket] = set()
        self._most_unproved = MOST_STRANGERS + peers
        self._unproved: dict[FrameSocket, bool] = {}  # in order of arrival; is it another user's?
        self._joined: dict[int, FrameSocket] = {}
        self._lock = threading.Condition()
        self._closed = False
        threading.Thread(target=self._accept, name="transport", daemon=True).start()

    def joined(self, number: int) -> FrameSocket:
        """Wait for the peer with this number and return its socket. Raises TransportError."""
        with self._lock:
            if not self._lock.wait_for(lambda: number in self._joined, HANDSHAKE_TIMEOUT):
                raise TransportError(
                    f"connection {number} to the server was opened but did not arrive in "
                    f"{HANDSHAKE_TIMEOUT:g} s"
                )
            return self._joined.pop(number)

    def close(self) -> None:
        """Stop listening and end every socket."""
        with self._lock:
            self._closed = True
            sockets = list(self._sockets)
        # some systems cannot shut a listening socket down; there, closing it wakes the thread
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        for peer in sockets:
            peer.cut()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(_PAUSE)
                continue
            peer, foreign = FrameSocket(connected, self._timeout), from_another_user(connected)
            with self._lock:
                if self._closed:
                    peer.close()
                    return
                if len(self._unproved) >= self._most_unproved:
                    first = max(self._unproved, key=self._unproved.__getitem__)
                    del self._unproved[first]
                    first.cut()
                self._sockets.add(peer)
                self._unproved[peer] = foreign
            threading.Thread(
                target=self._serve, args=(peer,), name="transport of a peer", daemon=True
            ).start()

    def _serve(self, peer: FrameSocket) -> None:
        handed_over = False
        try:
            prove(peer, self._secret, listens=True)
            self._proved(peer)
            who = frames.read_request(peer.receive(frames.OVERHEAD, begins_within=self._timeout))
            if who.kind == JOIN:
                with self._lock:
                    self._joined[who.number] = peer
                    self._lock.notify_all()
                handed_over = True
            elif who.kind == HELLO:
                self._converse(peer, self._talk(who))
            else:
                raise TransportError("a peer's first words are who it is")
        except (TransportError, Stalled):
            # the peer has gone, is no actor of the run or broke the protocol; it sees its socket
            # end
            return
        finally:
            self._proved(peer)
            if not handed_over:
                peer.close()
                with self._lock:
                    self._sockets.discard(peer)

    def _proved(self, peer: FrameSocket) -> None:
        """Count a peer no longer among the strangers."""
        with self._lock:
            self._unproved.pop(peer, None)

    def _converse(self, peer: FrameSocket, conversation: Conversation) -> None:
        while True:
            request = peer.receive(conversation.most())
            try:
                answer = conversation.answer(request)
            except TransportError as error:  # the peer broke the protocol
                peer.send(*frames.failed(error))
                raise
            except Exception as error:
                answer = frames.failed(error)
            peer.send(*answer)
