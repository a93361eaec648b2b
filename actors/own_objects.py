"""A user's own data on the way to processes that make whole runs; models and methods travel in the
scenario.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from raydpzv.config.scenario import AnyScenario
from raydpzv.foreign import by_value, packed, unpack


def check_travel(specs: Iterable[AnyScenario]) -> None:
    """Raise SpecError if a scenario's own objects cannot be sent to another process."""
    for spec in specs:
        if spec.own:
            by_value(spec, "the scenario")
        packed([spec.data.source])


def put_data(specs: Iterable[AnyScenario]) -> dict[str, Any]:
    """Put the own data of scenarios into Ray's object store; return their places by name. Raises
    SpecError.
    """
    import ray

    found = packed(dict.fromkeys(spec.data.source for spec in specs))
    return {name: ray.put(content) for name, content in found.items()}


def take_data(places: Mapping[str, Any]) -> None:
    """Adopt the data that `put_data` put away."""
    import ray

    unpack({name: ray.get(place) for name, place in places.items()})
