"""What a scenario will claim, before it trains: its settings and its number of rows, or whose they are, are enough."""

from __future__ import annotations

import functools

from raydpzv.config.scenario import AnyScenario, HorizontalScenario, VerticalScenario
from raydpzv.data.horizontal import Partition
from raydpzv.experiment.prepare import load_data
from raydpzv.experiment.privacy_setting import privacy_setting, user_privacy
from raydpzv.keys import Key
from raydpzv.privacy.statements import AnySetting
from raydpzv.settings.sections import DataSection
from raydpzv.settings.sections_horizontal import HorizontalSplitSection, UsersSection


def planned_privacy(spec: AnyScenario, rows: int | None = None) -> AnySetting | None:
    """Return what a whole run's claims are made from; None where no noise is added.

    rows: D, training rows; None: as many as the data have. Users are always those of the data. Raises SpecError where
    no noise reaches the ε asked for.
    """
    if isinstance(spec, HorizontalScenario):
        return _of_users(spec)
    return _of_records(spec, rows)


def _of_records(spec: VerticalScenario, rows: int | None) -> AnySetting | None:
    if spec.descriptor.noise(spec.method) is None or spec.privacy.mode == "none":
        return None
    return privacy_setting(spec, rows or _rows(spec.data, spec.seed)).claims


def _of_users(spec: HorizontalScenario) -> AnySetting | None:
    if spec.descriptor.users(spec.method) is None or spec.privacy is None or spec.privacy.mode == "none":
        return None
    found = user_privacy(spec, _parts(spec.data, spec.split, spec.users, spec.seed))
    return found.claims if found else None


@functools.cache
def _rows(data: DataSection, seed: int) -> int:
    return load_data(data, Key(seed) / "data").train.rows


@functools.lru_cache(1)
def _parts(
    data: DataSection, how: HorizontalSplitSection, users: UsersSection | None, seed: int
) -> Partition:
    from raydpzv.experiment.horizontal import shared_rows

    return shared_rows(data, how, users, Key(seed))[1]
