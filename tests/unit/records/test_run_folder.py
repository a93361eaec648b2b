"""A run's folder before the run: made in one go, or left so that the same place can be used anew."""

from __future__ import annotations

import os

import pytest

import scenarios
from raydpzv.errors import DataError, InputError
from raydpzv.records import run_writer, secrets_file
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.run_writer import RunWriter
from raydpzv.records.secrets_file import OperatorSecrets
from tests.helpers.kills import Killed


def create(path):
    with RunWriter.create(path, scenarios.load("frozen"), {"python": "3"}, OperatorSecrets(bytes(16), None)):
        return path


def killed_at(path, operation, monkeypatch):
    """Leave a folder whose creation ended before its n-th file or folder was there; tell whether there is one."""
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
