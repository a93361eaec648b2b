"""Actors' classes used in this process: a call is answered at once, and the answer is its own
reference.
"""

from collections.abc import Callable
from typing import Any


class Here:
    """A handle of an object of this process."""

    def __init__(self, role: Any) -> None:
        self._role = role

    def __getattr__(self, name: str) -> Any:
        return _Call(getattr(self._role, name))


class _Call:
    def __init__(self, method: Callable[..., Any]) -> None:
        self.remote = method
