"""CPU microseconds of one update of small models: the runner with either engine, and loops without
one.

torch engine        the local runner with model.engine = "torch"
torch loop          an ordinary loop over torch modules, autograd and torch.optim, written for the
method alone numpy loop          the same in numpy, gradients by hand
compiled            the local runner with model.engine = "compiled", everything recorded
compiled, no ages   the same with record.staleness = false
compiled, roles     the method's roles called in turn: no clock, no rows, no ledger, no account

The problem is that of the scenario digits_dpzv: 4 clients, batches of 64; DPZV with its clip and
noise, the others without noise. Loops keep no rows and no ledger and draw rows and directions from
a sequential generator. A figure is CPU time from the 200th update on (the 20th with --quick), one
thread: the median of the turns that the ways take. A ratio is the median over the turns of both
times in one turn.

Horizontal methods: a round of the scenario digits_decomfl (P = 25, K = 1, 10 clients of 100,
batches of 32, 2,410 parameters) under either engine, everything recorded; FedAvg takes 5 local
steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from common import environment, median, options, show, verdict, write
from rounds import Rounds, update_pace
from small_loops import NumpyParties, TorchParties

import scenarios
from raydpzv.engine.choice import ENGINES
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.local_session import one_thread
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.runner import run_local
from raydpzv.experiment.vertical import PreparedVertical

METHODS = ("dpzv", "vafl", "zoo_vfl", "czofo", "frozen")
BY_ROWS = ("method.variant=per_row",)
"""What the loops of VFL-CZOFO do."""
HORIZONTAL = {
    "decomfl": (),
    "decomfl, P = 5": ("method.perturbations=5",),
    "fedavg": ("method.name=fedavg", "method.local_steps=5"),
}
"""Rounds to what they change in digits_decomfl."""
COUNTS = {False: (200, 1000), True: (20, 60)}
"""Quick or not, to updates before the clock starts and updates that count."""
LEAST = {"compiled": 2.5, "compiled, no ages": 4.0}
"""Least ratio to the torch loop's updates per CPU second."""
OF_NUMPY = {"dpzv": 1.0}
"""Least ratio to the numpy loop's updates per CPU second, by method; `LEAST_OF_NUMPY` of others."""
LEAST_OF_NUMPY = 0.35

Way = Callable[[PreparedVertical, int, int], float]


def experiment(method: str, updates: int, *overrides: str) -> PreparedVertical:
    """Return the digits scenario of a method."""
    own = {"dpzv": (), "czofo": ("privacy.mode=none", *BY_ROWS)}.get(method, ("privacy.mode=none",))
    common = (f"budget.updates={updates}", "evaluate.every=1000000", *own, *overrides)
    found: Any = prepare(scenarios.load("digits_dpzv", [f"method.name={method}", *common]))
    return found


def runner(found: PreparedVertical, warm: int, count: int) -> float:
    """Return CPU seconds of an update in the local runner."""
    return update_pace(found, warm, count).cpu


def roles(found: PreparedVertical, warm: int, count: int) -> float:
    """Return CPU seconds of an update of the roles alone."""
    clients, server = [factory.make() for factory in found.clients], found.server.make()

    def updates() -> Iterator[None]:
        orders = list(server.first_orders())
        while True:
            order = orders.pop(0)
            orders += server.receive(clients[order.client].process(order))
            yield

    return timed(updates(), warm, count)


def torch_loop(found: PreparedVertical, warm: int, count: int) -> float:
    """Return CPU seconds of an update of the torch loop."""
    return timed(TorchParties(found).updates(), warm, count)


def numpy_loop(found: PreparedVertical, warm: int, count: int) -> float:
    """Return CPU seconds of an update of the numpy loop."""
    return timed(NumpyParties(found).updates(), warm, count)


