"""A run folder that comes back through the log of a job."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from contextlib import redirect_stdout
from io import StringIO

import pytest

from actors import remote_folder, remote_folder_parts
from actors.remote_folder import check_place, receive
from raydpzv.errors import InputError, RunError


@pytest.fixture
def there(tmp_path):
    folder = tmp_path / "there"
    for name, content in {
        "scenario.toml": b"",
        "summary.json": b"{}",
        "rows/a/part-0.parquet": os.urandom(5000),
        "rows/b/part-0.parquet": b"",
        "models.npz": os.urandom(9000),
        "operator.json": b"secret",
        ".lock": b"",
        "ledger/.lock": b"",
        "ledger/log": os.urandom(10),
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "operator.json").chmod(0o600)
    (folder / "models.npz").chmod(0o664)
    return folder


def asking(folder, asked=None, noise="2026 job_manager: Runtime env is setting up.\n"):
    def ask(begin, most, public):
        if asked is not None:
            asked.append(begin)
        with redirect_stdout(StringIO()) as said:
            remote_folder_parts.main([str(folder), str(begin), str(most), public])
        return noise + said.getvalue() + noise

    return ask


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("part", [2**20, 4096, 1000])
def test_a_folder_comes_whole_in_parts(there, tmp_path, monkeypatch, part):
    monkeypatch.setattr(remote_folder, "PART", part)
    asked, told, place = [], [], tmp_path / "runs" / "here"
    assert receive(asking(there, asked), place, lambda done, whole: told.append((done, whole)))
    here = contents(there)
    assert contents(place) == {name: data for name, data in here.items() if not name.endswith(".lock")}
    for name, mode in (("operator.json", 0o600), ("models.npz", 0o664)):
        assert (place / name).stat().st_mode & 0o777 == mode
    whole = sum(map(len, here.values()))
    assert asked == list(range(0, whole, part))
    assert told == [(at, whole) for at in asked[1:]]
    assert list(place.parent.iterdir()) == [place]


def test_nothing_of_it_can_be_read_in_the_log(there, tmp_path):
    logs = []

    def ask(*which):
        logs.append(asking(there)(*which))
        return logs[-1]

    assert receive(ask, tmp_path / "here")
    for text in ("operator", "summary", "c2VjcmV0", "cGVyYXRvci"):  # "secret", "perator" in base64
        assert text not in logs[0]


def test_nothing_is_written_over(there, tmp_path):
    place = tmp_path / "here"
    place.mkdir()
    check_place(place)
    assert receive(asking(there), place)
    before = contents(place)
    for taken in (place, place / "summary.json"):
        with pytest.raises(InputError, match="is there already"):
            check_place(taken)
    with pytest.raises(InputError, match="is there already"):
        receive(asking(there), place)
    assert contents(place) == before


def test_a_folder_that_is_not_there_is_said(tmp_path):
    place = tmp_path / "here"
    assert not receive(asking(tmp_path / "none"), place)
    assert not place.exists()


def test_a_folder_that_changes_meanwhile_is_refused(there, tmp_path, monkeypatch):
    monkeypatch.setattr(remote_folder, "PART", 4096)

    def ask(begin, most, public):
        if begin:
            (there / "summary.json").write_bytes(b"{...}")
        return asking(there)(begin, most, public)

    with pytest.raises(RunError, match="one that changed while it was brought here"):
        receive(ask, tmp_path / "here")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_bytes_that_are_not_those_listed_are_refused(there, tmp_path, monkeypatch):
    def listing(folder):
        names = real(folder)
        return [(*names[0][:3], hashlib.sha256(b"other").hexdigest()), *names[1:]]

    real = remote_folder_parts.listing
    monkeypatch.setattr(remote_folder_parts, "listing", listing)
    with pytest.raises(RunError, match=r"ledger/log: wanted 10 bytes with SHA-256"):
        receive(asking(there), tmp_path / "here")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside", ""])
def test_names_outside_the_folder_are_refused(tmp_path, monkeypatch, name):
    header = json.dumps([[name, 0, 0o644, hashlib.sha256(b"").hexdigest()]]).encode()
    message = remote_folder_parts.LENGTH.pack(len(header)) + header
    monkeypatch.setattr(remote_folder_parts, "part", lambda *which: message)
    with pytest.raises(RunError, match="wanted names within the run folder"):
        receive(asking(tmp_path), tmp_path / "here")
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_brought_nothing_says_why(tmp_path):
    with pytest.raises(RunError, match="the job there said: python: not found"):
        receive(lambda *which: "python: not found\n", tmp_path / "here")


def test_a_damaged_log_is_refused(there, tmp_path):
    def ask(*which):
        said = asking(there, noise="")(*which)
        lines = said.splitlines()
        return "\n".join([lines[0], "?" + lines[1][1:], *lines[2:]])

    with pytest.raises(RunError, match="damaged"):
        receive(ask, tmp_path / "here")


def test_a_full_disk_is_said_before_anything_is_written(there, tmp_path, monkeypatch):
    monkeypatch.setattr(remote_folder.shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(InputError, match="wanted 14018 bytes of disk for the run folder, there are 100"):
        receive(asking(there), tmp_path / "here")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


class Usage:
    free = 100


def test_a_folder_that_is_no_runs_stays_where_it_is(there, tmp_path):
    """As where a run was refused, since it was to go there."""
    (there / "scenario.toml").unlink()
    assert not receive(asking(there), tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_no_file_lets_another_become_the_user(there, tmp_path):
    (there / "models.npz").chmod(0o4755)
    assert receive(asking(there), tmp_path / "here")
    assert (tmp_path / "here" / "models.npz").stat().st_mode & 0o7777 == 0o755


def test_a_place_that_another_took_meanwhile_is_left_to_it(there, tmp_path, monkeypatch):
    place, unpack = tmp_path / "here", remote_folder._unpack

    def taken(*given):
        unpack(*given)
        place.mkdir()
        (place / "theirs").write_text("kept")

    monkeypatch.setattr(remote_folder, "_unpack", taken)
    with pytest.raises(InputError, match="is there already"):
        receive(asking(there), place)
    assert contents(place) == {"theirs": b"kept"}
    assert list(tmp_path.glob(".here*")) == []


def test_the_line_that_moves_a_part_away_makes_room_for_the_whole(tmp_path):
    """As the shell has it, whatever the name."""
    place = tmp_path / "it's a part"
    place.mkdir()
    (place / "scenario.toml").write_text("")
    with pytest.raises(InputError, match="send the same line again: mv ") as refused:
        check_place(place)
    line = str(refused.value).rpartition(": ")[2]
    subprocess.run(line, shell=True, check=True)
    check_place(place)
    assert (tmp_path / "it's a part.before" / "scenario.toml").is_file()
