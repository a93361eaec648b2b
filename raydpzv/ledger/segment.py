"""Segments: the bytes of a part of the log (read and checked in `reading`).

A segment is an Arrow IPC stream that any Arrow reader opens. Its schema's metadata has its number,
the version before it and the chain's value there.

An open segment has one record batch per update and, after the ledger's columns, `chain` (64 bits of
the chain's value, the same for all entries of the update) and `check` (0 but at the update's last
entry: there a constant and the CRC of the whole record). `check` closes a record: bytes at the end
of the file without it are a torn record. A sealed segment has one compressed batch without `check`;
the metadata also holds the chain's value at its end, and after the stream is the sha256 of all
bytes before.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pyarrow as pa

from raydpzv.arrow_columns import numbers
from raydpzv.ledger.entries import COLUMNS, Array, LedgerUpdate, Slice

U8 = np.dtype("<u8")
SEALED = pa.schema(
    [pa.field(n, pa.from_numpy_dtype(t), False) for n, t in {**COLUMNS, "chain": U8}.items()]
)
OPEN = SEALED.append(pa.field("check", pa.uint64(), False))
CLOSE = (
    0xFFF7A11C  # as the upper half of a float64, or as a float32, it is a NaN: no column holds one
)
BLANK = b"crc32:00000000"
_INT, _LONG, _DOUBLE, _WORD = (struct.Struct(code) for code in ("<i", "<q", "<d", "<Q"))


@dataclass(frozen=True, eq=False)
class Segment:
    """A segment that was read: updates first+1 .. last."""

    first: int
    sealed: bool
    entries: Slice
    bounds: Array  # where its updates begin, int64 [updates + 1]
    chains: list[bytes]  # the chain's values from version `first` on, updates + 1 of them
    whole: int  # bytes up to the end of the last whole record
    torn: int  # bytes after that
    crc: int  # of an open segment's head

    @property
    def last(self) -> int:
        """The version after its last update."""
        return self.first + len(self.bounds) - 1

    def cut(self, until: int) -> Segment:
        """Return the segment without updates > until."""
        last = min(until, self.last)
        end = last - self.first + 1
        entries = self.between(self.first, last)
        return replace(self, entries=entries, bounds=self.bounds[:end], chains=self.chains[:end])

    def between(self, version: int, until: int) -> Slice:
        """Return those of its updates that are > version and <= until."""
        first, last = max(version, self.first), min(until, self.last)
        a, b = self.bounds[first - self.first], self.bounds[last - self.first]
        return Slice(first, last, *(getattr(self.entries, name)[a:b] for name in COLUMNS))


def head(number: int, first: int, chain: bytes) -> bytes:
    """Return the beginning of an open segment: the schema message, with its own CRC inside."""
    blank = (
        OPEN.with_metadata(_about(number, first, chain) | {b"check": BLANK})
        .serialize()
        .to_pybytes()
    )
    return blank.replace(BLANK, b"crc32:%08x" % zlib.crc32(blank), 1)


def record(update: LedgerUpdate, chain: bytes, crc: int) -> bytes:
    """Return one update as a record batch message; `crc` is the CRC of the segment's head, `chain`
    chain_r.

    The message of an update of n entries is always the same but for the columns' values (to pack
    these takes a twentieth of the time that Arrow's own writer takes).
    """
    round, party, read, lr, step, perturbation, seed, scalar = update
    n = len(seed) // 8
    begin, begun, pack = _begun(n, crc)
    values = pack(
        _LONG.pack(round) * n,
        _INT.pack(party) * n,
        _LONG.pack(read) * n,
        step,
        perturbation,
        seed,
        scalar,
        _DOUBLE.pack(lr) * n,
        chain[:8] * n,
    )
    return b"".join((begin, values, _WORD.pack(CLOSE << 32 | zlib.crc32(values, begun))))


@lru_cache(maxsize=64)
def _begun(n: int, crc: int) -> tuple[bytes, int, Callable[..., bytes]]:
    """Return `_frame` with the CRC of its first part."""
    begin, pack = _frame(n)
    return begin, zlib.crc32(begin, crc), pack


@lru_cache(maxsize=64)
def _frame(n: int) -> tuple[bytes, Callable[..., bytes]]:
    """Return the first bytes of the record batch message of n entries, and a function that packs
    its columns.

    The message ends with the last entry's `check`, which is left out. Gaps between columns and all
    other checks are 0.
    """
    batch = pa.record_batch(
        [numbers(np.zeros(n, f.type.to_pandas_dtype())) for f in OPEN], schema=OPEN
    )
    data = batch.serialize()
    message = pa.ipc.read_message(data)
    begin = message.body.address - 8 - message.metadata.size
    columns = pa.ipc.read_record_batch(message, OPEN).columns
    places = [column.buffers()[1].address - begin for column in columns]
    assert places[-1] + 8 * n == len(data), (
        "Arrow puts something behind the last column: `check` ends no record"
    )
    whole = data.to_pybytes()
    assert not any(whole[places[0] :]), "Arrow puts something between columns of zeros"
    widths = [n * field.type.bit_width // 8 for field in OPEN]
    gaps = [
        after - place - width
        for (place, after), width in zip(pairwise(places), widths, strict=False)
    ]
    form = "".join(f"{width}s{gap}x" for width, gap in zip(widths, gaps, strict=False))
    return whole[: places[0]], struct.Struct(f"<{form}{8 * n - 8}x").pack


def seal(segment: Segment, number: int) -> bytes:
    """Return the bytes of the sealed form: one batch, compressed, with its sha256 behind it."""
    about = _about(number, segment.first, segment.chains[0])
    about |= {b"last": b"%d" % segment.last, b"end": segment.chains[-1].hex().encode()}
    schema = SEALED.with_metadata(about)
    starts = b"".join([chain[:8] for chain in segment.chains[1:]])
    marks = np.repeat(np.frombuffer(starts, U8), np.diff(segment.bounds))
    arrays = [numbers(getattr(segment.entries, name)) for name in COLUMNS]
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_batch(pa.record_batch([*arrays, numbers(marks)], schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data + hashlib.sha256(data).digest()


def unseal(segment: Segment, number: int) -> bytes:
    """Return the bytes of the open form."""
    begin = head(number, segment.first, segment.chains[0])
    crc = zlib.crc32(begin)
    updates = zip(segment.entries.updates(), segment.chains[1:], strict=True)
    return b"".join((begin, *(record(update, chain, crc) for update, chain in updates)))


def _about(number: int, first: int, chain: bytes) -> dict[bytes, bytes]:
    return {
        b"format": b"1",
        b"number": b"%d" % number,
        b"first": b"%d" % first,
        b"start": chain.hex().encode(),
    }
