import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import scenarios
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.run_writer import RunWriter
from raydpzv.records.secrets_file import OperatorSecrets
from raydpzv.segments.started_segments import has_restarted, note_segment, segments_started


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    spec, operator = scenarios.load("digits_users"), OperatorSecrets(bytes(16), None)
    with RunWriter.create(tmp_path / "run", spec, {}, operator) as folder:
        yield folder


def test_segments_are_counted_from_the_last_checkpoint_or_the_start(folder: RunFolder) -> None:
    assert (segments_started(folder), has_restarted(folder)) == (0, False)
    for begun in (1, 2):
        note_segment(folder)
        assert (segments_started(folder), has_restarted(folder)) == (begun, True)
    for round in (3, 5):
        folder.write_checkpoint(Checkpoint(round, {}, None))
        assert (segments_started(folder), has_restarted(folder)) == (0, True), (
            "no leg continued from there yet"
        )
        for begun in (1, 2, 3):
            note_segment(folder)
            assert segments_started(folder) == begun


def test_checkpoints_are_told_apart(folder: RunFolder) -> None:
    """Also two after as many updates: a leg that made them again drew other noise."""
    places = [folder.checkpoint_sha256()]
    for state in ({"leg": 1}, {"leg": 2}):
        folder.write_checkpoint(Checkpoint(3, state, None))
        places += [folder.checkpoint_sha256(), RunFolder.open(folder.path).checkpoint_sha256()]
    assert places[0] == ""
    assert places[1] == places[2] != places[3] == places[4]


def test_a_segment_is_on_the_disk_before_it_releases_anything(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, fsync = list[int](), os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: written.append(file) or fsync(file))
    note_segment(folder)
    assert written
