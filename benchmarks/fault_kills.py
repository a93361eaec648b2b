"""What becomes of runs under the virtual clock that lose a process: every method, any actor, at any
moment.

One process a run is killed (SIGKILL) or stopped (SIGSTOP), at a moment drawn from a seed between
its first message and
the end of the undisturbed run: a client's actor or the server of vertical methods; a host, the
server or the ledger's actor of horizontal ones; or the driver, which is killed, and whose run
another driver resumes. Which engine computes a method's models is drawn too. What is wanted:

same digest      rows (but for those of faults), final parameters and ledger of the undisturbed run:
so no update that
                 was acknowledged is missing, and none is made twice
no hang          an end within a time limit
delay            beyond the undisturbed run on Ray, at most 5 s on average; a stopped process is
waited for as long as
                 `resources.timeout` says, which is not in it
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from blows import chosen_blows, conclude
from common import environment, show, verdict
from filelock import FileLock
from lane_kills import CLASSES, Hung, deadline, ended, prints, starting

from actors.cluster import connected
from actors.runner import run_on_ray
from actors.transport.sockets import TransportAddress
from raydpzv.config.toml import load
from raydpzv.experiment.finalize import Run, RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.resuming import continued
from raydpzv.experiment.runner import run_local
from raydpzv.records.run_folder import RunFolder
from raydpzv.registry import METHODS

SCENARIOS = Path(__file__).parents[1] / "scenarios"
KILLS = 50
DEADLINE = 400.0
"""Seconds for a run."""
STALLED_AFTER = 25.0
"""Seconds that a stopped process is waited for."""
MOST_DELAY = 5.0
_EARLIER = 0.8
"""Of its moment, when a blow falls in the next try after one whose run was over before."""
STOPS = 5
"""One blow in so many is a stop, the others are kills."""
VERTICAL = ("privacy.noise=seeded", "evaluate.every=500", "resources.client_actors=2")
HORIZONTAL = ("evaluate.every=100", "resources.hosts=2")
USERS = ("privacy.noise=seeded", "evaluate.every=50", "resources.hosts=2")
PULLING = (
    "evaluate.every=100",
    "resources.hosts=2",
    "arrivals.rate=4",
    "record.checkpoint_updates=50",
)
"""Clients wake more often than they can serve, so that epochs wait in every checkpoint."""


@dataclass(frozen=True)
class Case:
    """A method: its scenario, settings, and updates with either engine, about a second's worth."""

    method: str
    scenario: str
    settings: tuple[str, ...]
    updates: dict[str, int]

    @property
    def name(self) -> str:
        """What tells the case from the others."""
        return self.scenario if self.scenario.endswith("_async") else self.method

    @property
    def ends(self) -> list[str]:
        """Return who can be lost."""
        descriptor = METHODS[self.method]
        if descriptor.kind == "vertical":
            return ["client", "server", "driver"]
        return ["host", "server", "driver"] + (["ledger"] if descriptor.rule is not None else [])

    def chosen(self, engine: str, *more: str) -> tuple[str, ...]:
        """Return the scenario's settings."""
        return (
            *self.settings,
            f"budget.updates={self.updates[engine]}",
            f"model.engine={engine}",
            *more,
        )

    def spec(self, engine: str, *more: str) -> Any:
        """Return the scenario."""
        return load(SCENARIOS / f"{self.scenario}.toml", self.chosen(engine, *more))


def _case(method: str, scenario: str, settings: tuple[str, ...], compiled: int, torch: int) -> Case:
    named = scenario.startswith("digits_") and not scenario.endswith("_async")
    chosen = (f"method.name={method}", *settings) if named else settings
    return Case(method, scenario, chosen, {"compiled": compiled, "torch": torch})


CASES = [
    _case("dpzv", "digits_dpzv", VERTICAL, 4000, 800),
    _case("frozen", "frozen", VERTICAL, 6000, 2000),
    _case("sgd", "sgd", VERTICAL, 6000, 2500),
    _case("vafl", "vafl", VERTICAL, 6000, 2500),
    _case("zoo_vfl", "zoo_vfl", VERTICAL, 6000, 2000),
    _case("czofo", "czofo", VERTICAL, 4000, 1000),
    _case("decomfl", "digits_decomfl", ("method.perturbations=5", *HORIZONTAL), 400, 250),
    _case(
        "mezo",
        "digits_decomfl",
        ("split.clients=1", "resources.hosts=1", "evaluate.every=500"),
        2000,
        1000,
    ),
    _case("fedavg", "digits_decomfl", HORIZONTAL, 600, 250),
    _case("fedcom", "digits_decomfl", HORIZONTAL, 600, 200),
    _case("topk", "digits_decomfl", HORIZONTAL, 600, 200),
    _case("fedzo", "digits_decomfl", HORIZONTAL, 200, 120),
    _case("uldp_zo", "digits_users_zo", USERS, 100, 30),
    _case("decomfl", "decomfl_async", PULLING, 2000, 800),
    _case("uldp_zo", "digits_users_async", ("privacy.noise=seeded", *PULLING), 300, 100),
    _case("uldp_naive", "digits_users", USERS, 200, 70),
    _case("uldp_group", "digits_users", USERS, 20, 4),
    _case("uldp_sgd", "digits_users", USERS, 300, 60),
    _case("uldp_avg", "digits_users", USERS, 150, 20),
]


