import json
import tomllib
from pathlib import Path

import pytest

from tests.helpers.commands import call, complaint, stdout_of

SCENARIO = """
[data]
source = "csv"
file = "rows.csv"
target = "label"
[split]
how = "columns"
clients = 2
[method]
name = "{method}"
batch = 8
[budget]
updates = 30
[arrivals]
kind = "trace"
file = "trace.csv"
"""


def write_data(folder: Path, last: str = "1,1,1\n") -> None:
    folder.mkdir(exist_ok=True)
    rows = "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(80))
    (folder / "rows.csv").write_text(f"a,b,label\n{rows}{last}")
    (folder / "trace.csv").write_text(
        "client,time\n" + "".join(f"{m},{t}\n" for t in range(1, 40) for m in (0, 1))
    )


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The folder of a run of a scenario file with its data beside it, made from another working
    folder.
    """
    write_data(tmp_path / "mine")
    (tmp_path / "mine" / "s.toml").write_text(SCENARIO.format(method="vafl"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    stdout_of(call("run", tmp_path / "mine" / "s.toml", "--out", tmp_path / "run"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def move(tmp_path: Path) -> list[str]:
    (tmp_path / "mine").rename(tmp_path / "moved")
    return ["--set", "data.file=moved/rows.csv", "--set", "arrivals.file=moved/trace.csv"]


def as_stopped(run: Path) -> str:
    """Make a finished run one that was killed after its record was written; return its digest."""
    digest = json.loads((run / "summary.json").read_text())["digest"]
    (run / "summary.json").unlink()
    return digest


def test_the_record_says_where_the_data_were_and_what_they_were(run, tmp_path):
    recorded = tomllib.loads((run / "scenario.toml").read_text())
    assert recorded["data"]["file"] == str(tmp_path / "mine" / "rows.csv")
    assert recorded["arrivals"]["file"] == str(tmp_path / "mine" / "trace.csv")
    environment = json.loads((run / "environment.json").read_text())
    assert len(environment["data_hmac_sha256"]) == 64
    assert "data_sha256" not in environment


def test_a_run_is_replayed_from_any_folder(run):
    assert "replayed 30 updates" in stdout_of(call("replay", run))


@pytest.mark.usefixtures("unrendered")
def test_moved_data_are_missed_and_then_found(run, tmp_path):
    moved = move(tmp_path)
    assert "rows.csv" in complaint(call("replay", run))
    assert "every loss and all final parameters have the recorded bits" in stdout_of(
        call("replay", run, *moved)
    )
    assert call("report", run).exit_code == 0
    assert call("report", run, *moved).exit_code == 0
    digest = as_stopped(run)
    assert complaint(call("resume", run))
    assert json.loads(stdout_of(call("resume", run, *moved, "--json")))["digest"] == digest


def test_other_data_at_the_new_place_are_found_out(run, tmp_path):
    moved = move(tmp_path)
    write_data(tmp_path / "moved", last="1,2,1\n")
    assert "the data changed since the run began" in complaint(call("replay", run, *moved))
    write_data(tmp_path / "moved")
    assert call("replay", run, *moved).exit_code == 0
    trace = tmp_path / "moved" / "trace.csv"
    trace.write_text(trace.read_text() + "0,99\n")
    assert "the data changed since the run began" in complaint(call("replay", run, *moved))


@pytest.mark.usefixtures("unrendered")
def test_a_copy_without_the_operators_file_says_what_cannot_be_checked_and_is_not_continued(run):
    (run / "operator.json").unlink()
    assert (
        f"not checked: whether these are the run's data: {run} has no operator.json"
        in stdout_of(call("replay", run))
    )
    assert call("report", run).exit_code == 0
    as_stopped(run)
    said = complaint(call("resume", run))
    assert (
        f"{run}: has no operator.json: it holds the key by which the data are seen to be the same; "
        "put" in said
    )


def test_nothing_but_the_place_of_the_data_is_taken(run):
    for command in ("replay", "resume", "report"):
        line = complaint(call(command, run, "--set", "method.lr=1"))
        assert (
            "--set method.lr=1: a run on record keeps its settings; only data.folder, data.file"
            in line
        )


def test_a_changed_scenario_is_still_found_out(run):
    path = run / "scenario.toml"
    path.write_text(path.read_text().replace("batch = 8", "batch = 9"))
    assert "scenario.toml changed since the run began" in complaint(call("replay", run))


@pytest.mark.usefixtures("unrendered")
def test_a_comparison_continues_where_its_data_have_moved(run, tmp_path):
    """A run that was begun, and those that were not, are made with the data where they are now."""
    root = tmp_path / "compared"
    command = (
        "compare",
        tmp_path / "mine" / "s.toml",
        "--seeds",
        "1",
        "--runner",
        "local",
        "--out",
        root,
    )
    assert call(*command).exit_code in (0, 1)
    moved, folders = move(tmp_path), sorted((root / "runs").iterdir())
    digests = {folder.name: as_stopped(folder) for folder in folders[:2]}
    assert "rows.csv" in complaint(call("resume", root, "--runner", "local"))
    result = call("resume", root, "--runner", "local", *moved)
    assert result.exit_code in (0, 1), result.output
    for name, digest in digests.items():
        assert json.loads((root / "runs" / name / "summary.json").read_text())["digest"] == digest
    rows = json.loads(call("resume", root, "--runner", "local", "--json").stdout)["runs"]
    assert "failed" not in {row["outcome"] for row in rows}
