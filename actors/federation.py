"""Run a federation on Ray: a server actor, a ledger actor, and hosts that hold all clients between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actors.cast import ledger_actor, placed, wrapped
from actors.crew_host import Crews
from actors.driver import HEAD_START, LOOK, Driver, Watch, drive, is_ray_error, translated
from actors.federation_server import FederationServer
from actors.host import get, lost
from actors.placement import Plan, plan_hosts, reserved
from actors.session import OBJECT_STORE, connected
from raydpzv.experiment.closing import Run
from raydpzv.experiment.federation import Federation
from raydpzv.experiment.folder import RunFolder
from raydpzv.experiment.plan import MODEL
from raydpzv.sim.clock import WallClock
from raydpzv.sim.terms import Status
from raydpzv.sim.virtual import NOBODY_WAKES


@dataclass(frozen=True)
class _Cast:
    server: Any
    ledger: Any | None
    crews: Crews


def run_federation(
    federation: Federation,
    out: Path | RunFolder | None = None,
    *,
    scenario: str = "",
    progress: Callable[[Status], None] = lambda status: None,
    stop: threading.Event | None = None,
    address: str | None = None,
    verbose: bool = False,
) -> Run:
    """Run a federation on Ray; arguments and errors as of `actors.execute.run_prepared`."""
    with connected(address, verbose=verbose, object_store_memory=_room_for(federation)):
        import ray

        plan = plan_hosts(federation.spec, ray.cluster_resources())

        def driver(cast: _Cast, watch: Watch) -> _Driver:
            _begin(federation, cast, watch.sink.folder, goes_on=isinstance(out, RunFolder))
            return _Driver(federation, cast, watch)

        with reserved(plan, fewer="hosts") as group:
            cast = _cast(federation, plan, group)
            return drive(federation, out, cast, driver, scenario, progress, stop)


def _room_for(federation: Federation) -> int:
    """Bytes of object store: the data lies there once per machine; the rest is for messages."""
    tables = (federation.split.train, federation.split.test)
    return OBJECT_STORE + sum(table.x.nbytes + table.y.nbytes for table in tables) + federation.parts.nbytes


@contextmanager
def _cast(federation: Federation, plan: Plan, group: Any) -> Iterator[_Cast]:
    """Create the actors and wait for each, before anything is written; dismiss them at the end."""
    import ray

    resources = federation.spec.resources
    data = ray.put(federation)
    ledger = ledger_actor() if federation.seeded else None
    crews = Crews(data, ledger, plan, group, resources.restarts, resources.timeout)
    crews.raise_all()
    groups = {"ctl": FederationServer.CONTROL, "look": FederationServer.LOOKING}
    server_class = wrapped(FederationServer, groups, {"ctl": 1, "look": 1})
    server = server_class.options(**placed(plan.server.bundle(), group, 0)).remote(data)
    try:
        ready = [actor.device.remote() for actor in (server, *crews.actors)]
        ready += [ledger.ready.remote()] if ledger is not None else []
        get(ready, resources.timeout, f"{len(ready)} actors to come up")
    except Exception as error:
        raise translated(error) from error
    try:
        yield _Cast(server, ledger, crews)
    finally:
        crews.dismiss()
        for actor in (server, *([ledger] if ledger is not None else [])):
            ray.kill(actor)


def _begin(federation: Federation, cast: _Cast, folder: RunFolder | None, *, goes_on: bool) -> None:
    """Open the ledger and bring the server to where the run begins or goes on."""
    checkpoint = folder.checkpoint() if folder and goes_on else None
    patience = federation.spec.resources.timeout
    try:
        if cast.ledger is not None:
            path, round = folder.ledger if folder else None, checkpoint.round if checkpoint else 0
            fsync = federation.spec.record.fsync
            opening = cast.ledger.open.remote(path, federation.plan.header(), round, fsync)
            get(opening, patience, "the ledger to open")
        get(cast.server.begin.remote(cast.ledger, checkpoint), patience, "the server to begin")
    except Exception as error:
        raise translated(error) from error


class _Driver(Driver):
    """Of a horizontal run."""

    def __init__(
        self,
        federation: Federation,
        cast: _Cast,
        watch: Watch,
    ) -> None:
        super().__init__(cast.server, watch)
        self._federation, self._ledger, self._crews = federation, cast.ledger, cast.crews
        self._patience = federation.spec.resources.timeout

    def _work(self) -> None:
        if self._federation.spec.clock.kind == "virtual":
            self._await(self._server.run_virtual.remote(self._crews))
        else:
            self._wall()

    def leave(self) -> None:
        """Close the ledger before its actor ends, so that whoever goes on next finds it free; all of it is written."""
        if self._ledger is None:
            return
        try:
            get(self._ledger.close.remote(), 10.0, "the ledger to close")
        except Exception as error:
            if not is_ray_error(error):
                raise

    def _models(self) -> dict[str, np.ndarray]:
        return {MODEL: self._seen(self._server.parameters.remote, "the final parameters")}

    def _facts(self) -> dict[str, Any]:
        hosts: dict[str, Any] = {"hosts": len(self._crews.actors)}
        hosts |= get(self._server.facts.remote(), self._patience, "the server's facts")
        drift = hosts.pop("drift", None)
        facts: dict[str, Any] = {"drift": {"largest": drift[0], "share": drift[1]}} if drift else {}
        if self._ledger is not None:
            hosts["ledger_reads"] = self._control(self._ledger.reads.remote(), "the ledger's count")
            facts |= self._control(self._ledger.facts.remote(), "the ledger's facts")
        return facts | {"ray": hosts}

    def _write(self, drained: Any) -> None:
        for rows, checkpoint in drained:
            if checkpoint:
                self._sink.settle(rows, checkpoint)
            else:
                self._sink.add(rows)

    def _wall(self) -> None:
        self._warm_up()
        clock = WallClock.starting_in(HEAD_START)
        opening = self._server.open_wall.remote(clock.origin, self._crews.actors[0])
        self._control(opening, "the server to open")
        loops = {self._loop(host, clock, replaces=False): host for host in range(len(self._crews.actors))}
        self._watch(loops, clock)
        self._control(self._server.stop.remote(NOBODY_WAKES), "the server to stop")
        self._seen(lambda: self._server.look.remote(True), "an evaluation")

    def _watch(self, loops: dict[Any, int], clock: WallClock) -> None:
        import ray

        seconds, told = self._federation.spec.budget.seconds, False
        looking = self._server.look.remote(True)
        while loops:
            for ended in ray.wait(list(loops), timeout=LOOK)[0]:
                self._ended(ended, loops, clock)
            self._look()
            if seconds is not None and clock.now() >= seconds:
                self._server.stop.remote(f"the budget of {seconds:g} seconds is spent")
            if self._status.stop_reason and not told:
                told = True
                for actor in self._crews.actors:
                    actor.stop.remote()
            elif not told and self._looked(looking):
                looking = self._server.look.remote()

    def _loop(self, host: int, clock: WallClock, *, replaces: bool) -> Any:
        actors = self._crews.actors
        return actors[host].run.remote(self._server, clock.origin, host, len(actors), replaces)

    def _ended(self, loop: Any, loops: dict[Any, int], clock: WallClock) -> None:
        """One host's loop is over; if the host was lost while the run goes on, another takes its clients."""
        import ray

        host = loops.pop(loop)
        try:
            ray.get(loop)
        except Exception as error:
            if not lost(error):
                raise
            if self._status.stop_reason:
                return
            self._replace(host, error, "; its clients go on, epochs that passed meanwhile are not made up")
            # calls wait for the actor to come up, in this order: nobody else waits
            self._crews.actors[host].warm_up.remote()
            self._crews.actors[host].greet.remote(self._server)
            loops[self._loop(host, clock, replaces=True)] = host

    def _replace(self, host: int, error: BaseException, then: str = "") -> None:
        done = self._crews.replace(host, error)
        self._control(self._server.note_loss.remote(host, done + then), "the server to note a loss")
        if host == 0:
            self._server.show.remote(self._crews.actors[0])

    def _looked(self, looking: Any) -> bool:
        """Tell whether a look is done; one that was lost with its host is made up by the next."""
        import ray

        if not ray.wait([looking], timeout=0)[0]:
            return False
        with suppress(ray.exceptions.RayActorError):
            ray.get(looking)
        return True

    def _seen(self, asked: Callable[[], Any], what: str) -> Any:
        """Return what the server sees of the model, in a replacement of host 0 if that is lost before (wall clock)."""
        import ray

        while True:
            try:
                return get(asked(), self._patience, what)
            except ray.exceptions.RayActorError as error:
                if lost(error):  # the server itself
                    raise
                self._replace(0, error)

    def _warm_up(self) -> None:
        actors = self._crews.actors
        get([actor.warm_up.remote() for actor in actors], self._patience, "the hosts' warm-up")
        greetings = [actor.greet.remote(self._server) for actor in actors]
        get(greetings, self._patience, "the hosts to reach the server")
