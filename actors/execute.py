"""Run a scenario on Ray: one server actor, client actors, and a driver that only watches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from actors.book import Bookkeeping
from actors.cast import Cast, create, dismiss
from actors.driver import HEAD_START, LOOK, Driver, Watch, drive, translated
from actors.host import get, lost
from actors.placement import Plan, plan, reserved
from actors.session import connected
from actors.transport import Wire
from raydpzv.errors import SpecError
from raydpzv.experiment.build import Experiment
from raydpzv.experiment.closing import Run
from raydpzv.experiment.folder import RunFolder
from raydpzv.sim.clock import WallClock
from raydpzv.sim.terms import Status
from raydpzv.sim.virtual import NOBODY_WAKES


def run_prepared(
    experiment: Experiment,
    out: Path | RunFolder | None = None,
    *,
    scenario: str = "",
    progress: Callable[[Status], None] = lambda status: None,
    stop: threading.Event | None = None,
    address: str | None = None,
    verbose: bool = False,
) -> Run:
    """Run an experiment on Ray; as `raydpzv.experiment.run.run_prepared`, and `address`, `verbose` as in `connected`.

    out may be the folder of a run that continues.
    """
    spec = experiment.spec
    if spec.clock.kind == "wall" and spec.resources.client_actors == 0:
        raise SpecError(
            "resources.client_actors: wanted at least 1 with the wall clock (clients live in actors), got 0"
        )
    with connected(address, verbose=verbose):
        import ray

        placed = plan(spec, ray.cluster_resources())
        with reserved(placed) as group:
            cast, driver = _cast(experiment, placed, group), partial(_Driver, experiment, placed)
            return drive(experiment, out, cast, driver, scenario, progress, stop)


@contextmanager
def _cast(experiment: Experiment, placed: Plan, group: Any) -> Iterator[Cast]:
    """Create the actors, before anything is written; dismiss them at the end."""
    try:
        cast = create(experiment, placed, group)
    except Exception as error:
        raise translated(error) from error
    try:
        yield cast
    finally:
        dismiss(cast)


class _Driver(Driver):
    """Of a vertical run: one server actor and client actors."""

    def __init__(
        self,
        experiment: Experiment,
        placed: Plan,
        cast: Cast,
        watch: Watch,
    ) -> None:
        super().__init__(cast.server, watch)
        self._experiment, self._plan, self._cast = experiment, placed, cast
        self._patience = experiment.spec.resources.timeout
        self._book = Bookkeeping(cast, experiment.plan(), watch.sink.folder, self._patience)
        self._losses = 0
        self._loops: dict[Any, int] = {}
        self._start: Callable[[int], None] = lambda actor: None
        self._opening: Wire = ()

    def _work(self) -> None:
        self._book.open()
        if self._experiment.spec.clock.kind == "virtual":
            self._await(self._server.run_virtual.remote(self._cast.actors, self._cast.held))
        else:
            self._wall(self._cast)

    def leave(self) -> None:
        """Let go of the ledger, so that whoever goes on next finds it free."""
        self._book.close()

    def _look(self) -> None:
        """Also bring the virtual loop the actors that it waits for."""
        super()._look()
        for a, pasts in self._control(self._server.wanted.remote(), "what the server waits for").items():
            new = self._cast.replace(a, pasts) if self._may_replace() else None
            self._control(self._server.bring.remote(a, new), "the server to go on")

    def _wall(self, cast: Cast) -> None:
        import ray

        spec = self._experiment.spec
        self._warm_up(cast)
        clock = WallClock.starting_in(HEAD_START)
        self._control(cast.server.open_wall.remote(clock.origin), "the server to open")
        timing, timeout = self._experiment.timing, spec.resources.timeout

        def start(a: int) -> None:
            self._loops[cast.actors[a].run.remote(cast.server, timing, clock.origin, timeout)] = a

        self._start = start
        for a in range(len(cast.actors)):
            start(a)
        self._evaluate(cast)
        evaluated, told = 0, False
        while self._loops:
            for loop in ray.wait(list(self._loops), timeout=LOOK)[0]:
                self._ended(loop)
            self._look()
            if spec.budget.seconds is not None and clock.now() >= spec.budget.seconds:
                cast.server.stop.remote(f"the budget of {spec.budget.seconds:g} seconds is spent")
            if self._status.stop_reason and not told:
                told = True
                self._control([actor.stop.remote() for actor in cast.actors], "the clients to stop")
            elif not told and self._status.updates // spec.evaluate.every > evaluated:
                evaluated = self._status.updates // spec.evaluate.every
                self._evaluate(cast)
        self._start = lambda actor: None
        self._control(cast.server.stop.remote(NOBODY_WAKES), "the server to stop")
        self._control(cast.server.close.remote(), "the server to close")
        self._evaluate(cast)

    def _warm_up(self, cast: Cast) -> None:
        self._opening = order = get(cast.server.first_order.remote(), self._patience, "the server's warm-up")
        uploads = [
            actor.warm_up.remote(held[0], (held[0], *order[1:]))
            for actor, held in zip(cast.actors, self._plan.clients, strict=True)
        ]
        upload = get(uploads, self._patience, "the clients' warm-up")[0]
        get(cast.server.warm_up.remote(upload), self._patience, "the server's warm-up")
        greetings = [actor.greet.remote(cast.server) for actor in cast.actors]
        get(greetings, self._patience, "the clients to reach the server")

    def _evaluate(self, cast: Cast) -> None:
        uploads = self._ask("evaluate_wall", "held-out embeddings")
        get(cast.server.evaluate.remote(uploads), self._patience, "an evaluation")

    def _models(self) -> dict[str, np.ndarray]:
        server, clients = self._server, range(self._experiment.spec.split.clients)
        head = get(server.parameters.remote(), self._patience, "the parameters of the server")
        if self._cast.actors:
            found = self._ask("parameters", "parameters")
        else:
            waiting = [server.local_parameters.remote(m) for m in clients]
            found = get(waiting, self._patience, "the parameters of the clients")
        return {"server": head} | {f"client {m}": values for m, values in zip(clients, found, strict=True)}

    def _facts(self) -> Mapping[str, Any]:
        return self._book.facts()

    def _ask(self, method: str, what: str) -> list[Any]:
        """Ask every client's actor, in client order; one that is lost is replaced and asked again."""
        cast, holder, found = self._cast, self._cast.holder, []

        def ask(m: int) -> Any:
            return getattr(cast.actors[holder[m]], method).remote(m)

        waiting = {m: ask(m) for m in sorted(holder)}
        while waiting:
            m = min(waiting)
            try:
                found.append(get(waiting[m], self._patience, f"the {what} of client {m}"))
                del waiting[m]
            except Exception as error:
                if not lost(error):
                    raise
                self._rejoin(holder[m], error)
                waiting |= {k: ask(k) for k in cast.held[holder[m]] if k in waiting}
        return found

    def _ended(self, loop: Any) -> None:
        """A client actor's loop is over: the run is, or the actor was lost (wall clock)."""
        import ray

        actor = self._loops.pop(loop)
        try:
            ray.get(loop)
        except Exception as error:
            if not lost(error):
                raise
            self._rejoin(actor, error)

    def _rejoin(self, actor: int, error: Exception) -> None:
        """Make a lost actor again, its clients rebuilt from all answers on record, and let them go on."""
        if not self._may_replace():
            raise error
        self._loops = {loop: a for loop, a in self._loops.items() if a != actor}
        new = self._cast.replace(actor, self._server.pasts.remote(actor, self._cast.held[actor]))
        # not waited for: the others go on meanwhile, and this one begins when it is ready
        first = self._cast.held[actor][0]
        if self._opening:
            new.warm_up.remote(first, (first, *self._opening[1:]))
        new.greet.remote(self._server)
        self._start(actor)

    def _may_replace(self) -> bool:
        """Count a loss; False if clients cannot be rebuilt or too many actors were lost."""
        self._losses += 1
        return self._book.kept and self._losses <= self._experiment.spec.resources.restarts
