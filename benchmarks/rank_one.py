"""Rank-one directions against Gaussian ones: CPU time of a round, peak memory, and the time of a
rebuild.

| part    | what is measured                                                                      |
|---------|---------------------------------------------------------------------------------------|
| round   | each client's losses along P = 10 directions, and the step, under torch, one thread    |
| memory  | such a round of the model of `own_memory.py` in a fresh process, over its parameters   |
| rebuild | 500 directions on that model's 22.7 million parameters by two threads                  |
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from common import environment, median, options, show, verdict, write
from fresh_process import in_fresh_process
from own_memory import Reviewer, Size
from peaks import Resident, predictable_malloc
from torch import nn

from raydpzv.engine.row_readers import KeptRows
from raydpzv.engine.torch_objective import TorchObjective
from raydpzv.keys import Key
from raydpzv.models.flat import FlatModel
from raydpzv.zo.directions import Law
from raydpzv.zo.update import Descent, Rule, Step

P = 10
TARGETS = {"round": 0.6, "memory": 1.05, "rebuild": 30.0}
LAWS: tuple[Law, ...] = ("gaussian", "rank_one")


@dataclass(frozen=True)
class Round:
    """A model, what its records are, and how many clients have batches of how many."""

    make: Callable[[], nn.Module]
    record: tuple[int, ...]
    tokens: int = 0
    clients: int = 10
    batch: int = 32


def _stack(*widths: int) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    return make


def rounds(size: Size) -> dict[str, Round]:
    """Return the rounds by name."""
    return {
        "digits 64-32-10": Round(_stack(64, 32, 10), (64,)),
        "784-64-10": Round(_stack(784, 64, 10), (784,)),
        "784-256-128-10": Round(_stack(784, 256, 128, 10), (784,)),
        "784-256-128-10, one client": Round(_stack(784, 256, 128, 10), (784,), clients=1),
        "reviewer, 4 records of 16 tokens": Round(
            lambda: Reviewer(size), (16,), size.words, clients=1, batch=4
        ),
        "reviewer, 32 records of 16 tokens": Round(
            lambda: Reviewer(size), (16,), size.words, clients=1
        ),
    }


def _objective(how: Round) -> TorchObjective:
    draw, many = (Key(0) / "rows").generator(), how.clients * how.batch
    if how.tokens:
        x = draw.integers(0, how.tokens, (many, *how.record))
    else:
        x = draw.standard_normal((many, *how.record)).astype(np.float32)
    return TorchObjective(how.make, KeptRows(x, draw.integers(0, 2, many), "cpu"))


def round_seconds(how: Round, repeats: int) -> dict[str, list[float]]:
    """Return the CPU seconds of a round's losses and step by law."""
    objective, found = _objective(how), dict[str, list[float]]()
    rows = [np.arange(m * how.batch, (m + 1) * how.batch) for m in range(how.clients)]
    for law in LAWS:
        descent = Descent(objective.initial(Key(1)), Rule(law).on(objective.shapes))
        times = []
        for number in range(1 + repeats):
            seeds, before = list(range(P * number, P * number + P)), time.process_time()
            objective.losses(descent.x, [descent.direction(seed) for seed in seeds], 1e-3, rows)
            descent.apply([Step(seeds, [1e-3] * P, 1e-6)])
            times.append(time.process_time() - before)
        found[law] = times[1:]  # the first one compiles
    return found


def peak(size: Size, law: Law | None) -> int:
    """Return the peak bytes of a client's losses and step, None: of one forward call; the process
    must be fresh.
    """
    torch.set_num_threads(1)
    predictable_malloc()
    meter, found = Resident(), 0
    for each in (Size(words=400, width=64, blocks=1), size):
        before = meter.now()
        objective = _objective(
            Round(partial(Reviewer, each), (16,), each.words, clients=1, batch=4)
        )
        x, rows = objective.initial(Key(1)), [np.arange(4)]
        descent = Descent(x, Rule(law or "gaussian").on(objective.shapes))
        directions = [descent.direction(seed) for seed in range(P)]
        for _ in range(2):  # the first one loads what it calls
            meter.now()
            meter.reset()
            objective.losses(x, directions, 1e-3, rows) if law else objective.loss(x, rows[0])
            descent.apply([Step([u.seed for u in directions], [1e-3] * P, 1e-6)] if law else [])
        found = meter.peak() - before
    return found


def rebuild_seconds(size: Size, directions: int, law: Law) -> tuple[float, float]:
    """Return the seconds of the clock and of the CPU in which two threads apply so many
    directions.
    """
    model = FlatModel(lambda: Reviewer(size), Key(0))
    descent = Descent(model.flat.numpy(), Rule(law).on(model.shapes), threads=2)
    steps = [Step([seed], [1e-3], 1e-6) for seed in range(directions)]
    descent.apply(steps[:1])
    clock, cpu = time.monotonic(), time.process_time()
    descent.apply(steps)
    return time.monotonic() - clock, time.process_time() - cpu


def report(size: Size, repeats: int, directions: int) -> dict[str, Any]:
    """Measure, print the tables and return the figures."""
    torch.set_num_threads(1)
    ratios, table = {}, []
    for name, how in rounds(size).items():
        times = {law: median(each) for law, each in round_seconds(how, repeats).items()}
        ratios[name] = times["rank_one"] / times["gaussian"]
        milliseconds = [f"{times[law] * 1e3:.1f}" for law in LAWS]
        cells = [f"{ratios[name]:.2f}", verdict(ratios[name], TARGETS["round"], at_most=True)]
        table.append([name, *milliseconds, *cells])
    show("CPU time of a round", ["model", "gaussian ms", "rank_one ms", "ratio", "target"], table)
    with torch.device("meta"):
        whole = 4 * sum(p.numel() for p in Reviewer(size).parameters())
    memory = {law: in_fresh_process(peak, size, law) / whole for law in LAWS}
    forward = in_fresh_process(peak, size, None) / whole
    rebuilt = {law: rebuild_seconds(size, directions, law) for law in LAWS}
    table = [
        [
            law,
            f"{memory[law]:.3f}",
            verdict(memory[law], TARGETS["memory"], at_most=True),
            f"{rebuilt[law][0]:.1f}",
            f"{rebuilt[law][1]:.1f}",
            verdict(rebuilt[law][0], TARGETS["rebuild"], at_most=True),
        ]
        for law in LAWS
    ]
    columns = ["law", "peak / parameters", "target", "rebuild s", "CPU s", "target"]
    title = (
        f"{whole / 4e6:.1f} M parameters, {directions} directions; one forward call takes "
        f"{forward:.3f}"
    )
    show(title, columns, table)
    return {
        "round": ratios,
        "memory": memory | {"forward": forward},
        "rebuild": {
            law: dict(zip(("seconds", "cpu"), each, strict=True)) for law, each in rebuilt.items()
        },
        "targets": TARGETS,
        "environment": environment(),
    }


def main() -> None:
    """Run the benchmark."""
    chosen = options(__doc__.splitlines()[0] if __doc__ else "").parse_args()
    size = Size(words=400, width=64, blocks=2) if chosen.quick else Size()
    repeats = chosen.repeats or (1 if chosen.quick else 5)
    write("rank_one", report(size, repeats, 20 if chosen.quick else 500), chosen.json)


if __name__ == "__main__":
    main()
