"""A scenario of either kind, loaded and checked."""

from __future__ import annotations

from raydpzv.experiment.build import Experiment, prepare
from raydpzv.experiment.failure import class_shares
from raydpzv.experiment.federation import Federation, prepare_federation
from raydpzv.experiment.spec_horizontal import HorizontalSpec
from raydpzv.experiment.toml import AnySpec

Prepared = Experiment | Federation


def prepared(spec: AnySpec) -> Prepared:
    """Load a scenario's data and build what a run needs. Raises SpecError and DataError."""
    return prepare_federation(spec) if isinstance(spec, HorizontalSpec) else prepare(spec)


def held_out_shares(experiment: Prepared) -> list[float]:
    """Return the share of each class among the held-out rows: what constant predictions reach."""
    if isinstance(experiment, Federation):
        return class_shares(experiment.split.test.y, experiment.split.test.classes)
    return class_shares(experiment.server.y_test, experiment.server.classes)
