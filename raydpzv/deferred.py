"""Libraries that are named at the top of a file but loaded when something of them is first used.

Importing torch takes two seconds of CPU. A method's file needs it to train, not to say what its settings are, so that a
command that only looks (`raydpzv privacy`) defers it before it imports anything else. Whatever touches the library
after all loads it there and then and sees no difference. Commands that train do not defer: the loading would begin in
whichever thread came first, and Python 3.11 has no lock for that.
"""

from __future__ import annotations

import importlib.util
import sys


def defer(library: str) -> None:
    """Load a library, named as it is imported ("torch"), at its first use; nothing if it is loaded or not installed."""
    if library in sys.modules:
        return
    spec = importlib.util.find_spec(library)
    if spec is None or spec.loader is None:
        return
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[library] = module
    spec.loader.exec_module(module)
