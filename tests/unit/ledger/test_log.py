import os
import threading
from pathlib import Path

import numpy as np
import pytest

from raydpzv.errors import DataError, InputError, RunError
from raydpzv.ledger import log
from raydpzv.ledger.ledger import Ledger
from raydpzv.ledger.reading import read
from tests.helpers.ledger_samples import HEADER, assert_holds, fill, update


def digest_at(version: int) -> str:
    return fill(Ledger.create(None, HEADER), version).digest


@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("rounds", [0, 1, 7, 8, 9, 16, 21])
def test_what_was_appended_is_there_when_the_ledger_is_opened_again(tmp_path, rounds, fsync):
    with fill(Ledger.create(tmp_path, HEADER, segment=8, fsync=fsync), rounds) as ledger:
        digest = ledger.digest
    for write in (False, True, False):
        with Ledger.open(tmp_path, expect=HEADER, write=write) as again:
            assert (again.version, again.digest, again.verify()) == (rounds, digest, digest)
            assert_holds(again.since(0), 0, rounds)
    with Ledger.open(tmp_path, write=True) as again:
        assert fill(again, 40).verify() == digest_at(40)
    assert Ledger.open(tmp_path).digest == digest_at(40)


def test_a_sealed_segment_is_smaller_and_never_the_last(tmp_path):
    with fill(Ledger.create(tmp_path, HEADER, segment=64), 64):
        open_size = (tmp_path / "segment-00000.arrow").stat().st_size
        assert not (tmp_path / "segment-00001.arrow").exists()
    with fill(Ledger.open(tmp_path, write=True), 65) as ledger:
        assert (tmp_path / "segment-00000.arrow").stat().st_size < open_size / 5
        assert (tmp_path / "segment-00001.arrow").exists()
        assert ledger.verify() == digest_at(65)


def test_one_writer_at_a_time_and_readers_beside_it(tmp_path):
    with fill(Ledger.create(tmp_path, HEADER), 5) as ledger:
        for second in (
            lambda: Ledger.open(tmp_path, write=True),
            lambda: Ledger.create(tmp_path, HEADER),
        ):
            with pytest.raises(InputError, match="another process is writing"):
                second()
        reader = Ledger.open(tmp_path)
        fill(ledger, 9)
        assert (reader.version, reader.verify()) == (5, digest_at(5))
        assert Ledger.open(tmp_path).version == 9
    for write in (
        lambda: reader.append(**update(6)),
        lambda: reader.truncate(2),
        lambda: ledger.append(**update(10)),
    ):
        with pytest.raises(InputError, match="open"):
            write()
    with pytest.raises(InputError, match="reading"):
        reader.save_snapshot("shared", 1, {})
    with pytest.raises(InputError, match="holds a ledger already"):
        Ledger.create(tmp_path, HEADER)
    Ledger.open(tmp_path, write=True).close()


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize(
    ("rounds", "more"), [(0, 0), (5, 0), (8, 0), (21, 0), (0, 9), (5, 3), (21, 20)]
)
def test_a_ledger_that_was_read_continues_from_its_last_segment(
    tmp_path, monkeypatch, rounds, more, closed
):
    fill(Ledger.create(tmp_path, HEADER, segment=8), rounds).close()
    ledger = Ledger.open(tmp_path)
    view = ledger.since(0)
    if closed:
        ledger.close()
    with (
        fill(Ledger.open(tmp_path, write=True), rounds + more),
        pytest.raises(InputError, match="another process is writing"),
    ):
        ledger.begin_writing()
    first, last = max(rounds - 1, 0) // 8, max(rounds + more - 1, 0) // 8
    with open(tmp_path / f"segment-{last:05}.arrow", "ab") as file:
        file.write(b"\xff\xff")  # a torn record
    looked_at: list[int] = []
    monkeypatch.setattr(
        log,
        "read",
        lambda path, number, *rest: looked_at.append(number) or read(path, number, *rest),
    )
    ledger.begin_writing()
    assert looked_at == [*range(first, last + 1)]
    assert (ledger.version, ledger.digest) == (rounds + more, digest_at(rounds + more))
    assert_holds(view, 0, rounds)
    with pytest.raises(InputError, match="is being written"):
        ledger.begin_writing()
    with fill(ledger, 50):
        assert ledger.verify() == ledger.digest == digest_at(50)
        assert_holds(ledger.since(0), 0, 50)
    assert Ledger.open(tmp_path).digest == digest_at(50)


