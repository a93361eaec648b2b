"""What becomes of runs whose lane loses an end: the digest of an undisturbed run, or the error that
names the loss.

Under the virtual clock one end of a line is struck once a run, at a moment drawn from a seed: its
process is killed (SIGKILL) or stopped (SIGSTOP), or its socket is shut, before it sends its n-th
frame, when half of that frame is sent,
or right after. Ends: a client's actor and the server of digits_dpzv; a host, the server and the
ledger's actor of digits_decomfl. A run must end within its deadline in one of two ways:

same digest      rows (but for the one that notes the loss), final parameters and ledger of the
undisturbed run; of
                 a client or host that is killed
named error      one line of the class that belongs to the blow, a folder that says "failed", no
process left; and the
                 run, continued in one process, has the undisturbed run's digest
"""

from __future__ import annotations

import importlib
import itertools
import os
import random
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from blows import chosen_blows, conclude
from common import environment, show
from processes import Census

from actors.cluster import connected
from actors.horizontal.client_group_actor import ClientGroupActor
from actors.horizontal.server_actor import HorizontalServerActor
from actors.ledger_actor import LedgerActor
from actors.runner import run_on_ray
from actors.transport.sockets import FrameSocket, TransportAddress
from actors.vertical.client_actor import ClientActor
from actors.vertical.server_actor import VerticalServerActor
from raydpzv.config.toml import load
from raydpzv.errors import RunError, Stalled, TransportError
from raydpzv.experiment.finalize import Run, RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.resuming import continued
from raydpzv.experiment.runner import run_local
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.store import digest

SCENARIOS = Path(__file__).parents[1] / "scenarios"
KILLS = 30
DEADLINE = 500.0
"""Seconds for a run; the longest waits are some of `STALLED_AFTER` in a row."""
STALLED_AFTER = 60.0
"""Seconds that uploads of a stopped process are waited for: time enough for actors to come up on a
busy machine.
"""
ACTS = ("kill", "stop", "shut")
SENT = (0.0, 0.5, 1.0)
"""Shares of the frame that are sent when the blow falls."""
EXPECTED = {"kill": RunError, "stop": Stalled, "shut": TransportError}
SURVIVED = ("client", "host")
"""Whose loss a run survives, if the process is gone."""


@dataclass(frozen=True)
class Case:
    """A scenario, and the ends of its lines with a number of frames that each surely sends."""

    scenario: str
    settings: tuple[str, ...]
    frames: dict[str, int]


VERTICAL = Case(
    "digits_dpzv",
    (
        "privacy.noise=seeded",
        "budget.updates=120",
        "evaluate.every=40",
        "resources.client_actors=2",
    ),
    {"client": 50, "server": 110},
)
HORIZONTAL = Case(
    "digits_decomfl",
    ("method.perturbations=5", "budget.updates=12", "evaluate.every=6", "resources.hosts=2"),
    {"host": 11, "server": 30, "ledger": 30},
)
ENDS = [(case, end) for case in (VERTICAL, HORIZONTAL) for end in case.frames]


@dataclass(frozen=True)
class Blow:
    """What befalls whom, and when.

    number: of the line, where each of several actors has one; frame: of those that are sent from
    then on; sent: share of it that is sent; mark: a file that is made as the blow falls.
    """

    act: str
    end: str
    number: int
    frame: int
    sent: float
    mark: Path

    def await_frame(self) -> None:
        """Have this process struck at the frame."""
        send, frames = FrameSocket.send, itertools.count(1)

        def struck(line: FrameSocket, *parts: bytes, **how: Any) -> None:
            if next(frames) != self.frame:
                return send(line, *parts, **how)
            setattr(FrameSocket, "send", send)  # noqa: B010
            self.mark.touch()
            whole = b"".join((struct.pack("<Q", sum(map(len, parts))), *parts))
            line._socket.settimeout(None)
            line._socket.sendall(whole[: int(self.sent * len(whole))])
            if self.act == "shut":
                line.cut()
                return None if self.sent == 1.0 else send(line, *parts, **how)
            os.kill(os.getpid(), signal.SIGKILL if self.act == "kill" else signal.SIGSTOP)
            return None

        setattr(FrameSocket, "send", struck)  # noqa: B010