def timed(updates: Iterator[None], warm: int, count: int) -> float:
    """Return CPU seconds per item after the first `warm`."""
    for _ in islice(updates, warm):
        pass
    began = time.process_time()
    for _ in islice(updates, count):
        pass
    return (time.process_time() - began) / count


WAYS: dict[str, tuple[Way, tuple[str, ...]]] = {
    "torch engine": (runner, ("model.engine=torch",)),
    "torch loop": (torch_loop, ()),
    "numpy loop": (numpy_loop, ()),
    "compiled": (runner, ("model.engine=compiled",)),
    "compiled, no ages": (runner, ("model.engine=compiled", "record.staleness=false")),
    "compiled, roles": (roles, ("model.engine=compiled",)),
}


def measure(method: str, repeats: int, warm: int, count: int) -> dict[str, list[float]]:
    """Return microseconds of an update by way, one a turn: the ways take turns."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(repeats):
        for name, (way, overrides) in WAYS.items():
            found[name].append(way(experiment(method, warm + count, *overrides), warm, count) * 1e6)
    return found


def ratio(found: dict[str, list[float]], of: str, by: str) -> float:
    """Return the median over the turns of one way's time by another's."""
    return median([a / b for a, b in zip(found[of], found[by], strict=True)])


def round_of(engine: str, overrides: tuple[str, ...], warm: int, count: int) -> float:
    """Return CPU microseconds of a round."""
    quiet = (f"budget.updates={warm + count}", "evaluate.every=1000000", f"model.engine={engine}")
    prepared: Any = prepare(scenarios.load("digits_decomfl", [*overrides, *quiet]))
    rounds = Rounds()
    run_local(prepared, RunOptions(progress=rounds))
    return rounds.pace(warm).cpu * 1e6


def measure_rounds(repeats: int, warm: int, count: int) -> dict[str, dict[str, float]]:
    """Return microseconds of a round by method and engine: the engines take turns, the smallest
    figure counts.
    """
    return {
        name: {
            engine: min(turns)
            for engine, turns in zip(
                ENGINES,
                zip(*(_turn(overrides, warm, count) for _ in range(repeats)), strict=True),
                strict=True,
            )
        }
        for name, overrides in HORIZONTAL.items()
    }


def _turn(overrides: tuple[str, ...], warm: int, count: int) -> list[float]:
    return [round_of(engine, overrides, warm, count) for engine in ENGINES]


def main() -> int:
    """Measure, print a table of each method, write the JSON."""
    parser = options(__doc__ or "")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    given = parser.parse_args()
    (warm, count), repeats = COUNTS[given.quick], given.repeats or (1 if given.quick else 3)
    figures: dict[str, dict[str, float]] = {}
    with one_thread("torch"):
        for method in given.methods:
            bar = OF_NUMPY.get(method, LEAST_OF_NUMPY)
            found = measure(method, repeats, warm, count)
            figures[method] = {name: median(turns) for name, turns in found.items()}
            rows = []
            for name, us in figures[method].items():
                torch, numpy = ratio(found, "torch loop", name), ratio(found, "numpy loop", name)
                met = verdict(numpy, bar if name == "compiled" else None)
                cells = (
                    f"{us:.0f}",
                    f"{torch:.2f}",
                    verdict(torch, LEAST.get(name)),
                    f"{numpy:.2f}",
                    met,
                )
                rows.append((name, *cells))
            columns = ("way", "µs", "/ torch loop", "target", "/ numpy loop", "target")
            show(
                f"{method}: one update, and updates per CPU second against the loops", columns, rows
            )
        rounds = measure_rounds(repeats, warm // 4, count // 4)
    rows = [
        (name, *(f"{us:.0f}" for us in of.values()), f"{of['torch'] / of['compiled']:.1f}")
        for name, of in rounds.items()
    ]
    show("A round by engine, µs", ("method", *ENGINES, "torch / compiled"), rows)
    found = {"environment": environment(), "microseconds": figures, "rounds": rounds}
    write("small_models", found, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
