"""What every driver does: watch the server actor, write what it hands over, end the run well
however it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

import numpy as np

from actors.actor_process import end
from actors.cluster import OBJECT_STORE, connected
from actors.machines import cluster_machines
from actors.memory_needs import with_run_memory
from actors.placement import plan_run
from actors.remote import actor_of, get, lost
from actors.reservation import Reservation
from actors.restarts import RestartFromCheckpoint, Restarts
from actors.shares import Place, Plan
from actors.skew_probe import offsets
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import InputError, Lost, RaydpzvError, RunError, Stalled, StoppedEarly
from raydpzv.experiment.finalize import RowWriter, Run, RunFinalizer, RunOptions, run_folder
from raydpzv.experiment.prepare import Prepared
from raydpzv.privacy.release import Spent
from raydpzv.records.callbacks import Callbacks
from raydpzv.records.checkpoint import Piece
from raydpzv.records.store import joined
from raydpzv.sim.clock import WallClock
from raydpzv.sim.interfaces import FIRST_EVALUATION, USER, WARM_UP, Evaluated, Status, unheard
from raydpzv.sim.virtual import NOBODY_WAKES
from raydpzv.sim.wall import SegmentStart
from raydpzv.zo.kernels import FirstCalls

C = TypeVar("C", bound="ActorSet")
P = TypeVar("P", bound=Prepared)
T = TypeVar("T")

LOOK = 0.2
"""Seconds between looks at a run."""
HEAD_START = 0.5
"""Seconds until t = 0 of a wall clock: time for every loop to be ready, or its first epochs would
all be late.
"""
STARTING_RAY = "Ray to start"
"""The first stage of a run on actors (see `Status.stage`)."""
_LAST_WORD = 5.0
"""Seconds that an actor has for what is good to know and no more."""
CONTROL_TIMEOUT = 60.0
"""Seconds a control call (status, rows, stop) may take where `resources.timeout` lets others take
longer.
"""


@dataclass(frozen=True)
class RunHooks:
    """What a driver is given besides the actors: where rows go, how the run is closed, who watches,
    when to stop.

    evaluated: called at each evaluation, which the loop waits for if the driver `holds` it.
    restarts: whether the run continues after a loss.
    """

    writer: RowWriter
    finalizer: RunFinalizer
    callbacks: Callbacks
    stop: threading.Event
    evaluated: Evaluated
    holds: bool
    restarts: Restarts


class Driver:
    """Nothing here trains. A child says what the run is (`_work`), its actors, and its results
    (`_models`).
    """

    _called = "clients"
    """What the actors that hold clients are called."""

    def __init__(self, server: Any, hooks: RunHooks, spec: AnyScenario) -> None:
        self._server, self._hooks, self._spec = server, hooks, spec
        self._timeout = spec.resources.timeout  # seconds that any call may take
        self._stop_sent = False
        self._keeping: Any | None = None
        self._status, self._checkpoints = Status(), 0
        # wall clock: calls in which actors live their own loops, to their numbers
        self._loops: dict[Any, int] = {}
        self._segment, self._clock = SegmentStart(1, 0.0, 0, {}), WallClock(0.0)
        self._live = False

    def run(self) -> Run:
        """Run, and write the results however the run ends. Raises RestartFromCheckpoint if actors
        were lost.
        """
        finalizer, restarts = self._hooks.finalizer, self._hooks.restarts
        try:
            if self._hooks.evaluated is not unheard:
                self._control(
                    self._server.hear.remote(self._hooks.holds),
                    "the server to hand over evaluations",
                )
            self._work()
            self._poll()
            models = self._models()
            self._write(self._control(self._server.drain.remote(), "the last rows"))
            facts = {**self._facts(), "kernels": self._first_calls()}
            spent = self._control(self._server.spent.remote(), "the privacy account")
        except BaseException as error:
            failure = translated(error)
            party = self._party(getattr(failure, "actor", ""))
            if restarts.allow(failure, party, self._status, self._replaced()):
                raise RestartFromCheckpoint(failure, party, self._status) from error
            failure = restarts.explained(failure)
            self._rescue()
            spent, facts = self._rescued(self._rescued_spent, None), self._rescued(self._facts, {})
            finalizer.failed(failure, self._status, spent, facts)
            if failure is error:
                raise
            raise failure from error
        return finalizer.done(models, self._status, spent, facts)

    def leave(self) -> None:
        """Release the ledger, so that the next driver finds it free."""
        raise NotImplementedError

    def _work(self) -> None:
        raise NotImplementedError

    def _parties(self) -> Mapping[str, Any]:
        """Return the actors by what they are called."""
        raise NotImplementedError

    def _workers(self) -> Sequence[Any]:
        """Return the actors that hold clients."""
        raise NotImplementedError

    def _replaced(self) -> int:
        """Return how many actors were made again while the run continued."""
        return 0

    def _models(self) -> Mapping[str, np.ndarray]:
        raise NotImplementedError

    def _facts(self) -> dict[str, Any]:
        """Return more for summary.json."""
        return {}

    def _write(self, drained: Sequence[Piece]) -> None:
        """Write what the server handed over: rows, and of checkpoints the last one."""
        taken = [place for place, (_, checkpoint) in enumerate(drained) if checkpoint]
        before = taken[-1] + 1 if taken else 0
        if taken and (checkpoint := drained[taken[-1]][1]):
            self._hooks.writer.hold(joined([rows for rows, _ in drained[:before]]))
            self._hooks.writer.write_checkpoint(checkpoint)
        for rows, _ in drained[before:]:
            self._hooks.writer.add(rows)

    def _await(self, work: Any) -> None:
        """Wait for the server's loop, and look at it meanwhile."""
        import ray

        awaited = self._awaited()
        while work not in (done := ray.wait([work, *awaited], timeout=LOOK)[0]):
            if done:
                awaited = self._awaited()
            self._poll()
        ray.get(work)

    def _awaited(self) -> list[Any]:
        """Return a call that ends when the server is to be looked at, if there is one."""
        return []

    def _wall(self) -> None:
        """Run a segment under the wall clock: actors live their own loops, and are replaced if they
        are lost.
        """
        import ray

        self._hooks.callbacks.status(Status(stage=WARM_UP))
        self._warm_up()
        self._await(self._bring_segment())
        self._segment = self._control(
            self._server.segment_start.remote(), "where the segment starts"
        )
        if self._segment.number == 1:  # before anything is served, however long it takes
            self._hooks.callbacks.status(Status(stage=FIRST_EVALUATION))
            self._evaluate()
        self._clock = WallClock.starting_in(HEAD_START, self._segment.time)
        self._control(self._open_wall(self._clock.origin), "the server to open")
        self._stop_sent = False  # a server that was not open did not hear it
        self._keep_segment(due=True)
        self._live = True
        for worker in range(len(self._workers())):
            self._start_loop(worker)
        seconds, told = self._spec.budget.seconds, False
        while self._loops:
            self._keep_segment()
            for loop in ray.wait(list(self._loops), timeout=LOOK)[0]:
                self._ended(loop)
            self._poll()
            if seconds is not None and self._clock.now() >= seconds:
                self._server.stop.remote(f"the budget of {seconds:g} seconds is spent")
            if self._status.stop_reason and not told:
                told = True
                self._stop_loops(CONTROL_TIMEOUT)
            elif not told:
                self._look()
        self._live = False
        self._control(self._server.stop.remote(NOBODY_WAKES), "the server to stop")
        self._control(self._server.close.remote(), "the server to close")
        if self._status.stop_reason == USER:
            self._keep_segment(due=True)
        self._evaluate()

    def _warm_up(self) -> None:
        """Let throw-away parties in all actors make a run's first exchanges (wall clock)."""
        raise NotImplementedError

    def _bring_segment(self) -> Any:
        """Return the call that restores roles to the start of the segment."""
        raise NotImplementedError

    def _open_wall(self, origin: float) -> Any:
        """Return the call that opens the server for actors' loops."""
        raise NotImplementedError

    def _run_loop(self, worker: int, *, rejoins: bool) -> Any:
        """Return the call in which an actor lives its own loop; rejoins: it replaces a lost one."""
        raise NotImplementedError

    def _look(self) -> None:
        """Have the model evaluated if that is due."""
        raise NotImplementedError

    def _evaluate(self) -> None:
        """Have the model evaluated, and wait for it; the server need not be open."""
        raise NotImplementedError

    def _rejoin(self, worker: int, error: Exception) -> None:
        """Replace a lost actor, and let its clients continue; raise the error if that is not to
        be.
        """
        raise NotImplementedError

    def _keep_arguments(self) -> list[Any]:
        """Return the arguments of the server's `keep_segment` before `due`."""
        return []

    def _start_loop(self, worker: int, *, rejoins: bool = False) -> None:
        """Let an actor live its own loop, as long as the run does."""
        if self._live:
            self._loops[self._run_loop(worker, rejoins=rejoins)] = worker

    def _stop_loops(self, timeout: float) -> None:
        """End all actors' run; a lost one shows when its loop ends."""
        for call in [actor.stop.remote() for actor in self._workers()]:
            try:
                get(call, timeout, f"the {self._called} to stop")
            except Exception as error:
                if not lost(error):
                    raise

    def _ended(self, loop: Any) -> None:
        """An actor's loop is over: the run is, or the actor was lost."""
        import ray

        worker = self._loops.pop(loop)
        try:
            ray.get(loop)
        except Exception as error:
            if not lost(error):
                # a server that is lost ends the connections to it: then its error is raised
                self._poll()
                raise
            self._rejoin(worker, error)

    def _keep_segment(self, *, due: bool = False) -> None:
        """Have a checkpoint taken under the wall clock if the time has come, beside what else
        continues.

        due: take one now, and wait until it is written.
        """
        import ray

        waited = [self._keeping] if self._keeping else []
        if due or not waited or ray.wait(waited, timeout=0)[0]:
            for call in waited:
                self._control(call, "a checkpoint")
            self._keeping = self._server.keep_segment.remote(*self._keep_arguments(), due=due)
        if due:
            self._control(self._keeping, "a checkpoint")
            self._poll()

    def _poll(self) -> None:
        """Ask for the run's status, write rows that are due, report evaluations, pass on the user's
        wish to stop.
        """
        hooks, server = self._hooks, self._server
        heard = (
            []
            if hooks.evaluated is unheard
            else self._control(server.heard.remote(), "evaluations")
        )
        for status, metrics in heard:
            hooks.evaluated(status, metrics)
        if hooks.stop.is_set() and not self._stop_sent:
            self._stop_sent = True
            self._control(server.stop.remote(USER), "the server to stop")
        if heard:
            self._control(server.go_on.remote(), "the server to continue")
        found: Status = self._control(server.status.remote(), "the server's status")
        seconds = found.checkpoint_seconds + self._hooks.writer.checkpoint_seconds
        self._status = found._replace(checkpoint_seconds=seconds)
        hooks.callbacks.status(self._status)
        # a checkpoint that is not written yet would be lost with the server
        if (due := self._hooks.writer.due()) or found.checkpoints > self._checkpoints:
            self._checkpoints = found.checkpoints
            self._write(self._control(server.drain.remote(rest=due), "rows"))

    def _first_calls(self) -> FirstCalls:
        """Return what first calls of kernels took in the actors that are there, each of which waits
        for the others'.
        """
        found = FirstCalls()
        for reference in [actor.first_calls.remote() for actor in self._parties().values()]:
            # an actor that is lost after the run's end ends no run
            found = found.beside(
                self._rescued(
                    partial(get, reference, _LAST_WORD, "what was compiled"), FirstCalls()
                )
            )
        return found

    def _note_clocks(self, parties: Mapping[str, Any]) -> None:
        """Have it recorded how far the clocks of the parties' machines are from the server's."""
        rows = offsets(self._server, parties)
        self._control(self._server.note_clocks.remote(rows), "the server to note clocks")

    def _party(self, actor: str) -> str:
        """Return what the actor of Ray's number is called; "actors" if nobody is."""
        named = {handle._actor_id.hex(): name for name, handle in self._parties().items()}
        return named.get(actor, "actors")

    def _control(self, reference: Any, what: str) -> Any:
        return get(reference, min(CONTROL_TIMEOUT, self._timeout), what)

    def _rescue(self) -> None:
        """Save the rows of a run that broke off, if the server still lives."""
        self._rescued(self._rescue_rows, None)

    def _rescue_rows(self) -> None:
        self._status = get(self._server.status.remote(), _LAST_WORD, "the server's status")
        self._write(get(self._server.drain.remote(), _LAST_WORD, "the last rows"))

    def _rescued_spent(self) -> Spent | None:
        return cast(
            "Spent | None", get(self._server.spent.remote(), _LAST_WORD, "the privacy account")
        )

    def _rescued(self, asked: Callable[[], T], otherwise: T) -> T:
        """Return what is asked of actors, or something else if they failed, died or do not
        answer.
        """
        try:
            return asked()
        except Exception as error:
            if not is_ray_error(error):
                raise
            return otherwise


