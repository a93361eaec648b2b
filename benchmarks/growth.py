"""Whether memory grows: resident memory of each process over 20,000 updates, after its warm-up.

one process   this one, `raydpzv run` in a process of its own
on Ray        the driver, the server's actor (with the ledger's, if there is one), the clients'
actors

Growth: the median of the looks in the last tenth of the updates over that of the fourth tenth, less
1. The three before are the warm-up: kernels are compiled, and the first checkpoint, half a second
  after the start, and the first parts of
rows are written, which the fastest runs come to at a third of their way. The control keeps 2 KB of
every update for good, as a leak would; it has to miss the target. Pages of files and of shared
memory, such as Ray's object store, are not counted.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import environment, median, options, show, verdict, write
from fresh_process import in_fresh_process
from processes import Census

import raydpzv
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.runner import run_local

TARGET = 0.02
"""Growth, at most."""
_LEAK = 2048
"""Bytes of every update that the control keeps."""
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "dpzv": ("digits_dpzv", ("privacy.noise=seeded",)),
    "vafl": ("vafl_digits", ()),
    "czofo": ("czofo", ()),
    "decomfl, asynchronous": ("decomfl_async", ()),
    "decomfl": ("digits_decomfl", ()),
}
ON_RAY = ("dpzv", "decomfl, asynchronous")

Look = tuple[int, dict[str, int]]
"""After how many updates, and resident bytes by group of processes."""


def growth(looks: Sequence[Look], updates: int, group: str) -> float:
    """Return by what share a group's memory grew from the fourth tenth of the updates to the
    last.
    """

    def held(first: float, last: float) -> float:
        return median(
            [b[group] for n, b in looks if first * updates <= n <= last * updates and group in b]
        )

    return held(0.9, 1.0) / held(0.3, 0.4) - 1


class Looking:
    """A run's progress callback: looks at memory a hundred times, and leaks if it is the
    control.
    """

    def __init__(self, updates: int, *, leaks: bool, on_ray: bool) -> None:
        self._every, self._on_ray = max(updates // 100, 1), on_ray
        self._leaks, self._kept, self._next = leaks, bytearray(), 0
        self.looks: list[Look] = []

    def __call__(self, status: Any) -> None:
        """Look if it is time."""
        if status.stage or status.stop_reason:
            return
        if self._leaks and (more := status.updates * _LEAK - len(self._kept)) > 0:
            self._kept += os.urandom(more)
        if status.updates >= self._next:
            self._next = status.updates + self._every
            self.looks.append((status.updates, _resident(self._on_ray)))


def _resident(on_ray: bool) -> dict[str, int]:
    found: dict[str, int] = {}
    groups = Census.take().groups if on_ray else {os.getpid(): "process"}
    for pid, group in groups.items():
        try:
            status = dict(
                line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            )
            size = int(status["RssAnon"].split()[0]) << 10
        except (OSError, KeyError):
            continue  # it has ended
        if group != "ray":  # Ray's own daemons are none of a run's
            found[group] = found.get(group, 0) + size
    return found


def measure(name: str, updates: int, leaks: bool, on_ray: bool) -> list[Look]:
    """Run, and return what was seen."""
    scenario, changes = CASES[name]
    looking = Looking(updates, leaks=leaks, on_ray=on_ray)
    spec = raydpzv.load(scenario, [*changes, f"budget.updates={updates}"])
    with tempfile.TemporaryDirectory() as folder:
        given = RunOptions(Path(folder) / "run", progress=looking)
        if on_ray:
            from actors.runner import run_on_ray

            run_on_ray(prepare(spec), given)
        else:
            run_local(prepare(spec), given)
    return looking.looks


def main() -> None:
    """Run the benchmark."""
    parser = options(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", choices=CASES, action="append", help="these methods alone")
    parser.add_argument("--updates", type=int, metavar="N", default=20_000)
    parser.add_argument("--ray", action="store_true", help="on actors, too (some methods)")
    chosen = parser.parse_args()
    before, updates = environment(), 500 if chosen.quick else chosen.updates
    names = chosen.only or list(CASES)
    cases = [(name, False, False) for name in names] + [(names[0], True, False)]
    if chosen.ray:
        cases += [(name, False, True) for name in ON_RAY if name in names]
    rows, figures = [], []
    for name, leaks, on_ray in cases:
        looks = in_fresh_process(measure, name, updates, leaks, on_ray)
        for group in sorted({group for _, held in looks for group in held}):
            found = growth(looks, updates, group)
            label = name + (", the control: it leaks" if leaks else "")
            last = median(
                [held[group] for n, held in looks if n >= 0.9 * updates and group in held]
            )
            print(label, group, f"{found:.2%}", file=sys.stderr, flush=True)
            figures.append(
                {"name": label, "on_ray": on_ray, "group": group, "growth": found, "looks": looks}
            )
            where = "on Ray: " * on_ray + group
            rows.append(
                [
                    label,
                    where,
                    f"{last / 1e6:.0f}",
                    f"{found:.2%}",
                    verdict(found, TARGET, at_most=True),
                ]
            )
    show(f"Memory over {updates} updates", ["run", "process", "MB", "growth", "at most"], rows)
    write("growth", {"figures": figures, "environment": before}, chosen.json)


if __name__ == "__main__":
    main()
