"""What a run will cost, before any weight is read: from shapes, and from a stand-in that learns in
the model's place.

Two sizes of the stand-in show what an update costs by the number: bytes, time for directions and
vectors, and copies. Its records, times the real model's FLOPs, over the rate of products of
matrices here, are the rest of the time.
"""

# d parameters, B records

from __future__ import annotations

import dataclasses
import gc
import math
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from raydpzv.config.scenario import AnyScenario
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.local_session import one_thread
from raydpzv.experiment.prepare import Prepared, prepare
from raydpzv.experiment.runner import run_local
from raydpzv.foreign import handle
from raydpzv.limits import one_thread_free
from raydpzv.models.flat import shapes, split_state
from raydpzv.models.initial_weights import without_weights
from raydpzv.sim.interfaces import Status

_LAYERS, _NARROW, _WIDE = 16, 96, 256
"""Square layers of a stand-in, and their widths: .15 and 1.05 million numbers."""
_UPDATES, _MANY, _SECONDS = 4, 60, 1.0
"""Updates of the wide stand-in, and the most of the narrow one, which stops after so many seconds
of CPU.
"""
_PASSES = 3
"""Forward passes that a forward and a backward pass cost as much as."""
_WHOLE = 0.9
"""Share of a stand-in's bytes from which an array is a copy of it."""


class StandIn(nn.Module):
    """Square layers with nothing between them; counts records, and remembers what a record of each
    client is.
    """

    passes = 0
    records: dict[int, torch.Tensor] = {}  # noqa: RUF012

    def __init__(self, width: int, outputs: int, client: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(_LAYERS)))
        self._width, self._client = width, client
        self._scores = [score % width for score in range(outputs)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, ...] -> [B, outputs]."""
        StandIn.passes += len(x) * (_PASSES if torch.is_grad_enabled() else 1)
        StandIn.records[self._client] = torch.empty_like(x[:1], device="meta")
        mean_B1 = torch.tanh(x.flatten(1).float().mean(1, keepdim=True))
        return self.layers(mean_B1.expand(-1, self._width))[:, self._scores]


@dataclass(frozen=True)
class Forecast:
    """Estimates of a run in one process, without its data and its start.

    trained, constant: numbers of the largest model; models: how many there are beside a head.
    copies: of the trained numbers of all, in one process. memory: bytes of all models. bytes,
    flops, seconds: of an update; seconds without FLOPs and flops NaN where the forward call does
    not run without numbers.
    """

    trained: int
    constant: int
    models: int
    copies: float
    memory: int
    bytes: float
    flops: float
    seconds: float
    updates: int | None

    def lines(self) -> list[str]:
        """Return the forecast, a sentence each."""
        whose = "the model has" if self.models == 1 else f"each of {self.models} models has up to"
        found = [
            f"forecast: {whose} {self.trained:,} trained and {self.constant:,} constant numbers"
        ]
        found.append(
            f"one process holds about {self.memory / 2**20:,.0f} MiB of models: {self.copies:.2g} "
            "copies of the trained numbers, one of the constant ones"
        )
        work = (
            "without the model's own work"
            if math.isnan(self.flops)
            else f"of which {self.flops:.2g} FLOP"
        )
        found.append(
            f"an update costs about {self.bytes:,.0f} bytes and {self.seconds:.2g} s on one thread "
            f"({work})"
        )
        if self.updates:
            total = self.seconds * self.updates
            found.append(
                f"{self.updates:,} updates cost about {self.bytes * self.updates:,.0f} bytes and "
                f"{total / 3600:,.3g} h"
            )
        return found


@dataclass(frozen=True)
class _Probe:
    """What an update of a stand-in costs, in the mean.

    first_bytes: of the first updates; bytes: of the last half, when clients have more to catch up
    on. held: bytes of copies of the wide one's numbers in the process.
    """

    numbers: int
    seconds: float
    first_bytes: float
    bytes: float
    records: float
    held: int


@dataclass(frozen=True)
class _Size:
    """Numbers of a model; layer: of the largest layer, which is perturbed in a buffer of its
    own.
    """

    trained: int
    constant: int
    layer: int


def forecast(spec: AnyScenario) -> Forecast:
    """Estimate a run's cost; reads the data, but no weights. Raises InputError."""
    with without_weights():
        prepared = prepare(spec)
        sizes = {name: _size(prepared, name) for name in prepared.model_names() if name != "server"}
        narrow, wide = _probed(spec, _NARROW, _MANY), _probed(spec, _WIDE, _UPDATES)
        flops = _flops(prepared, list(sizes)) * wide.records
    rate, number = _rate(), max(size.trained for size in sizes.values())
    # without the stand-in's own products
    seconds = [max(0.0, p.seconds - 2 * p.numbers * p.records / rate) for p in (narrow, wide)]
    further = (number - narrow.numbers) / (wide.numbers - narrow.numbers)
    copies = wide.held / (4 * wide.numbers * len(sizes))
    held = sum(copies * size.trained + size.layer for size in sizes.values())
    constant = max(size.constant for size in sizes.values())
    learning = max(0.0, seconds[0] + further * (seconds[1] - seconds[0]))
    return Forecast(
        trained=number,
        constant=constant,
        models=len(sizes),
        copies=copies,
        memory=int(4 * (held + constant)),
        bytes=narrow.bytes * (1 + further * (wide.first_bytes / (narrow.first_bytes or 1) - 1)),
        flops=flops,
        seconds=learning + (0.0 if math.isnan(flops) else flops / rate),
        updates=prepared.budget().updates,
    )


