"""The client actor: holds one or several clients' roles and forwards to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, cast

import numpy as np

from actors.device import claim_device
from actors.transport import frames
from actors.transport.clients import ClientConnection
from actors.transport.peers import TaskPort
from actors.transport.sockets import TransportAddress
from raydpzv.experiment.client_warm_up import throw_away_clients, warm_up_loops
from raydpzv.experiment.parties import ClientFactory
from raydpzv.methods.roles import Rebuildable, Upload
from raydpzv.sim.client_threads import run_together
from raydpzv.sim.clock import WallClock
from raydpzv.sim.virtual import Timing
from raydpzv.sim.wall import (
    NOTHING_APPLIED,
    ClientLoop,
    ClientStart,
    SegmentStart,
    ServerConnection,
    WallPace,
    saved_state,
)

if TYPE_CHECKING:
    from raydpzv.experiment.release_ledger import Past


class ClientActor(TaskPort):
    """Plain class; `actors.vertical.actor_set` wraps it. `stop`, `evaluate_wall` and `saved` run
    beside a long `run`.

    pasts: of an actor in the place of a lost one, what each client is rebuilt from.
    """

    CONTROL = ("stop", "evaluate_wall", "saved")

    def __init__(
        self, factories: Sequence[ClientFactory], gpus: float, pasts: Sequence[Past] = ()
    ) -> None:
        super().__init__()
        self._device = claim_device(gpus)
        self._factories = {factory.client: factory for factory in factories}
        self._roles = {
            client: factory.make(self._device) for client, factory in self._factories.items()
        }
        self._uploads: dict[int, int] = {}
        for (client, role), (history, uploads) in zip(self._roles.items(), pasts, strict=False):
            cast(Rebuildable, role).restore(history, uploads)
            self._uploads[client] = uploads
        self._locks = {client: threading.Lock() for client in self._roles}
        self._loops: dict[int, ClientLoop] = {}
        self._stopping = threading.Event()

    def warm_up(self, timeout: float, server: TransportAddress) -> dict[int, bytes]:
        """Let throw-away clients go through their first exchanges with the server's; return what
        they evaluate to.
        """
        roles = throw_away_clients(self._factories.values(), self._device)
        spec = next(iter(self._factories.values())).spec
        with closing(ClientConnection(server, timeout, warm_up=True)) as port:
            loops = warm_up_loops(roles, port, spec)
            run_together(loops, lambda reason: _stop(loops))
        return {client: frames.dump_upload(role.evaluate()) for client, role in roles.items()}

    def run(
        self,
        timing: Timing,
        origin: float,
        timeout: float,
        server: TransportAddress,
        segment: SegmentStart,
    ) -> None:
        """Let every client here live its own loop until the run is over (wall clock).

        segment: that starts now, or that the actor joins in the place of a lost one.
        """
        with closing(ClientConnection(server, timeout)) as port:
            self._run(port, WallPace(timing, WallClock(origin), timeout), segment)

    def _task(self, frame: memoryview) -> Callable[[], Sequence[bytes]] | None:
        order = frames.read_answer(frame).order
        return order and (lambda: frames.done(self._roles[order.client].process(order)))

    def _run(self, port: ServerConnection, pace: WallPace, segment: SegmentStart) -> None:
        starts = {client: segment.of(client) for client in self._roles}
        if self._uploads:  # of rebuilt clients
            now = pace.clock.now()
            starts = {
                m: ClientStart(now, self._uploads.get(m, start.works))
                for m, start in starts.items()
            }
        self._loops = {
            client: ClientLoop(client, role, port, pace, self._locks[client], start=starts[client])
            for client, role in self._roles.items()
        }
        if self._stopping.is_set():
            return
        run_together(list(self._loops.values()), lambda reason: self.stop())

    def stop(self) -> None:
        self._stopping.set()
        _stop(self._loops.values())

    def evaluate_wall(self, client: int) -> bytes:
        """Return a client's held-out embeddings while its loop runs."""
        with self._locks[client]:
            return frames.dump_upload(self._roles[client].evaluate())

    def saved(self, client: int) -> tuple[bytes, int]:
        """Return what a checkpoint keeps of a client, and the round of the last order that it
        applied (wall clock).
        """
        if client in self._loops:
            state, applied = self._loops[client].saved()
        else:
            state, applied = saved_state(client, self._roles[client]), NOTHING_APPLIED
        return frames.dump_upload(Upload(client, 0, state)), applied

    def parameters(self, client: int) -> np.ndarray:
        return self._roles[client].parameters()


def _stop(loops: Iterable[ClientLoop]) -> None:
    for loop in loops:
        loop.stop()