@dataclass
class ActorSet:
    """The actors of a run. made: calls that end once each is up; ledger: its actor, if it has one
    of its own.
    """

    server: Any
    actors: list[Any]
    made: list[Any]
    place: Place
    ledger: Any | None = None

    @property
    def all(self) -> list[Any]:
        """Every actor."""
        return [self.server, *self.actors, *([] if self.ledger is None else [self.ledger])]


@contextmanager
def _reservation(
    experiment: Prepared, options: RunOptions, place: Place | None
) -> Iterator[Reservation]:
    """Join or start a Ray and reserve a place for a run's actors, if none is given, while the block
    runs.
    """
    options.watch.status(Status(stage=STARTING_RAY))
    room = OBJECT_STORE + experiment.object_store_bytes()
    with connected(options.address, verbose=options.verbose, object_store_memory=room):

        def planned() -> Plan:
            with_memory = partial(with_run_memory, prepared=experiment)
            return plan_run(experiment.spec, cluster_machines(), with_memory)

        with Reservation(planned, options, place) as reservation:
            yield reservation


@contextmanager
def _actors(
    create: Callable[[P, Place], C], experiment: P, place: Place, options: RunOptions
) -> Iterator[C]:
    """Create a run's actors and wait until each has come up; end them at the end."""
    options.watch.status(Status(stage=f"{1 + len(place.plan.actors)} actors to come up"))
    actor_set: C | None = None
    well = False
    try:
        try:
            actor_set = create(experiment, place)
            made = actor_set.made
            get(made, experiment.spec.resources.timeout, f"{len(made)} actors to come up")
        except Exception as error:
            raise translated(error) from error
        yield actor_set
        well = True
    finally:
        end(actor_set.all if actor_set else (), well=well)