def _size(prepared: Prepared, name: str) -> _Size:
    module = shapes(lambda: prepared.module(name))
    trained, constant = split_state(module)
    layers = [layer for layer in module.modules() if not isinstance(layer, nn.Embedding)]
    largest = max(
        sum(p.numel() for p in layer.parameters(recurse=False) if p.requires_grad)
        for layer in layers
    )
    many, fixed = (sum(tensor.numel() for tensor in part.values()) for part in (trained, constant))
    return _Size(many, fixed, largest)


def _flops(prepared: Prepared, names: list[str]) -> float:
    """Return the FLOPs of a record's forward pass, in the mean over the models; NaN where they need
    numbers.
    """
    found = []
    for name in names:
        module = shapes(lambda name=name: prepared.module(name)).to("meta").eval()  # type: ignore[misc]
        client = int(name.rpartition(" ")[2]) if name.startswith("client ") else 0
        try:
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                module(StandIn.records[client])
        except Exception:  # what looks at numbers fails in the words of its library
            return math.nan
        found.append(counter.get_total_flops())
    return sum(found) / len(found)


def _probed(spec: AnyScenario, width: int, updates: int) -> _Probe:
    """Make so many updates of a scenario with a stand-in, and leave out the first, in which kernels
    compile.
    """

    def make(outputs: int = 0, embedding: int = 0, client: int = 0) -> StandIn:
        return StandIn(width, outputs or embedding, client)

    method: Any = spec.method
    if getattr(method, "groups", None):  # which name the real model's parameters
        method = dataclasses.replace(method, groups=None)
    planned = spec.budget.updates and max(_UPDATES, spec.budget.updates)
    changes = {
        "model": spec.model.stand_in(handle(make)),
        "method": method,
        "clock": spec.clock.model_copy(update={"kind": "virtual"}),
        "budget": spec.budget.model_copy(update={"updates": planned}),
        "evaluate": spec.evaluate.model_copy(update={"every": 10**9}),
    }
    small = prepare(spec.model_copy(update=changes))
    numbers, held, stop = _LAYERS * width**2, 0, threading.Event()
    marks = [(time.process_time(), StandIn.passes, 0)]

    def note(status: Status) -> None:
        nonlocal held
        if status.updates >= len(marks):
            held = held or (_held(4 * numbers) if width == _WIDE else 0)
            marks.append((time.process_time(), StandIn.passes, status.bytes_up + status.bytes_down))
            if len(marks) > _UPDATES and marks[-1][0] - marks[1][0] > _SECONDS:
                stop.set()

    with one_thread_free():  # what threads do is of no one update
        run_local(small, RunOptions(progress=note, stop=stop, until=updates))
    timed = marks[1:] if len(marks) > 2 else marks
    seconds, passes, sent = (np.diff(column) for column in zip(*timed, strict=True))
    late = (
        sent[len(sent) // 2 : -1] if len(sent) > 2 else sent
    )  # nobody is answered after the last update
    first = sent[: _UPDATES - 2]
    spent, early, later, records = (float(part.mean()) for part in (seconds, first, late, passes))
    return _Probe(numbers, spent, early, later, records, held)


def _held(size: int) -> int:
    """Return the bytes of all tensors and arrays in this process that are about so large."""
    gc.collect()  # models of earlier runs
    found: dict[int, int] = {}
    for thing in gc.get_objects():
        for value in (thing, *gc.get_referents(thing)):
            if issubclass(type(value), torch.Tensor) and not value.is_meta:
                found[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
            elif type(value) is np.ndarray and value.nbytes >= _WHOLE * size:
                found.setdefault(value.ctypes.data, value.nbytes)
    return sum(nbytes for nbytes in found.values() if _WHOLE * size <= nbytes <= size / _WHOLE)


def _rate() -> float:
    """Return the FLOP a second of products of matrices on one thread of this machine."""
    a, b, made = torch.ones(256, 1024), torch.ones(1024, 1024), 0
    with one_thread("torch"):
        a @ b  # the first call loads the library
        start = time.process_time()
        while made < 5 or time.process_time() - start < 0.2:
            a @ b
            made += 1
        return made * 2 * 256 * 1024**2 / max(1e-9, time.process_time() - start)
