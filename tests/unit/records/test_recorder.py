"""Packed rows against rows kept as Python values, one dictionary each."""

import hashlib
import math
import os
import random
import struct
import subprocess
import sys
import threading
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from raydpzv.engine.split_model import AGE_COLUMNS
from raydpzv.records.recorder import Recorder, RowBatch
from raydpzv.records.schema import MU_COLUMNS, SCHEMAS
from raydpzv.records.store import digest

WORDS = ("up", "down", "", "Größe ε", "a\nb", "PerturbedEmbeddings")
NUMBERS = (0.0, -0.0, 1.5, -2.25e300, 5e-324, math.inf, -math.inf, math.nan, 0.1)


def value(draw, kind):
    if pa.types.is_fixed_size_list(kind):
        return [value(draw, kind.value_type) for _ in range(kind.list_size)]
    if pa.types.is_string(kind):
        return draw.choice(WORDS)
    if pa.types.is_boolean(kind):
        return draw.random() < 0.5
    if pa.types.is_floating(kind):
        return draw.choice((*NUMBERS, draw.gauss(0, 1)))
    bits = kind.bit_width - 1
    return draw.choice((0, 1, -1, 2**bits - 1, -(2**bits), draw.randrange(10_000)))


def rows_of(name, count, seed=0):
    draw = random.Random(f"{name} {seed}")
    return [{field.name: value(draw, field.type) for field in SCHEMAS[name]} for _ in range(count)]


def slow(rows):
    """What the rows are as Arrow makes tables of dictionaries, value by value."""
    return {
        name: pa.Table.from_pylist(rows.get(name, []), schema=schema)
        for name, schema in SCHEMAS.items()
    }


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("count", [0, 1, 511, 512, 513])
def test_tables_and_digests_are_those_of_dictionaries(name, count):
    recorder, rows = Recorder(), rows_of(name, count)
    for row in rows:
        recorder.emit(name, **row)
    found, expected = recorder.drain(), slow({name: rows})
    assert digest(found, SCHEMAS) == digest(expected, SCHEMAS)
    for other, schema in SCHEMAS.items():
        assert found[other].schema == schema
        assert found[other].num_rows == (count if other == name else 0)
        found[other].validate(full=True)
    if count > 1:
        changed = slow({name: [*rows[1:], rows_of(name, 1, seed=1)[0]]})
        assert digest(found, SCHEMAS) != digest(changed, SCHEMAS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_writer_takes_what_emit_takes_in_the_schemas_order(name):
    by_name, by_place, rows = Recorder(), Recorder(), rows_of(name, 20)
    write = by_place.writer(name)
    for row in rows:
        by_name.emit(name, **row)
        write(tuple(row.values()))
    assert digest(by_place.drain(), SCHEMAS) == digest(by_name.drain(), SCHEMAS)


def test_drains_between_rows_change_nothing_and_writers_continue():
    rows = rows_of("message", 200)
    whole, parts, tables = Recorder(), Recorder(), []
    write, write_in_parts = whole.writer("message"), parts.writer("message")
    for i, row in enumerate(rows):
        write(tuple(row.values()))
        write_in_parts(tuple(row.values()))
        if i % 37 == 0:
            tables.append(parts.drain()["message"])
    tables.append(parts.drain()["message"])
    joined = pa.concat_tables(tables)
    assert joined.to_pylist().__repr__() == whole.drain()["message"].to_pylist().__repr__()
    assert whole.drain()["message"].num_rows == 0


def test_rows_that_do_not_fit_are_refused():
    good = (1, 0, 0, 0, 0, 0, False)
    for bad in (
        good[:-1],
        (*good, 1),
        (1.5, *good[1:]),
        ("1", *good[1:]),
        (2**63, *good[1:]),
        (None, *good[1:]),
    ):
        for rows in ([bad], [good, bad]):
            batch = RowBatch(SCHEMAS["sync"])
            for row in rows:
                batch.add(row)
            with pytest.raises((ValueError, struct.error)):
                batch.take()


@pytest.mark.parametrize("count", [1, 511, 512, 1300])
def test_arrays_of_rows_are_rows_one_by_one(count):
    one_by_one, together, rows = Recorder(), Recorder(), rows_of("staleness", count)
    write = together.writer("staleness")
    for at in range(0, count, 4):
        some = rows[at : at + 4]
        for row in some:
            one_by_one.emit("staleness", **row)
        if at % 16 == 12:
            for row in some:
                write(tuple(row.values()))
        else:
            write(
                np.array([[*list(row.values())[:-1], *row["age_bins"]] for row in some], np.int64)
            )
    assert digest(together.drain(), SCHEMAS) == digest(one_by_one.drain(), SCHEMAS)
    skipping = Recorder(frozenset({"staleness"}))
    skipping.writer("staleness")(np.zeros((1, 30), np.int64))
    assert skipping.drain()["staleness"].num_rows == 0


def test_a_row_of_ages_has_the_columns_of_the_schema():
    assert [*AGE_COLUMNS, "age_bins"] == SCHEMAS["staleness"].names


def test_columns_that_are_not_the_types_are_refused():
    recorder, row = Recorder(), rows_of("fault", 1)[0]
    with pytest.raises(KeyError, match="a fault row has"):
        recorder.emit("fault", **row, more=1)
    row.pop("time")
    with pytest.raises(KeyError, match="got"):
        recorder.emit("fault", **row)
    assert recorder.drain()["fault"].num_rows == 0


def test_types_that_are_skipped_leave_no_row():
    recorder = Recorder(frozenset({"message"}))
    for name in ("message", "fault"):
        recorder.emit(name, **rows_of(name, 1)[0])
    rows = recorder.drain()
    assert (rows["message"].num_rows, rows["fault"].num_rows) == (0, 1)


@pytest.mark.parametrize("name", SCHEMAS)
def test_digests_are_those_of_the_values_whatever_their_pieces(name):
    """Against bytes that are put together value by value."""
    rows = rows_of(name, 13)
    if name == "staleness":  # rows of the same round and client count as one
        rows = [row | {"round": round, "client": 0} for round, row in enumerate(rows)]
    expected = slow({name: rows})
    state = hashlib.sha256()
    for kind in sorted(SCHEMAS):
        table = expected[kind]
        for field in SCHEMAS[kind] if table.num_rows or kind != "concordance" else ():
            state.update(f"{kind}.{field.name}:{table.num_rows};".encode())
            values = table.column(field.name).to_pylist()
            if pa.types.is_string(field.type):
                state.update("\0".join(values).encode())
                continue
            listed = pa.types.is_fixed_size_list(field.type)
            code = {"double": "d", "int64": "q", "int32": "i", "bool": "?"}[
                str(field.type.value_type if listed else field.type)
            ]
            for value in [each for row in values for each in row] if listed else values:
                state.update(struct.pack(f"<{code}", math.nan if value != value else value))
    for cuts in ([], [5], [0, 5, 5, 12, 13], range(14)):
        ends = [0, *cuts, 13]
        pieces = [expected[name][a:b] for a, b in pairwise(ends)]
        assert digest(expected | {name: pa.concat_tables(pieces)}, SCHEMAS) == state.hexdigest(), (
            cuts
        )


def test_every_nan_has_the_same_digest():
    columns = [field.name for field in SCHEMAS["release"] if pa.types.is_floating(field.type)]
    odd = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000123, 0], np.uint64).view(
        np.float64
    )
    table = slow({"release": rows_of("release", 4)})["release"]
    place = table.schema.get_field_index(columns[0])
    with_nans = [
        table.set_column(place, columns[0], pa.array(values))
        for values in (odd, odd[[2, 0, 1, 3]], np.array([math.nan] * 3 + [0.0]))
    ]
    assert len({digest(slow({}) | {"release": each}, SCHEMAS) for each in with_nans}) == 1
    assert odd.view(np.uint64)[1] == 0xFFF8000000000000, "nor are the rows changed"


