"""Small vertical runs with a checkpoint after every tenth update."""

from typing import Any

import scenarios

RECORD = ("record.checkpoint_updates=10", "record.flush=1000")
SMALL = (
    "budget.updates=60",
    "evaluate.every=20",
    "data.train_rows=150",
    "data.test_rows=40",
    *RECORD,
    "privacy.noise=seeded",
    "clock.compute=0.2",
    "clock.compute_law=exponential",
    "network.latency=0.05",
    "network.up=50000",
)


def scenario(name: str, *changes: str) -> Any:
    """A scenario of 60 updates with this method."""
    return scenarios.load({"dpzv": "digits_dpzv"}.get(name, name), [*SMALL, *changes])
