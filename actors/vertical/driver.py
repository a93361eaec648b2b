"""Run a scenario on Ray: one server actor, client actors, and a driver that only watches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from actors.driver import Driver, RunHooks, drive, translated
from actors.ledger_actor import ledger_actor
from actors.remote import get, lost
from actors.shares import Place
from actors.transport.peers import open_transport
from actors.transport.sockets import TransportAddress
from actors.vertical.actor_set import ClientActors, create
from raydpzv.errors import Diverged, SpecError, Stalled
from raydpzv.experiment.finalize import Run, RunOptions
from raydpzv.experiment.vertical import PreparedVertical
from raydpzv.ledger.header import Header
from raydpzv.privacy.release import Spent
from raydpzv.sim.interfaces import FIRST_EVALUATION, Status
from raydpzv.sim.wall import EvaluationSchedule

_CONTROL_TIMEOUT = 60.0
"""Seconds a call about the ledger may take, beyond opening it."""


def _here() -> str:
    """Return the machine that this process is on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


_ENDING = 5.0
"""Seconds that a run that broke off has to end what it does."""


def run_vertical(
    experiment: PreparedVertical, options: RunOptions, place: Place | None = None
) -> Run:
    """Run on Ray, see `actors.driver.drive`."""
    spec = experiment.spec
    if spec.clock.kind == "wall" and spec.resources.client_actors == 0:
        raise SpecError(
            "resources.client_actors: wanted at least 1 with the wall clock (clients live in "
            "actors), got 0"
        )
    return drive(experiment, options, place, create, _Driver)


