"""The ledger actor, which keeps the run's log, and the server's working set of it. Starts light:
without torch.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from actors.actor_process import start, start_here
from actors.ledger_connection import LedgerConnection, LedgerConversation, ask_ledger
from actors.shares import Place
from actors.transport.peers import LONGEST_WAIT
from actors.transport.port import TransportPort
from actors.transport.sockets import TransportAddress
from raydpzv.ledger.entries import LedgerUpdate, Slice
from raydpzv.ledger.header import Header, LogSettings
from raydpzv.ledger.ledger import Ledger, begin_ledger, ledger_facts


class LedgerActor(TransportPort):
    """Plain class; `actors.vertical.actor_set` wraps it. One writer appends, any number of hosts
    ask for ranges.

    An append is written before it is answered, so a range that was announced after its append is
    there.
    """

    CONTROL = ("facts", "reads", "address")

    def __init__(self) -> None:
        super().__init__(lambda who: LedgerConversation(self), LONGEST_WAIT)
        self._ledger: Ledger | None = None
        self._reads, self._counting = 0, threading.Lock()

    def open(self, path: Path | None, header: Header, fsync: bool) -> None:
        """Open the run's ledger with all that it has, see `begin_ledger`."""
        self._ledger = begin_ledger(path, header, fsync=fsync)

    def ready(self) -> None:
        """Answer: the first call proves that this actor has come up, and that the caller can reach
        it.
        """

    def address(self) -> TransportAddress:
        """Return where this actor listens."""
        return self._opened_transport().address

    def append(self, updates: Slice) -> None:
        """Add updates; they are written when this returns."""
        for u in updates.updates():
            self._open().enter(u)

    def since(self, version: int, until: int | None = None) -> Slice:
        """Return updates version+1 .. until."""
        with self._counting:
            self._reads += 1
        return self._open().since(version, until)

    def trim(self, version: int) -> None:
        """Forget updates <= version in memory, if there is a log on disk that a new host can be
        rebuilt from.
        """
        if self._open().disk_bytes:
            self._open().trim(version)

    def save_snapshot(self, name: str, version: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep a snapshot."""
        self._open().save_snapshot(name, version, arrays)

    def facts(self) -> dict[str, Any]:
        """Return what summary.json says about the ledger."""
        return ledger_facts(self._ledger)

    def reads(self) -> int:
        """Return how many ranges were asked for."""
        return self._reads

    def close(self) -> None:
        """End the connections, and let another writer in."""
        self.close_transport()
        if self._ledger:
            self._ledger.close()

    def _open(self) -> Ledger:
        if self._ledger is None:
            raise RuntimeError("the ledger is not open: open comes first")
        return self._ledger


class RelayedLedger(Ledger):
    """The server's working set of the actor's ledger: an update is written there before any party
    gets it.
    """

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
        """Whether the actor can still return updates that are trimmed here: it has a log on
        disk.
        """
        return self._recalls

    def since(self, version: int, until: int | None = None) -> Slice:
        """Return updates version+1 .. until: from here, or from the actor where they are
        trimmed.
        """
        if version >= self._memory.trimmed:
            return super().since(version, until)
        return self._connection.since(version, self.version if until is None else until)

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
            self._actor.save_snapshot.remote(name, version, arrays),
            f"the snapshot of update {version}",
        )

    def _ask(self, reference: Any, awaited: str) -> Any:
        return ask_ledger(self._actor, reference, self._timeout, awaited)


def ledger_actor(place: Place) -> Any:
    """Create a ledger actor on this machine, where the run folder is, for a run in a place."""
    groups, threads = {"ctl": LedgerActor.CONTROL}, {"ctl": 1}
    if place.driver:
        return start(LedgerActor, groups, threads, {}, place.group, 0)[0]
    return start_here(LedgerActor, groups, threads)[0]
