"""A scenario of either kind, loaded and checked."""

from __future__ import annotations

from raydpzv.config.scenario_horizontal import HorizontalScenario
from raydpzv.config.toml import AnyScenario
from raydpzv.experiment.failure import class_shares
from raydpzv.experiment.horizontal import PreparedHorizontal, prepare_horizontal
from raydpzv.experiment.vertical import PreparedVertical, prepare

Prepared = PreparedVertical | PreparedHorizontal


def prepared(spec: AnyScenario) -> Prepared:
    """Load a scenario's data and build what a run needs. Raises SpecError and DataError."""
    return prepare_horizontal(spec) if isinstance(spec, HorizontalScenario) else prepare(spec)


def held_out_shares(experiment: Prepared) -> list[float]:
    """Return the share of each class among the held-out rows: what constant predictions reach."""
    if isinstance(experiment, PreparedHorizontal):
        return class_shares(experiment.split.test.y, experiment.split.test.classes)
    return class_shares(experiment.server.y_test, experiment.server.classes)
