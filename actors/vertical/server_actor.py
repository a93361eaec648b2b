"""The server actor: holds the server's role and, with the virtual clock, the whole loop."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from actors.device import claim_device
from actors.ledger_client import RelayedLedger
from actors.remote import get
from actors.report_barrier import ReportPort
from actors.transport.clients import ClientConversation
from actors.transport.frames import load_upload
from actors.transport.peers import CallPeers
from actors.transport.port import TransportPort
from actors.vertical.executor import RayExecutor
from actors.vertical.recovery import RecoveringExecutor, ReplacementQueue
from raydpzv.experiment.release_ledger import LedgerServer, Past, with_ledger
from raydpzv.experiment.vertical import PreparedVertical
from raydpzv.experiment.warm_up import WarmUpServer
from raydpzv.ledger.header import Header
from raydpzv.ledger.ledger import Ledger, begin_ledger, ledger_facts
from raydpzv.methods.roles import Order, Upload
from raydpzv.privacy.release import Spent
from raydpzv.records.checkpoint import Checkpoint, Piece
from raydpzv.records.checkpoint_policy import CheckpointPolicy
from raydpzv.records.party_checkpoints import PartyCheckpoints
from raydpzv.records.recorder import Recorder
from raydpzv.segments.wall_segment import WallLeg
from raydpzv.sim.clock import WallClock
from raydpzv.sim.executor import Executor, LocalExecutor, split_score
from raydpzv.sim.interfaces import Activation, Status
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.virtual import VirtualRun
from raydpzv.sim.wall import Answer, LegBegin, LockedServerLoop, SavedClient
from raydpzv.wire.messages import Start


class VerticalServerActor(ReportPort, TransportPort):
    """Plain class; `actors.vertical.driver` wraps it.

    Uploads are served one at a time. Each runs in the thread of its socket, or as a call in a concurrency group with a
    thread for each client, since a call may wait for a barrier. Control calls have a group of their own and answer
    while a service or the virtual loop runs. Checkpoints under the wall clock wait for clients, in a fourth group.
    """

    CONTROL = (
        *("status", "drain", "stop", "evaluate", "spent", "wanted", "bring", "facts", "checkpoint_facts"),
        *(
            "leave",
            "note_clocks",
            *TransportPort.TRANSPORT_CALLS,
            *ReportPort.CALLS,
        ),
    )
    WAITING = ("ask",)
    KEEPING = ("keep_leg",)

    def __init__(self, experiment: PreparedVertical, gpus: float) -> None:
        ReportPort.__init__(self)
        TransportPort.__init__(self, partial(ClientConversation, self), experiment.spec.resources.timeout)
        self._device = claim_device(gpus)
        self._experiment = experiment
        self._privacy_filter = experiment.privacy_filter()
        self._recorder = Recorder(experiment.skipped_rows(), self._privacy_filter.epsilons)
        self._role = experiment.server.make(self._device)
        self._server_loop = ServerLoop(
            *(self._role, self._privacy_filter, self._recorder, experiment.budget(), self._gate)
        )
        self._stopping = threading.Event()
        self._serving = threading.Lock()
        self._pace: CheckpointPolicy | None = None
        self._pieces: list[Piece] = []
        self._lock = threading.Lock()  # of the pieces
        self._wall: LockedServerLoop | None = None
        self._clock: WallClock | None = None
        self._leg: WallLeg | None = None
        self._warm_up: WarmUpServer | None = None
        self._header: Header | None = None
        self._ledger: Ledger | None = None
        self._ledger_server: LedgerServer | None = None
        self._replacements = ReplacementQueue(experiment.spec.resources.timeout)
        self._returned: set[int] = set()
        self._local = [factory.make(self._device) for factory in experiment.clients]

    def keep(self, path: Path | None, header: Header, relay: Any | None) -> None:
        """Keep the run's ledger: here, at `path`, or in another machine's ledger actor. Before the run."""
        self._header = header
        if relay is None:
            self._ledger = begin_ledger(path, header)
        else:
            relayed = RelayedLedger(relay, header, self._experiment.spec.resources.timeout)
            relayed.adopt()
            self._ledger = relayed
        self._server_loop.server = with_ledger(self._experiment, self._role, self._ledger)
        self._ledger_server = (
            self._server_loop.server if isinstance(self._server_loop.server, LedgerServer) else None
        )

    def run_virtual(
        self,
        actors: Sequence[Any],
        held: Sequence[Sequence[int]],
        checkpoint: Checkpoint | None = None,
        *,
        keeps: bool = False,
    ) -> None:
        """Run the whole virtual-time loop; held: the clients of each actor. Without actors clients live here.

        checkpoint: go on from there; keeps: checkpoints are wanted.
        """
        self._pace = self._experiment.pace() if keeps else None
        if not actors:
            self._run_virtual(LocalExecutor(self._local), checkpoint)
            return
        timeout = self._experiment.spec.resources.timeout
        peers = self._peers(actors, timeout, "client actor")
        if self._ledger_server:
            recovering = RecoveringExecutor(peers, held, self, self._replacements)
            self._run_virtual(recovering, checkpoint)
        else:
            self._run_virtual(RayExecutor(peers, held), checkpoint)
        peers.finish()
        self.close_transport()

    def _run_virtual(self, host: Executor, checkpoint: Checkpoint | None) -> None:
        spec = self._experiment.spec
        kept = self._ledger_server
        roles = PartyCheckpoints(kept or self._role, host, spec.split.clients, kept.past if kept else None)
        run = VirtualRun(
            self._server_loop,
            host,
            self._experiment.timing,
            score=split_score(self._role, host, spec.split.clients),
            evaluate_every=spec.evaluate.every,
            stop=self._stopping,
            tick=lambda: self._keep(roles, run, due=False),
            stopped=lambda: self._keep(roles, run, due=True),
            state=roles.go_on(checkpoint),
        )
        run.run()

    def _keep(self, roles: PartyCheckpoints, run: VirtualRun, *, due: bool) -> None:
        """Hand over rows and, if it is due, that the run can go on after them: not after its last update."""
        loop, pace = self._server_loop, self._pace
        if pace is None or loop.stop_reason is not None or not (due or pace.due(loop.updates)):
            return
        pace.begin()
        checkpoint = roles.take(run)
        with self._lock:
            self._pieces.append((self._recorder.drain(), checkpoint))
        loop.checkpointed(pace.taken(loop.updates, 0))

    def open_warm_up(self, clients: Sequence[int]) -> None:
        """Set up a throw-away server for throw-away clients of these numbers."""
        self._warm_up = WarmUpServer(self._experiment, self._device, self._header, clients)

    def close_warm_up(self, uploads: Sequence[bytes]) -> None:
        """Evaluate throw-away clients' embeddings, in client order, and drop the server."""
        if self._warm_up:
            self._warm_up.finish([load_upload(upload) for upload in uploads])
        self._warm_up = None

    def bring_leg(
        self,
        actors: Sequence[Any],
        held: Sequence[Sequence[int]],
        checkpoint: Checkpoint | None,
        *,
        keeps: bool,
    ) -> None:
        """Bring roles to where a leg begins under the wall clock; parameters as of `run_virtual`."""
        experiment = self._experiment
        self._pace = experiment.pace() if keeps else None
        clients = experiment.spec.split.clients
        self._leg = WallLeg(self._server_loop, self._recorder, clients, checkpoint, self._ledger_server)
        self._leg.bring(RayExecutor(CallPeers(actors, experiment.spec.resources.timeout), held))

    def leg(self) -> LegBegin:
        """Return where the leg begins that roles were brought to."""
        return self._begun().place

    def open_wall(self, origin: float) -> None:
        """Open for clients under the wall clock, for a leg that roles were brought to."""
        timing, clients = self._experiment.timing, self._experiment.spec.split.clients
        self._clock, leg = WallClock(origin), self._begun()
        leg.begin(origin)
        self._wall = LockedServerLoop(
            self._server_loop,
            self._clock,
            lambda which: timing.service.of(0, which),
            clients,
            self._experiment.barrier,
            orders=leg.orders,
            served=leg.place.served,
        )

    def keep_leg(self, actors: Mapping[int, Any], *, due: bool) -> None:
        """Take a checkpoint from which the next leg can begin (wall clock), if it is `due` or the time has come.

        actors: who holds each client. Nothing is served meanwhile, so that server and clients are at one moment.
        """
        pace, loop, leg = self._pace, self._server_loop, self._begun()
        if pace is None or not (due or (loop.stop_reason is None and pace.due(loop.updates))):
            return
        timeout = self._experiment.spec.resources.timeout
        pace.begin()
        with self._open().halted() as under_way:
            asked = [actor.saved.remote(m) for m, actor in sorted(actors.items()) if leg.needs_clients]
            found = get(asked, timeout, "the clients' states for a checkpoint")
            saved = [SavedClient(load_upload(state).body, applied) for state, applied in found]
            piece = self._recorder.drain(), leg.take(under_way, saved)
            with self._lock:
                self._pieces.append(piece)
        loop.checkpointed(pace.taken(loop.updates, 0))

    def first(self, client: int, warm_up: bool) -> Answer:
        """Return a client's first order; a rebuilt client is told to start."""
        with self._serving:
            answer = self._open(warm_up).first(client)
            if warm_up:
                return answer
            self._warm_up = None  # the warm-up is over
            if answer.order is None and client in self._returned:
                return Answer(Order(client, Start()), answer.over)
            return answer

    def exchange(self, upload: Upload, how: Activation, applied: float, warm_up: bool) -> Answer:
        """Serve one upload; an upload that was served before gets the same answer."""
        with self._serving:
            wall = self._open(warm_up)
            if not warm_up and self._ledger_server and (order := self._ledger_server.again(upload)):
                return Answer(order, self._server_loop.stop_reason is not None)
            try:
                return wall.exchange(upload, how, applied)
            except BaseException:
                if warm_up:
                    wall.stop("the warm-up failed")  # clients of other actors would wait for this one
                raise

    def wait(self, client: int, seconds: float, warm_up: bool) -> Answer:
        """Wait for an order for this client."""
        return self._open(warm_up).wait(client, seconds)

    def finish(self, client: int, applied: float, warm_up: bool) -> None:
        """Note when a client's last answer was applied."""
        self._open(warm_up).finish(client, applied)

    def evaluate(self, uploads: list[bytes]) -> None:
        """Score held-out embeddings, in client order."""
        self._open().evaluate([load_upload(u) for u in uploads])

    def close(self) -> None:
        """Record what was left open, and end the connections (wall clock)."""
        self._open().close()
        self.close_transport()

    def past(self, client: int, before: Order | None) -> Past:
        """Return what a client is rebuilt from, to what it was before an order."""
        assert self._ledger_server is not None
        return self._ledger_server.past(client, before)

    def rebuilt(self, actor: int, pasts: Mapping[int, Past]) -> None:
        """Record that the clients of a lost actor were rebuilt."""
        made = ", ".join(f"client {m} from {len(history)}" for m, (history, _) in pasts.items())
        now = self._clock.now() if self._clock else self._server_loop.status().time
        self._recorder.emit(
            "fault",
            time=now,
            party=f"client actor {actor}",
            kind="Lost",
            message=f"the actor was lost and made again; rebuilt {made} (seed, scalar) pairs of the ledger"
            + self._silent(pasts, now),
        )

    def note_clocks(self, offsets: Sequence[Mapping[str, Any]]) -> None:
        """Record how far clocks are from this machine's; offsets: rows of type `clock` but for their time."""
        time = self._server_loop.status().time
        for offset in offsets:
            self._recorder.emit("clock", time=time, **offset)

    def _silent(self, clients: Iterable[int], now: float) -> str:
        """Return for how long nothing was heard of clients under the wall clock, in words."""
        heard = {m: self._wall.heard(m) for m in clients} if self._wall else {}
        said = [f"client {m} for {now - last:.3g} s" for m, last in heard.items() if last is not None]
        return f"; not heard of until now: {', '.join(said)}" if said else ""

    def pasts(self, actor: int, clients: Sequence[int]) -> list[Past]:
        """Return what a lost actor's clients are rebuilt from, every answer on record applied."""
        found = {m: self.past(m, None) for m in clients}
        self._returned |= found.keys()
        self.rebuilt(actor, found)
        return list(found.values())

    def wanted(self) -> dict[int, list[Past]]:
        """Return the actors that the virtual loop waits for, and what their clients are rebuilt from."""
        return self._replacements.wanted()

    def bring(self, actor: int, new: Any | None) -> None:
        """Hand over a new actor in the place of a lost one; None: there is to be none."""
        self._replacements.bring(actor, new)

    def facts(self) -> dict[str, Any]:
        """Return what summary.json says about the ledger."""
        return ledger_facts(self._ledger)

    def checkpoint_facts(self) -> dict[str, Any]:
        """Return what summary.json says about checkpoints, their writing apart."""
        return self._pace.facts() if self._pace else {}

    def leave(self) -> None:
        """Release the ledger."""
        if self._ledger:
            self._ledger.close()

    def status(self) -> Status:
        """Return where the run stands."""
        return self._server_loop.status()

    def drain(self, *, rest: bool = True) -> list[Piece]:
        """Return the rows since the last call, and the checkpoints among them; rest: also rows after the last one."""
        pa.default_memory_pool().release_unused()  # what the calls before took: this one would take more beside it
        with self._lock:
            pieces, self._pieces = self._pieces, []
            return [*pieces, (self._recorder.drain(), None)] if rest else pieces

    def spent(self) -> Spent | None:
        """Return what was released so far."""
        return self._privacy_filter.spent()

    def stop(self, reason: str) -> None:
        """End the run."""
        self._stopping.set()
        self._gate.go_on()
        if self._wall:
            self._wall.stop(reason)

    def parameters(self) -> np.ndarray:
        """Return the head's parameters."""
        return self._role.parameters()

    def local_parameters(self, client: int) -> np.ndarray:
        """Return the parameters of a client that lives here."""
        return self._local[client].parameters()

    def _begun(self) -> WallLeg:
        if self._leg is None:
            raise RuntimeError("no leg is begun: bring_leg comes first")
        return self._leg

    def _open(self, warm_up: bool = False) -> LockedServerLoop:
        if warm_up:
            if self._warm_up is None:
                raise RuntimeError("nothing is warmed up: open_warm_up comes first")
            return self._warm_up.wall
        if self._wall is None:
            raise RuntimeError("the server is not open: open_wall comes first")
        return self._wall
