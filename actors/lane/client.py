"""The clients' end of the lane: one line for each client of an actor."""

from __future__ import annotations

from actors.lane import requests
from actors.lane.line import LaneAddress, LaneSocket, dial
from raydpzv.errors import Stalled
from raydpzv.methods.roles import Upload
from raydpzv.sim.interfaces import Activation
from raydpzv.sim.wall import Answer


class LaneConnection:
    """A `raydpzv.sim.wall.ServerConnection` over sockets, for clients that live in threads of one process.

    warm_up: to the server's throw-away server. Raises LaneError where a line breaks, Stalled where the server takes
    longer than `timeout`, and what the server raises.
    """

    def __init__(self, address: LaneAddress, timeout: float, *, warm_up: bool = False) -> None:
        self._address, self._timeout, self._warm_up = address, timeout, warm_up
        self._lines: dict[int, LaneSocket] = {}

    def first(self, client: int) -> Answer:
        """Open the client's line; return its first order."""
        line = self._lines[client] = dial(self._address, self._timeout)
        line.send(*requests.hello(client, self._warm_up))
        return self._ask(client, *requests.plain(requests.FIRST))

    def exchange(self, upload: Upload, how: Activation, applied: float) -> Answer:
        """Hand in an upload."""
        return self._ask(upload.client, *requests.exchange(upload, how, applied))

    def wait(self, client: int, seconds: float) -> Answer:
        """Wait for an order that was not ready yet."""
        return self._ask(client, *requests.plain(requests.WAIT, seconds))

    def finish(self, client: int, applied: float) -> None:
        """Say when the last answer was applied."""
        self._ask(client, *requests.plain(requests.FINISH, applied))

    def close(self) -> None:
        """Close all lines; every client has left."""
        for line in self._lines.values():
            line.close()

    def _ask(self, client: int, *frame: bytes) -> Answer:
        line = self._lines[client]
        line.send(*frame)
        try:
            answer = line.receive(begins_within=self._timeout)
        except Stalled:
            raise Stalled(
                f"waited {self._timeout:g} s for the server's answer to client {client}; raise resources.timeout "
                "if the work is that long"
            ) from None
        return requests.read_answer(answer)
