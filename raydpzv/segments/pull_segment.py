"""The segments of a run under the wall clock whose clients pull: a checkpoint is of the server and its accounts alone.

Clients are functions of the ledger, so that a new segment starts after the ledger's last update: those beyond the
checkpoint are entered into rows and accounts as the ledger has them, and no client makes them again. An upload under
way is lost; where it released something it counts all the same, since an observer has it: one for each client.
"""

from __future__ import annotations

from typing import cast

from raydpzv.ledger.entries import Slice
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.roles import PullServer, ResumableServer, Upload
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.segments.continuation import RunSegment
from raydpzv.sim.interfaces import Activation
from raydpzv.sim.pull import wake
from raydpzv.wire.seeds import SeededScalars


class PullSegment(RunSegment):
    """One segment of a run whose server was restored to the checkpoint already; `bring` it to the ledger's end."""

    def bring(self, ledger: Ledger, *, accounted: bool) -> None:
        """Restore rows and accounts to the start of the segment, the ledger's end; accounted: updates are releases."""
        if self._checkpoint:
            self._restore_loop(lost=not self._run["stopped"])
        else:
            self._loop.start(self._time)
        server = cast(PullServer, self._loop.server)
        ahead = list(ledger.since(server.updates).each())
        readers: dict[int, list[int]] = {}
        for update in ahead:
            readers.setdefault(int(update.read[0]), []).append(int(update.party[0]))
        for update in ahead:
            for client in readers.get(server.updates, ()):
                if server.reads(client) != server.updates:
                    wake(self._loop, client, self._time)
            if accounted:
                self._loop.released(int(update.party[0]))
            self._enter(update)
            self._recovered += 1

    def take(self, time: float, *, stopped: bool) -> Checkpoint:
        """Return where the next segment can start; nothing is served meanwhile. stopped: nothing can be under way."""
        server = cast(ResumableServer, self._loop.server)
        state = self._moment(time) | {"stopped": stopped}
        return Checkpoint(server.updates, {"run": state}, server.state())

    def _enter(self, update: Slice) -> None:
        client, seeds_K, now = int(update.party[0]), update.seed[update.perturbation == 0], self._time
        body = SeededScalars(seeds_K, update.scalar.reshape(len(seeds_K), -1))
        upload = Upload(client, int(update.read[0]), body)
        self._loop.serve(upload, Activation(now, now, False, now), now, lambda: now, body.wire_bytes)