class Joins:
    """An actor that is struck after it has opened the line of the blow's number; one in its place
    has another.
    """

    blow: Blow

    def join(self, lane: TransportAddress, number: int) -> None:
        """Open a line."""
        super().join(lane, number)  # type: ignore[misc]
        if number == self.blow.number:
            self.blow.await_frame()


class Listens:
    """An actor that is struck after it has begun to listen, at a frame of whichever line."""

    blow: Blow

    def open_transport(self, host: str, secret: bytes, peers: int) -> TransportAddress:
        """Listen."""
        address: TransportAddress = super().open_transport(host, secret, peers)  # type: ignore[misc]
        self.blow.await_frame()
        return address


CLASSES = {
    ("digits_dpzv", "client"): ("actors.vertical.actor_set", ClientActor, Joins),
    ("digits_dpzv", "server"): ("actors.vertical.actor_set", VerticalServerActor, Listens),
    ("digits_decomfl", "host"): ("actors.horizontal.client_group_pool", ClientGroupActor, Joins),
    ("digits_decomfl", "server"): ("actors.horizontal.driver", HorizontalServerActor, Listens),
    ("digits_decomfl", "ledger"): ("actors.ledger_actor", LedgerActor, Listens),
}
"""Where an end's actor is started, its class, and how an actor of it comes to be struck."""


@contextmanager
def starting(place: str, cls: type, changed: type) -> Iterator[None]:
    """Start actors of a changed class where a module starts those of a class, inside the block.

    The class keeps its name in its own module: otherwise pickle sends it by value, and its
    `super()` fails.
    """

    def instead(start: Callable[..., Any]) -> Callable[..., Any]:
        return lambda named, *arguments: start(changed if named is cls else named, *arguments)

    module = importlib.import_module(place)
    with ExitStack() as patched:
        for name in ("start", "start_here"):
            if hasattr(module, name):
                patched.enter_context(
                    mock.patch.object(module, name, instead(getattr(module, name)))
                )
        yield


@contextmanager
def struck(case: Case, blow: Blow) -> Iterator[None]:
    """Let one of the actors that are made inside the block be struck."""
    place, cls, how = CLASSES[case.scenario, blow.end]
    changed = type(cls.__name__, (how, cls), {"blow": blow})
    with starting(place, cls, changed):
        yield


