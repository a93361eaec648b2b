"""Models that a user brings: a module, or a class or function that makes one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from raydpzv.errors import InputError, SpecError
from raydpzv.foreign import call
from raydpzv.models.flat import FlatModel

OwnModel = Callable[[Mapping[str, Any], Mapping[str, Any]], "torch.nn.Module"]
"""(options of the scenario, what the program offers by name) to a module."""


def model(name: str, found: Any) -> OwnModel:
    """Return what makes a user's module. Raises SpecError for an object that cannot."""
    if isinstance(found, torch.nn.Module):
        return lambda options, offered: _copied(name, found, options)
    if not callable(found):
        raise SpecError(
            f'"{name}": wanted an nn.Module, or a class or function that returns one, got {type(found).__name__}'
        )

    def make(options: Mapping[str, Any], offered: Mapping[str, Any]) -> torch.nn.Module:
        made = call(found, options, offered, "model.options")
        if not isinstance(made, torch.nn.Module):
            raise SpecError(f'"{name}": wanted an nn.Module from the call, got {type(made).__name__}')
        return made

    return make


def _copied(name: str, module: torch.nn.Module, options: Mapping[str, Any]) -> torch.nn.Module:
    if options:
        raise SpecError(
            f'model.options: "{name}" is a module, which takes none; leave them out or name its class'
        )
    return copy.deepcopy(module)


def check_scores(model: FlatModel, shape: Sequence[int], width: int, title: str, *, integers: bool) -> None:
    """Refuse a module whose forward call fails on records of `shape`, or gives other than `width` numbers a record."""
    kind = torch.int64 if integers else torch.float32
    records = torch.zeros((2, *shape), dtype=kind, device=model.flat.device)
    try:
        with torch.no_grad():
            scores = model.module(records)
    except Exception as error:  # whatever the user's forward raises is said in one line
        text = " ".join(str(error).split())
        raise InputError(
            f"{title}: its forward call fails on two records {list(records.shape)} of {kind} "
            f"({type(error).__name__}: {text})"
        ) from error
    got = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
    if got != (2, width):
        raise InputError(f"{title}: wanted scores [2, {width}] of two records, got {got}")
