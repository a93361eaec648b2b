"""Whether a trial under the wall clock kept the pace asked of it: if not, its staleness is the machine's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from raydpzv.config.scenario import AnyScenario, VerticalScenario
from raydpzv.config.timing import barrier
from raydpzv.experiment.diagnostics import LATE
from raydpzv.report.client_table import rates_asked

_DEVIATIONS = 3.0
"""Standard deviations of a Poisson count by which uploads may fall short of what the rates ask for."""


def rate_asked(spec: AnyScenario) -> float:
    """Return uploads per second of all clients as `[arrivals]` asks for them; NaN where nothing is asked of a machine.

    That is under the virtual clock, where clients come as soon as they can, and where they wait for one another.
    """
    if spec.clock.kind != "wall" or (isinstance(spec, VerticalScenario) and barrier(spec) > 1):
        return math.nan
    rate = spec.arrivals.rate
    return sum(rates_asked(spec.arrivals.kind, rate, spec.split.clients))


def missed(row: Mapping[str, Any]) -> str:
    """Return in what a trial missed the pace asked, by its row; "" if it kept it or none was asked."""
    asked, measured, late, uploads = (row[name] for name in ("rate_asked", "throughput", "late", "uploads"))
    if math.isnan(asked) or math.isnan(measured):
        return ""
    found = []
    if late > LATE:
        found.append(f"{late:.0%} of its activations began late")
    expected = uploads / measured * asked
    if uploads < (1 - LATE) * expected and uploads < expected - _DEVIATIONS * math.sqrt(expected):
        found.append(f"{measured:.3g} uploads a second came, {asked:.3g} are asked")
    return " and ".join(found)
