"""The ledger actor keeps the run's log. Needs no torch, so it starts light."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from actors.ledger_connection import LedgerConversation
from actors.transport.peers import LONGEST_WAIT
from actors.transport.port import TransportPort
from actors.transport.sockets import TransportAddress
from raydpzv.ledger.entries import Slice
from raydpzv.ledger.header import Header
from raydpzv.ledger.ledger import Ledger, begin_ledger, ledger_facts


class LedgerActor(TransportPort):
    """Plain class; `actors.vertical.actor_set` wraps it. One writer appends, any number of hosts ask for ranges.

    An append is written before it is answered, so a range that was announced after its append is there.
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
        """Answer: the first call proves that this actor has come up, and that the caller can reach it."""

    def address(self) -> TransportAddress | None:
        """Return where this actor listens; None: it is called."""
        return self._transport.address if self._transport else None

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
        """Forget updates <= version in memory, if there is a log on disk that a new host can be rebuilt from."""
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
