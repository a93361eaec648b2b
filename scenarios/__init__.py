"""Scenario files and the command line; for Python users the same door as `raydpzv`.

import raydpzv

spec = raydpzv.load("digits_dpzv", ["method.perturbations=2", "budget.updates=500"])
run = raydpzv.run(spec)                          # in this process
run = raydpzv.run(spec, runner="ray")            # one actor per client
run.summary["accuracy"], run.rows("evaluation")  # an Arrow table
"""

from __future__ import annotations

from raydpzv.config.catalog import load
from raydpzv.config.scenario import HorizontalScenario, VerticalScenario
from raydpzv.config.toml import override
from raydpzv.experiment.finalize import Run
from raydpzv.experiment.runner import run

__all__ = ["HorizontalScenario", "Run", "VerticalScenario", "load", "override", "run"]
