"""One reader of run folders: summaries of other formats, damage, and data that have moved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import scenarios
from raydpzv.errors import DataError, RaydpzvError, SpecError
from raydpzv.experiment.rebuild import replay
from raydpzv.experiment.resuming import continued, resuming
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.summary_fields import SUMMARY_FORMAT
from raydpzv.report.page import read_runs


def folder_with(path: Path, summary: str, scenario: str = "seed = 1\n", environment: str = "{}") -> RunFolder:
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


def test_a_part_without_a_number_is_damage(finished):
    stray = finished / "rows" / "release" / "part-copy.parquet"
    stray.write_bytes(b"")
    try:
        with pytest.raises(DataError, match=r"part-copy\.parquet: wanted a part's number"):
            RunFolder.open(finished).rows()
    finally:
        stray.unlink()


def test_only_the_place_of_the_data_can_be_given_anew(finished):
    for read in (lambda: replay(finished, moved=["method.lr=1"]), lambda: resuming(finished, ["seed=2"])):
        with pytest.raises(SpecError, match=r"a run on record keeps its settings; only data\.folder"):
            read()


@pytest.mark.parametrize(
    "name",
    [
        *(
            "failure",
            "failure_reason",
            "private",
            "private_reason",
            "engine",
            "largest_class_share",
            "ledger",
        ),
        *("drift", "user_level", "checkpoints", "versions", "staleness", "epsilon", "warnings", "updates"),
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
