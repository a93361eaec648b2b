import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from raydpzv.errors import DataError
from raydpzv.ledger.entries import COLUMNS
from raydpzv.ledger.ledger import Ledger
from raydpzv.ledger.reading import read
from raydpzv.ledger.segment import record, seal, unseal
from tests.helpers.ledger_samples import HEADER, assert_holds, fill
from tests.helpers.loading import refusal

S, ROUNDS = 8, 21  # segments 0 and 1 are sealed, 2 is open with 5 updates
HEAD, SEALED, OPEN = "header.json", "segment-00000.arrow", "segment-00002.arrow"


@pytest.fixture
def folder(tmp_path) -> Path:
    with fill(Ledger.create(tmp_path / "ledger", HEADER, segment=S), ROUNDS):
        return tmp_path / "ledger"


def assert_damaged(folder: Path, name: str, last: int) -> None:
    """Both ways of opening name the file and the round, and change nothing."""
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix}
    for write in (False, True):
        with refusal(DataError, rf"/{re.escape(name)}: .*the last good round is {last};"):
            Ledger.open(folder, write=write)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix}


def records(path: Path) -> tuple[bytes, list[bytes]]:
    """The head and the records of an open segment, found by their lengths on the way through."""
    data, ends = path.read_bytes(), []
    first = 8 + int.from_bytes(data[4:8], "little")
    place = first
    segment = read(path, int(path.stem[-5:]), int(path.stem[-5:]) * S, None)
    for update, chain in zip(segment.entries.updates(), segment.chains[1:], strict=True):
        place += len(record(update, chain, 0))
        ends.append(place)
    assert ends[-1] == len(data)
    return data[:first], [data[a:b] for a, b in zip([first, *ends], ends, strict=False)]


def test_a_header_nested_too_deep_to_be_read_is_damaged(folder):
    (folder / HEAD).write_text("[" * 100_000)
    assert_damaged(folder, HEAD, 0)


def test_a_flipped_bit_anywhere_is_seen(folder, tmp_path):
    begin, parts = records(folder / OPEN)
    ends = np.cumsum([len(begin), *map(len, parts)])
    good = {HEAD: 0, SEALED: 0, "segment-00001.arrow": S}
    for path in sorted(folder.glob("*.*")):
        if not path.suffix:
            continue
        data = path.read_bytes()
        for place in range(0, len(data), 47):
            changed = bytearray(data)
            changed[place] ^= 1 << place % 8
            path.write_bytes(changed)
            last = good.get(
                path.name, 2 * S + max(int(np.searchsorted(ends, place, "right")) - 1, 0)
            )
            with refusal(DataError, f"{path.name}: ", f"last good round is {last};"):
                Ledger.open(folder)
        path.write_bytes(data)
    assert Ledger.open(folder).version == ROUNDS


@pytest.mark.parametrize("counts", [[2] * 7, [3, 3, 1, 1, 3, 3, 3], [1, 2, 1, 2, 1, 2, 1]])
def test_records_that_begin_alike_are_looked_at_as_closely_as_others(tmp_path, counts):
    """The values against what Arrow reads of the same bytes."""
    with Ledger.create(tmp_path, HEADER) as ledger:
        for number, n in enumerate(counts):
            step = np.arange(n)
            seed = np.arange(n, dtype=np.uint64) + np.uint64(2**63 + number)
            numbers = {"seed": seed, "scalar": (step * 0.1 - number).astype(np.float32)}
            ledger.append(
                party=number % 3,
                read=0,
                lr=0.1 + number,
                step=step,
                perturbation=0 * step,
                **numbers,
            )
        chain = ledger.digest
    path = tmp_path / "segment-00000.arrow"
    data, (begin, parts) = path.read_bytes(), records(path)
    ends = np.cumsum([len(begin), *map(len, parts)]).tolist()
    with Ledger.open(tmp_path) as ledger, pa.ipc.open_stream(data) as stream:
        found, wanted = ledger.since(0), stream.read_all()
        assert ledger.digest == chain
        for name in COLUMNS:
            assert getattr(found, name).tolist() == wanted[name].to_pylist()
            assert getattr(found, name).dtype == COLUMNS[name]
    for place in range(ends[0], len(data), 31):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        assert_damaged(tmp_path, path.name, int(np.searchsorted(ends, place, "right")) - 1)
        path.write_bytes(data[:place])
        assert Ledger.open(tmp_path).version == int(np.searchsorted(ends, place, "right")) - 1