@dataclass(frozen=True)
class Blow:
    """What befalls whom: moment: share of the undisturbed run that has passed; number: of the
    actor, of several.
    """

    case: Case
    engine: str
    act: str
    end: str
    number: int
    moment: float

    @property
    def noted(self) -> int:
        """Rows of faults that it leaves: a driver that resumes a run has lost nobody."""
        return 0 if self.end == "driver" else 1

    def strike_after(self, seconds: float, mark: Path) -> None:
        """Have this process struck so many seconds from now, if none has been."""

        def strike() -> None:
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL if self.act == "kill" else signal.SIGSTOP)

        timer = threading.Timer(seconds, strike)
        timer.daemon = True
        timer.start()


class Joins:
    """An actor that is struck some time after it has opened the line of a number."""

    blow: Blow
    seconds: float
    mark: Path

    def join(self, lane: TransportAddress, number: int) -> None:
        """Open a line."""
        super().join(lane, number)  # type: ignore[misc]
        if number == self.blow.number:
            self.blow.strike_after(self.seconds, self.mark)


class Listens:
    """An actor that is struck some time after it has begun to listen."""

    blow: Blow
    seconds: float
    mark: Path

    def open_transport(self, host: str, secret: bytes, peers: int) -> TransportAddress:
        """Listen."""
        address: TransportAddress = super().open_transport(host, secret, peers)  # type: ignore[misc]
        self.blow.strike_after(self.seconds, self.mark)
        return address


@contextmanager
def struck(blow: Blow, seconds: float, mark: Path) -> Iterator[None]:
    """Let one of the actors that are made inside the block be struck."""
    kind = "digits_dpzv" if METHODS[blow.case.method].kind == "vertical" else "digits_decomfl"
    place, cls, _ = CLASSES[kind, blow.end]
    how = Joins if blow.end in ("client", "host") else Listens
    changed = type(cls.__name__, (how, cls), {"blow": blow, "seconds": seconds, "mark": mark})
    with starting(place, cls, changed):
        yield


@dataclass
class Undisturbed:
    """A run without a blow: in one process, and the seconds that it takes on Ray."""

    run: Run
    seconds: float


@dataclass
class Outcome:
    """What became of a run; delay: seconds beyond the undisturbed one; wrong: what ought not to
    be.
    """

    blow: Blow
    ended: str = ""
    said: str = ""
    delay: float = 0.0
    wrong: list[str] = field(default_factory=list)


def strike(blow: Blow, folder: Path, undisturbed: Undisturbed) -> Outcome | None:
    """Run a method with its blow; None: the run was over before it fell, or never began."""
    outcome, mark = Outcome(blow), folder.with_suffix(".mark")
    seconds = blow.moment * undisturbed.seconds
    try:
        with deadline(DEADLINE):
            run = (_driver_struck if blow.end == "driver" else _actor_struck)(
                blow, seconds, folder, mark
            )
    except Exception as error:
        if not (
            folder.exists() or mark.exists()
        ):  # its actors did not come up in time on a busy machine
            return None
        outcome.ended = "hung" if isinstance(error, Hung) else "error"
        outcome.wrong.append(f"{type(error).__name__}: {error}")
        return outcome
    faults = run.rows("fault").to_pylist() if run else []
    if run is None or not mark.exists() or len(faults) < blow.noted:
        return None
    whole = undisturbed.run
    outcome.ended = (
        "same digest" if prints(run, whole) == prints(whole, whole) else "another digest"
    )
    if outcome.ended != "same digest":
        outcome.wrong.append(outcome.ended)
    if len(faults) != blow.noted:
        outcome.wrong.append(f"{len(faults)} rows of faults")
    outcome.said = "; ".join(fault["message"] for fault in faults)
    waited = STALLED_AFTER if blow.act == "stop" else 0.0
    outcome.delay = run.summary["seconds"] - undisturbed.seconds - waited
    if blow.act == "stop" and not ended(60.0):
        outcome.wrong.append("the stopped process was not ended")
    return outcome


def _actor_struck(blow: Blow, seconds: float, folder: Path, mark: Path) -> Run:
    """Run a method one of whose actors is struck."""
    longer = (f"resources.timeout={STALLED_AFTER}",) if blow.act == "stop" else ()
    with struck(blow, seconds, mark):
        return run_on_ray(prepare(blow.case.spec(blow.engine, *longer)), RunOptions(folder))