class _Driver(Driver):
    """Of a vertical run: one server actor and client actors."""

    def __init__(
        self, prepared: PreparedVertical, actor_set: ClientActors, hooks: RunHooks
    ) -> None:
        super().__init__(actor_set.server, hooks, prepared.spec)
        self._prepared, self._actor_set = prepared, actor_set
        folder = hooks.writer.folder
        self._checkpoint = folder.checkpoint() if folder else None
        self._folder, self._plan = folder, prepared.plan()
        self._losses = hooks.restarts.count
        self._virtual: list[Any] = []
        self._unfinished = False
        self._address: TransportAddress

    def _work(self) -> None:
        server, actors = self._server, self._actor_set.actors
        if self._plan is not None:
            self._open_ledger(self._plan.header())
        begin = server.begin.remote(self._checkpoint, keeps=self._folder is not None)
        get(begin, self._timeout, "the server to begin")
        virtual = self._spec.clock.kind == "virtual"
        if actors:
            peers = len(actors if virtual else self._actor_set.holder)
            self._address = open_transport(server, actors, self._timeout, peers)
        if virtual:
            self._hooks.callbacks.status(Status(stage=FIRST_EVALUATION))
            self._virtual = [server.run_virtual.remote(actors, self._actor_set.held)]
            self._await(self._virtual[0])
        else:
            self._note_clocks(self._clients())
            self._wall()
            self._note_clocks(self._clients())

    def _open_ledger(self, header: Header) -> None:
        """Open the ledger, with all that was released before. Only the driver's machine has the run
        folder for sure.
        """
        path, actor_set = self._folder.ledger.resolve() if self._folder else None, self._actor_set
        there = get(self._server.node.remote(), self._timeout, "the server's machine")
        if path is not None and there != _here():
            actor_set.ledger = ledger_actor(actor_set.place)
            get(
                actor_set.ledger.open.remote(path, header, False),
                self._timeout,
                "the ledger to open",
            )
            open_transport(actor_set.ledger, [self._server], self._timeout, 1)
            path = None
        keeping = self._server.keep.remote(path, header, actor_set.ledger)
        get(keeping, self._timeout, "the ledger to open")

    def leave(self) -> None:
        """Let another writer of the ledger in; a process that was lost has done so."""
        if self._plan is None:
            return
        relay = self._actor_set.ledger
        try:
            get(self._server.leave.remote(), _CONTROL_TIMEOUT, "the ledger to close")
            if relay is not None:
                get(relay.close.remote(), _CONTROL_TIMEOUT, "the ledger to close")
        except Exception as error:
            # one that does not answer is dismissed next, which closes its files
            if not (lost(error) or isinstance(error, Stalled)):
                raise

    def _parties(self) -> Mapping[str, Any]:
        clients = {f"client actor {a}": actor for a, actor in enumerate(self._actor_set.actors)}
        ledger = self._actor_set.ledger
        return {"server": self._server} | clients | ({} if ledger is None else {"ledger": ledger})

    def _clients(self) -> Mapping[str, Any]:
        """Return the actor that holds each client."""
        return {
            f"client {m}": self._actor_set.actors[a]
            for m, a in sorted(self._actor_set.holder.items())
        }

    def _replaced(self) -> int:
        return self._losses

    def _poll(self) -> None:
        """Also give the virtual loop the actors that it waits for."""
        super()._poll()
        for a, pasts in self._control(
            self._server.wanted.remote(), "what the server waits for"
        ).items():
            new = self._actor_set.replace(a, pasts) if self._may_replace() else None
            self._control(self._server.bring.remote(a, new), "the server to continue")

    def _workers(self) -> Sequence[Any]:
        return self._actor_set.actors

    def _rescue(self) -> None:
        """End what still continues first, so that the account holds what is sent until then."""
        import ray

        self._rescued(self._stop_all, None)
        work = [*self._virtual, *self._loops]
        self._unfinished = bool(work and ray.wait(work, num_returns=len(work), timeout=_ENDING)[1])
        super()._rescue()

    def _stop_all(self) -> None:
        get(self._server.stop.remote("the run broke off"), _ENDING, "the server to stop")
        if self._loops:
            self._stop_loops(_ENDING)

    def _rescued_spent(self) -> Spent | None:
        """Return the account, unless something may still be released after it is asked for."""
        return None if self._unfinished else super()._rescued_spent()

    def _bring_segment(self) -> Any:
        return self._server.bring_segment.remote(self._actor_set.actors, self._actor_set.held)

    def _open_wall(self, origin: float) -> Any:
        self._evaluations = EvaluationSchedule(self._spec.evaluate.every, self._segment.evaluated)
        return self._server.open_wall.remote(origin)

    def _run_loop(self, worker: int, *, rejoins: bool) -> Any:
        timing, origin = self._prepared.timing, self._clock.origin
        actor = self._actor_set.actors[worker]
        return actor.run.remote(timing, origin, self._timeout, self._address, self._segment)

    def _keep_segment(self, *, due: bool = False) -> None:
        if self._folder is not None:
            super()._keep_segment(due=due)

    def _keep_arguments(self) -> list[Any]:
        return [{m: self._actor_set.actors[a] for m, a in self._actor_set.holder.items()}]

    def _look(self) -> None:
        if self._evaluations.due(self._status.updates):
            self._evaluate()

    def _warm_up(self) -> None:
        server, actors, clients = (
            self._server,
            self._actor_set.actors,
            sorted(self._actor_set.holder),
        )
        try:
            get(server.open_warm_up.remote(clients), self._timeout, "the server's warm-up")
            calls = [actor.warm_up.remote(self._timeout, self._address) for actor in actors]
            found = {
                client: upload
                for uploads in get(calls, self._timeout, "the clients' warm-up")
                for client, upload in uploads.items()
            }
            closing = server.close_warm_up.remote([found[client] for client in clients])
            get(closing, self._timeout, "the server's warm-up")
        except Exception as error:
            if not isinstance(translated(error), Diverged):
                raise
            # what diverges on rows of zeros diverges in the run, which puts it on record

    def _evaluate(self) -> None:
        uploads = self._ask("evaluate_wall", "held-out embeddings")
        get(self._server.evaluate.remote(uploads), self._timeout, "an evaluation")

    def _models(self) -> dict[str, np.ndarray]:
        server, clients = self._server, range(self._spec.split.clients)
        head = get(server.parameters.remote(), self._timeout, "the parameters of the server")
        if self._actor_set.actors:
            found = self._ask("parameters", "parameters")
        else:
            waiting = [server.local_parameters.remote(m) for m in clients]
            found = get(waiting, self._timeout, "the parameters of the clients")
        return {"server": head} | {
            f"client {m}": values for m, values in zip(clients, found, strict=True)
        }

    def _facts(self) -> dict[str, Any]:
        owner = self._actor_set.ledger or self._server
        facts: dict[str, Any] = {}
        if self._plan is not None:
            facts = get(owner.facts.remote(), _CONTROL_TIMEOUT, "the ledger's size")
        taken = self._control(self._server.checkpoint_facts.remote(), "what checkpoints cost")
        if taken:
            facts["checkpoints"] = self._hooks.writer.with_writing(taken["checkpoints"])
        return facts

    def _ask(self, method: str, what: str) -> list[Any]:
        """Ask every client's actor, in client order; one that is lost is replaced and asked
        again.
        """
        actor_set, holder, found = self._actor_set, self._actor_set.holder, []

        def ask(m: int) -> Any:
            return getattr(actor_set.actors[holder[m]], method).remote(m)

        waiting = {m: ask(m) for m in sorted(holder)}
        while waiting:
            m = min(waiting)
            try:
                found.append(get(waiting[m], self._timeout, f"the {what} of client {m}"))
                del waiting[m]
            except Stalled as error:
                raise Stalled(f"{error}{self._made_by(m)}") from error
            except Exception as error:
                if not lost(error):
                    raise
                self._rejoin(holder[m], error)
                waiting |= {k: ask(k) for k in actor_set.held[holder[m]] if k in waiting}
        return found

    def _made_by(self, client: int) -> str:
        """Return in words how many of the updates were a client's that is given up; "" where nobody
        counts.
        """
        counts = self._status.client_uploads
        if client >= len(counts):
            return ""
        return f" (given up: client {client} made {counts[client]} of {sum(counts)} updates)"

    def _rejoin(self, worker: int, error: Exception) -> None:
        """Make a lost actor again, its clients rebuilt from all answers on record, and let them
        continue.
        """
        if not self._may_replace():
            raise error
        self._loops = {loop: a for loop, a in self._loops.items() if a != worker}
        held = self._actor_set.held[worker]
        new = self._actor_set.replace(worker, self._server.pasts.remote(worker, held))
        # not waited for: the others continue meanwhile, and this one starts when it is ready
        self._server.open_warm_up.remote(held)
        new.warm_up.remote(self._timeout, self._address)
        self._start_loop(worker, rejoins=True)

    def _may_replace(self) -> bool:
        """Count a loss that is made up for; False if clients cannot be rebuilt here or too many
        actors were lost.
        """
        if self._plan is None or self._losses >= self._spec.resources.restarts:
            return False
        if self._hooks.restarts.possible and not self._actor_set.place.stands():
            return False  # with a machine its shares went: all actors are placed anew
        self._losses += 1
        return True
