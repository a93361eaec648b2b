"""Ways to the ledger actor: the server's, which appends, and a host's, which reads a range at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from actors.lane.ledger_line import LedgerLine
from actors.ledger_actor import LedgerActor, pack_slice, unpack_slice
from actors.processes import start_here
from actors.remote import get, lost
from raydpzv.errors import LaneError, RunError
from raydpzv.ledger.entries import COLUMNS, LedgerUpdate, Slice
from raydpzv.ledger.header import Header, LogSettings
from raydpzv.ledger.ledger import Ledger


class RelayedLedger(Ledger):
    """The server's working set of the ledger actor's: an update is written there before anybody hears of it."""

    def __init__(self, actor: Any, header: Header, timeout: float) -> None:
        super().__init__(None, header, LogSettings())
        self._actor, self._timeout = actor, timeout
        self._connection = LedgerConnection(actor, timeout)
        self._recalls = False

    def adopt(self) -> None:
        """Take over the updates that the actor has already."""
        facts = self._ask(self._actor.facts.remote(), "the ledger's state")
        self._recalls = facts["ledger"]["bytes"] > 0
        for u in unpack_slice(self._ask(self._actor.since.remote(self.version), "the ledger")).updates():
            super().enter(u)

    @property
    def recalls(self) -> bool:
        """Whether updates that are trimmed here can still be had: the actor has a log on disk."""
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

    def _ask(self, reference: Any, what: str) -> Any:
        return ask_ledger(reference, self._timeout, what)


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
        self._line: LedgerLine | None = None

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
    def _told(self, what: str) -> Iterator[LedgerLine | None]:
        """Give the line, if there is one. RunError: the actor is lost; LaneError: its line broke, but it is not."""
        with _lost_ledger():
            try:
                if not self._asked:
                    address = get(self._actor.lane.remote(), self._timeout, "the ledger's address")
                    self._line = LedgerLine(address, self._timeout) if address else None
                    self._asked = True
                yield self._line
            except LaneError:
                get(self._actor.ready.remote(), self._timeout, what)
                raise


def ask_ledger(reference: Any, timeout: float, what: str) -> Any:
    """Return a result of the ledger actor; RunError if it was lost."""
    with _lost_ledger():
        return get(reference, timeout, what)


@contextmanager
def _lost_ledger() -> Iterator[None]:
    """Say it if the ledger actor was lost, so that nobody takes it for the host that asked."""
    try:
        yield
    except Exception as error:
        if not lost(error):
            raise
        raise RunError("the ledger actor was lost: start again, or resume the run from its folder") from error


def ledger_actor() -> Any:
    """Create a ledger actor on this machine, where the run folder is."""
    actor, _ = start_here(LedgerActor, {"ctl": LedgerActor.CONTROL}, {"ctl": 1})
    return actor
