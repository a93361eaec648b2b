"""The server's working set of the ledger actor's ledger, and the start of that actor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from actors.actor_reuse import start, start_here
from actors.ledger_actor import LedgerActor
from actors.ledger_connection import LedgerConnection, ask_ledger
from actors.shares import Place
from raydpzv.ledger.entries import LedgerUpdate, Slice
from raydpzv.ledger.header import Header, LogSettings
from raydpzv.ledger.ledger import Ledger


class RelayedLedger(Ledger):
    """The server's working set of the actor's ledger: an update is written there before any party gets it."""

    def __init__(self, actor: Any, header: Header, timeout: float) -> None:
        super().__init__(None, header, LogSettings())
        self._actor, self._timeout = actor, timeout
        self._connection = LedgerConnection(actor, timeout)
        self._recalls = False

    def adopt(self) -> None:
        """Load the updates that the actor has already."""
        facts = self._ask(self._actor.facts.remote(), "the ledger's state")
        self._recalls = facts["ledger"]["bytes"] > 0
        for u in self._connection.since(self.version, None).updates():
            super().enter(u)

    @property
    def recalls(self) -> bool:
        """Whether the actor can still return updates that are trimmed here: it has a log on disk."""
        return self._recalls

    def since(self, version: int, until: int | None = None) -> Slice:
        """Return updates version+1 .. until: from here, or from the actor where they are trimmed."""
        if version >= self._memory.trimmed:
            return super().since(version, until)
        last = self.version if until is None else until
        return self._connection.since(version, last)

    def enter(self, update: LedgerUpdate) -> int:
        """Add one update here and there; returns when the ledger actor has written it."""
        round = super().enter(update)
        self._connection.append(self.since(round - 1, round))
        return round

    def trim(self, version: int) -> None:
        """Forget updates <= version here and, since it has them on disk, at the ledger actor."""
        super().trim(version)
        self._actor.trim.remote(version)

    def save_snapshot(self, name: str, version: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep a snapshot beside the log."""
        self._ask(
            self._actor.save_snapshot.remote(name, version, arrays), f"the snapshot of update {version}"
        )

    def _ask(self, reference: Any, awaited: str) -> Any:
        return ask_ledger(self._actor, reference, self._timeout, awaited)


def ledger_actor(place: Place) -> Any:
    """Create a ledger actor on this machine, where the run folder is, for a run in a place."""
    groups, threads = {"ctl": LedgerActor.CONTROL}, {"ctl": 1}
    if place.driver:
        return start(LedgerActor, groups, threads, {}, place.group, 0)[0]
    return start_here(LedgerActor, groups, threads)[0]
