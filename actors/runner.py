"""The Ray runner, as `raydpzv.registry.RUNNERS` finds it: runs of either kind on actors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from actors.horizontal.driver import run_horizontal
from actors.ray_metrics import RayMetrics
from actors.shares import Place
from actors.vertical.driver import run_vertical
from raydpzv.experiment.finalize import Run, RunOptions
from raydpzv.experiment.prepare import Prepared
from raydpzv.privacy.release import verdict

_BY_KIND: dict[str, Callable[[Any, RunOptions, Place | None], Run]] = {
    "vertical": run_vertical,
    "horizontal": run_horizontal,
}


def run_on_ray(
    experiment: Prepared, options: RunOptions | None = None, place: Place | None = None
) -> Run:
    """Run on Ray: one server actor, and actors that hold the clients. Ray's endpoint has its
    metrics (`RayMetrics`).

    place: of the actors; None reserves one.
    """
    given = options or RunOptions()
    metrics = RayMetrics(private=verdict(experiment.setting).proved)
    return _BY_KIND[experiment.spec.kind](
        experiment, replace(given, callbacks=[*given.callbacks, metrics]), place
    )
