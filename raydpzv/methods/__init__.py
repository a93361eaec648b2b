"""The methods: what a party does with a message, without clock, network or Ray. `raydpzv.methods()`
lists them.
"""

from __future__ import annotations

import sys
from types import ModuleType

from raydpzv.registry import METHODS


class _Methods(ModuleType):
    """The package itself, which can also be called: its name is that of the public function."""

    def __call__(self) -> dict[str, str]:
        """Return every method's name and what it is, in one line."""
        return {name: METHODS.summary(name) for name in METHODS}


sys.modules[__name__].__class__ = _Methods
