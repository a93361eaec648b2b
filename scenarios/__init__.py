"""Scenario files and the command line; for Python users the same door as `raydpzv`.

import raydpzv

spec = raydpzv.load("digits_dpzv", ["method.perturbations=2", "budget.updates=500"])
run = raydpzv.run(spec)                          # in this process
run = raydpzv.run(spec, runner="ray")            # one actor per client
run.summary["accuracy"], run.rows("evaluation")  # an Arrow table
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raydpzv.config.catalog import load
    from raydpzv.config.scenario import HorizontalScenario, VerticalScenario
    from raydpzv.config.toml import override
    from raydpzv.experiment.finalize import Run
    from raydpzv.experiment.runner import run

__all__ = ["HorizontalScenario", "Run", "VerticalScenario", "load", "override", "run"]

_DOORS = {
    "HorizontalScenario": "raydpzv.config.scenario",
    "Run": "raydpzv.experiment.finalize",
    "VerticalScenario": "raydpzv.config.scenario",
    "load": "raydpzv.config.catalog",
    "override": "raydpzv.config.toml",
    "run": "raydpzv.experiment.runner",
}
"""Where the public names live; imported when they are first used, so that the command line starts light."""


def __getattr__(name: str) -> Any:
    if name not in _DOORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_DOORS[name]), name)
