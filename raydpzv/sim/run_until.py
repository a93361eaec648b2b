"""How far a run may go for now: where its record is brought elsewhere, no further than that place knows of."""

from __future__ import annotations

import threading
from collections.abc import Callable

from raydpzv.errors import RunError


class RunUntil:
    """A number of updates that a run may make; at it the run stands still until there are more. None: any number.

    asked: called when the run has come so far that it will soon stand still, or does. One thread makes updates, any
    may allow more.
    """

    def __init__(self, asked: Callable[[], None] = lambda: None) -> None:
        self._asked = asked
        self._limit: int | None = None
        self._near: int | None = None  # from where on more is asked for
        self._failure: str = ""
        self._changed = threading.Condition()
        self.made = 0
        """Updates whose releases are on record."""

    @property
    def limit(self) -> int | None:
        """Updates that the run may make in all."""
        return self._limit

    def reach(self, update: int) -> None:
        """Wait until this update may be made; all before it are on record. Raises RunError if it never may."""
        self.note(update - 1)
        if self._near is None or update < self._near:
            return
        with self._changed:
            while self._limit is not None and update > self._limit and not self._failure:
                self._changed.wait()
        if self._failure:
            raise RunError(self._failure)

    def note(self, made: int) -> None:
        """Say that the releases of so many updates are on record; ask for more where it is time. Raises RunError."""
        self.made = made
        if self._failure:
            raise RunError(self._failure)
        if self._near is not None and made + 1 >= self._near:
            self._asked()

    def allow(self, limit: int | None) -> None:
        """Let the run make so many updates in all."""
        with self._changed:
            # half of them on, so that the next ones may be allowed before it stands still
            self._near = None if limit is None else self.made + max((limit - self.made) // 2, 0) + 1
            self._limit = limit
            self._changed.notify_all()

    def deny(self, why: str) -> None:
        """Let the run make no update more, for this reason."""
        with self._changed:
            self._failure = self._failure or why
            self._changed.notify_all()
