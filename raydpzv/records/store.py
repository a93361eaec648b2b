"""A run's rows on disk: `RUN/rows/<type>/part-00000.parquet`, each part written atomically."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from raydpzv.errors import DataError
from raydpzv.records.schema import SCHEMAS

Rows = dict[str, pa.Table]
_UNDIGESTED = ("fault", "auc", "balanced_accuracy", "numbers", "user_epsilon", "attempt", "work", "pair")
DIGESTED = tuple(name for name in SCHEMAS if name not in _UNDIGESTED)
"""What the digest covers. Areas and balanced accuracies are of scores whose accuracy and loss are digested, numbers say
nothing that messages do not, ε of users follows from settings and releases, attempts show in the noise of these, pairs
are the data's, work takes another time in each run; runs of before they were recorded keep their digests."""
_WHERE_ANY = ("concordance",)
"""Row types that are digested where there are rows: runs that cannot have any keep their digests."""


def append_rows(
    run: Path, rows: Mapping[str, pa.Table], where: str = "rows", parts: dict[str, int] | None = None
) -> None:
    """Add one part per row type that has rows; releases first, since a lost release would be drawn a second time.

    parts: how many parts each type has, so that none is looked for; it is kept up to date.
    """
    known = {} if parts is None else parts
    for name in sorted(rows, key=lambda name: name != "release"):
        table = rows[name]
        if table.num_rows == 0:
            continue
        folder = run / where / name
        if name not in known:
            folder.mkdir(parents=True, exist_ok=True)
            known[name] = _next_number(folder)
        path = _part(folder, known[name])
        scratch = path.with_name(f".{path.name}")
        pq.write_table(table, scratch)
        os.replace(scratch, path)
        known[name] += 1


def read_rows(run: Path, name: str, where: str = "rows") -> pa.Table:
    """Return all rows of one type, in the order in which they happened."""
    if name not in SCHEMAS:
        raise DataError(f"no row type {name!r}; there are: {', '.join(SCHEMAS)}")
    parts = sorted((run / where / name).glob("part-*.parquet"), key=_number)
    if [_number(part) for part in parts] != list(range(len(parts))):
        raise DataError(
            f"{run / where / name}: a part is missing; there are {', '.join(p.name for p in parts)}"
        )
    return pa.concat_tables([SCHEMAS[name].empty_table(), *(_read(p, name) for p in parts)]).combine_chunks()


def count_rows(run: Path, counts: Mapping[str, int], *, read: bool) -> dict[str, int]:
    """Return how many rows of each type its first parts have, as many as are counted.

    read: all of them, not only their heads. Raises DataError if one is missing or damaged.
    """
    found = dict.fromkeys(SCHEMAS, 0)
    for name in SCHEMAS:
        for number in range(counts.get(name, 0)):
            part = _part(run / "rows" / name, number)
            if not part.is_file():
                raise DataError(
                    f"{part}: is missing, the checkpoint counts {counts[name]} parts; the run cannot go on, start a "
                    "new one"
                )
            found[name] += (_read(part, name) if read else pq.read_metadata(part)).num_rows
    return found


def cut_parts(run: Path, counts: Mapping[str, int], where: str = "rows") -> None:
    """Delete the parts of each row type beyond its count."""
    for name in SCHEMAS:
        for part in (run / where / name).glob("part-*.parquet"):
            if _number(part) >= counts.get(name, 0):
                part.unlink()


def _part(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.parquet"


def _number(part: Path) -> int:
    number = part.stem.removeprefix("part-")
    if not number.isdecimal():
        raise DataError(f"{part}: wanted a part's number in its name; the run's record is damaged")
    return int(number)


def _next_number(folder: Path) -> int:
    return max((_number(part) for part in folder.glob("part-*.parquet")), default=-1) + 1


def _read(part: Path, name: str) -> pa.Table:
    try:
        # `read_table` and threads take four times as long for what is small
        with pq.ParquetFile(part) as file:
            table = file.read(use_threads=False)
        table.validate(full=True)  # text that is no UTF-8 is damage too, and shows nowhere else
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:150]
        raise DataError(f"{part}: cannot be read ({reason}); the run's record is damaged") from None
    if table.schema != SCHEMAS[name]:
        raise DataError(f"{part}: is not a part of {name} rows (other columns); the run's record is damaged")
    return table


def read_all(run: Path, where: str = "rows") -> Rows:
    """Return every row type of a run."""
    return {name: read_rows(run, name, where) for name in SCHEMAS}


def digest(rows: Mapping[str, pa.Table], names: Iterable[str] = DIGESTED) -> str:
    """Return the sha256 over all rows of these types, independent of how they were split into parts.

    A lost actor that was replaced changes nothing but the faults. NaN has one canonical bit pattern here, so that
    equal runs have equal digests.
    """
    state = hashlib.sha256()
    for name in sorted(name for name in names if name not in _WHERE_ANY or rows[name].num_rows):
        for field in SCHEMAS[name]:
            column = rows[name].column(field.name)
            state.update(f"{name}.{field.name}:{len(column)};".encode())
            state.update(_canonical(column.combine_chunks(), field.type))
    return state.hexdigest()


def _canonical(column: pa.Array, kind: pa.DataType) -> bytes:
    if pa.types.is_fixed_size_list(kind):
        return _canonical(column.flatten(), kind.value_type)
    if pa.types.is_string(kind):
        return "\x00".join(column.to_pylist()).encode()
    values = column.to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        values = values.astype("<f8")
        values[values != values] = float("nan")
    return values.tobytes()
