"""The server actor of horizontal runs: the server's role, its loop, the record and, in virtual
time, the whole run.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np

from actors.horizontal.client_group_pool import ClientGroupPool, PoolExecutor
from actors.ledger_actor import RelayedLedger
from actors.remote import get
from actors.server_actor import ServerActor
from actors.transport.hosts import HostConversation
from raydpzv.experiment.horizontal import PreparedHorizontal
from raydpzv.experiment.model_evaluator import WeightsEvaluator
from raydpzv.experiment.run_core import RunParts
from raydpzv.experiment.run_horizontal import HorizontalCore, warm_up
from raydpzv.methods.roles import Metrics, Order, Upload
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.sim.clock import WallClock
from raydpzv.sim.interfaces import Activation
from raydpzv.sim.pull import PullServerLoop
from raydpzv.sim.wall import EvaluationSchedule


class HorizontalServerActor(ServerActor):
    """Plain class; `actors.horizontal.driver` wraps it.

    Uploads are served in the threads of their sockets. Control calls have a concurrency group of
    their own and answer meanwhile. Looks at the model wait for a host, in a third group.
    Checkpoints under the wall clock have a fourth.
    """

    CONTROL = (*ServerActor.CONTROL, "note_loss")
    LOOKING = ("look", "show", "next_piece")
    core: HorizontalCore

    def __init__(self, prepared: PreparedHorizontal) -> None:
        super().__init__(prepared, 0.0, partial(HostConversation, self, prepared.separate))
        self._prepared = prepared
        self._hosts: PoolExecutor | None = None
        self._parameters: np.ndarray | None = None
        self._drift: tuple[float, float] | None = None
        self._evaluations = EvaluationSchedule(prepared.spec.evaluate.every)

    def device(self) -> str:
        """Return where the server computes; a host's greeting."""
        return self._device

    def begin(self, ledger: Any | None, checkpoint: Checkpoint | None, *, keeps: bool) -> None:
        """Start at the run's start (None) or at a checkpoint; keeps: whether checkpoints are taken.

        ledger: its actor, which is open already.
        """
        relayed: RelayedLedger | None = None
        if ledger is not None:
            relayed = RelayedLedger(ledger, self._prepared.plan.header(), self._timeout)
            relayed.adopt()
        parts = RunParts(relayed, self._queue, self._controls(keeps=keeps), checkpoint)
        self.core = HorizontalCore(self._prepared, parts)

    def run_virtual(self, pool: ClientGroupPool) -> None:
        """Run the whole virtual-time loop."""
        prepared, core = self._prepared, self.core
        self._hosts = hosts = PoolExecutor(
            pool,
            self._peers(pool.actors, self._timeout, "host"),
            lean=not prepared.separate,
            pinned=prepared.pinned,
            noted=self.note_loss,
            drifts=prepared.drifts,
        )
        core.watch(hosts if prepared.seeded else WeightsEvaluator(prepared, core.server, "cpu"))
        core.own_models = hosts.models
        self._run_core(hosts)
        self._parameters = core.model()
        if prepared.separate:
            self._drift = hosts.drift(core.server_loop.updates)
        hosts.finish()
        self.close_transport()

    def warm_up(self) -> None:
        """Let throw-away parties make a run's first updates here, so that what compiles is no
        service's.
        """
        warm_up(self._prepared, "cpu")

    def bring_segment(self, host: Any) -> None:
        """Restore rows and accounts to the start of a segment under the wall clock; the model is
        seen in `host`.
        """
        self.core.bring_segment()
        self.show(host)
        evaluated = self.core.segment.start.evaluated
        self._evaluations = EvaluationSchedule(self._prepared.spec.evaluate.every, evaluated)

    def keep_segment(self, *, due: bool) -> None:
        """Take a checkpoint from which the next segment can start (wall clock), see
        `RunCore.keep_segment`.
        """
        self.core.keep_segment(due=due)

    def open_wall(self, origin: float) -> None:
        """Open for hosts under the wall clock, for a restored segment."""
        self.core.open_wall(WallClock(origin))

    def show(self, host: Any) -> None:
        """See the model in another host from now on: the one before was lost."""
        self.core.watch(_GroupEvaluator(host, self._timeout))

    def wake(self, client: int) -> Order | None:
        return self._open().wake(client)

    def exchange(self, upload: Upload, how: Activation) -> bool:
        return self._open().exchange(upload, how)

    def look(self, now: bool = False) -> None:
        """Evaluate if it is due (or `now`), and keep a snapshot if one is due (wall clock)."""
        core, updates = self.core, self.core.server_loop.updates
        if self._evaluations.due(updates) or now:
            core.evaluate()
        core.snapshots.look(core.server_loop.updates)

    def parameters(self) -> np.ndarray:
        """Return the model after the last update, float32 [d]."""
        if self._parameters is None:  # wall clock
            self._parameters = self.core.model()
        return self._parameters

    def facts(self) -> dict[str, Any]:
        """Return what summary.json says of this runner's own matters."""
        facts: dict[str, Any] = {"host_calls": self._hosts.calls} if self._hosts else {}
        if self._drift:
            facts["drift"] = self._drift
        return facts | self.core.checkpoint_facts()

    def note_loss(self, host: int, done: str) -> None:
        """Record that a host was lost."""
        core = self.core
        core.recorder.emit(
            "fault", time=core.status().time, party=f"host {host}", kind="host lost", message=done
        )

    def _open(self) -> PullServerLoop:
        if self.core.clock is None:
            raise RuntimeError("the server is not open: open_wall comes first")
        return self.core.wall


class _GroupEvaluator:
    """Looks at the model in a host actor whose loop runs."""

    def __init__(self, host: Any, timeout: float) -> None:
        self._host, self._timeout = host, timeout

    def evaluate(self, version: int) -> Metrics:
        return cast(Metrics, get(self._host.look.remote(version), self._timeout, "an evaluation"))

    def state(self, version: int) -> np.ndarray:
        return cast(
            np.ndarray, get(self._host.look_state.remote(version), self._timeout, "the model")
        )
