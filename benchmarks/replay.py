"""Nanoseconds per element and seed of replaying directions, beside `torch.randn` and `add_`, on
this machine.

What is replaced: for every seed, `torch.randn` fills a vector and `add_` adds it, as zeroth-order
programs do (flat, d = 4M float32, one thread). What replaces it: `raydpzv.zo.apply_seeds.replay`,
all seeds in one pass over x, gaussian and rademacher, at 1, 4 and 16 seeds. One thread is timed by
its own CPU time, which says more on a machine shared with others; two threads by the clock on the
wall, against the baseline's clock on the wall (`torch.randn` is serial).

Everything takes turns, so that a slow minute hits all of it: a ratio is the median over the turns
of the baseline's time to the kernel's in the same turn. Limits are ratios too: what the parts alone
reached in C with 512-bit vectors on another machine, where the baseline took 6.72 ns (Philox and
Box-Muller without memory 1.07 ns; signs 0.071 ns with 64 seeds, and reading and writing x once 0.44
ns). A compiler that does better than that passes 100 %.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from common import environment, median, options, show, spread, verdict, write

from raydpzv.keys import Key
from raydpzv.zo.apply_seeds import Base, replay

SIZE, QUICK_SIZE = 1 << 22, 1 << 18
COUNTS = (1, 4, 16)
TARGETS: dict[Base, float] = {"gaussian": 3.0, "rademacher": 25.0}
"""Least ratio per core at four seeds or more."""
BASELINE_ELSEWHERE, NORMALS_ELSEWHERE, SIGNS_ELSEWHERE, MEMORY_ELSEWHERE = 6.72, 1.07, 0.071, 0.44
"""Nanoseconds per element on the machine where the limits were measured, one core."""


@dataclass(frozen=True)
class Case:
    """What is timed: law, seeds in one pass, threads."""

    law: Base
    seeds: int
    threads: int = 1

    @property
    def name(self) -> str:
        """The table's first column."""
        return f"{self.law}, {self.seeds} seed{'s' * (self.seeds > 1)}" + ", 2 threads" * (
            self.threads > 1
        )

    @property
    def target(self) -> float | None:
        """Least ratio to the baseline, where one is set."""
        return TARGETS[self.law] if self.seeds >= 4 and self.threads == 1 else None

    @property
    def limit(self) -> float:
        """Largest ratio to the baseline by the limits: arithmetic, or one pass over x shared by the
        seeds.
        """
        arithmetic = NORMALS_ELSEWHERE if self.law == "gaussian" else SIGNS_ELSEWHERE
        return self.threads * BASELINE_ELSEWHERE / max(arithmetic, MEMORY_ELSEWHERE / self.seeds)


CASES = tuple(
    Case(law, count, threads) for threads in (1, 2) for law in TARGETS for count in COUNTS
)


def baseline(x: torch.Tensor, z: torch.Tensor, generator: torch.Generator) -> None:
    """One direction of `torch.randn`, added; z is kept, a new one each time costs up to half as
    much again.
    """
    torch.randn(x.numel(), generator=generator, out=z)
    x.add_(z, alpha=-1e-3)


def nanoseconds(clock: Callable[[], int], elements: int, work: Callable[[], None]) -> float:
    """Time one call per element."""
    start = clock()
    work()
    return (clock() - start) / elements


def turn(x: torch.Tensor, generator: torch.Generator) -> tuple[dict[str, float], dict[Case, float]]:
    """Time everything once; return the baseline by clock and the cases."""
    d, z = x.numel(), torch.zeros_like(x)
    base = {
        "cpu": nanoseconds(time.thread_time_ns, d, lambda: baseline(x, z, generator)),
        "wall": nanoseconds(time.perf_counter_ns, d, lambda: baseline(x, z, generator)),
    }
    found = {}
    for case in CASES:
        seeds, coefficients = range(case.seeds), np.full(case.seeds, 1e-3)

        def work(
            case: Case = case, seeds: Any = seeds, coefficients: np.ndarray = coefficients
        ) -> None:
            replay(x, seeds, coefficients, law=case.law, threads=case.threads)

        clock = time.thread_time_ns if case.threads == 1 else time.perf_counter_ns
        found[case] = nanoseconds(clock, d * case.seeds, work)
    return base, found


def report(size: int, repeats: int) -> dict[str, Any]:
    """Take the turns, print the table and return the figures."""
    torch.set_num_threads(1)
    before = environment()
    x, generator = torch.zeros(size), torch.Generator()
    generator.manual_seed(Key(0).seed64() % (1 << 32))
    turn(x[: 1 << 16], generator)  # compiles
    turns = [turn(x, generator) for _ in range(repeats)]
    bases = {clock: [base[clock] for base, _ in turns] for clock in ("cpu", "wall")}
    figures = [_figure(case, bases, [found[case] for _, found in turns]) for case in CASES]
    _print(size, bases, figures)
    return {
        "size": size,
        "repeats": repeats,
        "baseline_ns": {clock: median(values) for clock, values in bases.items()},
        "baseline_spread": {clock: spread(values) for clock, values in bases.items()},
        "met": all(f["ratio"] >= f["target"] for f in figures if f["target"]),
        "figures": figures,
        "environment": before,
    }


def _figure(case: Case, bases: dict[str, list[float]], times: list[float]) -> dict[str, Any]:
    clock = "cpu" if case.threads == 1 else "wall"
    ratio = median([base / taken for base, taken in zip(bases[clock], times, strict=True)])
    return {
        "name": case.name,
        "law": case.law,
        "seeds": case.seeds,
        "threads": case.threads,
        "clock": clock,
        "ns": median(times),
        "ns_least": min(times),
        "spread": spread(times),
        "ratio": ratio,
        "target": case.target,
        "limit": case.limit,
        "of_limit": ratio / case.limit,
    }


def _print(size: int, bases: dict[str, list[float]], figures: list[dict[str, Any]]) -> None:
    rows = [
        [
            "torch.randn + add_",
            f"{median(bases['cpu']):.3f}",
            f"{min(bases['cpu']):.3f}",
            "1.0",
            "",
            "",
            "",
            f"{spread(bases['cpu']):.1%}",
        ]
    ]
    rows += [
        [
            f["name"],
            f"{f['ns']:.3f}",
            f"{f['ns_least']:.3f}",
            f"{f['ratio']:.1f}",
            verdict(f["ratio"], f["target"]),
            f"{f['limit']:.1f}",
            f"{f['of_limit']:.0%}",
            f"{f['spread']:.1%}",
        ]
        for f in figures
    ]
    title = f"Replay of directions, d = {size:,}: CPU time on one thread, wall time on two"
    show(
        title,
        ["what", "ns / element and seed", "least", "ratio", "target", "limit", "of it", "spread"],
        rows,
    )


def main() -> None:
    """Run the benchmark."""
    chosen = options(__doc__.splitlines()[0] if __doc__ else "").parse_args()
    size = QUICK_SIZE if chosen.quick else SIZE
    repeats = chosen.repeats or (2 if chosen.quick else 9)
    write("replay", report(size, repeats), chosen.json)


if __name__ == "__main__":
    main()
