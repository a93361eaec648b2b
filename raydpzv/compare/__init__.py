"""Comparisons: methods x seeds x values of ε on one split and budget. `raydpzv.compare(...)` makes one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _Compare(ModuleType):
    """The package itself, which can also be called: its name is that of the public function.

    Signature and docstring are the function's. It is imported at the first look at it.
    """

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        from raydpzv.compare.compare_methods import compare

        return compare

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.__wrapped__.__doc__

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Compare; as `raydpzv.compare.compare_methods.compare`."""
        return self.__wrapped__(*given, **named)


sys.modules[__name__].__class__ = _Compare
