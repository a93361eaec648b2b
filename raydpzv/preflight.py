"""Look at a scenario in seconds, without training it: does it fit, is it a function, and what will
it cost?
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydpzv.config.catalog import scenario_of
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import InputError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import Prepared, prepare
from raydpzv.experiment.runner import run_local
from raydpzv.foreign import by_value, packed
from raydpzv.limits import one_thread_free
from raydpzv.sim.interfaces import Status

if TYPE_CHECKING:  # loads torch
    from raydpzv.forecast import Forecast

_LEAST, _MOST, _SECONDS = 5, 100, 1.0
"""Updates that are made and thrown away, to see what one costs: at most so many, and so long after
the first few.
"""
_LONGEST = 60.0
"""Seconds that the least number of updates may take, as foretold, to be made at all."""
_MODELS = 8
_ELSEWHERE = (
    "import pickle, sys; from raydpzv.foreign import unpack; from raydpzv.preflight import "
    "first_weights; spec, data = pickle.load(sys.stdin.buffer); unpack(data); "
    "print(first_weights(spec))"
)


@dataclass(frozen=True)
class Cost:
    """What one update costs: bytes both ways, and seconds in this process."""

    bytes_up: float
    bytes_down: float
    seconds: float


@dataclass(frozen=True)
class Checked:
    """What `check` found: parameters and constants by model, and the measured cost of an update.

    cost: None under the wall clock, and where updates take minutes. updates: planned, None: no
    plan. memory: the most bytes that this process held. foretold: before weights were read, None
    where there are none to read. remarks: what to look at in the data's file.
    """

    models: dict[str, int]
    constants: dict[str, int]
    cost: Cost | None
    updates: int | None
    memory: int
    foretold: Forecast | None = None
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return what was found, a sentence each."""
        sizes = " or ".join(f"{size:,}" for size in dict.fromkeys(self.models.values()))
        found = self.foretold.lines() if self.foretold else []
        found.append(f"models: {len(self.models)}, of {sizes} trained parameters")
        if kept := max(self.constants.values(), default=0):
            found.append(f"{kept:,} numbers stay constant, one copy in each process")
        found.append("another process starts from the same weights")
        if self.cost:
            traffic = self.cost.bytes_up + self.cost.bytes_down
            found.append(f"an update costs {traffic:,.0f} bytes and {self.cost.seconds:.2g} s")
            if self.updates:
                whole = (
                    f"{traffic * self.updates:,.0f} bytes and "
                    f"{self.cost.seconds * self.updates:,.3g} s"
                )
                found.append(
                    f"{self.updates:,} updates cost about {whole}, plus start and evaluations"
                )
        found.append(f"this process held at most {self.memory / 2**20:,.0f} MiB")
        return [*found, *(f"look at it: {remark}" for remark in self.remarks)]


def check(scenario: AnyScenario | str) -> Checked:
    """Prepare a scenario, start it in another process, and measure a few updates; nothing is
    written.

    A user's own model is refused if its scores are random, depend on other records, or have the
    wrong shape. Of more than eight models the first are looked at. Weights are read only if the
    models will fit into memory. Raises InputError.
    """
    spec = scenario_of(scenario)
    foretold = foretell(spec) if spec.model.weights or spec.model.folder else None
    prepared = prepare(spec)
    if first_weights(spec) != _elsewhere(spec):
        raise InputError(
            "the model's first weights differ between two processes: let its own initialisation "
            "depend on torch's generator alone, or hand over a module with weights"
        )
    quick = foretold is None or foretold.seconds * _LEAST < _LONGEST
    models = {name: prepared.flat_model(name) for name in _names(prepared)}
    return Checked(
        {name: model.size for name, model in models.items()},
        {name: sum(t.numel() for t in model.constant.values()) for name, model in models.items()},
        _measured(prepared) if spec.clock.kind == "virtual" and quick else None,
        prepared.budget().updates,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        foretold,
        prepared.remarks,
    )


def foretell(scenario: AnyScenario | str) -> Forecast:
    """Estimate memory, bytes and time; reads the data, but no weights. Raises InputError if the
    models will not fit.
    """
    from raydpzv.forecast import forecast  # loads torch

    found = forecast(scenario_of(scenario))
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if found.memory > there:
        raise InputError(
            f"the models need about {found.memory / 2**30:,.3g} GiB in one process, and this "
            f"machine has {there / 2**30:,.3g}; train adapters (model.lora), take a smaller model "
            "or another machine"
        )
    return found


def first_weights(spec: AnyScenario) -> str:
    """Return the digests of a scenario's models before the first update, as text."""
    prepared = prepare(spec)
    return str({name: prepared.flat_model(name).sha256() for name in _names(prepared)})


def _names(prepared: Prepared) -> list[str]:
    return prepared.model_names()[:_MODELS]


def _elsewhere(spec: AnyScenario) -> str:
    """Return the same of another process, to which the user's objects and data travel by value."""
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE],
        input=by_value((spec, packed([spec.data.source])), "the scenario"),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        last = done.stderr.decode().strip().rpartition("\n")[2]
        raise InputError(f"the scenario cannot be started in another process ({last})")
    return done.stdout.decode().strip()


def _measured(prepared: Prepared) -> Cost:
    """Return the mean cost of the updates after the first, which waits for compilers and the first
    evaluation.
    """
    stop, ends = threading.Event(), [time.perf_counter()]

    def note(status: Status) -> None:
        if status.updates >= len(ends):
            ends.extend([time.perf_counter()] * (status.updates + 1 - len(ends)))
        if len(ends) > _LEAST and ends[-1] - ends[1] > _SECONDS:
            stop.set()

    with one_thread_free():  # threads would be at work on many updates when the first ones end
        summary = run_local(prepared, RunOptions(progress=note, stop=stop, until=_MOST)).summary
    made, timed = max(1, summary["updates"]), ends[1:] if len(ends) > 2 else ends
    seconds = (timed[-1] - timed[0]) / max(1, len(timed) - 1)
    return Cost(summary["bytes_up"] / made, summary["bytes_down"] / made, seconds)
