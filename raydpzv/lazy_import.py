"""Libraries that are named at the top of a file but loaded when something of them is first used.

Importing torch takes two seconds of CPU. A method's file needs it to train, not to say what its settings are, so that a
command that only looks (`raydpzv privacy`) defers it before it imports anything else. Whatever touches the library
after all loads it there and then and sees no difference. Commands that train do not defer: the loading would begin in
whichever thread came first.

The standard library's `importlib.util.LazyLoader` is no help: a later `import torch` looks at the module's
`__spec__`, and in Python 3.11 that is enough to load what it defers.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """A module with nothing in it but where it comes from; it becomes what it stands for at the first look inside."""

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        self.__class__ = ModuleType  # type: ignore[assignment]  # from here on it is an ordinary module
        if spec.submodule_search_locations is not None:
            self.__path__ = spec.submodule_search_locations
        try:
            spec.loader.exec_module(self)
        except BaseException:
            sys.modules.pop(spec.name, None)
            raise
        return getattr(self, name)


def defer(library: str) -> None:
    """Load a library, named as it is imported ("torch"), at its first use; nothing if it is loaded or not installed."""
    if library in sys.modules:
        return
    spec = importlib.util.find_spec(library)
    if spec is None or spec.loader is None:
        return
    module = _Deferred(library)
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    # without a __path__, importing a part of the library looks for it here and so loads the library first
    sys.modules[library] = module


class _Called(ModuleType):
    """A package that can also be called: a public function has its name.

    Signature and docstring are the function's. It is imported at the first look at it.
    """

    _target: str

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        module, _, name = self._target.partition(":")
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return found

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.__wrapped__.__doc__

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call the function."""
        return self.__wrapped__(*given, **named)


def make_callable(package: str, target: str) -> None:
    """Let a package be called as the public function of its name; target: that function, "module:function"."""
    module = sys.modules[package]
    module.__class__ = _Called
    module._target = target  # type: ignore[attr-defined]