@pytest.mark.parametrize("to", [0, 3, 16, 18])
def test_a_ledger_that_has_another_history_by_now_is_not_continued_with(tmp_path, to):
    fill(Ledger.create(tmp_path, HEADER, segment=8), 21).close()
    ledger = Ledger.open(tmp_path)
    with Ledger.open(tmp_path, write=True) as other:
        other.truncate(to)
        fill(other, 30, seed=1)
    if to >= 16:  # all that lies before the segment that is read again is as it was
        ledger.begin_writing()
        assert_holds(ledger.since(to), to, 30, seed=1)
        assert ledger.verify() == other.digest
    else:
        with pytest.raises(DataError, match="another history"):
            ledger.begin_writing()
        with pytest.raises(InputError, match="takes no update"):
            ledger.append(**update(22))
    ledger.close()
    assert Ledger.open(tmp_path).digest == other.digest


@pytest.mark.parametrize("to", [0, 3, 8, 18])
def test_a_writer_that_went_back_and_was_closed_writes_again(tmp_path, to):
    fill(Ledger.create(tmp_path, HEADER, segment=8), 21).close()
    with Ledger.open(tmp_path, write=True) as ledger:
        ledger.truncate(to)
    ledger.begin_writing()
    with fill(ledger, 30, seed=1):
        assert_holds(ledger.since(to), to, 30, seed=1)
        assert_holds(ledger.since(0, to), 0, to)
        assert ledger.verify() == ledger.digest == Ledger.open(tmp_path).digest


def test_a_ledger_in_memory_alone_is_not_read():
    with pytest.raises(InputError, match="in no folder"):
        Ledger.create(None, HEADER).begin_writing()


def test_no_ledger_and_no_folder_to_make_one(tmp_path):
    with pytest.raises(InputError, match="holds no ledger"):
        Ledger.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be"):
        Ledger.create(tmp_path / "file" / "ledger", HEADER)


def test_a_creation_that_was_killed_is_begun_again(tmp_path):
    fill(Ledger.create(tmp_path, HEADER, segment=2), 5).close()
    (tmp_path / "header.json").unlink()
    with fill(Ledger.create(tmp_path, HEADER, segment=2), 3) as ledger:
        assert ledger.verify() == digest_at(3)


@pytest.mark.parametrize("folder", [None, "ledger"])
def test_trimmed_updates_leave_the_memory_and_are_read_from_disk(tmp_path, folder):
    ledger = fill(Ledger.create(tmp_path / folder if folder else None, HEADER, segment=16), 500)
    held, digest = ledger.memory_bytes, ledger.digest
    old, copy = ledger.since(50), np.array(ledger.since(50).seed)
    ledger.trim(450)
    assert ledger.memory_bytes < held / 4
    fill(ledger, 550)
    assert old.seed.tolist() == copy.tolist()
    assert_holds(ledger.since(450), 450, 550)
    ledger.trim(100)
    assert_holds(ledger.since(450), 450, 550)
    if folder:
        for a, b in ((0, 550), (449, 550), (3, 4), (7, 9), (8, 8), (90, 450), (441, 451)):
            assert_holds(ledger.since(a, b), a, b)
    else:
        with pytest.raises(InputError, match="1 to 450 were trimmed"):
            ledger.since(449)
        with pytest.raises(InputError, match="from 450 on"):
            ledger.truncate(449)
    assert ledger.verify() == ledger.digest == digest_at(550)
    ledger.truncate(500)
    assert (ledger.digest, ledger.verify()) == (digest, digest)
    ledger.close()


@pytest.mark.parametrize("to", [0, 1, 7, 8, 9, 16, 20, 21])
def test_truncating_goes_back_and_the_continuation_may_differ(tmp_path, to):
    for folder in (None, tmp_path):
        ledger = fill(Ledger.create(folder, HEADER, segment=8), 21)
        view = ledger.since(0)
        if folder:
            ledger.trim(5)
        ledger.truncate(to)
        assert (ledger.version, ledger.digest, ledger.verify()) == (
            to,
            digest_at(to),
            digest_at(to),
        )
        assert_holds(ledger.since(0), 0, to)
        fill(ledger, 40, seed=1)
        assert_holds(view, 0, 21)
        assert_holds(ledger.since(to), to, 40, seed=1)
        assert ledger.verify() == ledger.digest != digest_at(40)
        ledger.close()
    assert Ledger.open(tmp_path).digest == ledger.digest


