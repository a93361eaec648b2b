"""A run's first exchanges, made before t = 0 by parties that are thrown away.

First calls are slow: kernels are compiled or loaded, libraries set themselves up, a first message
between two actors takes seconds. Under the wall clock that would make epochs late and embeddings
stale. So the parties' whole cycle (upload, service, answer applied, a second one, evaluation) is
run beforehand, through the very code of the run.

What takes part is made anew for this and dropped: roles, server loop, rows, privacy account, a
ledger in memory. Clients hold rows of zeros and the server labels of zero, so that no record is in
anything that is computed or sent: the noise drawn here hides nothing, releases nothing and is
accounted for nowhere. Streams of randomness are addressed (`Key`), so that using them moves none.
Under the virtual clock nothing is warmed up: no time of such a run is real.
"""

# D rows, N held-out rows

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from raydpzv.errors import Diverged
from raydpzv.experiment.client_warm_up import (
    ANSWERS,
    BATCHES,
    HELD_OUT,
    throw_away_clients,
    warm_up_loops,
    zeros,
)
from raydpzv.experiment.parties import ServerFactory
from raydpzv.experiment.release_ledger import with_ledger
from raydpzv.experiment.vertical import PreparedVertical
from raydpzv.ledger.header import Header
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.roles import Upload
from raydpzv.records.recorder import Recorder
from raydpzv.records.schema import SCHEMAS
from raydpzv.sim.client_threads import run_together
from raydpzv.sim.clock import WallClock
from raydpzv.sim.interfaces import Activation, Budget
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.wall import Answer, LockedServerLoop


class WarmUpServer:
    """The server's side: a throw-away server behind a loop of its own, until its clients have
    applied their answers.

    header: of the run's ledger; None for methods without one. clients: those that take part.
    """

    def __init__(
        self,
        experiment: PreparedVertical,
        device: str,
        header: Header | None,
        clients: Sequence[int],
    ) -> None:
        role = server_without_data(experiment.server).make(device)
        ledger = Ledger.create(None, header) if header else None
        self._recorder = _AnswerCount(clients, lambda: self._server_loop.stop("warmed up"))
        self._server_loop = ServerLoop(
            with_ledger(experiment, role, ledger),
            experiment.privacy_filter(),
            self._recorder,
            Budget(),
        )
        count, needed = experiment.spec.split.clients, experiment.barrier
        self.wall = _WarmUpLoop(self._server_loop, WallClock(), lambda which: 0.0, count, needed)

    def finish(self, uploads: Sequence[Upload]) -> None:
        """Evaluate every client's held-out embeddings, given in client order, and make tables of
        the rows.
        """
        self.wall.evaluate(list(uploads))
        self.wall.close()
        self._recorder.drain()


class _WarmUpLoop(LockedServerLoop):
    """A loop that ends for all clients when it fails for one: the others would wait for that
    one.
    """

    def exchange(self, upload: Upload, how: Activation, applied: float) -> Answer:
        try:
            return super().exchange(upload, how, applied)
        except BaseException:
            self.stop("the warm-up failed")
            raise


class _AnswerCount(Recorder):
    """Rows that nobody gets; when every client has applied its answers, `enough` is called."""

    def __init__(self, clients: Iterable[int], enough: Callable[[], None]) -> None:
        super().__init__()
        self._missing, self._enough = dict.fromkeys(clients, ANSWERS), enough

    def writer(self, row_type: str) -> Callable[[Any], None]:
        """Return what takes down a row; of a service, it counts the answer."""
        write, names = super().writer(row_type), SCHEMAS[row_type].names
        if row_type != "service":
            return write
        client, applied = names.index("client"), names.index("applied")

        def count(row: Any) -> None:
            write(row)
            if row[client] in self._missing and not math.isnan(row[applied]):
                self._missing[row[client]] -= 1
                if all(left <= 0 for left in self._missing.values()):
                    self._enough()

        return count


def warm_up(experiment: PreparedVertical, device: str) -> None:
    """Warm up all parties of a run in this process, each client in a thread as in the run."""
    plan, clients = experiment.plan(), range(len(experiment.clients))
    server = WarmUpServer(experiment, device, plan.header() if plan else None, clients)
    roles = throw_away_clients(experiment.clients, device)
    try:
        run_together(warm_up_loops(roles, server.wall, experiment.spec), server.wall.stop)
        server.finish([role.evaluate() for role in roles.values()])
    except Diverged:
        return  # what diverges on rows of zeros diverges in the run, which puts it on record


def server_without_data(factory: ServerFactory) -> ServerFactory:
    """Return the server's factory with as many labels, all 0, and without a record of releases."""
    rows = BATCHES * factory.spec.method.batch
    return replace(
        factory,
        y_train=zeros(factory.y_train, rows),
        y_held_out=zeros(factory.y_held_out, HELD_OUT),
        validated=0,
        noise=replace(factory.noise, recorded=None, continues=False),
    )
