"""Ways to the ledger actor: a line or calls, and a host's range. Starts light: knows no ledger but that one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from actors.remote import get, lost
from actors.transport.ledger_session import LedgerSession, pack_slice, unpack_slice
from raydpzv.errors import Lost, TransportError
from raydpzv.ledger.entries import COLUMNS, Slice


class LedgerRange:
    """A host's `UpdateSource`: fetches one range for a whole piece of work, and cuts what replicas want from it."""

    def __init__(self, actor: Any, timeout: float) -> None:
        self._connection = LedgerConnection(actor, timeout)
        self._held: Slice | None = None

    def reach(self, version: int) -> None:
        """Fetch everything after what is here up to `version`, in one call."""
        reached = self._held.last if self._held else 0
        if version > reached:
            self._held = self._connection.since(reached, version)

    def since(self, version: int, until: int | None = None) -> Slice:
        """Return updates version+1 .. until; from what is here, or by a call of its own."""
        held = self._held
        if until is None or held is None or not held.first <= version <= until <= held.last:
            found = self._connection.since(version, until)
            if held is None or found.last > held.last:
                self._held = found
            return found
        a, b = np.searchsorted(held.round, (version, until), side="right")
        return Slice(version, until, *(getattr(held, name)[a:b] for name in COLUMNS))


class LedgerConnection:
    """A way to the ledger actor: a line, opened when first used, if the actor listens by then; else calls of it."""

    def __init__(self, actor: Any, timeout: float) -> None:
        self._actor, self._timeout = actor, timeout
        self._asked = False
        self._line: LedgerSession | None = None

    def since(self, version: int, until: int | None) -> Slice:
        """Return updates version+1 .. until (None: all)."""
        what = f"the ledger's updates after {version}"
        with self._told(what) as line:
            if line:
                return unpack_slice(line.since(version, until, what))
            return unpack_slice(get(self._actor.since.remote(version, until), self._timeout, what))

    def append(self, updates: Slice) -> None:
        """Add updates; they are written when this returns."""
        what, packed = f"the ledger to write update {updates.last}", pack_slice(updates)
        with self._told(what) as line:
            if line:
                line.append(packed, what)
            else:
                get(self._actor.append.remote(packed), self._timeout, what)

    @contextmanager
    def _told(self, what: str) -> Iterator[LedgerSession | None]:
        """Give the line, if there is one. Lost: the actor is; TransportError: its line broke, but it is not."""
        with _lost_ledger(self._actor):
            try:
                if not self._asked:
                    address = get(self._actor.lane.remote(), self._timeout, "the ledger's address")
                    self._line = LedgerSession(address, self._timeout) if address else None
                    self._asked = True
                yield self._line
            except TransportError:
                get(self._actor.ready.remote(), self._timeout, what)
                raise


def ask_ledger(actor: Any, reference: Any, timeout: float, what: str) -> Any:
    """Return a result of the ledger actor; Lost if that is."""
    with _lost_ledger(actor):
        return get(reference, timeout, what)


@contextmanager
def _lost_ledger(actor: Any) -> Iterator[None]:
    """Say it if the ledger actor was lost, so that nobody takes it for the host that asked."""
    try:
        yield
    except Exception as error:
        if not lost(error):
            raise
        raise Lost(  # not every error of Ray's says of whom it tells
            "the ledger actor was lost: start again, or resume the run from its folder", actor._actor_id.hex()
        ) from error
