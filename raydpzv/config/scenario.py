"""The scenario: every setting of a run, validated once at the edge (`raydpzv.config.toml`) and frozen."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from pydantic import Field, SkipValidation

from raydpzv.methods.descriptor import HorizontalMethod, MethodConfig, VerticalMethod
from raydpzv.registry import METHODS
from raydpzv.settings.sections import Sections
from raydpzv.settings.sections_horizontal import HorizontalSections


def _default(name: str) -> Any:
    return Field(default_factory=lambda: METHODS[name].config())


class VerticalScenario(Sections):
    """A whole scenario of vertical learning; `method` is the configuration of a vertical method."""

    kind: ClassVar[str] = "vertical"
    method: SkipValidation[Any] = _default("dpzv")

    @property
    def descriptor(self) -> VerticalMethod[Any]:
        """What the program knows of the method."""
        found: VerticalMethod[Any] = METHODS[self.method.name]
        return found


class HorizontalScenario(HorizontalSections):
    """A whole scenario of horizontal learning; `method` is the configuration of a horizontal method."""

    kind: ClassVar[str] = "horizontal"
    method: SkipValidation[Any] = _default("decomfl")

    @property
    def descriptor(self) -> HorizontalMethod[Any]:
        """What the program knows of the method."""
        found: HorizontalMethod[Any] = METHODS[self.method.name]
        return found


AnyScenario = VerticalScenario | HorizontalScenario
"""A scenario of either kind; `method.name` says which."""

SCENARIOS: dict[str, type[VerticalScenario] | type[HorizontalScenario]] = {
    "vertical": VerticalScenario,
    "horizontal": HorizontalScenario,
}
"""By the kind of the method."""


def shared_fields(one: type[MethodConfig], other: type[MethodConfig]) -> set[str]:
    """Return the settings that two methods have from one class, and so mean the same by: cohort, batch, directions.

    A step size of each method's own is none of them, though both call it lr.
    """
    return {name for name in method_fields(one) if _owner(one, name) is _owner(other, name) is not None}


def _owner(config: type[MethodConfig], name: str) -> type | None:
    return next((c for c in config.__mro__ if name in inspect.get_annotations(c)), None)


def method_fields(config: type[MethodConfig]) -> list[str]:
    """Return the settings of a method, by its configuration."""
    return list(getattr(config, "__dataclass_fields__"))  # noqa: B009  (the base is no dataclass itself)
