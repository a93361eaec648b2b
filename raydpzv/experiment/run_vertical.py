"""A vertical run: its server loop on any runner, and its parties in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from raydpzv.experiment.release_ledger import LedgerServer, with_ledger
from raydpzv.experiment.run_core import LocalParties, RunCore, RunParts
from raydpzv.experiment.vertical import PreparedVertical
from raydpzv.experiment.warm_up import warm_up
from raydpzv.methods.roles import Client, Upload, VerticalServer
from raydpzv.methods.vertical.base import composed
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.party_checkpoints import PartyCheckpoints
from raydpzv.segments.run_segments import WallSegment
from raydpzv.sim.clock import WallClock
from raydpzv.sim.executor import Executor, LocalExecutor, split_score
from raydpzv.sim.virtual import LoopHooks, Scoring, VirtualRun
from raydpzv.sim.wall import (
    ClientLoop,
    LockedServerLoop,
    Resumption,
    SavedClient,
    UnderWay,
    WallPace,
)


class VerticalCore(RunCore):
    """The server loop of a vertical run; server: without its ledger."""

    segment: WallSegment
    wall: LockedServerLoop

    def __init__(self, prepared: PreparedVertical, server: VerticalServer, parts: RunParts) -> None:
        self._prepared, self._server = prepared, with_ledger(prepared, server, parts.ledger)
        super().__init__(prepared, self._server, parts)
        self.ledger_server = self._server if isinstance(self._server, LedgerServer) else None

    def _virtual_run(self, host: Executor, hooks: LoopHooks) -> VirtualRun:
        prepared, clients = self._prepared, self._prepared.spec.split.clients
        past = self.ledger_server.past if self.ledger_server else None
        self._parties = PartyCheckpoints(self._server, host, clients, past)
        scoring = Scoring(split_score(self._server, host, clients), prepared.spec.evaluate.every)
        resumed = self._parties.go_on(self._checkpoint)
        return VirtualRun(self.server_loop, host, prepared.timing, scoring, hooks, resumed)

    def _virtual_checkpoint(self, run: VirtualRun) -> Checkpoint:
        return self._parties.take(run)

    def bring_segment(self, host: Executor) -> None:
        """Restore roles to the start of a segment under the wall clock; host: does the clients'
        work until then.
        """
        clients = self._prepared.spec.split.clients
        self.segment = WallSegment(
            self.server_loop, self.recorder, clients, self._checkpoint, self.ledger_server
        )
        self.segment.bring(host)

    def open_wall(self, clock: WallClock) -> LockedServerLoop:
        prepared, segment = self._prepared, self.segment
        segment.record_start(clock.origin)
        self.wall = LockedServerLoop(
            self.server_loop,
            clock,
            prepared.timing.service_seconds,
            prepared.spec.split.clients,
            prepared.barrier,
            Resumption(segment.orders, segment.start.served),
        )
        self.clock = clock
        return self.wall

    def evaluate(self, uploads: list[Upload]) -> None:
        """Score the clients' held-out embeddings (client order) under the wall clock, also before
        it is open.
        """
        if self.clock is None:
            self.server_loop.evaluated(composed(self._server, uploads), self.segment.start.time)
        else:
            self.wall.evaluate(uploads)

    def _segment_checkpoint(
        self, under_way: UnderWay, saved: Callable[[], Sequence[SavedClient]], *, stopped: bool
    ) -> Checkpoint:
        return self.segment.take(under_way, saved() if self.segment.needs_clients else ())


class VerticalParties(LocalParties):
    """The server and the clients of a vertical run in this process."""

    core: VerticalCore
    host: LocalExecutor

    def __init__(self, prepared: PreparedVertical, parts: RunParts) -> None:
        self._prepared, self._device = prepared, prepared.local_device
        self._server = prepared.server.make(self._device)
        self._clients = [factory.make(self._device) for factory in prepared.clients]
        self.core = VerticalCore(prepared, self._server, parts)
        # on a GPU threads would wait for each other's Python code
        self.host = LocalExecutor(self._clients, None if self._device == "cpu" else 1)
        self._loops: list[ClientLoop] = []

    def warm_up(self) -> None:
        warm_up(self._prepared, self._device)

    def bring_segment(self) -> None:
        self.core.bring_segment(self.host)

    def open_wall(self, clock: WallClock) -> Sequence[ClientLoop]:
        wall, start = self.core.open_wall(clock), self.core.segment.start
        pace = WallPace(self._prepared.timing, clock, self._prepared.spec.resources.timeout)
        self._loops = [
            ClientLoop(m, role, wall, pace, start=start.of(m))
            for m, role in enumerate(self._clients)
        ]
        return self._loops

    def saved(self) -> list[SavedClient]:
        return [loop.saved() for loop in self._loops]

    def evaluate(self) -> None:
        self.core.evaluate([party.evaluate() for party in self._loops or self._clients])

    def close(self) -> None:
        self.core.wall.close()

    def models(self) -> dict[str, np.ndarray]:
        return parameters(self._server, self._clients)

    def end_threads(self) -> None:
        self.host.close()


def parameters(server: VerticalServer, clients: Sequence[Client]) -> dict[str, np.ndarray]:
    """Return every party's parameters by its name."""
    return {"server": server.parameters()} | {
        f"client {m}": c.parameters() for m, c in enumerate(clients)
    }
