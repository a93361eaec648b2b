"""Both ends of a line to the ledger actor: ranges and updates as the bytes of their columns."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from actors.transport import requests
from actors.transport.connection import MOST, TransportAddress, dial
from raydpzv.errors import Stalled, TransportError
from raydpzv.ledger.entries import COLUMNS, Slice, frozen
from raydpzv.sim.wall import Answer

PackedSlice = tuple[int, int, bytes]
"""First and last version, and the columns' bytes, widest values first so that each column is aligned."""
_COLUMNS = sorted(COLUMNS, key=lambda name: -COLUMNS[name].itemsize)
_ENTRY_BYTES = sum(dtype.itemsize for dtype in COLUMNS.values())
_SINCE, _APPEND = range(2)
_RANGE = struct.Struct("<Bqq")
_FOUND = 16  # beside the kinds of `requests.answered`
_NEWEST = -1


class Kept(Protocol):
    """Who has the ledger."""

    def since(self, version: int, until: int | None = None) -> PackedSlice:
        """Return updates version+1 .. until."""
        ...

    def append(self, updates: PackedSlice) -> None:
        """Add updates; they are written when this returns."""
        ...


class LedgerConversation:
    """A `Conversation` with the server or a host."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def most(self) -> int:
        """Return how many bytes the next request may have: an update has as many entries as its method made."""
        return MOST

    def answer(self, frame: memoryview) -> Sequence[bytes]:
        """Return the answer's frame."""
        try:
            kind, a, b = _RANGE.unpack_from(frame)
        except struct.error as error:
            raise TransportError(
                f"wanted a request to the ledger, got {len(frame)} other bytes: {error}"
            ) from None
        if kind == _APPEND:
            self._kept.append((a, b, bytes(frame[_RANGE.size :])))
            return requests.answered(Answer(None, False))
        if kind != _SINCE:
            raise TransportError(f"no request to the ledger is of kind {kind}")
        first, last, data = self._kept.since(a, None if b == _NEWEST else b)
        return _RANGE.pack(_FOUND, first, last), data


class LedgerSession:
    """The other end, for any thread. Raises TransportError, Stalled, and what the ledger raises."""

    def __init__(self, address: TransportAddress, timeout: float) -> None:
        self._line, self._timeout = dial(address, timeout), timeout
        self._line.send(*requests.hello(0, False))
        self._lock = threading.Lock()

    def since(self, version: int, until: int | None, what: str) -> PackedSlice:
        """Return updates version+1 .. until (None: all); what: it is, in words."""
        asked = _RANGE.pack(_SINCE, version, _NEWEST if until is None else until)
        answer = self._ask((asked,), what)
        try:
            kind, first, last = _RANGE.unpack_from(answer)
        except struct.error:
            kind = -1
        if kind != _FOUND:
            requests.read_answer(answer)  # raises what the ledger raised
            raise TransportError("wanted a range of the ledger, got none")
        return first, last, bytes(answer[_RANGE.size :])

    def append(self, updates: PackedSlice, what: str) -> None:
        """Add updates; they are written when this returns."""
        first, last, data = updates
        requests.read_answer(self._ask((_RANGE.pack(_APPEND, first, last), data), what))

    def _ask(self, frame: Sequence[bytes], what: str) -> memoryview:
        with self._lock:
            self._line.send(*frame)
            try:
                return self._line.receive(begins_within=self._timeout)
            except Stalled:
                self._line.close()  # what may still come would be taken for the next answer
                raise Stalled(
                    f"waited {self._timeout:g} s for {what}; raise resources.timeout if the work is that long"
                ) from None


def pack_slice(updates: Slice) -> PackedSlice:
    """Return a slice as numbers and one `bytes`."""
    return updates.first, updates.last, b"".join(getattr(updates, name).tobytes() for name in _COLUMNS)


def unpack_slice(packed: PackedSlice) -> Slice:
    """Return the slice that was packed; its columns are read-only views."""
    first, last, data = packed
    count, place = len(data) // _ENTRY_BYTES, 0
    columns: dict[str, np.ndarray] = {}
    for name in _COLUMNS:
        columns[name] = frozen(np.frombuffer(data, COLUMNS[name], count, place))
        place += columns[name].nbytes
    return Slice(first, last, **columns)
