"""What a method that protects users wants of a scenario, and privacy.mode = "user" of its method."""

from __future__ import annotations

from collections.abc import Iterator

from raydpzv.config.scenario import HorizontalScenario
from raydpzv.registry import METHODS
from raydpzv.settings.sections_horizontal import HorizontalPrivacySection

_OF_NOISE = ("epsilon", "multiplier", "delta", "against")


def user_contradictions(spec: HorizontalScenario) -> Iterator[str]:
    """Yield a sentence for each setting that does not go with the method, or with others."""
    privacy = spec.privacy or HorizontalPrivacySection()
    if spec.descriptor.users(spec.method) is None:
        yield from _unprotected(spec)
        return
    name = spec.method.name
    if spec.users is None:
        yield (
            f'users: wanted with method.name = "{name}", which protects users whose records lie in several silos; add '
            'the table, and split.how = "users"'
        )
    if privacy.clip is None:
        yield f'privacy.clip: wanted with method.name = "{name}", whose vectors are clipped; give a number above 0'
    if privacy.mode == "none":
        for setting in _OF_NOISE:
            if getattr(privacy, setting) is not None:
                yield f'privacy.{setting}: has no meaning with privacy.mode = "none"; set mode = "user" or leave it out'
        if spec.budget.epsilon is not None:
            yield 'budget.epsilon: has no meaning with privacy.mode = "none"; set mode = "user" or leave it out'
        return
    yield from _noised(spec, privacy)


def _unprotected(spec: HorizontalScenario) -> Iterator[str]:
    known = ", ".join(
        name
        for name, method in METHODS.items()
        if method.kind == "horizontal" and method.users(method.config())
    )
    for table, given in (("privacy", spec.privacy), ("budget.epsilon", spec.budget.epsilon)):
        if given is not None:
            yield (
                f'{table}: goes with methods that protect users ({known}), got "{spec.method.name}"; choose one of '
                "them, or leave it out"
            )


def _noised(spec: HorizontalScenario, privacy: HorizontalPrivacySection) -> Iterator[str]:
    if privacy.delta is None:
        yield "privacy.delta: wanted with ε or a multiplier (an ε without δ means nothing); give a number below 1/users"
    if (privacy.epsilon is None) == (privacy.multiplier is None):
        got = "neither" if privacy.epsilon is None else "both"
        yield f'privacy: wanted either epsilon or multiplier with mode = "user", got {got}; give exactly one'
    if privacy.epsilon is not None and spec.budget.updates is None:
        yield "budget.updates: wanted with privacy.epsilon (the noise follows from the planned number of releases)"
    if spec.budget.epsilon is not None and privacy.noise == "seeded":
        yield 'budget.epsilon: seeded noise proves no ε, so none can be kept; set noise = "system" or drop it'