class Killed(BaseException):
    """Stands for the death of the process: nothing of the package handles it."""


def killed_at(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let the process die in place of its count-th replacement or deletion of a file."""
    left = [count]

    def dying(real):
        def call(*arguments, **named):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return real(*arguments, **named)

        return call

    monkeypatch.setattr(os, "replace", dying(os.replace))
    monkeypatch.setattr(Path, "unlink", dying(Path.unlink))


@pytest.mark.parametrize("count", range(6))
@pytest.mark.parametrize("to", [0, 3, 8, 18])
def test_a_truncation_killed_at_any_step_leaves_a_whole_ledger(tmp_path, monkeypatch, to, count):
    ledger = fill(Ledger.create(tmp_path, HEADER, segment=4), 18)
    with monkeypatch.context() as patch:
        killed_at(patch, count)
        died = False
        try:
            ledger.truncate(to)
        except Killed:
            died = True
    assert died == (to < 18 and count < 3 + (18 // 4 - to // 4))
    if died:
        with pytest.raises(InputError, match="interrupted"):
            ledger.append(**update(19))
    ledger.close()
    version = Ledger.open(tmp_path).version
    assert version in (to, 18)
    assert version == 18 or count > 0 or to == 18
    with Ledger.open(tmp_path, write=True) as again:
        assert (again.version, again.digest) == (version, digest_at(version))
        assert fill(again, 30).verify() == digest_at(30)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith((".s", "tr"))] == []


@pytest.mark.parametrize("count", range(3))
def test_a_sealing_killed_at_any_step_leaves_a_whole_ledger(tmp_path, monkeypatch, count):
    ledger = fill(Ledger.create(tmp_path, HEADER, segment=4), 8)
    with monkeypatch.context() as patch:
        killed_at(patch, count)
        died = False
        try:
            ledger.append(**update(9))
        except Killed:
            died = True
    assert died == (count < 2)
    ledger.close()
    version = 8 if died else 9
    assert Ledger.open(tmp_path).digest == digest_at(version)
    with Ledger.open(tmp_path, write=True) as again:
        assert fill(again, 14).verify() == digest_at(14)
    segments = [read(tmp_path / f"segment-{k:05d}.arrow", k, 4 * k, None) for k in range(4)]
    assert [segment.sealed for segment in segments] == [True, True, True, False]


def test_a_write_that_fails_is_an_error_and_the_updates_before_are_kept(tmp_path, monkeypatch):
    ledger = fill(Ledger.create(tmp_path, HEADER), 5)
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, bytes(data[:100])))
    with pytest.raises(RunError, match="cannot write update 6"):
        ledger.append(**update(6))
    monkeypatch.undo()
    assert_holds(ledger.since(0), 0, 5)
    with pytest.raises(InputError, match="interrupted"):
        ledger.append(**update(6))
    ledger.close()
    assert Ledger.open(tmp_path).version == 5
    with Ledger.open(tmp_path, write=True) as again:
        assert fill(again, 7).verify() == digest_at(7)


def test_threads_append_read_and_trim_at_once_and_readers_see_whole_prefixes(tmp_path):
    ledger = Ledger.create(tmp_path, HEADER, segment=32)
    faults: list[BaseException] = []
    done = threading.Event()

    def guarded(work):
        def run():
            try:
                work()
            except BaseException as fault:
                faults.append(fault)

        return run

    def appending():
        # the round is not known before; every update of a thread is its own, told by its party
        for number in range(150):
            ledger.append(**update(1, seed=number) | {"party": threading.get_ident() % 2**31})

    def reading():
        while not done.is_set():
            entries = ledger.since(max(ledger.version - 20, 0))
            assert len(entries) == ledger.pairs(entries.first, entries.last)
            assert entries.round.tolist() == sorted(entries.round.tolist())
            ledger.trim(entries.first)
            outside = Ledger.open(tmp_path)
            assert outside.digest == chains.get(outside.version, outside.digest)
            chains[outside.version] = outside.digest

    chains: dict[int, str] = {}
    writers = [threading.Thread(target=guarded(appending)) for _ in range(2)]
    reader = threading.Thread(target=guarded(reading))
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert faults == []
    entries = ledger.since(0)
    assert ledger.version == 300
    for party in np.unique(entries.party):
        mine = entries.of(party).seed.tolist()
        assert mine == [s for number in range(150) for s in update(1, seed=number)["seed"].tolist()]
    assert ledger.verify() == ledger.digest
    ledger.close()
