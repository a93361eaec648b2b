"""What each client has done so far, as a live view shows it: counted as services happen, cheap to
ask for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from raydpzv.engine.split_model import COUNTED, Ages

MOST = 64
"""Clients up to which each has counts of its own; of more, only how many took part is known."""


class ClientCounts:
    """Uploads and staleness of each client, as the fields of a `Status`.

    A step costs the same however many clients there are; `fields` costs as many steps as there are
    clients, at most `MOST`, and may be asked for by another thread.
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._many = False
        self._uploads: dict[int, int] = {}
        self._staleness: dict[int, float] = {}
        self._served: int | None = None  # who was served last
        self._ages: tuple[Ages, ...] = ()  # then, and before it when last another client was served

    @classmethod
    def of(cls, uploads: Mapping[int, int]) -> ClientCounts:
        """Return the counts of a run that continues, of which so many uploads of each client were
        served.
        """
        found = cls()
        for client, count in uploads.items():
            if count:
                found.uploaded(client)
            if client in found._uploads:
                found._uploads[client] = count
        return found

    def uploaded(self, client: int) -> None:
        """Count an upload that was served."""
        self._seen.add(client)
        if client >= MOST:
            self._many = True
        else:
            self._uploads[client] = self._uploads.get(client, 0) + 1

    def aged(self, client: int, age: float) -> None:
        """Note how stale the client's part was when it was used last; NaN: nothing of it was there
        yet.
        """
        if client < MOST:
            self._staleness[client] = age

    def served(self, client: int, ages: Ages) -> None:
        """Note how old all others' embeddings were when a client was served."""
        before = self._ages[:1] if client != self._served else self._ages[1:]
        self._served, self._ages = client, (ages, *before)

    def fields(self) -> dict[str, Any]:
        """Return the counts as fields of a `Status`."""
        found: dict[str, Any] = {"participants": len(self._seen)}
        staleness, mean = self._staleness.copy(), math.nan
        for ages in reversed(self._ages):
            there = total = 0
            for _, client, rows, missing, age_sum, _ in ages[:, :COUNTED].tolist():
                known = rows - missing
                there, total = there + known, total + age_sum
                staleness[client] = age_sum / known if known else math.nan
            mean = total / there if there else math.nan
        if self._ages:
            found["staleness"] = mean
        if self._many:
            return found
        uploads = self._uploads.copy()
        clients = range(min(max((*uploads, *staleness), default=-1) + 1, MOST))
        found["client_uploads"] = tuple([uploads.get(m, 0) for m in clients])
        found["client_staleness"] = tuple([staleness.get(m, math.nan) for m in clients])
        return found
