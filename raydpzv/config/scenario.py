"""The scenario: every setting of a run, validated once at the edge (`raydpzv.config.toml`) and
frozen.
"""

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
    one_model: ClassVar[bool] = False
    """Whether all clients train one model; else each holds a part of it."""
    pulls: ClassVar[bool] = False
    """Whether clients ask for the newest model when they wake."""
    rounds: ClassVar[bool] = False
    """Whether an update is a round of a cohort."""
    users: ClassVar[None] = None
    multiplier: ClassVar[None] = None
    hosts_auto: ClassVar[bool] = False
    method: SkipValidation[Any] = _default("dpzv")

    @property
    def descriptor(self) -> VerticalMethod[Any]:
        """What the program knows of the method."""
        found: VerticalMethod[Any] = self.method.on_record or METHODS[self.method.name]
        return found

    @property
    def noised(self) -> bool:
        """Whether [privacy] adds noise to what is released about single records."""
        return self.privacy.mode != "none"

    @property
    def sigma(self) -> float | None:
        """The deviation that [privacy] gives its noise, if it does."""
        return self.privacy.sigma

    @property
    def delta(self) -> float | None:
        """The δ of what is claimed about single records, if [privacy] gives one."""
        return self.privacy.delta

    @property
    def barrier(self) -> int:
        """How many clients' uploads the server waits for before it answers: 1 if nobody waits for
        another.
        """
        return self.descriptor.barrier(self.method, self.split.clients)

    @property
    def gpu_shares(self) -> tuple[object, ...]:
        """The GPU shares of actors, as [resources] has them."""
        return self.resources.client_gpus, self.resources.server_gpus

    @property
    def secret_coins(self) -> bool:
        """Whether batches are drawn by coins that are kept secret."""
        return bool(self.method.coins == "system")

    @property
    def no_segment(self) -> str | None:
        """Why runs under the wall clock cannot resume as new segments; None if they can."""
        method, descriptor = self.method, self.descriptor
        if self.clock.kind == "virtual":
            return None
        if descriptor.rule is None:
            if self.noised and descriptor.noise(method) is not None:
                return (
                    f"{method.name} keeps no ledger of what it releases, so that nobody could know "
                    "what was released after the last checkpoint"
                )
            return descriptor.unreplayable(method)
        rule = descriptor.rule(method)
        if rule.gathered > 1 and rule.lr.changes:
            return (
                "step sizes that change (method.lr_at) depend on uploads that no ledger has where "
                "some gather"
            )
        return None


class HorizontalScenario(HorizontalSections):
    """A whole scenario of horizontal learning; `method` is the configuration of a horizontal
    method.
    """

    kind: ClassVar[str] = "horizontal"
    one_model: ClassVar[bool] = True
    noised: ClassVar[bool] = False  # noise that hides users is none of single records
    sigma: ClassVar[None] = None
    delta: ClassVar[None] = None
    barrier: ClassVar[int] = 1  # rounds wait for their cohort, which is no lateness
    method: SkipValidation[Any] = _default("decomfl")

    @property
    def descriptor(self) -> HorizontalMethod[Any]:
        """What the program knows of the method."""
        found: HorizontalMethod[Any] = self.method.on_record or METHODS[self.method.name]
        return found

    @property
    def pulls(self) -> bool:
        """Whether clients ask for the newest model when they wake."""
        return self.descriptor.pulls(self.method)

    @property
    def rounds(self) -> bool:
        """Whether an update is a round of a cohort."""
        return not self.pulls and not self.descriptor.agent

    @property
    def secret_coins(self) -> bool:
        """Whether a run draws users or records by coins that add to their privacy."""
        plan, privacy = self.descriptor.users(self.method), self.privacy
        if plan is None or privacy is None or privacy.mode == "none" or privacy.noise != "system":
            return False
        return min(plan.sampling, plan.rate) < 1

    @property
    def multiplier(self) -> float | None:
        """The noise multiplier that [privacy] gives, if it does."""
        return self.privacy.multiplier if self.privacy else None

    @property
    def hosts_auto(self) -> bool:
        """Whether the number of hosts follows the cluster."""
        return self.resources.hosts == "auto"

    @property
    def gpu_shares(self) -> tuple[object, ...]:
        """The GPU shares of actors, as [resources] has them."""
        return (self.resources.host_gpus,)

    @property
    def no_segment(self) -> str | None:
        """Why runs under the wall clock cannot resume as new segments; None if they can."""
        if self.clock.kind == "virtual" or self.descriptor.rule is not None:
            return None
        return (
            f"{self.method.name} keeps no ledger, so that its updates after the last checkpoint are"
            " lost"
        )


AnyScenario = VerticalScenario | HorizontalScenario
"""A scenario of either kind; `method.name` says which."""

SCENARIOS: dict[str, type[VerticalScenario] | type[HorizontalScenario]] = {
    "vertical": VerticalScenario,
    "horizontal": HorizontalScenario,
}
"""By the kind of the method."""


def shared_fields(one: type[MethodConfig], other: type[MethodConfig]) -> set[str]:
    """Return the settings that two methods have from one class, and so mean the same by: cohort,
    batch, directions.

    A step size of each method's own is none of them, though both call it lr.
    """
    return {
        name for name in method_fields(one) if _owner(one, name) is _owner(other, name) is not None
    }


def _owner(config: type[MethodConfig], name: str) -> type | None:
    return next((c for c in config.__mro__ if name in inspect.get_annotations(c)), None)


def method_fields(config: type[MethodConfig]) -> list[str]:
    """Return the settings of a method, by its configuration."""
    return list(getattr(config, "__dataclass_fields__"))  # noqa: B009  (the base is no dataclass itself)
