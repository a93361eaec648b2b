"""The answering end of connections, as calls of a server or ledger actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actors.transport.peers import Peers
from actors.transport.server import Talk, TransportServer
from actors.transport.sockets import TransportAddress


class TransportPort:
    """The calls by which peers reach an actor. talk: starts a conversation; timeout: of a frame
    that has started.
    """

    def __init__(self, talk: Talk, timeout: float) -> None:
        self._talk, self._frame_timeout = talk, timeout
        self._transport: TransportServer | None = None

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

    def _peers(self, actors: Sequence[Any], timeout: float, party: str) -> Peers:
        """Return the actors on which this one orders; parameters as of `Peers`."""
        return Peers(self._opened_transport(), actors, timeout, party)

    def _opened_transport(self) -> TransportServer:
        if self._transport is None:
            raise RuntimeError("this actor does not listen: open_transport comes first")
        return self._transport
