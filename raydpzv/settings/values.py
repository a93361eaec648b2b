"""Settings as Python's own values, whatever library the program that gives them has them from."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

_OWN = (str, int, float, bool, type(None))


def plain_value(value: Any) -> Any:
    """Return numbers, texts, lists and tables of Python in place of those of NumPy or torch, lists
    in place of tuples, and texts in place of paths. What is none of these stays as it is.
    """
    if type(value) in _OWN:
        return value
    if isinstance(value, Mapping):
        # a tuple is a key as it is, a list would be none
        return {
            key if isinstance(key, tuple) else plain_value(key): plain_value(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain_value(inner) for inner in value]
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        # a long double has no Python number of its precision, and stays what it is
        found = value.tolist()
        return float(found) if hasattr(found, "dtype") else plain_value(found)
    if isinstance(value, PathLike):
        return str(value)
    if isinstance(value, str):
        return str.__str__(value)  # of an enumeration the value, not the name
    return next((kind(value) for kind in (int, float) if isinstance(value, kind)), value)
