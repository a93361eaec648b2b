"""A user's own method as environment.json describes it: its record is read without its code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from raydpzv.errors import DataError, NotRecomputable
from raydpzv.foreign import is_foreign
from raydpzv.methods.descriptor import (
    HorizontalMethod,
    Method,
    MethodConfig,
    UpdateRule,
    VerticalMethod,
)
from raydpzv.zo.spans import Group
from raydpzv.zo.update import Rule

METHOD = "own_method"
"""Its name in environment.json and summary.json."""
_RULE = ("law", "momentum", "damped", "optimizer", "beta2", "v0", "epoch")
_UPDATES = ("perturbations", "secret_seeds", "step_seeds", "pool", "gathered", "average")
_FLAGS = ("drifts", "pulls")


def own_method(spec: Any, *, rule: bool = False) -> dict[str, Any]:
    """Return what the record says of a scenario's method if it is the user's own, else {}.

    rule: also how its releases move a model.
    """
    if not is_foreign(spec.method.name):
        return {}
    return {METHOD: _facts(spec.descriptor, spec.method, rule=rule)}


def _facts(method: Method, config: Any, *, rule: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"horizontal": method.one_model}
    if isinstance(method, HorizontalMethod):
        found |= {"agent": method.agent} | {name: getattr(method, name)(config) for name in _FLAGS}
    if rule and method.rule is not None:
        updates = method.rule(config)
        groups = [[pattern, dataclasses.asdict(group)] for pattern, group in updates.rule.groups]
        found |= {name: getattr(updates, name) for name in _UPDATES}
        found["rule"] = {name: getattr(updates.rule, name) for name in _RULE} | {"groups": groups}
    return found


def method_on_record(settings: Mapping[str, Any], facts: Any) -> Method:
    """Return a method without roles that moves models as the record says. Raises DataError.

    settings: the table [method] of its scenario.
    """
    try:
        kind = HorizontalMethod if facts["horizontal"] else VerticalMethod
        rule = _rule(facts) if "rule" in facts else None
        more: dict[str, Any] = {}
        if kind is HorizontalMethod:
            more = {name: _always(bool(facts[name])) for name in _FLAGS}
            more |= {"agent": bool(facts["agent"]), "clients": _no_code}
        else:
            more = {"client": _no_code}
        config = _config(settings)
        made: Method = kind(
            config=config, server=_no_code, rule=_always(rule) if rule else None, **more
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"environment.json: is damaged: wanted what the run's own method is ({METHOD}), got "
            f"{type(error).__name__} of {' '.join(str(error).split())[:80]}; restore it from a copy"
        ) from None
    config.on_record = made
    return made


def _config(settings: Mapping[str, Any]) -> type[MethodConfig]:
    """Return a class with these settings as fields. Raises ValueError for a name that none has."""
    for name in settings:
        if not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"the setting {name!r}")
    fields = [(name, Any, dataclasses.field(default=None)) for name in settings]
    return dataclasses.make_dataclass("RecordedMethod", fields, bases=(MethodConfig,), frozen=True)


def _rule(facts: Mapping[str, Any]) -> UpdateRule:
    of = facts["rule"]
    groups = tuple((str(pattern), Group(**group)) for pattern, group in of["groups"])
    rule = Rule(**{name: of[name] for name in _RULE}, groups=groups)
    return UpdateRule(rule, **{name: facts[name] for name in _UPDATES})


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_: value


def _no_code(*_: Any) -> NoReturn:
    raise NotRecomputable(
        "this run's method is code of its user, and the record alone does not compute it again"
    )
