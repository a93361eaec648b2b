"""Both ends of a connection to the ledger actor, and a host's range. Ranges and updates travel as
their columns' bytes.

Starts light: knows no ledger but that one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from actors.remote import get, lost
from actors.transport import frames
from actors.transport.connection import Connection
from actors.transport.sockets import MOST
from raydpzv.errors import Lost, TransportError
from raydpzv.ledger.entries import COLUMNS, Slice, frozen
from raydpzv.sim.wall import Answer

_COLUMNS = sorted(
    COLUMNS, key=lambda name: -COLUMNS[name].itemsize
)  # widest first, so that each is aligned
_ENTRY_BYTES = sum(dtype.itemsize for dtype in COLUMNS.values())
_SINCE, _APPEND = range(2)
_RANGE = struct.Struct("<Bqq")
_FOUND = 16  # besides the kinds of `frames.answered`
_NEWEST = -1


class LedgerRange:
    """A host's `UpdateSource`: fetches one range for a whole piece of work, and cuts the replicas'
    ranges from it.
    """

    def __init__(self, actor: Any, timeout: float) -> None:
        self._connection = LedgerConnection(actor, timeout)
        self._fetched: Slice | None = None

    def reach(self, version: int) -> None:
        """Fetch all updates up to `version` that are not here, in one request."""
        reached = self._fetched.last if self._fetched else 0
        if version > reached:
            self._fetched = self._connection.since(reached, version)

    def since(self, version: int, until: int | None = None) -> Slice:
        """Return updates version+1 .. until, from the fetched range or by a request of their
        own.
        """
        fetched = self._fetched
        if (
            until is None
            or fetched is None
            or not fetched.first <= version <= until <= fetched.last
        ):
            found = self._connection.since(version, until)
            if fetched is None or found.last > fetched.last:
                self._fetched = found
            return found
        a, b = np.searchsorted(fetched.round, (version, until), side="right")
        return Slice(version, until, *(getattr(fetched, name)[a:b] for name in COLUMNS))


class LedgerConnection:
    """A connection to the ledger actor, which listens by the time of the first request.

    Raises Lost if the actor is, TransportError if the connection broke but the actor is not lost,
    Stalled, and whatever the ledger raises.
    """

    def __init__(self, actor: Any, timeout: float) -> None:
        self._actor, self._timeout = actor, timeout
        self._connection: Connection | None = None

    def since(self, version: int, until: int | None) -> Slice:
        request = _RANGE.pack(_SINCE, version, _NEWEST if until is None else until)
        answer = self._ask((request,), f"the ledger's updates after {version}")
        if not answer or answer[0] != _FOUND:
            frames.read_answer(answer)  # raises the ledger's error
            raise TransportError("wanted a range of the ledger, got none")
        return _read_slice(answer)

    def append(self, updates: Slice) -> None:
        request = _slice_frame(_APPEND, updates)
        frames.read_answer(self._ask(request, f"the ledger to write update {updates.last}"))

    def _ask(self, frame: Sequence[bytes], awaited: str) -> memoryview:
        with _lost_ledger(self._actor):
            try:
                return self._opened().ask(frame, awaited)
            except TransportError:
                get(self._actor.ready.remote(), self._timeout, awaited)
                raise

    def _opened(self) -> Connection:
        if self._connection is None:
            address = get(self._actor.address.remote(), self._timeout, "the ledger's address")
            self._connection = Connection(address, self._timeout, frames.request(frames.HELLO))
        return self._connection


class LedgerConversation:
    """A `Conversation` of the ledger's actor with the server or a host."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger

    def most(self) -> int:
        """Return how many bytes the next request may have: an update has as many entries as its
        method made.
        """
        return MOST

    def answer(self, frame: memoryview) -> Sequence[bytes]:
        try:
            kind, a, b = _RANGE.unpack_from(frame)
        except struct.error as error:
            raise TransportError(
                f"wanted a request to the ledger, got {len(frame)} other bytes: {error}"
            ) from None
        if kind == _APPEND:
            self._ledger.append(_read_slice(frame))
            return frames.answered(Answer(None, False))
        if kind != _SINCE:
            raise TransportError(f"no request to the ledger is of kind {kind}")
        return _slice_frame(_FOUND, self._ledger.since(a, None if b == _NEWEST else b))


def ask_ledger(actor: Any, reference: Any, timeout: float, awaited: str) -> Any:
    """Return a result of the ledger actor; Lost if the actor is."""
    with _lost_ledger(actor):
        return get(reference, timeout, awaited)


@contextmanager
def _lost_ledger(actor: Any) -> Iterator[None]:
    """Name the ledger actor if it was lost, so that nobody takes it for the host that asked."""
    try:
        yield
    except Exception as error:
        if not lost(error):
            raise
        raise Lost(  # not every error of Ray's names its actor
            "the ledger actor was lost: start again, or resume the run from its folder",
            actor._actor_id.hex(),
        ) from error


def _slice_frame(kind: int, updates: Slice) -> tuple[bytes, bytes]:
    data = b"".join(getattr(updates, name).tobytes() for name in _COLUMNS)
    return _RANGE.pack(kind, updates.first, updates.last), data


def _read_slice(frame: memoryview) -> Slice:
    """Return the slice of a frame; its columns are read-only views."""
    _, first, last = _RANGE.unpack_from(frame)
    data = bytes(frame[_RANGE.size :])  # aligned
    count, place = len(data) // _ENTRY_BYTES, 0
    columns: dict[str, np.ndarray] = {}
    for name in _COLUMNS:
        columns[name] = frozen(np.frombuffer(data, COLUMNS[name], count, place))
        place += columns[name].nbytes
    return Slice(first, last, **columns)
