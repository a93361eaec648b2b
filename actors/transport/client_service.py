"""What the server answers on the line of a client that lives its own loop (vertical, wall clock)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from actors.transport import requests
from actors.transport.requests import EXCHANGE, FINISH, FIRST, WAIT, TransportRequest
from raydpzv.errors import TransportError
from raydpzv.methods.roles import Upload
from raydpzv.sim.interfaces import Activation
from raydpzv.sim.wall import Answer


class Service(Protocol):
    """Who answers: as `raydpzv.sim.wall.ServerConnection`, for a run or its warm-up."""

    def first_answer(self, client: int, warm_up: bool) -> Answer:
        """Return a client's first order."""
        ...

    def exchange_answer(self, upload: Upload, how: Activation, applied: float, warm_up: bool) -> Answer:
        """Serve an upload."""
        ...

    def wait_answer(self, client: int, seconds: float, warm_up: bool) -> Answer:
        """Wait for an order."""
        ...

    def finish(self, client: int, applied: float, warm_up: bool) -> None:
        """Note a client's farewell."""
        ...


class ClientConversation:
    """A `Conversation` with one client. who: its first words."""

    def __init__(self, service: Service, who: TransportRequest) -> None:
        self._service, self._client, self._warm_up = service, who.client, who.warm_up
        self._promised: dict[bool, int | None] = {
            False: None,
            True: 0,
        }  # by the last order and the last query

    def most(self) -> int:
        """Return how many bytes the next request may have."""
        return requests.most_bytes(self._promised.values())

    def answer(self, frame: memoryview) -> Sequence[bytes]:
        """Return the answer's frame."""
        request = requests.read_request(frame)
        if request.upload is not None:
            check_size(request.upload, self._promised[request.upload.is_query])
        answer = self._answer(request)
        if answer.order is not None:
            order = answer.order
            self._promised[order.is_query or order.asks] = order.upload_bytes
        return requests.answered(answer)

    def _answer(self, request: TransportRequest) -> Answer:
        service, client, warm_up = self._service, self._client, self._warm_up
        asked: dict[int, Callable[[], Answer]] = {
            FIRST: lambda: service.first_answer(client, warm_up),
            WAIT: lambda: service.wait_answer(client, request.seconds, warm_up),
        }
        if request.kind in asked:
            return asked[request.kind]()
        if request.kind == FINISH:
            service.finish(client, request.seconds, warm_up)
            return Answer(None, True)
        if request.kind != EXCHANGE or request.upload is None or request.how is None:
            raise TransportError(f"a request of kind {request.kind} in the midst of a line")
        if request.upload.client != client:
            raise TransportError(f"client {client} handed in an upload of client {request.upload.client}")
        return service.exchange_answer(request.upload, request.how, request.seconds, warm_up)


def check_size(upload: Upload, promised: int | None) -> None:
    """Refuse an upload that is not of the size that its order promised (None: any). Raises TransportError."""
    if promised is not None and upload.body.wire_bytes != promised:
        raise TransportError(
            f"client {upload.client} sent {upload.body.wire_bytes} bytes where its order promised {promised}"
        )