@pytest.mark.parametrize(
    "where", ["continuation", "metadata length", "body length", "metadata", "seed", "check", "end"]
)
@pytest.mark.parametrize("number", [0, 2, 4])
@pytest.mark.parametrize("torn", [0, 9])
def test_a_damaged_record_is_never_taken_for_a_torn_one(folder, where, number, torn):
    begin, parts = records(folder / OPEN)
    part = bytearray(parts[number])
    metadata = int.from_bytes(part[4:8], "little")
    body = part.index((len(part) - 8 - metadata).to_bytes(8, "little"), 8)
    places = {"continuation": 2, "metadata length": 6, "body length": body + 3, "metadata": 60}
    places |= {"seed": 8 + metadata + 40, "check": len(part) - 8, "end": len(part) - 1}
    part[places[where]] ^= 0x10
    parts[number] = bytes(part)
    data = begin + b"".join(parts)
    if number == 4:  # behind the damaged last record a torn one
        data += parts[0][:torn]
    elif torn:
        data = data[:-torn]
    (folder / OPEN).write_bytes(data)
    assert_damaged(folder, OPEN, 2 * S + number)


def test_a_torn_record_is_dropped_and_everything_before_it_survives(folder):
    begin, parts = records(folder / OPEN)
    ends = np.cumsum([len(begin), *map(len, parts)]).tolist()
    data = (folder / OPEN).read_bytes()
    for size in sorted(
        {
            *range(ends[0], len(data), 37),
            *ends,
            *(e - 1 for e in ends[1:]),
            *(e + 1 for e in ends[:-1]),
        }
    ):
        (folder / OPEN).write_bytes(data[:size])
        version = 2 * S + max(k for k, end in enumerate(ends) if end <= size)
        ledger = Ledger.open(folder)
        assert ledger.version == version
        assert (folder / OPEN).stat().st_size == size
    assert_holds(ledger.since(0), 0, version)
    (folder / OPEN).write_bytes(data[: ends[3] + 5])
    with Ledger.open(folder, write=True) as ledger:
        assert (folder / OPEN).stat().st_size == ends[3]
        fill(ledger, ROUNDS)
    assert (folder / OPEN).read_bytes() == data
    for tail in (b"\0" * 4096, b"\xff" * 100, b"\0" * 3):
        (folder / OPEN).write_bytes(data + tail)
        assert Ledger.open(folder).version == ROUNDS


@pytest.mark.parametrize("size", [0, 5, 300])
def test_a_segment_without_its_beginning_is_damaged(folder, size):
    (folder / OPEN).write_bytes((folder / OPEN).read_bytes()[:size])
    assert_damaged(folder, OPEN, 2 * S)


def test_a_segment_of_terabytes_of_nothing_is_not_read(folder):
    (folder / OPEN).write_bytes(b"")
    os.truncate(folder / OPEN, 2**42)
    with refusal(DataError, f"{OPEN}: .*no Arrow stream.*the last good round is {2 * S};"):
        Ledger.open(folder)


@pytest.mark.parametrize("cut", [1, 32, 33, 500])
def test_a_sealed_segment_is_never_torn(folder, cut):
    path = folder / "segment-00001.arrow"
    path.write_bytes(path.read_bytes()[:-cut])
    assert_damaged(folder, path.name, S)


@pytest.mark.parametrize("number", range(3))
def test_a_missing_segment_is_seen_also_the_last(folder, number):
    (folder / f"segment-{number:05d}.arrow").unlink()
    assert_damaged(folder, f"segment-{number:05d}.arrow", number * S)


