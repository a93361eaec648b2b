import os
import shutil

import pytest

import scenarios
from raydpzv.errors import DataError
from raydpzv.records.write_ahead_log import TAIL
from raydpzv.storage import snapshot as module
from raydpzv.storage.snapshot import LINK, Moving, snapshot
from tests.helpers.small_horizontal import stop_after


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was stopped, with a checkpoint, rows and a ledger."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    stop, progress = stop_after(25)
    spec = scenarios.load(
        "digits_dpzv", ["privacy.noise=seeded", "budget.updates=60", "data.train_rows=100"]
    )
    scenarios.run(spec, folder, progress=progress, stop=stop)
    return folder


def changed(path, stat):
    return False


def test_all_files_are_read_but_locks_scratch_files_and_the_link(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    for name in (LINK, ".scratch", "ledger/.lock", "checkpoint.before.state"):
        (copy / name).write_bytes(b"x")
    found = dict(snapshot(copy, changed))
    wanted = {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()}
    wanted = {name for name in wanted if not name.rpartition("/")[2].startswith(".")}
    assert found.keys() == wanted - {"checkpoint.before.state"}
    assert all((copy / name).read_bytes() == data for name, data in found.items())


def test_what_stands_for_others_is_read_before_them(run):
    order = [path for path, _ in snapshot(run, changed)]
    places = [
        order.index(name)
        for name in ("summary.json", "checkpoint.state", "scenario.toml", "operator.json")
    ]
    rows = [n for n, path in enumerate(order) if path.startswith("rows/")]
    ledger = [n for n, path in enumerate(order) if path.startswith("ledger/")]
    assert places == sorted(places)
    assert max(places) < min(rows) <= max(rows) < min(ledger)


def test_rows_and_updates_that_come_after_the_checkpoint_was_read_are_there(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    found = {}
    for path, data in snapshot(copy, changed):
        found[path] = data
        if path == "checkpoint.state":
            shutil.copy(
                copy / "rows/release/part-00000.parquet", copy / "rows/release/part-00001.parquet"
            )
    assert "rows/release/part-00001.parquet" in found


def test_a_segment_that_fills_while_it_is_read_is_read_again_with_the_next(
    run, tmp_path, monkeypatch
):
    copy = shutil.copytree(run, tmp_path / "copy")
    first, second = (copy / "ledger" / f"segment-0000{n}.arrow" for n in (0, 1))
    read, times = module._Reader.read, []

    def filled(self, path):
        found = read(self, path)
        if path.endswith(first.name) and not times:
            times.append(path)
            first.write_bytes(b"sealed")
            second.write_bytes(b"begun")
        return found

    monkeypatch.setattr(module._Reader, "read", filled)
    found = dict(snapshot(copy, changed))
    assert (found["ledger/segment-00000.arrow"], found["ledger/segment-00001.arrow"]) == (
        b"sealed",
        b"begun",
    )


def test_a_checkpoint_that_is_written_over_while_it_is_read_is_read_again(
    run, tmp_path, monkeypatch
):
    copy, reads = shutil.copytree(run, tmp_path / "copy"), []
    whole = (copy / "checkpoint.state").read_bytes()

    def torn(self):
        reads.append(self)
        return whole[: len(whole) // 2] if len(reads) < 3 else whole

    monkeypatch.setattr(module.Path, "read_bytes", torn)
    assert module._checkpoint(copy / "checkpoint.state")[0] == whole
    assert len(reads) == 3
    monkeypatch.setattr(module.Path, "read_bytes", lambda self: whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"checkpoint\.state"):
        module._checkpoint(copy / "checkpoint.state")


def test_without_its_last_checkpoint_a_folder_is_no_state_of_a_run(run, tmp_path):
    """Whoever went on with that would begin anew, though releases count as brought."""
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / "checkpoint.state").rename(copy / "checkpoint.before.state")
    with pytest.raises(Moving, match=r"checkpoint\.state"):
        list(snapshot(copy, changed))
    (copy / "checkpoint.before.state").unlink()
    assert "checkpoint.state" not in dict(snapshot(copy, changed))


def test_a_checkpoint_is_brought_as_it_was_checked(run, monkeypatch):
    monkeypatch.setattr(module, "_checkpoint", lambda path: (b"checked", None))
    assert dict(snapshot(run, changed))["checkpoint.state"] == b"checked"


def test_neither_folders_elsewhere_nor_what_is_no_file_is_brought(run, tmp_path):
    """A pipe would be waited at for good."""
    copy = shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "of another").write_bytes(b"x")
    (copy / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(copy / "pipe")
    assert not {"link/of another", "pipe"} & dict(snapshot(copy, changed)).keys()


def test_a_file_that_goes_and_a_ledger_that_is_cut_have_the_folder_looked_at_anew(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    reading = snapshot(copy, changed)
    assert next(reading)[0] == "summary.json"
    (copy / "models.npz").unlink()
    with pytest.raises(Moving):
        list(reading)
    (copy / "ledger" / "truncate").write_text("3 3")
    with pytest.raises(Moving):
        dict(snapshot(copy, changed))


def test_a_run_that_has_not_begun_has_neither_rows_nor_ledger(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / "ledger" / "header.json").unlink()
    assert not [path for path, _ in snapshot(copy, changed) if path.startswith("ledger/")]


def test_what_has_not_changed_is_named_and_not_read(run):
    assert {data for _, data in snapshot(run, lambda path, stat: True)} == {None}


def test_of_the_rows_that_grow_those_of_the_checkpoint_are_read_after_it(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / TAIL / "00077.rows").write_bytes(b"of another checkpoint")
    order = [path for path, _ in snapshot(copy, changed)]
    assert order.index("checkpoint.state") < order.index(f"{TAIL}/00000.rows")
    assert f"{TAIL}/00077.rows" not in order
    known = dict(snapshot(copy, lambda path, stat: path == "checkpoint.state"))
    assert known["checkpoint.state"] is None
    assert known[f"{TAIL}/00000.rows"] == (copy / TAIL / "00000.rows").read_bytes()
    (copy / TAIL / "00000.rows").write_bytes(b"those of a later checkpoint")
    with pytest.raises(Moving):
        dict(snapshot(copy, changed))
    (copy / TAIL / "00000.rows").unlink()
    with pytest.raises(Moving):
        dict(snapshot(copy, changed))