def test_epsilons_are_made_of_all_rows_at_once():
    asked = []

    def halved(mus):
        asked.append(mus.shape)
        return mus / 2

    recorder, rows = Recorder(epsilons=halved), rows_of("release", 30)
    assert asked == [(1,)], "what works them out is imported by now"
    asked.clear()
    for row in rows:
        recorder.emit("release", **row)
    found = recorder.drain()
    expected = slow(
        {"release": [row | {name: row[name] / 2 for name in MU_COLUMNS} for row in rows]}
    )
    assert digest(found, SCHEMAS) == digest(expected, SCHEMAS)
    assert asked == [(2, 30)]
    recorder.drain()
    assert asked == [(2, 30)]


POOL = "import {first}; import pyarrow; print(pyarrow.default_memory_pool().backend_name)"


@pytest.mark.parametrize(
    ("first", "chosen"),
    [
        ("raydpzv", None),
        ("raydpzv", "mimalloc"),
        ("scenarios.cli", None),
        ("actors.vertical.server_actor", None),
    ],
)
def test_rows_take_the_systems_memory_unless_somebody_has_chosen(
    first: str, chosen: str | None
) -> None:
    environment = {
        name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"
    }
    if chosen:
        environment["ARROW_DEFAULT_MEMORY_POOL"] = chosen
    command = [sys.executable, "-c", POOL.format(first=first)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == [chosen or "system"]


def test_rows_that_come_in_during_drains_are_there_once_and_in_order():
    recorder, found = Recorder(), []
    threads, each = 3, 4000

    def write(thread):
        record = recorder.writer("fault")
        for i in range(each):
            record((float(i), f"thread {thread}", "kind", f"{i}"))

    workers = [threading.Thread(target=write, args=(t,)) for t in range(threads)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        found += recorder.drain()["fault"].to_pylist()
    found += recorder.drain()["fault"].to_pylist()
    for thread in range(threads):
        mine = [row for row in found if row["party"] == f"thread {thread}"]
        assert [row["message"] for row in mine] == [f"{i}" for i in range(each)]
        assert [row["time"] for row in mine] == [float(i) for i in range(each)]
    assert len(found) == threads * each
