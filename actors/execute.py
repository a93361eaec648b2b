"""Run a scenario on Ray: one server actor, client actors, and a driver that only watches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from actors.cast import Cast, create, dismiss
from actors.host import get
from actors.placement import Plan, plan, reserve
from actors.session import connected
from raydpzv.errors import RaydpzvError, RunError, SpecError, Stalled
from raydpzv.experiment.build import Experiment
from raydpzv.experiment.closing import USER, Closing, Run, Sink, opened
from raydpzv.experiment.folder import RunFolder
from raydpzv.sim.clock import WallClock
from raydpzv.sim.terms import Status
from raydpzv.sim.virtual import NOBODY_WAKES

_LOOK = 0.2
"""Seconds between looks at a run."""
_HEAD_START = 0.5
"""Seconds until a wall clock strikes 0: time for every loop to be ready, or its first epochs would all be late."""
_CONTROL_TIMEOUT = 60.0
"""Seconds a control call may take: status, rows, stop."""


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

        placed, name = plan(spec, ray.cluster_resources()), scenario or spec.name
        group = reserve(placed.bundles())
        try:
            with (
                _cast(experiment, placed, group) as cast,
                opened(out, experiment, scenario=name, runner="ray", device="as placed by Ray") as folder,
            ):
                sink = Sink(folder, spec.record.flush)
                closing = Closing(experiment, sink, name)
                return _Driver(experiment, placed, cast, sink, closing, progress, stop).run()
        finally:
            ray.util.remove_placement_group(group)


@contextmanager
def _cast(experiment: Experiment, placed: Plan, group: Any) -> Iterator[Cast]:
    """Create the actors, before anything is written; dismiss them at the end."""
    try:
        cast = create(experiment, placed, group)
    except Exception as error:
        raise _translated(error) from error
    try:
        yield cast
    finally:
        dismiss(cast)


class _Driver:
    """Creates the actors, watches them, writes what they hand over. Nothing here trains."""

    def __init__(
        self,
        experiment: Experiment,
        placed: Plan,
        cast: Cast,
        sink: Sink,
        closing: Closing,
        progress: Callable[[Status], None],
        stop: threading.Event | None,
    ) -> None:
        self._experiment, self._plan, self._cast = experiment, placed, cast
        self._sink, self._closing, self._progress = sink, closing, progress
        self._stop = stop or threading.Event()
        self._stop_sent = False
        self._status = Status()
        self._patience = experiment.spec.resources.timeout

    def run(self) -> Run:
        """Run, and write what there is however the run ends."""
        cast = self._cast
        try:
            virtual = self._experiment.spec.clock.kind == "virtual"
            (self._virtual if virtual else self._wall)(cast)
            self._look(cast.server)
            models = self._parameters(cast)
            self._sink.add(self._control(cast.server.drain.remote(), "the last rows"))
            spent = self._control(cast.server.spent.remote(), "the privacy account")
        except BaseException as error:
            failure = _translated(error)
            self._rescue(cast)
            self._closing.failed(failure, self._status, self._rescued_spent(cast))
            if failure is error:
                raise
            raise failure from error
        return self._closing.done(models, self._status, spent)

    def _virtual(self, cast: Cast) -> None:
        import ray

        work = cast.server.run_virtual.remote(dict(cast.by_client))
        while not ray.wait([work], timeout=_LOOK)[0]:
            self._look(cast.server)
        ray.get(work)

    def _wall(self, cast: Cast) -> None:
        import ray

        spec = self._experiment.spec
        self._warm_up(cast)
        clock = WallClock.starting_in(_HEAD_START)
        self._control(cast.server.open_wall.remote(clock.origin), "the server to open")
        timing, timeout = self._experiment.timing, spec.resources.timeout
        loops = [actor.run.remote(cast.server, timing, clock.origin, timeout) for actor in cast.actors]
        self._evaluate(cast)
        evaluated, told = 0, False
        while loops:
            done, loops = ray.wait(loops, timeout=_LOOK)
            ray.get(done)
            self._look(cast.server)
            if spec.budget.seconds is not None and clock.now() >= spec.budget.seconds:
                cast.server.stop.remote(f"the budget of {spec.budget.seconds:g} seconds is spent")
            if self._status.stop_reason and not told:
                told = True
                self._control([actor.stop.remote() for actor in cast.actors], "the clients to stop")
            elif not told and self._status.updates // spec.evaluate.every > evaluated:
                evaluated = self._status.updates // spec.evaluate.every
                self._evaluate(cast)
        self._control(cast.server.stop.remote(NOBODY_WAKES), "the server to stop")
        get(cast.server.close.remote(), _CONTROL_TIMEOUT, "the server to close")
        self._evaluate(cast)

    def _warm_up(self, cast: Cast) -> None:
        order = get(cast.server.first_order.remote(), self._patience, "the server's warm-up")
        uploads = [
            actor.warm_up.remote(held[0], (held[0], *order[1:]))
            for actor, held in zip(cast.actors, self._plan.clients, strict=True)
        ]
        upload = get(uploads, self._patience, "the clients' warm-up")[0]
        get(cast.server.warm_up.remote(upload), self._patience, "the server's warm-up")
        greetings = [actor.greet.remote(cast.server) for actor in cast.actors]
        get(greetings, self._patience, "the clients to reach the server")

    def _evaluate(self, cast: Cast) -> None:
        uploads = get(
            [cast.by_client[m].evaluate_wall.remote(m) for m in sorted(cast.by_client)],
            self._patience,
            "the clients' held-out embeddings",
        )
        get(cast.server.evaluate.remote(uploads), self._patience, "an evaluation")

    def _look(self, server: Any) -> None:
        """Ask where the run stands, write rows that are due, pass on the user's wish to stop."""
        if self._stop.is_set() and not self._stop_sent:
            self._stop_sent = True
            self._control(server.stop.remote(USER), "the server to stop")
        self._status = self._control(server.status.remote(), "the server's status")
        self._progress(self._status)
        if self._sink.due():
            self._sink.add(self._control(server.drain.remote(), "rows"))

    def _control(self, reference: Any, what: str) -> Any:
        return get(reference, _CONTROL_TIMEOUT, what)

    def _parameters(self, cast: Cast) -> dict[str, np.ndarray]:
        clients = self._experiment.spec.split.clients
        waiting = {"server": cast.server.parameters.remote()}
        for m in range(clients):
            held = cast.by_client.get(m)
            waiting[f"client {m}"] = (
                held.parameters.remote(m) if held else cast.server.local_parameters.remote(m)
            )
        return {
            name: get(reference, self._patience, f"the parameters of {name}")
            for name, reference in waiting.items()
        }

    def _rescue(self, cast: Cast) -> None:
        """Save the rows of a run that broke off, if the server still lives."""
        try:
            self._status = get(cast.server.status.remote(), 5.0, "the server's status")
            self._sink.add(get(cast.server.drain.remote(), 5.0, "the last rows"))
        except Exception as error:
            if not _is_ray_error(error):
                raise

    def _rescued_spent(self, cast: Cast) -> Any:
        try:
            return get(cast.server.spent.remote(), 5.0, "the privacy account")
        except Exception as error:
            if not _is_ray_error(error):
                raise
            return None


def _is_ray_error(error: BaseException) -> bool:
    import ray

    return isinstance(error, ray.exceptions.RayError | Stalled)


def _translated(error: BaseException) -> BaseException:
    """Return an error of ours in place of Ray's: the actor's own error, or which actor was lost."""
    import ray

    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
        inner = _translated(cause) if isinstance(cause, BaseException) else error
        if isinstance(inner, RaydpzvError):
            return inner
        return RunError(f"an actor failed: {type(inner).__name__}: {' '.join(str(inner).split())[:400]}")
    if isinstance(error, ray.exceptions.RayActorError):
        return RunError(f"an actor was lost: {' '.join(str(error).split())[:300]}")
    return error
