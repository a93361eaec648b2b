"""The server actor of vertical runs: holds the server's role and, with the virtual clock, the whole
loop.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from actors.ledger_actor import RelayedLedger
from actors.remote import get
from actors.server_actor import ServerActor
from actors.transport.clients import ClientConversation
from actors.transport.frames import load_upload
from actors.vertical.executor import ActorExecutor, ReplacementQueue
from raydpzv.experiment.release_ledger import Past
from raydpzv.experiment.run_core import RunParts
from raydpzv.experiment.run_vertical import VerticalCore
from raydpzv.experiment.vertical import PreparedVertical
from raydpzv.experiment.warm_up import WarmUpServer
from raydpzv.ledger.header import Header
from raydpzv.ledger.ledger import Ledger, begin_ledger, ledger_facts
from raydpzv.methods.roles import Order, Upload
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.sim.clock import WallClock
from raydpzv.sim.executor import LocalExecutor
from raydpzv.sim.interfaces import Activation
from raydpzv.sim.wall import Answer, LockedServerLoop, SavedClient, ServerConnection
from raydpzv.wire.messages import Start


class VerticalServerActor(ServerActor):
    """Plain class; `actors.vertical.driver` wraps it.

    Uploads are served one at a time, each in the thread of its socket. Control calls have a
    concurrency group of their own and answer while a service or the virtual loop runs. Checkpoints
    under the wall clock wait for clients, in a third group.
    """

    CONTROL = (*ServerActor.CONTROL, "evaluate", "wanted", "bring", "facts", "leave")
    core: VerticalCore

    def __init__(self, prepared: PreparedVertical, gpus: float) -> None:
        super().__init__(prepared, gpus, partial(ClientConversation, self.connection))
        self._prepared = prepared
        self._role = prepared.server.make(self._device)
        self._local = [factory.make(self._device) for factory in prepared.clients]
        self._serving = threading.Lock()
        self._warm_up: WarmUpServer | None = None
        self._header: Header | None = None
        self._ledger: Ledger | None = None
        self._replacements = ReplacementQueue(self._timeout)
        self._returned: set[int] = set()

    def keep(self, path: Path | None, header: Header, relay: Any | None) -> None:
        """Keep the run's ledger: here, at `path`, or in another machine's ledger actor. Before
        `begin`.
        """
        self._header = header
        if relay is None:
            self._ledger = begin_ledger(path, header)
        else:
            relayed = RelayedLedger(relay, header, self._timeout)
            relayed.adopt()
            self._ledger = relayed

    def begin(self, checkpoint: Checkpoint | None, *, keeps: bool) -> None:
        """Start at the run's start (None) or at a checkpoint; keeps: whether checkpoints are
        taken.
        """
        parts = RunParts(self._ledger, self._queue, self._controls(keeps=keeps), checkpoint)
        self.core = VerticalCore(self._prepared, self._role, parts)

    def run_virtual(self, actors: Sequence[Any], held: Sequence[Sequence[int]]) -> None:
        """Run the whole virtual-time loop; held: the clients of each actor. Without actors clients
        live here.
        """
        if not actors:
            with closing(LocalExecutor(self._local)) as host:
                self._run_core(host)
            return
        peers = self._peers(actors, self._timeout, "client actor")
        records = self if self.core.ledger_server else None
        self._run_core(ActorExecutor(peers, held, records, self._replacements))
        peers.finish()
        self.close_transport()

    def open_warm_up(self, clients: Sequence[int]) -> None:
        """Set up a throw-away server for throw-away clients of these numbers."""
        self._warm_up = WarmUpServer(self._prepared, self._device, self._header, clients)

    def close_warm_up(self, uploads: Sequence[bytes]) -> None:
        """Evaluate throw-away clients' embeddings, in client order, and drop the server."""
        if self._warm_up:
            self._warm_up.finish([load_upload(upload) for upload in uploads])
        self._warm_up = None

    def bring_segment(self, actors: Sequence[Any], held: Sequence[Sequence[int]]) -> None:
        """Restore roles to the start of a segment under the wall clock; parameters as of
        `run_virtual`.
        """
        peers = self._peers(actors, self._timeout, "client actor")
        self.core.bring_segment(ActorExecutor(peers, held))
        peers.finish()

    def open_wall(self, origin: float) -> None:
        """Open for clients under the wall clock, for a restored segment."""
        self.core.open_wall(WallClock(origin))

    def keep_segment(self, actors: Mapping[int, Any], *, due: bool) -> None:
        """Take a checkpoint from which the next segment can start (wall clock), see
        `RunCore.keep_segment`.

        actors: who holds each client.
        """

        def saved() -> list[SavedClient]:
            asked = [actor.saved.remote(m) for m, actor in sorted(actors.items())]
            found = get(asked, self._timeout, "the clients' states for a checkpoint")
            return [SavedClient(load_upload(state).body, applied) for state, applied in found]

        self.core.keep_segment(saved, due=due)

    def connection(self, warm_up: bool) -> ServerConnection:
        """Return what a client talks to: this actor, or the throw-away server of the warm-up."""
        if not warm_up:
            return self
        if self._warm_up is None:
            raise RuntimeError("nothing is warmed up: open_warm_up comes first")
        return self._warm_up.wall

    def first(self, client: int) -> Answer:
        """Return a client's first order; a rebuilt client gets an order to start."""
        with self._serving:
            self._warm_up = None  # it is over
            answer = self._open().first(client)
            if answer.order is None and client in self._returned:
                return Answer(Order(client, Start()), answer.over)
            return answer

    def exchange(self, upload: Upload, how: Activation, applied: float) -> Answer:
        """Serve one upload; an upload that was served before gets the same answer."""
        with self._serving:
            wall, ledger_server = self._open(), self.core.ledger_server
            if ledger_server and (order := ledger_server.again(upload)):
                return Answer(order, self.core.server_loop.stop_reason is not None)
            return wall.exchange(upload, how, applied)

    def wait(self, client: int, seconds: float) -> Answer:
        return self._open().wait(client, seconds)

    def finish(self, client: int, applied: float) -> None:
        self._open().finish(client, applied)

    def evaluate(self, uploads: list[bytes]) -> None:
        """Score held-out embeddings, in client order."""
        self.core.evaluate([load_upload(u) for u in uploads])

    def close(self) -> None:
        """Record what was left open, and end the connections (wall clock)."""
        self._open().close()
        super().close()

    def past(self, client: int, before: Order | None) -> Past:
        """Return what the client is rebuilt from, to what it was before the order (None: before
        any).
        """
        assert self.core.ledger_server is not None
        return self.core.ledger_server.past(client, before)

    def rebuilt(self, actor: int, pasts: Mapping[int, Past]) -> None:
        """Record that the clients of an actor were rebuilt."""
        made = ", ".join(f"client {m} from {len(history)}" for m, (history, _) in pasts.items())
        now = self.core.clock.now() if self.core.clock else self.core.status().time
        self.core.recorder.emit(
            "fault",
            time=now,
            party=f"client actor {actor}",
            kind="Lost",
            message=(
                f"the actor was lost and made again; rebuilt {made} (seed, scalar) pairs of the "
                "ledger"
            )
            + self._silent(pasts, now),
        )

    def _silent(self, clients: Iterable[int], now: float) -> str:
        """Return for how long nothing was heard of clients under the wall clock, in words."""
        heard = {m: self.core.wall.heard(m) for m in clients} if self.core.clock else {}
        said = [
            f"client {m} for {now - last:.3g} s" for m, last in heard.items() if last is not None
        ]
        return f"; not heard of until now: {', '.join(said)}" if said else ""

    def pasts(self, actor: int, clients: Sequence[int]) -> list[Past]:
        """Return what a lost actor's clients are rebuilt from, every answer on record applied."""
        found = {m: self.past(m, None) for m in clients}
        self._returned |= found.keys()
        self.rebuilt(actor, found)
        return list(found.values())

    def wanted(self) -> dict[int, list[Past]]:
        """Return the actors that the virtual loop waits for, and what their clients are rebuilt
        from.
        """
        return self._replacements.wanted()

    def bring(self, actor: int, new: Any | None) -> None:
        """Hand over a new actor in the place of a lost one; None: there is to be none."""
        self._replacements.bring(actor, new)

    def facts(self) -> dict[str, Any]:
        """Return what summary.json says about the ledger."""
        return ledger_facts(self._ledger)

    def leave(self) -> None:
        """Release the ledger."""
        if self._ledger:
            self._ledger.close()

    def parameters(self) -> np.ndarray:
        return self._role.parameters()

    def local_parameters(self, client: int) -> np.ndarray:
        """Return the parameters of a client that lives here."""
        return self._local[client].parameters()

    def _open(self) -> LockedServerLoop:
        if self.core.clock is None:
            raise RuntimeError("the server is not open: open_wall comes first")
        return self.core.wall
