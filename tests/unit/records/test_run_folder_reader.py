"""One reader of run folders: older summaries, damage, and data that have moved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import scenarios
from raydpzv.errors import DataError, RaydpzvError, SpecError
from raydpzv.experiment.reexecute import replay, resuming
from raydpzv.experiment.runner import continued
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.summary_format import SUMMARY_FORMAT
from raydpzv.report.page import read_runs, write_report

REASON = "NOT PRIVATE: no noise is added"


def folder_with(path: Path, summary: str, scenario: str = "seed = 1\n", environment: str = "{}") -> RunFolder:
    path.mkdir()
    (path / "scenario.toml").write_text(scenario)
    (path / "environment.json").write_text(environment)
    (path / "summary.json").write_text(summary)
    return RunFolder.open(path)


@pytest.mark.parametrize(
    ("stored", "private", "reason"),
    [
        ({"private": REASON, "privacy_verdict": "other"}, False, REASON),
        ({"private": True, "privacy_verdict": "PRIVATE"}, True, None),
        ({"privacy_verdict": REASON}, False, REASON),
        ({}, False, None),
        ({"format": 2, "private": False, "private_reason": REASON}, False, REASON),
        ({"format": 3, "private": False, "private_reason": REASON}, False, REASON),
    ],
)
def test_a_summary_of_any_format_says_private_as_true_or_false(tmp_path, stored, private, reason):
    summary = folder_with(tmp_path / "run", json.dumps(stored)).summary()
    assert (summary["format"], summary["private"]) == (SUMMARY_FORMAT, private)
    assert summary["private_reason"] == reason


@pytest.mark.parametrize("stored", [{}, {"format": 2}])
def test_what_older_runs_call_their_best_accuracy_was_chosen_on_test_rows(tmp_path, stored):
    summary = folder_with(tmp_path / "run", json.dumps(stored | {"best_accuracy": 0.9})).summary()
    assert (summary["best_accuracy"], summary["peak_accuracy"]) == (None, 0.9)


def test_a_summary_of_a_format_to_come_is_refused(tmp_path):
    folder = folder_with(tmp_path / "run", '{"format": 4}')
    with pytest.raises(DataError, match="has format 4, this program reads up to 3"):
        folder.summary()


def test_an_old_run_is_reported_with_its_reason(tmp_path):
    old = {"private": REASON, "method": "dpzv", "seed": 0, "status": "done", "scenario": "s"}
    folder_with(tmp_path / "run", json.dumps(old))
    assert REASON.removeprefix("NOT PRIVATE: ") in write_report([tmp_path / "run"]).read_text()


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
