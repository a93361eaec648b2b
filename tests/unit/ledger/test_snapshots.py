import os

import numpy as np
import pytest

from raydpzv.errors import DataError, InputError
from raydpzv.ledger.header import Header, Model
from raydpzv.ledger.ledger import Ledger
from tests.helpers.ledger_samples import HEADER, fill
from tests.helpers.loading import refusal


def arrays(version: int) -> dict[str, np.ndarray]:
    return {
        "x": np.arange(7, dtype=np.float32) + version,
        "momentum": np.full((2, 3), version, np.float64),
        "count": np.array(version),
    }


def assert_kept(found, version: int) -> None:
    assert found[0] == version
    assert found[1].keys() == arrays(version).keys()
    for name, values in arrays(version).items():
        assert found[1][name].dtype == values.dtype
        np.testing.assert_array_equal(found[1][name], values)


@pytest.mark.parametrize("folder", [None, "ledger"])
def test_those_before_a_version_are_forgotten_and_no_others(tmp_path, folder):
    ledger = fill(Ledger.create(tmp_path / folder if folder else None, HEADER), 30)
    for name, version in (("shared", 10), ("shared", 20), ("client 3", 5)):
        ledger.save_snapshot(name, version, arrays(version))
    ledger.forget_snapshots("shared", 20)
    assert ledger.load_snapshot("shared", 19) is None
    assert_kept(ledger.load_snapshot("shared", 20), 20)
    assert_kept(ledger.load_snapshot("client 3", 5), 5)
    ledger.close()


@pytest.mark.parametrize("folder", [None, "ledger"])
def test_the_newest_that_is_not_too_new(tmp_path, folder):
    ledger = fill(Ledger.create(tmp_path / folder if folder else None, HEADER), 30)
    for version in (0, 10, 9, 20):
        ledger.save_snapshot("shared", version, arrays(version))
    ledger.save_snapshot("client 3", 5, arrays(5))
    ledger.save_snapshot("client 3", 5, arrays(5))
    for _ in range(2):
        for version, kept in ((30, 20), (20, 20), (19, 10), (9, 9), (8, 0)):
            assert_kept(ledger.load_snapshot("shared", version), kept)
        assert_kept(ledger.load_snapshot("client 3", 10**9), 5)
        assert ledger.load_snapshot("client 3", 4) is None
        assert ledger.load_snapshot("client 33", 30) is None
        if folder is None:
            break
        ledger.verify()
        ledger.close()
        ledger = Ledger.open(tmp_path / folder, write=True)
    ledger.truncate(15)
    assert_kept(ledger.load_snapshot("shared", 30), 10)
    assert_kept(fill(ledger, 25).load_snapshot("shared", 25), 10)
    with pytest.raises(InputError, match="newest"):
        ledger.save_snapshot("shared", 26, arrays(26))
    ledger.close()


@pytest.mark.parametrize("name", ["", "../up", ".hidden", "a/b", "é", "x" * 200])
def test_a_name_that_is_no_file_name_and_values_that_are_no_numbers(tmp_path, name):
    with fill(Ledger.create(tmp_path, HEADER), 3) as ledger:
        with pytest.raises(InputError, match="snapshot"):
            ledger.save_snapshot(name, 1, arrays(1))
        with pytest.raises(InputError, match="Python objects"):
            ledger.save_snapshot("shared", 1, {"x": np.array([None])})
        assert ledger.load_snapshot("shared", 3) is None


def test_a_flipped_bit_anywhere_is_seen_and_nothing_older_is_given(tmp_path):
    ledger = fill(Ledger.create(tmp_path, HEADER), 30)
    ledger.save_snapshot("shared", 10, arrays(10))
    ledger.save_snapshot("shared", 20, arrays(20))
    (path,) = (tmp_path / "snapshots" / "shared").glob("*20.npz")
    data = path.read_bytes()
    with np.load(path) as plain:
        np.testing.assert_array_equal(plain["x"], arrays(20)["x"])
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with refusal(DataError, str(path)):
            ledger.load_snapshot("shared", 25)
    for size in (0, 10, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(DataError, match=path.name):
            ledger.load_snapshot("shared", 25)
    with pytest.raises(DataError, match=path.name):
        ledger.verify()
    assert_kept(ledger.load_snapshot("shared", 15), 10)
    path.write_bytes(data)
    assert_kept(ledger.load_snapshot("shared", 25), 20)
    path.rename(path.with_name("note.txt"))
    with pytest.raises(DataError, match=r"note\.txt"):
        ledger.load_snapshot("shared", 25)
    ledger.close()


def test_a_snapshot_of_another_ledger_name_or_version(tmp_path):
    other = Header({"shared": Model(5, "layout", "initial")}, "gaussian")
    ledgers = [fill(Ledger.create(tmp_path / n, h), 30) for n, h in (("a", HEADER), ("b", other))]
    for ledger in ledgers:
        ledger.save_snapshot("shared", 20, arrays(20))
    a, b = (tmp_path / n / "snapshots" / "shared" / "0000000020.npz" for n in "ab")
    (tmp_path / "a" / "snapshots" / "client 3").mkdir()
    own, foreign = a.read_bytes(), b.read_bytes()
    for target, data in (
        (a.with_name("0000000021.npz"), own),
        (a.parents[1] / "client 3" / a.name, own),
        (a, foreign),
    ):
        target.write_bytes(data)
        with pytest.raises(DataError, match="another ledger, name or version"):
            ledgers[0].load_snapshot(target.parent.name, 30)
        target.unlink()
    a.write_bytes(own)
    assert_kept(ledgers[0].load_snapshot("shared", 30), 20)
    for ledger in ledgers:
        ledger.close()


def test_a_kill_leaves_the_old_one_and_lost_updates_take_their_snapshots_along(
    tmp_path, monkeypatch
):
    with fill(Ledger.create(tmp_path, HEADER), 30) as ledger:
        ledger.save_snapshot("shared", 20, arrays(20))
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                ledger.save_snapshot("shared", 20, arrays(3))
        assert_kept(ledger.load_snapshot("shared", 30), 20)
        ledger.save_snapshot("shared", 30, arrays(30))
    path = tmp_path / "segment-00000.arrow"
    path.write_bytes(path.read_bytes()[:-1])  # update 30 is lost
    assert_kept(Ledger.open(tmp_path).load_snapshot("shared", 30), 20)
    with fill(Ledger.open(tmp_path, write=True), 31, seed=1) as ledger:
        assert_kept(ledger.load_snapshot("shared", 31), 20)
    assert [p.name for p in (tmp_path / "snapshots" / "shared").iterdir()] == ["0000000020.npz"]


@pytest.mark.parametrize("folder", [True, False])
def test_a_truncated_ledger_keeps_the_snapshot_of_its_last_update(tmp_path, folder):
    with fill(Ledger.create(tmp_path if folder else None, HEADER), 6) as ledger:
        for version in (3, 4, 5):
            ledger.save_snapshot("server", version, arrays(version))
        ledger.truncate(4)
        assert_kept(ledger.load_snapshot("server", 6), 4)
