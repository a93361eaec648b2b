"""The ledger actor: keeps the run's log, and how updates travel to and from it. Needs no torch, so it starts light."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from actors.transport.connection import TransportAddress
from actors.transport.ledger_session import LedgerConversation, PackedSlice, pack_slice, unpack_slice
from actors.transport.orders import LONGEST_WAIT
from actors.transport.server import TransportServer
from raydpzv.ledger.header import Header
from raydpzv.ledger.ledger import Ledger, begin_ledger, ledger_facts


class LedgerActor:
    """Plain class; `actors.vertical.actor_set` wraps it. One writer appends, any number of hosts ask for ranges.

    An append is written before it is answered, so a range that was announced after its append is there.
    """

    CONTROL = ("facts", "reads", "lane")

    def __init__(self) -> None:
        self._ledger: Ledger | None = None
        self._reads, self._counting = 0, threading.Lock()
        self._lane: TransportServer | None = None

    def open(self, path: Path | None, header: Header, fsync: bool) -> None:
        """Open the run's ledger with all that it has, see `begin_ledger`."""
        self._ledger = begin_ledger(path, header, fsync=fsync)

    def ready(self) -> None:
        """Answer: the first call proves that this actor has come up, and that the caller can reach it."""

    def open_transport(self, host: str, secret: bytes, peers: int) -> TransportAddress:
        """Listen for so many lines; host: of this machine, "" if none is from another. Raises TransportError."""
        self._lane = TransportServer(lambda who: LedgerConversation(self), host, secret, LONGEST_WAIT, peers)
        return self._lane.address

    def lane(self) -> TransportAddress | None:
        """Return where this actor listens; None: it is called."""
        return self._lane.address if self._lane else None

    def append(self, updates: PackedSlice) -> None:
        """Add updates; they are written when this returns."""
        for u in unpack_slice(updates).updates():
            self._open().enter(u)

    def since(self, version: int, until: int | None = None) -> PackedSlice:
        """Return updates version+1 .. until."""
        with self._counting:
            self._reads += 1
        return pack_slice(self._open().since(version, until))

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
        """End the lines, and let another writer in."""
        if self._lane:
            self._lane.close()
        if self._ledger:
            self._ledger.close()

    def _open(self) -> Ledger:
        if self._ledger is None:
            raise RuntimeError("the ledger is not open: open comes first")
        return self._ledger
