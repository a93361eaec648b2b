"""Scenario files and the command line; `scenarios.load` and the other names of `raydpzv` are the
same here.
"""

from __future__ import annotations

from typing import Any

import raydpzv

__all__ = list(raydpzv.__all__)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(raydpzv, name)
