"""Comparisons: methods x seeds x values of ε on one split and budget. `raydpzv.compare(...)` makes one."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Compare(ModuleType):
    """The package itself, which can also be called: its name is that of the public function."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Compare; as `raydpzv.compare.compare_methods.compare`."""
        from raydpzv.compare.compare_methods import compare

        return compare(*given, **named)


sys.modules[__name__].__class__ = _Compare