@pytest.mark.parametrize("number", range(3))
def test_a_segment_of_another_ledger(folder, tmp_path, number):
    fill(Ledger.create(tmp_path / "b", replace(HEADER, momentum=0.9), segment=S), ROUNDS).close()
    fill(Ledger.create(tmp_path / "c", HEADER, segment=S), ROUNDS, seed=1).close()
    name = f"segment-{number:05d}.arrow"
    own = (folder / name).read_bytes()
    for other in ("b", "c"):
        shutil.copy(tmp_path / other / name, folder / name)
        # of the same header, segment 0 begins alike: it is the next one that does not continue from
        # it
        first = number if (other, number) != ("c", 0) else 1
        assert_damaged(folder, f"segment-{first:05d}.arrow", first * S)
    shutil.copy(folder / f"segment-{(number + 1) % 3:05d}.arrow", folder / name)
    assert_damaged(folder, name, number * S)
    (folder / name).write_bytes(own)
    assert Ledger.open(folder).version == ROUNDS


def test_an_empty_segment_of_another_history(folder, tmp_path):
    with fill(Ledger.create(tmp_path / "c", HEADER, segment=S), ROUNDS, seed=1) as other:
        other.truncate(2 * S)
    with Ledger.open(folder, write=True) as ledger:
        ledger.truncate(2 * S)
    shutil.copy(tmp_path / "c" / OPEN, folder / OPEN)
    assert_damaged(folder, OPEN, 2 * S)


def test_an_open_segment_that_is_not_full_is_not_followed(folder, tmp_path):
    path = folder / "segment-00001.arrow"
    path.write_bytes(unseal(read(path, 1, S, None).cut(S + 3), 1))
    assert_damaged(folder, path.name, S + 3)


@pytest.mark.parametrize(
    ("name", "whole", "sealed"),
    [
        *(
            (name, True, sealed)
            for name in ("scalar", "seed", "step", "lr")
            for sealed in (True, False)
        ),
        *(
            (name, False, True) for name in ("round", "party", "read", "lr")
        ),  # one entry unlike its update
    ],
)
def test_a_changed_value_with_right_checksums_breaks_the_chain(folder, name, whole, sealed):
    """As a careful editor of the file would leave it: only the digest chain tells."""
    number = 1 if sealed else 2
    path = folder / f"segment-{number:05d}.arrow"
    segment = read(path, number, number * S, None)
    form = seal if sealed else unseal
    path.write_bytes(form(segment, number))
    assert Ledger.open(folder).version == ROUNDS
    column = np.array(getattr(segment.entries, name))
    k = 2 + int(
        np.argmax(np.diff(segment.bounds)[2:])
    )  # an update of several entries, not the first
    a, b = segment.bounds[k : k + 2]
    assert b - a > 1
    column[a if whole else b - 1 : b] += 1
    path.write_bytes(
        form(replace(segment, entries=replace(segment.entries, **{name: column})), number)
    )
    assert_damaged(folder, path.name, number * S + k)


def test_two_records_exchanged_break_the_chain(folder):
    begin, parts = records(folder / OPEN)
    (folder / OPEN).write_bytes(begin + b"".join(parts))
    assert Ledger.open(folder).version == ROUNDS
    parts[2], parts[3] = parts[3], parts[2]
    (folder / OPEN).write_bytes(begin + b"".join(parts))
    assert_damaged(folder, OPEN, 2 * S + 2)
    (folder / OPEN).write_bytes(begin + b"".join([*parts[:2], parts[3], *parts[4:]]))
    assert_damaged(folder, OPEN, 2 * S + 3)


def test_verify_reads_the_disk(folder):
    with Ledger.open(folder, write=True) as ledger:
        assert ledger.verify() == ledger.digest
        for name in (HEAD, SEALED, OPEN):
            data = (folder / name).read_bytes()
            (folder / name).write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
            with pytest.raises(DataError, match=f"{name}.*last good round is"):
                ledger.verify()
            (folder / name).write_bytes(data)
        (folder / OPEN).write_bytes(data[:-3])
        with pytest.raises(
            DataError, match=f"does not hold update {ROUNDS}.*last good round is {ROUNDS - 1};"
        ):
            ledger.verify()
        (folder / OPEN).write_bytes(data + b"torn")
        with pytest.raises(DataError, match="holds more"):
            ledger.verify()


def test_a_damaged_note_of_a_truncation(folder):
    for note in (b"", b"3\n", b"3 4\n", b"-3 -3\n"):
        (folder / "truncate").write_bytes(note)
        with pytest.raises(DataError, match="truncate: is damaged"):
            Ledger.open(folder, write=True)
