"""A run's rows on disk: `RUN/rows/<type>/part-00000.parquet`, each part written atomically; and
rows as bytes.

Bytes cost a tenth of a part. A piece is a line of JSON with the row type and the bytes of each
record batch, and then these batches in Arrow's IPC form.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydpzv.arrow_columns import array, numbers, rows_of, strings, whole_numbers
from raydpzv.errors import DataError
from raydpzv.files import PRIVATE, inner_folder, write_atomically
from raydpzv.records.schema import EMPTY, SCHEMAS

Rows = dict[str, pa.Table]
KeptParts = dict[Path, tuple[tuple[int, ...], pa.Table]]
"""Parts that were read, with what tells whether a file is still the same."""
_UNDIGESTED = (
    "fault",
    "clock",
    "leg",
    "auc",
    "balanced_accuracy",
    "measure",
    "numbers",
    "user_epsilon",
    "attempt",
    "work",
    "pair",
)
_OLDEST = SCHEMAS["staleness"].get_field_index("age_max")
DIGESTED = tuple(name for name in SCHEMAS if name not in _UNDIGESTED)
"""Row types that the digest covers. The others follow from these (areas, balanced accuracies,
measures, numbers, ε of users, attempts), belong to the data (pairs), or differ in each run
(work)."""
_BETWEEN = "\x00"
"""Separator of texts in the digest."""
_ROW_GROUP = 1 << 13
"""Rows that are encoded at once: larger groups take new memory of the system each time."""
_WHERE_ANY = ("concordance",)
"""Row types that are digested only if there are rows: runs that cannot have any keep their
digests.
"""


@dataclass(frozen=True)
class Extent:
    """The parts and rows of one type in a folder, and a digest over the bytes of all parts."""

    parts: int = 0
    rows: int = 0
    digest: str = ""

    def with_part(self, rows: int, data: bytes | memoryview) -> Extent:
        """Return the extent with one more part."""
        return Extent(self.parts + 1, self.rows + rows, _linked(self.digest, data))


def append_rows(
    run: Path,
    rows: Mapping[str, pa.Table],
    extents: dict[str, Extent] | None = None,
    mode: int = PRIVATE,
) -> None:
    """Add one part per row type that has rows; releases first, since a lost release would be drawn
    a second time.

    extents: the folder's extent of each type, updated here; a missing type has no rows. None: no
    rows at all. mode: of the parts, which hold numbers before noise.
    """
    known = {} if extents is None else extents
    for name in sorted(rows, key=lambda name: name != "release"):
        table = rows[name]
        if table.num_rows == 0:
            continue
        folder, extent = run / "rows" / name, known.get(name, Extent())
        if extent.parts == 0:
            inner_folder(folder)
        data = _encoded(table)
        write_atomically(_part(folder, extent.parts), data, mode=mode)
        known[name] = extent.with_part(table.num_rows, data)
    # else the pool would keep it, and take more for the next part
    pa.default_memory_pool().release_unused()


def joined(pieces: Sequence[Rows]) -> Rows:
    """Return the rows of several pieces in their order, without a copy; types without rows may be
    missing.
    """
    names = [name for name in SCHEMAS if any(name in rows for rows in pieces)]
    return {
        name: pa.concat_tables([rows[name] for rows in pieces if name in rows]) for name in names
    }


def _encoded(table: pa.Table) -> memoryview:
    buffer = pa.BufferOutputStream()
    # half the time of the usual ways, and three quarters of it to read them, for a tenth more bytes
    pq.write_table(
        table,
        buffer,
        compression="lz4",
        use_dictionary=False,
        write_statistics=False,
        row_group_size=_ROW_GROUP,
    )
    return memoryview(buffer.getvalue())


def _linked(digest: str, data: bytes | memoryview) -> str:
    return hashlib.sha256(bytes.fromhex(digest) + hashlib.sha256(data).digest()).hexdigest()


def read_rows(
    run: Path,
    name: str,
    columns: Sequence[str] | None = None,
    first: int | None = None,
    kept: KeptParts | None = None,
) -> pa.Table:
    """Return all rows of one type, in the order of the events.

    columns: only these; first: only the rows of so many first parts; kept: parts, all columns, that
    need no reading.
    """
    if name not in SCHEMAS:
        raise DataError(f"no row type {name!r}; there are: {', '.join(SCHEMAS)}")
    parts = sorted((run / "rows" / name).glob("part-*.parquet"), key=_number)
    if [_number(part) for part in parts] != list(range(len(parts))):
        raise DataError(
            f"{run / 'rows' / name}: a part is missing; there are "
            f"{', '.join(p.name for p in parts)}"
        )
    empty = EMPTY[name]
    read = partial(_read, columns=columns) if kept is None else partial(_read_once, kept=kept)
    tables = [read(part, name) for part in parts[:first]]
    return pa.concat_tables(tables or [empty.select(columns) if columns else empty])


def check_extents(run: Path, extents: Mapping[str, Extent]) -> None:
    """Raise DataError if a part is missing or damaged, or if the counts differ.

    It compares bytes, and parses rows only to name an error.
    """
    for name, extent in extents.items():
        _check(run / "rows" / name, name, extent)


def _check(folder: Path, name: str, wanted: Extent) -> None:
    parts, found = [_part(folder, number) for number in range(wanted.parts)], Extent()
    for part in parts:
        if not part.is_file():
            raise DataError(
                f"{part}: is missing, the checkpoint has {wanted.parts} parts; the run cannot "
                "continue, start a new one"
            )
        found = found.with_part(0, part.read_bytes())
    if found.digest == wanted.digest:
        return
    rows = sum(_read(part, name).num_rows for part in parts)
    differ = (
        f"has {rows} rows where the checkpoint counts {wanted.rows}"
        if rows != wanted.rows
        else "its parts are not those of the checkpoint (their sha256 differs)"
    )
    raise DataError(
        f"{folder}: {differ}; the run's record is damaged: restore it from a copy, or start a new "
        "run"
    )


def cut_parts(run: Path, extents: Mapping[str, Extent]) -> None:
    """Delete the parts of each row type beyond its count."""
    for name in SCHEMAS:
        for part in (run / "rows" / name).glob("part-*.parquet"):
            if _number(part) >= extents.get(name, Extent()).parts:
                part.unlink()


def _part(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.parquet"


def _number(part: Path) -> int:
    number = part.stem.removeprefix("part-")
    if not number.isdecimal():
        raise DataError(f"{part}: wanted a part's number in its name; the run's record is damaged")
    return int(number)


def _read(part: Path, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    try:
        # `read_table` and threads take four times as long for what is small
        with pq.ParquetFile(part) as file:
            schema, table = file.schema_arrow, file.read(columns, use_threads=False)
        table.validate(full=True)  # text that is no UTF-8 is damage too, and shows nowhere else
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:150]
        raise DataError(f"{part}: cannot be read ({reason}); the run's record is damaged") from None
    if schema != SCHEMAS[name]:
        raise DataError(
            f"{part}: is not a part of {name} rows (other columns); the run's record is damaged"
        )
    return table


def _read_once(part: Path, name: str, kept: KeptParts) -> pa.Table:
    """Return a part that is read again only if another file has its name."""
    stamp = (stat := part.stat()).st_ino, stat.st_mtime_ns, stat.st_size
    if part not in kept or kept[part][0] != stamp:
        kept[part] = stamp, _read(part, name)
    return kept[part][1]


def read_all(run: Path, kept: KeptParts | None = None) -> Rows:
    """Return every row type of a run. kept: see `read_rows`."""
    return {name: read_rows(run, name, kept=kept) for name in SCHEMAS}


def digest(rows: Mapping[str, pa.Table], names: Iterable[str] = DIGESTED) -> str:
    """Return the sha256 over all rows of these types, independent of how they were split into
    parts.

    Sums of ages over a window of rounds count whole, wherever a part ends. A lost actor that was
    replaced changes nothing but the faults. NaN has one canonical bit pattern here, so that
    equal runs have equal digests.
    """
    state = hashlib.sha256()
    for name in sorted(name for name in names if name not in _WHERE_ANY or rows[name].num_rows):
        table = _whole_windows(rows[name]) if name == "staleness" else rows[name]
        for field in SCHEMAS[name]:
            column = table.column(field.name)
            state.update(f"{name}.{field.name}:{len(column)};".encode())
            between = _BETWEEN.encode() if pa.types.is_string(field.type) else b""
            for place, piece in enumerate(chunk for chunk in column.chunks if len(chunk)):
                if place:
                    state.update(between)
                state.update(_canonical(piece, field.type))
    return state.hexdigest()


def summed_ages(rows: np.ndarray, window: int) -> np.ndarray:
    """Add up staleness rows, int64 [n, numbers of a row], of each client over windows of rounds;
    each has the first.
    """
    first, client = (rows[:, 0] - 1) // window * window + 1, rows[:, 1]
    order = np.lexsort((client, first))
    rows, first, client = rows[order], first[order], client[order]
    begins = np.flatnonzero(np.diff(first, prepend=-1) | np.diff(client, prepend=-1))
    found = np.add.reduceat(rows, begins) if len(rows) else rows
    found[:, 0], found[:, 1] = first[begins], client[begins]
    if len(rows):
        found[:, _OLDEST] = np.maximum.reduceat(rows[:, _OLDEST], begins)
    return found


def _whole_windows(table: pa.Table) -> pa.Table:
    """Return staleness rows with one for each window and client, in order; most tables are so
    already.
    """
    place = array(table.column("round")) * 2**20 + array(table.column("client"))
    if (np.diff(place) > 0).all():
        return table
    schema = SCHEMAS["staleness"]
    return pa.Table.from_arrays(
        whole_numbers(summed_ages(rows_of(table), 1), schema), schema=schema
    )


def _canonical(column: pa.Array, kind: pa.DataType) -> memoryview:
    """Return the bytes to digest, copied only where they have to change."""
    if pa.types.is_fixed_size_list(kind):
        return _canonical(column.flatten(), kind.value_type)
    if pa.types.is_string(kind):
        whole = pa.ListArray.from_arrays(numbers(np.array([0, len(column)], np.int32)), column)
        return memoryview(pc.binary_join(whole, strings([_BETWEEN])[0])[0].as_buffer())
    values: Any = array(column)
    if pa.types.is_floating(kind):
        values = values.astype("<f8", copy=False)
        if (missing := np.isnan(values)).any():
            values = np.where(missing, np.nan, values)
    return memoryview(values)


Packed = bytes | mmap
"""Concatenated pieces."""


def packed_rows(rows: Mapping[str, pa.Table]) -> list[memoryview]:
    """Return the buffers of a piece; [] without rows. Types without rows are left out."""
    packed = [
        (name, batch.serialize())
        for name, table in rows.items()
        for batch in table.to_batches()
        if batch.num_rows
    ]
    if not packed:
        return []
    head = json.dumps([(name, data.size) for name, data in packed])
    return [memoryview(f"{head}\n".encode()), *(memoryview(data) for _, data in packed)]


def whole_pieces(data: bytes) -> bytes:
    """Return the leading intact pieces, without one that is cut off."""
    place = 0
    while place < len(data):
        try:
            end = data.index(b"\n", place)
            after = end + 1 + sum(size for _, size in json.loads(data[place:end]))
        except (ValueError, TypeError):
            break
        if after > len(data):
            break
        place = after
    return data[:place]


def unpacked_rows(data: Packed) -> dict[str, pa.Table]:
    """Return the rows of every type in concatenated pieces.

    Raises ValueError, TypeError, KeyError or IndexError for other bytes.
    """
    batches: dict[str, list[pa.RecordBatch]] = {name: [] for name in SCHEMAS}
    place, buffer = 0, pa.py_buffer(data)
    while place < len(data):
        end = data.find(b"\n", place)
        head, place = json.loads(data[place : max(end, place)]), end + 1
        for name, size in head:
            if place + size > len(data):
                raise ValueError(f"{place + size - len(data)} bytes of {name} rows are missing")
            batch = pa.ipc.read_record_batch(buffer.slice(place, size), SCHEMAS[name])
            batch.validate(full=True)
            batches[name].append(batch)
            place += size
    return {name: pa.Table.from_batches(found, SCHEMAS[name]) for name, found in batches.items()}
