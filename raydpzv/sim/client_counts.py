"""What each client has done so far, as a live view shows it: counted as services happen, cheap to ask for."""

from __future__ import annotations

import math
from typing import Any

MOST = 64
"""Clients up to which each has counts of its own; of more, only how many took part is known."""


class ClientCounts:
    """Uploads and staleness of each client, as the fields of a `Status`.

    A step costs the same however many clients there are; `fields` costs as many steps as there are clients, at most
    `MOST`.
    """

    def __init__(self) -> None:
        self._uploads: list[int] = []
        self._staleness: list[float] = []
        self._seen: set[int] = set()
        self._many = False

    def uploaded(self, client: int) -> None:
        """Count an upload that was served."""
        self._seen.add(client)
        if client >= MOST:
            self._many = True
        else:
            self._reach(client)
            self._uploads[client] += 1

    def aged(self, client: int, age: float) -> None:
        """Note how stale the client's part was when it was used last; NaN: nothing of it was there yet."""
        if client < MOST:
            self._reach(client)
            self._staleness[client] = age

    def fields(self) -> dict[str, Any]:
        """Return the counts as fields of a `Status`."""
        found: dict[str, Any] = {"participants": len(self._seen)}
        if not self._many:
            found |= {"client_uploads": tuple(self._uploads), "client_staleness": tuple(self._staleness)}
        return found

    def _reach(self, client: int) -> None:
        missing = client + 1 - len(self._uploads)
        if missing > 0:
            self._uploads += [0] * missing
            self._staleness += [math.nan] * missing
