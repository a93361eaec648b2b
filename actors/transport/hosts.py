"""Both ends of a connection of a host whose clients pull (horizontal, wall clock)."""

from __future__ import annotations

from collections.abc import Sequence

from actors.transport import frames, work
from actors.transport.clients import check_size
from actors.transport.connection import Connection
from actors.transport.frames import EXCHANGE, HELLO, WAKE, TransportRequest
from actors.transport.sockets import TransportAddress
from raydpzv.errors import TransportError
from raydpzv.methods.roles import Order, Upload
from raydpzv.sim.interfaces import Activation
from raydpzv.sim.pull import PullConnection
from raydpzv.sim.wall import Answer


class HostConnection:
    """A `raydpzv.sim.pull.PullConnection`. Raises as `Connection.ask` does, and whatever the server
    raises.
    """

    def __init__(self, server: TransportAddress, timeout: float, host: int) -> None:
        self._connection = Connection(server, timeout, frames.request(HELLO, host))

    def wake(self, client: int) -> Order | None:
        answer = self._connection.ask(
            frames.request(WAKE, client), f"the server's answer to client {client}"
        )
        task = work.read_task(answer)
        return task.orders[0] if task else None

    def exchange(self, upload: Upload, how: Activation) -> bool:
        awaited = f"the server to take the upload of client {upload.client}"
        return not frames.read_answer(
            self._connection.ask(frames.exchange(upload, how, 0.0), awaited)
        ).over

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class HostConversation:
    """A `Conversation` with a host.

    server: the run's; separate: whether clients have models of their own, and so messages; who: the
    request that named the host.
    """

    def __init__(self, server: PullConnection, separate: bool, who: TransportRequest) -> None:
        self._server, self._separate = server, separate
        self._promised: dict[int, int | None] = {}  # by client at work

    def most(self) -> int:
        return frames.most_bytes(self._promised.values() or [0])

    def answer(self, frame: memoryview) -> Sequence[bytes]:
        request = frames.read_request(frame)
        if request.kind == WAKE:
            order = self._server.wake(request.number)
            if order is None:
                return frames.answered(Answer(None, True))
            self._promised[order.client] = order.upload_bytes
            return work.work([order], lean=False) if self._separate else work.tail(order)
        upload, how = request.upload, request.how
        if request.kind != EXCHANGE or upload is None or how is None:
            raise TransportError(f"a host sent a request of kind {request.kind}")
        if upload.client not in self._promised:
            raise TransportError(f"client {upload.client} handed in an upload that nobody ordered")
        check_size(upload, self._promised.pop(upload.client))
        return frames.answered(Answer(None, not self._server.exchange(upload, how)))
