"""Run a horizontal scenario on Ray: a server actor, a ledger actor, and hosts that hold all clients
between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from actors.actor_process import start
from actors.driver import LOOK, ActorSet, Driver, RunHooks, drive, translated
from actors.horizontal.client_group_pool import ClientGroupPool, share_of
from actors.horizontal.server_actor import HorizontalServerActor
from actors.ledger_actor import ledger_actor
from actors.remote import get, lost
from actors.shares import Place
from actors.transport.peers import open_transport
from actors.transport.sockets import TransportAddress
from raydpzv.experiment.finalize import Run, RunOptions
from raydpzv.experiment.horizontal import PreparedHorizontal
from raydpzv.experiment.initial_model import MODEL
from raydpzv.experiment.run_horizontal import OWN_MODELS, own_models
from raydpzv.records.checkpoint import Piece
from raydpzv.records.run_folder import RunFolder
from raydpzv.sim.interfaces import FIRST_EVALUATION, Status
from raydpzv.sim.pull import HostShare
from raydpzv.wire.messages import pack


@dataclass(kw_only=True)
class _Hosts(ActorSet):
    """The server, ledger and host actors of a run. pool: makes hosts again."""

    pool: ClientGroupPool


def run_horizontal(
    prepared: PreparedHorizontal, options: RunOptions, place: Place | None = None
) -> Run:
    """Run on Ray, see `actors.driver.drive`."""
    return drive(prepared, options, place, _create, _driver)


def _driver(prepared: PreparedHorizontal, actor_set: _Hosts, hooks: RunHooks) -> _Driver:
    actor_set.pool.begin(hooks.restarts.count, goes_back=hooks.restarts.possible)
    _begin(prepared, actor_set, hooks.writer.folder)
    return _Driver(prepared, actor_set, hooks)


def _create(prepared: PreparedHorizontal, place: Place) -> _Hosts:
    """Create the actors in their place."""
    import ray

    resources = prepared.spec.resources
    hosts, seen = range(len(place.plan.actors)), prepared.for_server()
    if seen is prepared:
        shared = ray.put(prepared)
        data, given = [shared for _ in hosts], shared
    else:
        data, given = (
            [ray.put(prepared.for_host(host, len(hosts))) for host in hosts],
            ray.put(seen),
        )
    ledger = ledger_actor(place) if prepared.seeded else None
    pool = ClientGroupPool(data, ledger, place, resources.restarts, resources.timeout)
    pool.raise_all()
    role = HorizontalServerActor
    groups = {"ctl": role.CONTROL, "look": role.LOOKING, "keep": role.KEEPING}
    server, made = start(
        role,
        groups,
        dict.fromkeys(groups, 1),
        place.plan.server.bundle(),
        place.group,
        place.bundle(0),
        given,
    )
    ready = [made, *pool.made, *([ledger.ready.remote()] if ledger is not None else [])]
    return _Hosts(
        server=server, actors=pool.actors, made=ready, place=place, ledger=ledger, pool=pool
    )


def _begin(prepared: PreparedHorizontal, actor_set: _Hosts, folder: RunFolder | None) -> None:
    """Open the ledger and restore server and hosts to where the run starts."""
    checkpoint = folder.checkpoint() if folder else None
    timeout = prepared.spec.resources.timeout
    try:
        if actor_set.ledger is not None:
            path, fsync = folder.ledger if folder else None, prepared.spec.record.fsync
            opening = actor_set.ledger.open.remote(path, prepared.plan.header(), fsync)
            get(opening, timeout, "the ledger to open")
            peers = actor_set.server, *actor_set.pool.actors
            open_transport(actor_set.ledger, peers, timeout, 2 * len(peers))
        if checkpoint and (kept := own_models(checkpoint)):
            hosts = actor_set.pool.actors
            given = [
                host.take_over.remote(pack(share_of(kept, number, len(hosts))))
                for number, host in enumerate(hosts)
            ]
            get(given, timeout, "the hosts to take over their clients' models")
            rest = {name: held for name, held in checkpoint.state.items() if name != OWN_MODELS}
            checkpoint = replace(checkpoint, state=rest)
        get(
            actor_set.server.begin.remote(actor_set.ledger, checkpoint, keeps=folder is not None),
            timeout,
            "the server to begin",
        )
    except Exception as error:
        raise translated(error) from error


class _Driver(Driver):
    """Of a horizontal run."""

    _called = "hosts"

    def __init__(self, prepared: PreparedHorizontal, actor_set: _Hosts, hooks: RunHooks) -> None:
        super().__init__(actor_set.server, hooks, prepared.spec)
        self._prepared, self._ledger, self._pool = prepared, actor_set.ledger, actor_set.pool
        self._address: TransportAddress
        self._looking: Any | None = None

    def _work(self) -> None:
        hosts = self._pool.actors
        self._address = open_transport(self._server, hosts, self._timeout, len(hosts))
        if self._spec.clock.kind == "virtual":
            self._hooks.callbacks.status(Status(stage=FIRST_EVALUATION))
            self._await(self._server.run_virtual.remote(self._pool))
        else:
            self._note_clocks(self._hosts())
            self._wall()
            self._note_clocks(self._hosts())

    def _awaited(self) -> list[Any]:
        """Rounds of a private run wait until their checkpoint is written, so that a loss forgets
        none of them.
        """
        return (
            [self._server.next_piece.remote(10 * LOOK)] if self._prepared.awaits_checkpoints else []
        )

    def _write(self, drained: Sequence[Piece]) -> None:
        super()._write(drained)
        if self._prepared.awaits_checkpoints and any(checkpoint for _, checkpoint in drained):
            self._control(self._server.written.remote(), "the server to continue")

    def leave(self) -> None:
        """Close the ledger before its actor ends, so that the next driver finds it free; all of it
        is written.
        """
        if (ledger := self._ledger) is not None:
            self._rescued(lambda: get(ledger.close.remote(), 10.0, "the ledger to close"), None)

    def _parties(self) -> Mapping[str, Any]:
        ledger = {"ledger": self._ledger} if self._ledger is not None else {}
        return {"server": self._server, **self._hosts(), **ledger}

    def _hosts(self) -> Mapping[str, Any]:
        return {f"host {host}": actor for host, actor in enumerate(self._pool.actors)}

    def _workers(self) -> Sequence[Any]:
        return self._pool.actors

    def _models(self) -> dict[str, np.ndarray]:
        return {MODEL: self._seen(self._server.parameters.remote, "the final parameters")}

    def _facts(self) -> dict[str, Any]:
        hosts: dict[str, Any] = {"hosts": len(self._pool.actors)}
        hosts |= get(self._server.facts.remote(), self._timeout, "the server's facts")
        drift, taken = hosts.pop("drift", None), hosts.pop("checkpoints", None)
        facts: dict[str, Any] = {"drift": {"largest": drift[0], "share": drift[1]}} if drift else {}
        if taken:
            facts["checkpoints"] = self._hooks.writer.with_writing(taken)
        if self._ledger is not None:
            hosts["ledger_reads"] = self._control(self._ledger.reads.remote(), "the ledger's count")
            facts |= self._control(self._ledger.facts.remote(), "the ledger's facts")
        return facts | {"ray": hosts}

    def _bring_segment(self) -> Any:
        return self._server.bring_segment.remote(self._pool.actors[0])

    def _open_wall(self, origin: float) -> Any:
        return self._server.open_wall.remote(origin)

    def _run_loop(self, worker: int, *, rejoins: bool) -> Any:
        actors, begins = self._pool.actors, self._segment.begins
        share = HostShare(
            worker, len(actors), max(self._clock.now(), begins) if rejoins else begins
        )
        return actors[worker].run.remote(self._clock.origin, share, self._address)

    def _look(self) -> None:
        """Let the server look at the model as soon as it is done with the last look."""
        if self._looking is None or self._looked(self._looking):
            self._looking = self._server.look.remote()

    def _evaluate(self) -> None:
        self._seen(lambda: self._server.look.remote(True), "an evaluation")

    def _rejoin(self, worker: int, error: Exception) -> None:
        """Let another host take the clients of a lost one."""
        if self._status.stop_reason:
            return
        self._replace(
            worker, error, "; its clients continue, epochs that passed meanwhile are not made up"
        )
        # calls wait for the actor to come up, in this order: nobody else waits
        self._pool.actors[worker].warm_up.remote()
        self._pool.actors[worker].greet.remote(self._server)
        self._start_loop(worker, rejoins=True)

    def _replace(self, host: int, error: BaseException, then: str = "") -> None:
        done = self._pool.replace(host, error)
        self._control(self._server.note_loss.remote(host, done + then), "the server to note a loss")
        if host == 0:
            self._server.show.remote(self._pool.actors[0])

    def _looked(self, looking: Any) -> bool:
        """Return whether a look is done; one that was lost with its host is made up by the next."""
        import ray

        if not ray.wait([looking], timeout=0)[0]:
            return False
        with suppress(ray.exceptions.RayActorError):
            ray.get(looking)
        return True

    def _seen(self, asked: Callable[[], Any], what: str) -> Any:
        """Return what the server sees of the model, in a replacement of host 0 if that is lost
        before (wall clock).
        """
        import ray

        while True:
            try:
                return get(asked(), self._timeout, what)
            except ray.exceptions.RayActorError as error:
                if lost(error):  # the server itself
                    raise
                self._replace(0, error)

    def _warm_up(self) -> None:
        actors = self._pool.actors
        warming = [actor.warm_up.remote() for actor in (self._server, *actors)]
        get(warming, self._timeout, "the warm-up of server and hosts")
        greetings = [actor.greet.remote(self._server) for actor in actors]
        get(greetings, self._timeout, "the hosts to reach the server")
