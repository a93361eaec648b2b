"""torch as a name that loads the library when something of it is first used.

Importing torch takes two seconds of CPU. So `from raydpzv.lazy_import import torch` replaces `import torch` in every
module that a run with compiled kernels imports. Modules that define torch classes import torch itself, and functions
import those modules.

Nothing stands in `sys.modules` for a library that is not loaded: matplotlib and others look there before they ask
whether an array is torch's.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any


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

__all__ = ["Lazy", "torch"]
