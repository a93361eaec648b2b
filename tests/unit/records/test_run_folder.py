import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

import scenarios
from raydpzv.errors import DataError, InputError, RaydpzvError
from raydpzv.experiment.rebuild import replay
from raydpzv.experiment.resuming import continued
from raydpzv.records import run_writer, secrets_file
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.run_writer import RunWriter
from raydpzv.records.secrets_file import OperatorSecrets
from raydpzv.records.summary_fields import SUMMARY_FORMAT
from raydpzv.report.page import read_runs
from tests.helpers.kills import Killed


def create(path):
    with RunWriter.create(
        path, scenarios.load("frozen"), {"python": "3"}, OperatorSecrets(bytes(16), None)
    ):
        return path


def killed_at(path, operation, monkeypatch):
    """Leave a folder whose creation ended before its n-th file or folder was there; tell whether
    there is one.
    """
    count = []

    def counted(function):
        def operating(*args, **kwargs):
            count.append(None)
            if len(count) == operation:
                raise Killed
            return function(*args, **kwargs)

        return operating

    with monkeypatch.context() as patch:
        patch.setattr(run_writer, "write_atomically", counted(run_writer.write_atomically))
        patch.setattr(secrets_file, "write_atomically", counted(secrets_file.write_atomically))
        patch.setattr(os, "mkdir", counted(os.mkdir))
        try:
            create(path)
        except Killed:
            return True
    return False


def test_a_folder_killed_before_its_scenario_is_there_is_used_anew(tmp_path, monkeypatch):
    operation = 1
    while killed_at(tmp_path / str(operation), operation, monkeypatch):
        assert not (tmp_path / str(operation) / "scenario.toml").exists()
        assert RunFolder.open(create(tmp_path / str(operation))).environment() == {"python": "3"}
        operation += 1
    assert operation > 5  # the folder, rows, and three files


def test_a_folder_in_which_a_run_began_is_not(tmp_path):
    with pytest.raises(InputError, match="holds a run already"):
        create(create(tmp_path / "whole"))
    lost = create(tmp_path / "lost")
    (lost / "scenario.toml").unlink()
    (lost / "rows" / "release").mkdir()
    with pytest.raises(InputError, match="holds a run already"):
        create(lost)
    (tmp_path / "comparison").mkdir()
    OperatorSecrets(bytes(16), None).write(tmp_path / "comparison")
    with pytest.raises(InputError, match="holds a run already"):
        create(tmp_path / "comparison")


def test_a_run_at_work_is_told_from_one_that_was_killed(tmp_path):
    spec, secrets = scenarios.load("frozen"), OperatorSecrets(bytes(16), None)
    with (
        RunWriter.create(tmp_path / "run", spec, {"python": "3"}, secrets) as writer,
        pytest.raises(DataError, match="another process is writing this run"),
    ):
        RunFolder.open(writer.path).summary()
    with pytest.raises(DataError, match="the run was killed; continue it first"):
        RunFolder.open(writer.path).summary()


def test_of_a_folder_that_cannot_be_locked_nobody_knows_how_its_run_is(tmp_path):
    path = create(tmp_path / "run")
    (path / ".lock").unlink()
    (path / ".lock").mkdir()
    with pytest.raises(DataError, match="came to no end here"):
        RunFolder.open(path).summary()


# One reader of run folders: summaries of other formats, damage, and data that have moved.


def folder_with(
    path: Path, summary: str, scenario: str = "seed = 1\n", environment: str = "{}"
) -> RunFolder:
    path.mkdir()
    (path / "scenario.toml").write_text(scenario)
    (path / "environment.json").write_text(environment)
    (path / "summary.json").write_text(summary)
    return RunFolder.open(path)


