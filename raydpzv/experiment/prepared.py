"""A scenario of either kind, loaded and checked."""

from __future__ import annotations

from raydpzv.experiment.build import Experiment, prepare
from raydpzv.experiment.federation import Federation, prepare_federation
from raydpzv.experiment.spec_horizontal import HorizontalSpec
from raydpzv.experiment.toml import AnySpec

Prepared = Experiment | Federation


def prepared(spec: AnySpec) -> Prepared:
    """Load a scenario's data and build what a run needs. Raises SpecError and DataError."""
    return prepare_federation(spec) if isinstance(spec, HorizontalSpec) else prepare(spec)
