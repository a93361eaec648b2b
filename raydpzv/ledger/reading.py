"""Read segments: check every byte, and name damage with the last good round."""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raydpzv.arrow_columns import array
from raydpzv.ledger.entries import COLUMNS, CONSTANT, Array, Slice, bounds, frozen, links
from raydpzv.ledger.files import damaged
from raydpzv.ledger.segment import BLANK, CLOSE, OPEN, SEALED, U8, Segment

_MAGIC = b"\xff\xff\xff\xff"
"""The first bytes of an Arrow stream."""
FAULTS = (pa.ArrowException, OSError, EOFError, ValueError, KeyError)
"""Exceptions that Arrow and its parsers raise for bytes that are no Arrow stream."""


def read(path: Path, number: int, first: int, start: bytes | None) -> Segment:
    """Read and check a segment, given its number and the version before it.

    `start` is the chain's value there; None trusts the segment's own value. DataError names the
    file and the last good round for any damage but a torn record at the end.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise ValueError("no Arrow stream")
        data = path.read_bytes()
        about, size, kind = _begin(data)
    except FileNotFoundError:
        raise damaged(path, "is missing", first) from None
    except FAULTS as error:
        raise damaged(path, f"is damaged ({' '.join(str(error).split())[:80]})", first) from None
    chain = bytes.fromhex(about["start"]) if start is None else start
    if (about["format"], about["number"], about["first"]) != ("1", str(number), str(first)):
        raise damaged(path, f"is another segment (number {about['number']})", first)
    if about["start"] != chain.hex():
        raise damaged(path, "is a segment of another ledger, or of another history", first)
    if kind is SEALED:
        return _read_sealed(path, data, first, about, chain)
    return _read_open(path, data, size, first, chain)


def _begin(data: bytes) -> tuple[dict[str, str], int, Any]:
    """Return the metadata, the size of the schema message, and whether the segment is open or
    sealed.
    """
    message = pa.ipc.read_message(pa.py_buffer(data))
    size = 8 + message.metadata.size
    schema = pa.ipc.read_schema(message)
    about = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    kind = SEALED if "end" in about else OPEN
    if kind is OPEN:
        check = about["check"].encode()
        if check != b"crc32:%08x" % zlib.crc32(data[:size].replace(check, BLANK, 1)):
            raise ValueError("its schema fails its check")
    elif hashlib.sha256(data[:-32]).digest() != data[-32:]:
        raise ValueError("its sha256 does not fit its content")
    if not schema.equals(kind):
        raise ValueError("it has other columns")
    return about, size, kind


def _read_sealed(
    path: Path, data: bytes, first: int, about: dict[str, str], chain: bytes
) -> Segment:
    table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    columns = {name: array(table[name]) for name in table.column_names if name != "check"}
    segment = _chained(path, first, columns, chain, True, (len(data), 0, 0))
    if (about["last"], about["end"]) != (str(segment.last), segment.chains[-1].hex()):
        raise damaged(path, f"ends with another update than {about['last']}", first)
    return segment


def _read_open(path: Path, data: bytes, size: int, first: int, chain: bytes) -> Segment:
    crc, place, good = zlib.crc32(data[:size]), size, first
    view, series = memoryview(data), list[_Series]()
    while True:
        # Arrow's parser takes longer than all else here, and a record mostly begins as the one
        # before it
        if not series or not data.startswith(series[-1].head, place):
            if (begun := _series(data, place)) is None:
                break
            series.append(begun)
        end = place + series[-1].size
        if end > len(data):
            break
        close = CLOSE << 32 | zlib.crc32(view[place : end - 8], crc)
        if struct.unpack_from("<Q", data, end - 8)[0] != close:
            raise damaged(path, f"update {good + 1} fails its check", good)
        series[-1].count += 1
        place, good = end, good + 1
    if _closed(data, place):
        raise damaged(path, f"update {good + 1} is damaged", good)
    found = [like.columns(data) for like in series]
    none = [np.empty(0, field.type.to_pandas_dtype()) for field in SEALED]
    columns = dict(
        zip(SEALED.names, map(np.concatenate, zip(none, *found, strict=True)), strict=True)
    )
    return _chained(path, first, columns, chain, False, (place, len(data) - place, crc))


@dataclass
class _Series:
    """Consecutive records of one open segment with the same head: equally many entries, at the same
    offsets.
    """

    place: int
    head: bytes  # the bytes before a record's columns
    size: int  # bytes of each record, its head included
    count: int = 0

    def columns(self, data: bytes) -> list[Array]:
        """Return the columns of all these records, [count × entries of each]."""
        message = pa.ipc.read_message(pa.py_buffer(data)[self.place : self.place + self.size])
        batch = pa.ipc.read_record_batch(message, OPEN)
        found = []
        for field in SEALED:
            kind = np.dtype(field.type.to_pandas_dtype())
            inside = batch.column(field.name).buffers()[1].address - message.body.address
            shape, strides = (self.count, batch.num_rows), (self.size, kind.itemsize)
            begin = self.place + len(self.head) + inside
            found.append(np.ndarray(shape, kind, data, begin, strides).reshape(-1))
        return found


def _series(data: bytes, place: int) -> _Series | None:
    """Return the series that starts with the record at `place`; None if there is no whole
    record.
    """
    if data[place : place + 4] != b"\xff\xff\xff\xff":
        return None
    try:
        message = pa.ipc.read_message(pa.py_buffer(data)[place:])
    except FAULTS:
        return None
    columns = place + 8 + int(message.metadata.size)
    return _Series(place, data[place:columns], columns - place + int(message.body.size))


def _closed(data: bytes, place: int) -> bool:
    """Return whether a record's end lies at or after `place`: the record there is then damaged, not
    torn.
    """
    words = np.frombuffer(data, U8, (len(data) - place) // 8, place)
    return bool((words >> np.uint64(32) == CLOSE).any())


def _chained(
    path: Path,
    first: int,
    columns: dict[str, Array],
    start: bytes,
    sealed: bool,
    rest: tuple[int, int, int],
) -> Segment:
    """Recompute the chain over the columns of a segment; DataError at the first update that breaks
    it.
    """
    marks, places = columns["chain"], bounds(columns["round"])
    entries = Slice(first, first + len(places) - 1, *(frozen(columns[name]) for name in COLUMNS))
    chains = links(start, entries)
    wrong = marks[places[:-1]] != np.frombuffer(b"".join(chains[1:]), U8)[::4]
    wrong[_constant(columns, places) :] = True
    if wrong.any():
        last = first + int(np.argmax(wrong))
        raise damaged(path, f"update {last + 1} does not fit the digest chain", last)
    return Segment(first, sealed, entries, places, chains, *rest)


def _constant(columns: dict[str, Array], places: Array) -> int:
    """Return the number of leading updates that have a single value in each per-update column."""
    counts, wrong = np.diff(places), np.zeros(len(columns["round"]), bool)
    for name in (*CONSTANT, "chain"):
        wrong |= columns[name] != np.repeat(columns[name][places[:-1]], counts)
    return (
        int(np.searchsorted(places, np.argmax(wrong), "right")) - 1 if wrong.any() else len(counts)
    )
