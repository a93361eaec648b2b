"""The answering end of connections, as calls of a server or ledger actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actors.transport import frames
from actors.transport.peers import CallPeers, Peers, SocketPeers
from actors.transport.server import Conversation, Talk, TransportServer, reply
from actors.transport.sockets import TransportAddress


class TransportPort:
    """The calls by which peers reach an actor. talk: starts a conversation; timeout: of a frame
    that has started.

    Peers ask in calls of Ray (`ask`), or on sockets once `open_transport` was called.
    """

    TRANSPORT_CALLS = ("close_transport",)

    def __init__(self, talk: Talk, timeout: float) -> None:
        self._talk, self._frame_timeout = talk, timeout
        self._transport: TransportServer | None = None
        self._conversations: dict[str, Conversation] = {}

    def open_transport(self, host: str, secret: bytes, peers: int) -> TransportAddress:
        """Listen for `peers` sockets; host: of this machine, "" if no peer is on another. Raises
        TransportError.
        """
        self._transport = TransportServer(self._talk, host, secret, self._frame_timeout, peers)
        return self._transport.address

    def close_transport(self) -> None:
        """End all sockets."""
        if self._transport:
            self._transport.close()

    def ask(self, connection: str, hello: bytes, frame: Sequence[bytes]) -> Sequence[bytes]:
        """Answer a frame of a peer that calls; hello: its first frame, which names it."""
        if connection not in self._conversations:
            self._conversations[connection] = self._talk(frames.read_request(memoryview(hello)))
        answer, _ = reply(self._conversations[connection], memoryview(b"".join(frame)))
        return answer

    def _peers(self, actors: Sequence[Any], timeout: float, party: str) -> Peers:
        """Return the actors on which this one orders; parameters as of `SocketPeers`."""
        if self._transport:
            return SocketPeers(self._transport, actors, timeout, party)
        return CallPeers(actors, timeout)
