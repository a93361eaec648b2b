"""Encode a run's state as JSON and one block of bytes: plain values, arrays, and the messages under
way.

Decoding runs no code: it makes only the classes named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raydpzv.methods.roles import Order, Release, Sync, Upload
from raydpzv.privacy.mechanisms import Receipt
from raydpzv.secure.attempts import Attempt
from raydpzv.sim.interfaces import Activation
from raydpzv.sim.pull import Epoch, Pull
from raydpzv.sim.virtual import Arrival, Delivery
from raydpzv.wire.messages import Body, body_class

_ARRAY, _BODY, _RECORD = "$array", "$body", "$record"
_PLAIN = frozenset({type(None), bool, int, float, str})
_RECORDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Order,
        Release,
        Sync,
        Upload,
        Receipt,
        Attempt,
        Activation,
        Epoch,
        Pull,
        Arrival,
        Delivery,
    )
}


def packed(state: Any) -> tuple[Any, bytes]:
    """Return a tree of plain values, arrays and messages as JSON values, and the bytes of its
    arrays.

    Tuples become lists. Raises TypeError for a value of another kind.
    """
    arrays = _Arrays()
    return arrays.tree(state), b"".join(arrays.blocks)


def unpacked(tree: Any, data: bytes) -> Any:
    """Return the state that was packed; its arrays are copies."""
    if isinstance(tree, list):
        return [unpacked(value, data) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if _ARRAY in tree:
        dtype, shape, place = tree[_ARRAY]
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(data, np.dtype(dtype), count, place).reshape(shape).copy()
    if _BODY in tree:
        name, *arrays = tree[_BODY]
        return body_class(name)(*unpacked(arrays, data))
    if _RECORD in tree:
        name, *values = tree[_RECORD]
        return _RECORDS[name](*(_tuples(unpacked(value, data)) for value in values))
    return {name: unpacked(value, data) for name, value in tree.items()}


def _tuples(value: Any) -> Any:
    """Return lists as tuples: messages hold tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


class _Arrays:
    def __init__(self) -> None:
        self.blocks: list[bytes | memoryview] = []
        self._place = 0

    def tree(self, value: Any) -> Any:
        if type(value) in _PLAIN or isinstance(value, float):  # such as numpy's float64
            return value
        if isinstance(value, np.ndarray):
            return {_ARRAY: [value.dtype.str, list(value.shape), self._add(value)]}
        if isinstance(value, Body):
            return {_BODY: [type(value).__name__, *map(self.tree, value.arrays())]}
        if type(value).__name__ in _RECORDS:
            values = value if isinstance(value, tuple) else vars(value).values()
            return {_RECORD: [type(value).__name__, *map(self.tree, values)]}
        if isinstance(value, Mapping):
            return {_text(name): self.tree(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.tree(each) for each in value]
        raise TypeError(f"a checkpoint holds no {type(value).__name__}: {value!r:.60}")

    def _add(self, array: np.ndarray) -> int:
        place, block = self._place, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        # each starts at a multiple of eight bytes
        self.blocks += [block, bytes(-len(block) % 8)]
        self._place += len(block) + (-len(block) % 8)
        return place


def _text(name: Any) -> str:
    if not isinstance(name, str) or name.startswith("$"):
        raise TypeError(f"a checkpoint's tables have names, got {name!r}")
    return name
