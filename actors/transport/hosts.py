"""Both ends of a host's line: orders to all its clients at once (virtual clock), or clients that pull (wall clock)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from actors.serialization import pack_work
from actors.transport import requests, work
from actors.transport.client_service import check_size
from actors.transport.connection import Connection, TransportAddress, dial
from actors.transport.connections import Connections
from actors.transport.orders import Sent
from actors.transport.requests import EXCHANGE, WAKE, TransportRequest
from raydpzv.errors import Stalled, TransportError
from raydpzv.methods.roles import Order, Upload
from raydpzv.sim.interfaces import Activation
from raydpzv.sim.wall import Answer


class HostConnections:
    """The server's lines to hosts on which it orders. lean: see `pack_work`."""

    def __init__(self, lines: Connections, *, lean: bool) -> None:
        self._lines, self._lean = lines, lean

    def work(self, host: int, orders: Sequence[Order]) -> Sent:
        """Send orders; where the host is lost, waiting for the uploads will tell."""
        sent = Sent(f"the uploads of host {host}", work.most_bytes(orders), work.read_uploads)
        return self._lines.send(host, sent, work.work(pack_work(orders, lean=self._lean)))

    def uploads(self, host: int, handle: Sent) -> list[Upload]:
        """Wait for what comes of orders. TransportError: the line broke, but the host is not lost."""
        found: list[Upload] = self._lines.result(host, handle)
        return found

    def look(self, host: int, name: str, version: int) -> Any:
        """Ask a host what it finds of the model at `version`, after the work that was sent to it, and wait."""
        sent = Sent(f"host {host} at update {version}", requests.MOST, partial(work.read_looked, name))
        return self._lines.result(host, self._lines.send(host, sent, work.look(name, version)))

    def replace(self, host: int, new: Any) -> None:
        """Send to a new host in the place of a lost one, over a line of its own."""
        self._lines.replace(host, new)

    def finish(self) -> None:
        """Let the hosts end their calls."""
        self._lines.finish()


def serve_host(
    line: Connection, process: Callable[[Sequence[Order]], list[Upload]], look: Callable[[str, int], Any]
) -> None:
    """Do what the server asks for, one thing at a time, until nothing follows. TransportError: the line ends before.

    What a client or a look raises takes the place of what it was to bring, and the next is done.
    """
    while (asked := work.read_asked(line.receive())) is not None:
        try:
            if asked.look:
                frame = work.looked(asked.look, look(asked.look, asked.version))
            else:
                frame = work.uploads(process(asked.orders))
        except Exception as error:
            frame = requests.failed(error)
        line.send(*frame)


class PullService(Protocol):
    """Who answers hosts whose clients pull."""

    separate: bool
    """Whether clients have models of their own, and so messages."""

    def wake_order(self, client: int) -> Order | None:
        """Return what a client is to work at; None: the run is over."""
        ...

    def exchange_upload(self, upload: Upload, how: Activation) -> bool:
        """Serve one upload; tell whether the run goes on."""
        ...


class HostConversation:
    """A `Conversation` with a host whose clients pull. who: its first words."""

    def __init__(self, service: PullService, who: TransportRequest) -> None:
        self._service = service
        self._promised: dict[int, int | None] = {}  # by client at work

    def most(self) -> int:
        """Return how many bytes the next request may have."""
        return requests.most_bytes(self._promised.values() or [0])

    def answer(self, frame: memoryview) -> Sequence[bytes]:
        """Return the answer's frame."""
        request = requests.read_request(frame)
        if request.kind == WAKE:
            order = self._service.wake_order(request.client)
            if order is None:
                return requests.answered(Answer(None, True))
            self._promised[order.client] = order.upload_bytes
            return work.work(pack_work([order], lean=False)) if self._service.separate else work.tail(order)
        upload, how = request.upload, request.how
        if request.kind != EXCHANGE or upload is None or how is None:
            raise TransportError(f"a request of kind {request.kind} in the midst of a line")
        if upload.client not in self._promised:
            raise TransportError(f"client {upload.client} handed in an upload that nobody ordered")
        check_size(upload, self._promised.pop(upload.client))
        return requests.answered(Answer(None, not self._service.exchange_upload(upload, how)))


class HostConnection:
    """A `raydpzv.sim.pull.PullConnection` over one line. Raises TransportError, Stalled, and what the server raises."""

    def __init__(self, address: TransportAddress, timeout: float, host: int) -> None:
        self._line, self._timeout = dial(address, timeout), timeout
        self._line.send(*requests.hello(host, False))

    def wake(self, client: int) -> Order | None:
        """Return what the client is to work at; None: the run is over."""
        answer = self._ask(f"the server's answer to client {client}", requests.wake(client))
        asked = work.read_asked(answer)
        return asked.orders[0] if asked else None

    def exchange(self, upload: Upload, how: Activation) -> bool:
        """Hand in an upload; tell whether the run goes on."""
        what = f"the server to take the upload of client {upload.client}"
        return not requests.read_answer(self._ask(what, requests.exchange(upload, how, 0.0))).over

    def close(self) -> None:
        """Close the line."""
        self._line.close()

    def _ask(self, what: str, frame: Sequence[bytes]) -> memoryview:
        self._line.send(*frame)
        try:
            return self._line.receive(begins_within=self._timeout)
        except Stalled:
            raise Stalled(
                f"waited {self._timeout:g} s for {what}; raise resources.timeout if the work is that long"
            ) from None