class Hung(Exception):
    """A run did not end."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise Hung if the block takes longer."""

    def over(*_: Any) -> None:
        raise Hung(f"no end after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def prints(run: Run, undisturbed: Run) -> tuple[str, ...]:
    """Return the digests that must agree; where a run lost an actor, that row apart."""
    tables = {**run.tables, "fault": undisturbed.rows("fault")}
    summary = run.summary
    return digest(tables), summary["model_digest"], summary.get("ledger", {}).get("digest", "")


@dataclass
class Outcome:
    """What became of a run. wrong: what ought not to be."""

    case: Case
    blow: Blow
    ended: str = ""
    said: str = ""
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def check(self, holds: bool, otherwise: str) -> None:
        """Note what is wrong unless it holds."""
        if not holds:
            self.wrong.append(otherwise)


def strike(case: Case, blow: Blow, folder: Path, undisturbed: Run) -> Outcome | None:
    """Run a scenario with its blow; return what became of it.

    None: its actors did not come up in time, so that it never began.
    """
    outcome, began = Outcome(case, blow), time.monotonic()
    more = [f"resources.timeout={STALLED_AFTER}"] if blow.act == "stop" else []
    if blow.act != "kill" or blow.end not in SURVIVED:
        more.append("resources.restarts=0")  # what becomes of these else is `fault_kills.py`'s
    spec = load(SCENARIOS / f"{case.scenario}.toml", (*case.settings, *more))
    with struck(case, blow):
        try:
            with deadline(DEADLINE):
                run = run_on_ray(prepare(spec), RunOptions(folder))
        except RunError as error:
            if not (folder.exists() or blow.mark.exists()):
                return None
            _check_error(outcome, error, folder, undisturbed)
        except Exception as error:
            outcome.ended = "hung" if isinstance(error, Hung) else "other error"
            outcome.wrong.append(f"{type(error).__name__}: {error}")
        else:
            outcome.ended = "same digest"
            outcome.check(
                prints(run, undisturbed) == prints(undisturbed, undisturbed), "another digest"
            )
            faults = run.rows("fault").to_pylist()
            outcome.check(len(faults) == 1, f"{len(faults)} rows of faults")
            outcome.said = faults[0]["message"] if faults else ""
            outcome.check(blow.act == "kill" and blow.end in SURVIVED, "nothing was lost")
    outcome.check(blow.mark.exists(), "the blow did not fall")
    outcome.seconds = time.monotonic() - began
    return outcome


def _check_error(outcome: Outcome, error: RunError, folder: Path, undisturbed: Run) -> None:
    blow = outcome.blow
    outcome.ended, outcome.said = "named error", f"{type(error).__name__}: {error}"
    outcome.check(isinstance(error, EXPECTED[blow.act]), f"not a {EXPECTED[blow.act].__name__}")
    outcome.check("\n" not in str(error), "more than one line")
    outcome.check(blow.act != "kill" or blow.end not in SURVIVED, "a loss that a run survives")
    outcome.check(
        RunFolder.open(folder).summary()["status"] == "failed", "the folder does not say so"
    )
    outcome.check(ended(STALLED_AFTER), "the stopped process was not ended")
    prepared, reopened, _ = continued(folder)
    same = prints(run_local(prepared, RunOptions(reopened)), undisturbed) == prints(
        undisturbed, undisturbed
    )
    outcome.check(same, "continued, it has another digest")


def ended(within: float) -> bool:
    """Wait until no descendant of this process is stopped any more; those that still are then are
    killed: False.
    """
    until = time.monotonic() + within
    while stopped := [pid for pid in Census.take().groups if _state(pid) == "T"]:
        if time.monotonic() > until:
            for pid in stopped:
                os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.5)
    return True


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def blows(kills: int, seed: int, folder: Path) -> Iterator[tuple[Case, Blow]]:
    """Draw what befalls whom: ends in turn, three kills for each stop and each shut socket."""
    drawn = random.Random(seed)
    for n in range(kills):
        case, end = ENDS[n % len(ENDS)]
        act = "kill" if n < len(ENDS) else drawn.choices(ACTS, (3, 1, 1))[0]
        frame, sent, number = (
            drawn.randint(1, case.frames[end]),
            drawn.choice(SENT),
            drawn.randint(0, 1),
        )
        yield case, Blow(act, end, number, frame, sent, folder / f"mark {n}")


def main() -> None:
    """Run the benchmark."""
    import ray

    chosen = chosen_blows(__doc__.splitlines()[0] if __doc__ else "", KILLS)
    before, outcomes = environment(), []
    ray.cloudpickle.register_pickle_by_value(
        sys.modules[__name__]
    )  # actors cannot import from this folder
    whole = {
        case.scenario: run_local(
            prepare(load(SCENARIOS / f"{case.scenario}.toml", case.settings)), RunOptions()
        )
        for case in (VERTICAL, HORIZONTAL)
    }
    with tempfile.TemporaryDirectory() as name, connected(reuse=True):
        folder = Path(name)
        for n, (case, blow) in enumerate(blows(chosen.kills, chosen.seed, folder)):
            if n < chosen.begin:
                continue
            outcome = None
            # on a busy machine actors may take longer to come up than a stop is waited for
            while outcome is None:
                outcome = strike(case, blow, folder / f"run {n}", whole[case.scenario])
            outcomes.append(outcome)
            print(n, _row(outcomes[-1]), outcomes[-1].said, file=sys.stderr, flush=True)
    rows = [_row(outcome) for outcome in outcomes]
    show(
        "Blows",
        ["scenario", "end", "blow", "frame", "sent", "seconds", "ended with", "wrong"],
        rows,
    )
    figures = {"longest_seconds": max(o.seconds for o in outcomes), "environment": before}
    conclude("lane_kills", chosen, outcomes, rows, figures)


def _row(outcome: Outcome) -> list[str]:
    blow = outcome.blow
    return [
        outcome.case.scenario,
        blow.end,
        blow.act,
        str(blow.frame),
        f"{blow.sent:g}",
        f"{outcome.seconds:.0f}",
        outcome.ended,
        "; ".join(outcome.wrong),
    ]


if __name__ == "__main__":
    main()
