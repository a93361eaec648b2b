"""How many bytes an object holds, itself and everything that it leads to."""

from __future__ import annotations

import gc
import sys
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


def held(root: Any) -> int:
    """Return the bytes of `root` and of all data that can be reached from it, each object once;
    code is left out.

    Tensors' memory is not seen.
    """
    seen: set[int] = set()
    total, waiting = 0, [root]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, _CODE):
            continue
        seen.add(id(item))
        total += sys.getsizeof(item)
        waiting += gc.get_referents(item)
        if isinstance(item, np.ndarray) and item.base is not None:
            waiting.append(item.base)
    return total