def _driver_struck(blow: Blow, seconds: float, folder: Path, mark: Path) -> Run | None:
    """Run a method in another process, kill that, and resume the run; None: it ended before."""
    import ray

    case, address = blow.case, ray.get_runtime_context().gcs_address
    changes = [word for change in case.chosen(blow.engine) for word in ("--set", change)]
    line = [
        sys.executable,
        "-m",
        "scenarios",
        "run",
        str(SCENARIOS / f"{case.scenario}.toml"),
        *changes,
    ]
    line += ["--runner", "ray", "--address", address, "--out", str(folder), "--quiet"]
    with subprocess.Popen(line, cwd=SCENARIOS.parent, start_new_session=True) as driver:
        while driver.poll() is None and not (folder / "scenario.toml").exists():
            time.sleep(0.05)
        time.sleep(seconds)
        if driver.poll() is not None:
            return None
        driver.kill()
    if RunFolder.open(folder).completed_by():
        return None
    mark.touch()
    lock = folder / "ledger" / ".lock"
    if lock.parent.is_dir():  # Ray ends the actors of a driver that is gone
        with FileLock(lock).acquire(timeout=60.0):
            pass
    prepared, opened, _ = continued(folder)
    return run_on_ray(prepared, RunOptions(opened))


def blows(kills: int, seed: int, only: str | None = None) -> Iterator[Blow]:
    """Draw what befalls whom: methods in turn, or one case alone."""
    drawn, cases = random.Random(seed), [case for case in CASES if only in (None, case.name)]
    engines = {case.name: drawn.choice(list(case.updates)) for case in CASES}
    for n in range(kills):
        case = cases[n % len(cases)]
        number = drawn.randint(0, 0 if case.method == "mezo" else 1)
        end = case.ends[n % len(case.ends)] if only else drawn.choice(case.ends)
        act = "stop" if n % STOPS == STOPS - 1 and end != "driver" else "kill"
        yield Blow(case, engines[case.name], act, end, number, drawn.random())


def baseline(blow: Blow) -> Undisturbed:
    """Run a method without its blow, here and on Ray."""
    spec = blow.case.spec(blow.engine)
    whole = run_local(prepare(spec), RunOptions())
    with tempfile.TemporaryDirectory() as folder:
        found = run_on_ray(prepare(spec), RunOptions(Path(folder) / "run"))
    if prints(found, whole) != prints(whole, whole):
        raise SystemExit(f"{blow.case.method}: undisturbed, a run on Ray has another digest")
    return Undisturbed(whole, found.summary["seconds"])


def main() -> None:
    """Run the benchmark."""
    import ray

    cases = [case.name for case in CASES]
    chosen = chosen_blows(__doc__.splitlines()[0] if __doc__ else "", KILLS, cases)
    before, outcomes = environment(), list[Outcome]()
    ray.cloudpickle.register_pickle_by_value(
        sys.modules[__name__]
    )  # actors cannot import from this folder
    known: dict[str, Undisturbed] = {}
    with tempfile.TemporaryDirectory() as name, connected():
        for n, blow in enumerate(blows(chosen.kills, chosen.seed, chosen.case)):
            if n < chosen.begin:
                continue
            if blow.case.name not in known:
                known[blow.case.name] = baseline(blow)
            tries, outcome = 0, None
            while outcome is None:  # on a machine that has grown less busy a run may be over before
                began = time.monotonic()
                outcome = strike(blow, Path(name) / f"run {n} {tries}", known[blow.case.name])
                tries += 1
                blow = replace(blow, moment=_EARLIER * blow.moment)
            outcomes.append(outcome)
            took = f"{time.monotonic() - began:.0f} s"
            print(n, _row(outcome), took, tries, outcome.said, file=sys.stderr, flush=True)
    rows = [_row(outcome) for outcome in outcomes]
    show(
        "Blows",
        ["method", "engine", "end", "blow", "moment", "delay s", "ended with", "wrong"],
        rows,
    )
    delays = {act: [o.delay for o in outcomes if o.blow.act == act] for act in ("kill", "stop")}
    mean = statistics.mean(delays["kill"] + delays["stop"])
    print(f"mean delay {mean:.1f} s, {verdict(mean, MOST_DELAY, at_most=True)}")
    figures = {
        "mean_delay_seconds": mean,
        "mean_delay_seconds_by_act": {
            act: statistics.mean(found) for act, found in delays.items() if found
        },
        "longest_delay_seconds": max(o.delay for o in outcomes),
        "blows": rows,
        "environment": before,
    }
    conclude("fault_kills", chosen, outcomes, rows, figures)


def _row(outcome: Outcome) -> list[str]:
    blow = outcome.blow
    return [
        blow.case.name,
        blow.engine,
        blow.end,
        blow.act,
        f"{blow.moment:.2f}",
        f"{outcome.delay:.1f}",
        outcome.ended,
        "; ".join(outcome.wrong),
    ]


if __name__ == "__main__":
    main()
