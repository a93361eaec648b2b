"""Both ends of a connection of a client that lives its own loop (vertical, wall clock)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actors.transport import frames
from actors.transport.connection import Connection
from actors.transport.frames import EXCHANGE, FINISH, FIRST, HELLO, WAIT, TransportRequest
from actors.transport.sockets import TransportAddress
from raydpzv.errors import TransportError
from raydpzv.methods.roles import Upload
from raydpzv.sim.interfaces import Activation
from raydpzv.sim.wall import Answer, ServerConnection


class ClientConnection:
    """A `raydpzv.sim.wall.ServerConnection` for clients that live in threads of one process.

    warm_up: to the server's throw-away server. Raises as `Connection.ask` does, and whatever the
    server raises.
    """

    def __init__(self, server: TransportAddress, timeout: float, *, warm_up: bool = False) -> None:
        self._server, self._timeout, self._warm_up = server, timeout, warm_up
        self._connections: dict[int, Connection] = {}

    def first(self, client: int) -> Answer:
        hello = frames.request(HELLO, client, warm_up=self._warm_up)
        self._connections[client] = Connection(self._server, self._timeout, hello)
        return self._ask(client, frames.request(FIRST))

    def exchange(self, upload: Upload, how: Activation, applied: float) -> Answer:
        return self._ask(upload.client, frames.exchange(upload, how, applied))

    def wait(self, client: int, seconds: float) -> Answer:
        return self._ask(client, frames.request(WAIT, seconds=seconds))

    def finish(self, client: int, applied: float) -> None:
        self._ask(client, frames.request(FINISH, seconds=applied))

    def close(self) -> None:
        """Close all connections; every client has left."""
        for connection in self._connections.values():
            connection.close()

    def _ask(self, client: int, frame: Sequence[bytes]) -> Answer:
        answer = self._connections[client].ask(frame, f"the server's answer to client {client}")
        return frames.read_answer(answer)


class ClientConversation:
    """A `Conversation` with one client.

    connection: to the run's server (False) or the warm-up's (True), as it is when a request comes;
    who: the request that named the client.
    """

    def __init__(
        self, connection: Callable[[bool], ServerConnection], who: TransportRequest
    ) -> None:
        self._connection, self._client, self._warm_up = connection, who.number, who.warm_up
        # by the last order and the last query
        self._promised: dict[bool, int | None] = {False: None, True: 0}

    def most(self) -> int:
        return frames.most_bytes(self._promised.values())

    def answer(self, frame: memoryview) -> Sequence[bytes]:
        request = frames.read_request(frame)
        if request.upload is not None:
            check_size(request.upload, self._promised[request.upload.is_query])
        answer = self._answer(request)
        if answer.order is not None:
            order = answer.order
            self._promised[order.is_query or order.asks] = order.upload_bytes
        return frames.answered(answer)

    def _answer(self, request: TransportRequest) -> Answer:
        server, client = self._connection(self._warm_up), self._client
        if request.kind == FIRST:
            return server.first(client)
        if request.kind == WAIT:
            return server.wait(client, request.seconds)
        if request.kind == FINISH:
            server.finish(client, request.seconds)
            return Answer(None, True)
        if request.kind != EXCHANGE or request.upload is None or request.how is None:
            raise TransportError(f"a vertical client sent a request of kind {request.kind}")
        if request.upload.client != client:
            raise TransportError(
                f"client {client} handed in an upload of client {request.upload.client}"
            )
        return server.exchange(request.upload, request.how, request.seconds)


def check_size(upload: Upload, promised: int | None) -> None:
    """Refuse an upload of another size than its order promised (None: any size). Raises
    TransportError.
    """
    if promised is not None and upload.body.wire_bytes != promised:
        raise TransportError(
            f"client {upload.client} sent {upload.body.wire_bytes} bytes where its order promised "
            f"{promised}"
        )
