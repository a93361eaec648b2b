"""torch as a name that loads the library when something of it is first used.

Importing torch takes two seconds of CPU. So `from raydpzv.lazy_import import torch` replaces
`import torch` in every module that a run with compiled kernels imports. Modules that define torch
classes import torch itself, and functions import those modules.

Nothing stands in `sys.modules` for a library that is not loaded: matplotlib and others look there
before they ask whether an array is torch's.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast


class Lazy(ModuleType):
    """A library by its name, such as "torch"; keeps each attribute once it was asked for."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, found)
        return found


if TYPE_CHECKING:
    import torch
else:
    torch = Lazy("torch")

__all__ = ["Lazy", "make_callable", "torch"]


class _Called(ModuleType):
    """A package that can also be called: a public function has its name.

    Signature and docstring are the function's, which is imported at the first look at it.
    """

    _target: str

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        module, _, name = self._target.partition(":")
        return cast("Callable[..., Any]", getattr(importlib.import_module(module), name))

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.__wrapped__.__doc__

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.__wrapped__(*given, **named)


def make_callable(package: str, target: str) -> None:
    """Let a package be called as the public function of its name; target: that function,
    "module:function".
    """
    module = sys.modules[package]
    module.__class__ = _Called
    module._target = target  # type: ignore[attr-defined]