def drive(
    experiment: P,
    options: RunOptions,
    place: Place | None,
    create: Callable[[P, Place], C],
    make: Callable[[P, C, RunHooks], Driver],
) -> Run:
    """Run an experiment with its actors, in a place that is given or reserved. InputError: before
    anything is written.

    create: starts the actors; make: makes their driver. Where actors are lost and the run can
    continue from a checkpoint, it does, with new ones. RunError: nothing was written before all
    actors had come up.
    """
    session: _Session | None = None
    with ExitStack() as opened:
        reservation = opened.enter_context(_reservation(experiment, options, place))
        while True:
            driver: Driver | None = None
            try:
                with _actors(create, experiment, reservation.place(), options) as actors:
                    session = session or _Session(experiment, options, opened)
                    driver = make(experiment, actors, session.hooks)
                    leaves = True
                    try:
                        return driver.run()
                    except RestartFromCheckpoint:
                        leaves = False
                        raise
                    finally:
                        if leaves:
                            driver.leave()
            except RestartFromCheckpoint as loss:
                assert session is not None
                experiment = session.go_back(loss.failure, loss.party, loss.status)
            except Exception as error:
                if session is None or driver is not None:
                    raise
                experiment = session.go_back_or_fail(translated(error))


class _Session(Generic[P]):
    """What stays when actors are made again: the folder, what is written to it, and who watches."""

    def __init__(self, experiment: P, options: RunOptions, opened: ExitStack) -> None:
        folder = opened.enter_context(
            run_folder(options, experiment, runner="ray", device="as placed by Ray")
        )
        if folder:
            folder.read_ledger = None  # an actor has it
        writer = RowWriter(folder, experiment.spec.record.flush, options.watch)
        self._finalizer = RunFinalizer(experiment, writer, options)
        self._restarts = Restarts(experiment, writer, options.evaluated)
        self._status = Status()
        self.hooks = RunHooks(
            writer,
            self._finalizer,
            options.watch,
            options.stop,
            unheard if options.evaluated is unheard else self._restarts.evaluated,
            experiment.spec.clock.kind == "virtual",
            self._restarts,
        )

    def go_back(self, failure: BaseException, party: str, status: Status) -> P:
        """Return what continues after a loss; party: of whom; status: where the run stood."""
        self._status = status
        try:
            return cast(P, self._restarts.go_back(failure, party, status))
        except RaydpzvError as error:
            ends = RunError(f"{failure}; the run cannot continue: {error}")
            self._end(ends)
            raise ends from error

    def go_back_or_fail(self, failure: BaseException) -> P:
        """Return what continues where actors did not come up, or raise what ends the run."""
        party = "actors"
        if isinstance(failure, Lost) and self._restarts.allow(failure, party, self._status, 0):
            return self.go_back(failure, party, self._status)
        if self._restarts.count and isinstance(failure, InputError):
            failure = RunError(f"actors were lost, and the run cannot continue: {failure}")
        if isinstance(failure, RunError):  # of wrong input nothing is on record
            self._end(failure)
        raise failure

    def _end(self, error: BaseException) -> None:
        stopped = isinstance(error, StoppedEarly)
        self._finalizer.failed(KeyboardInterrupt() if stopped else error, self._status, None)


def translated(error: BaseException) -> BaseException:
    """Return an error of ours in place of Ray's: the actor's own error, or which actor was lost."""
    import ray

    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
        inner = translated(cause) if isinstance(cause, BaseException) else error
        if isinstance(inner, RaydpzvError):
            return inner
        return RunError(
            f"an actor failed: {type(inner).__name__}: {' '.join(str(inner).split())[:400]}"
        )
    if isinstance(error, ray.exceptions.RayActorError):
        return Lost(f"an actor was lost: {' '.join(str(error).split())[:300]}", actor_of(error))
    if isinstance(error, ray.exceptions.ObjectLostError):
        return Lost(f"what an actor had made was lost: {' '.join(str(error).split())[:300]}")
    return error


def is_ray_error(error: BaseException) -> bool:
    """Return whether an actor failed, died or did not answer in time."""
    import ray

    return isinstance(error, ray.exceptions.RayError | Stalled)