@pytest.mark.parametrize(
    ("stored", "has"),
    [
        ("{}", "no format number"),
        ('{"format": 1}', "format 1"),
        ('{"format": 2, "private": false}', "format 2"),
        ('{"format": 4}', "format 4"),
        ('{"format": [3]}', r"format \[3\]"),
    ],
)
def test_a_summary_of_another_format_is_refused_by_every_reader(tmp_path, stored, has):
    folder = folder_with(tmp_path / "run", stored)
    for read in (folder.summary, lambda: read_runs([folder.path])):
        with pytest.raises(
            DataError, match=rf"run.summary\.json: has {has}, this program reads format 3"
        ) as error:
            read()
        assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def finished(small, tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "run"
    scenarios.run(small("budget.updates=20"), path)
    return path


READERS: dict[str, Callable[[Path], object]] = {
    "report": lambda path: read_runs([path]),
    "replay": replay,
    "resume": continued,
}
DAMAGE = (
    ("scenario.toml", b"seed = \xff", "wanted text in UTF-8"),
    ("scenario.toml", b"seed = [", "wanted a TOML file"),
    ("summary.json", b"{", "wanted a JSON object"),
    ("summary.json", b"\xff", "wanted a JSON object"),
    ("summary.json", b"[1]", "it holds a list"),
    ("environment.json", b"3", "it holds a int"),
    ("scenario.toml", b"[clock]\nkind = {}", "clock.kind is no text"),
    ("scenario.toml", b"[method]\nname = []", "method.name is no text"),
    ("scenario.toml", ".".join("a" * 20_000).encode() + b" = 1", "nested too deeply"),
)


@pytest.mark.parametrize(("name", "content", "said"), DAMAGE)
def test_damage_is_the_same_line_whoever_reads(finished, name, content, said):
    kept = (finished / name).read_bytes()
    (finished / name).write_bytes(content)
    lines = set()
    try:
        for which, read in READERS.items():
            # a replay needs no summary, a complete run is told by its summary alone
            if (which, name) in (("replay", "summary.json"), ("resume", "environment.json")):
                continue
            with pytest.raises(RaydpzvError) as caught:
                read(finished)
            lines.add(f"{type(caught.value).__name__}: {caught.value}")
    finally:
        (finished / name).write_bytes(kept)
    (line,) = lines
    assert line.startswith(f"DataError: {finished / name}: is damaged")
    assert said in line
    assert "\n" not in line


@pytest.mark.parametrize("name", ["scenario.toml", "summary.json", "environment.json"])
def test_a_file_of_facts_that_has_gigabytes_is_not_read(finished, name):
    size = (finished / name).stat().st_size
    os.truncate(finished / name, 2**42)
    try:
        with pytest.raises(DataError, match=f"{name}: is damaged.*wanted at most 67,108,864 bytes"):
            read_runs([finished])
    finally:
        os.truncate(finished / name, size)


def test_a_pipe_below_a_folder_is_named_and_not_waited_for(finished):
    pipe = finished / "rows" / "numbers" / "part-00009.parquet"
    os.mkfifo(pipe)
    try:
        for read in READERS.values():
            with pytest.raises(DataError, match=r"part-00009\.parquet: is no file"):
                read(finished)
    finally:
        pipe.unlink()


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_a_folder_that_cannot_be_listed_is_left_to_its_reader(finished, monkeypatch, error):
    monkeypatch.setattr("raydpzv.files.os.scandir", Mock(side_effect=error))
    assert RunFolder.open(finished).summary()["status"] == "done"


def test_a_part_without_a_number_is_damage(finished):
    stray = finished / "rows" / "release" / "part-copy.parquet"
    stray.write_bytes(b"")
    try:
        with pytest.raises(DataError, match=r"part-copy\.parquet: wanted a part's number"):
            RunFolder.open(finished).rows()
    finally:
        stray.unlink()


@pytest.mark.parametrize(
    "name",
    [
        "failure",
        "failure_reason",
        "private",
        "private_reason",
        "engine",
        "largest_class_share",
        "ledger",
        "drift",
        "user_level",
        "checkpoints",
        "versions",
        "staleness",
        "epsilon",
        "warnings",
        "updates",
    ],
)
@pytest.mark.parametrize("value", ["[[]]", '{"clients": [3]}', "9" * 5000, '{"mean": "x"}'])
def test_odd_values_of_a_summary_are_damage_and_no_internal_error(tmp_path, name, value):
    if name in ("user_level", "checkpoints", "versions") and value.startswith("{"):
        pytest.skip("a table of any content")
    folder = folder_with(tmp_path / "run", f'{{"format": {SUMMARY_FORMAT}, "{name}": {value}}}')
    with pytest.raises(DataError, match=r"summary\.json: is damaged") as error:
        folder.summary()
    assert "\n" not in str(error.value)
