import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

import raydpzv
import scenarios
from raydpzv.experiment.runner import RunOptions, start
from raydpzv.storage.filesystem import open_storage
from raydpzv.storage.index import latest
from tests.helpers.commands import call, changed, complaint, stdout_of
from tests.helpers.small_horizontal import stop_after

CHANGES = ("privacy.noise=seeded", "budget.updates=60", "evaluate.every=20", "data.train_rows=200")
SET = changed(*CHANGES)
RUN = ("run", "digits_dpzv", *SET, "--quiet")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, unrendered):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def uri(tmp_path):
    return f"file://{tmp_path}/my storage"


def summary(folder):
    return json.loads((Path(folder) / "summary.json").read_text())


def stopped(uri, folder, at=25):
    spec = scenarios.load("digits_dpzv", CHANGES)
    start(spec, "local", RunOptions(Path(folder), **stop_after(at)), uri)


def test_one_line_begins_continues_and_shows_wherever_it_is_started(uri):
    digest = scenarios.run(scenarios.load("digits_dpzv", CHANGES)).summary["digest"]
    line = (*RUN, "--storage", uri, "--or-resume")
    stopped(uri, "first")
    stdout_of(call(*line))
    assert summary("runs/my storage")["digest"] == digest
    shutil.rmtree("runs")
    assert json.loads(call(*line, "--json").stdout)["digest"] == digest
    assert summary("runs/my storage")["digest"] == digest
    said = complaint(call(*line, "--set", "method.lr=0.5"))
    assert "my storage: holds a run with other settings: method.lr is " in said
    assert call(*RUN, "--storage", f"{uri} 2").exit_code == 0
    assert summary("runs/my storage 2")["digest"] == digest


def test_a_copy_is_resumed_by_its_uri_and_by_its_folder(uri):
    stopped(uri, "first")
    assert call("resume", uri, "--out", "second", "--quiet").exit_code == 0
    assert summary("second")["updates"] == 60
    assert "nothing to resume" in complaint(call("resume", "second", "--quiet"))
    assert "an older copy of file:" in complaint(call("resume", "first", "--quiet"))
    other = f"{uri} 2"
    stopped(other, "third")
    assert call("resume", "third", "--quiet").exit_code == 0
    assert summary("third")["digest"] == summary("second")["digest"]
    assert latest(open_storage(other)).files["summary.json"]


def test_a_report_of_a_uri_downloads_the_run(uri):
    stopped(uri, "first")
    assert call("report", uri).stdout == "runs/my storage/report.html\n"
    assert call("replay", "runs/my storage").exit_code == 0
    assert call("report", uri, "first", "--out", "both").exit_code == 0
    assert "holds no run" in complaint(call("report", f"{uri} 2"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--storage", "ftp://host/x"), 'pyarrow knows no "ftp"'),
        (("--storage", "runs/x"), "wanted the URI of a folder"),
        (("--storage", "file:///x/../y"), "wanted the URI of a folder, without .."),
        (("--storage", "s3://key:secret@bucket/x"), "does not belong in a URI"),
        (("--storage", "file:///proc/nothing/x"), "file:///proc/nothing/x: cannot be written"),
        (("--or-resume",), "--or-resume: goes with --out FOLDER"),
    ],
)
def test_what_cannot_be_a_storage_is_refused(arguments, said):
    assert said in complaint(call(*RUN, *arguments))


def test_places_that_hold_something_else_are_left_alone(uri, tmp_path):
    open_storage(uri).write("notes/x", b"mine")
    assert "holds other things (notes)" in complaint(call(*RUN, "--storage", uri, "--out", "new"))
    assert not Path("new").exists()
    other = f"{uri} 2"
    assert call(*RUN, "--out", "own").exit_code == 0
    assert "holds something else than a copy of" in complaint(
        call(*RUN, "--out", "own", "--storage", other, "--or-resume")
    )
    stopped(other, "first")
    assert "holds a run already" in complaint(call(*RUN, "--storage", other))
    assert "goes with its URI" in complaint(call("resume", "own", "--out", "other"))
    assert "holds no run" in complaint(call("resume", f"{uri} 3"))
    assert "`raydpzv report URI` and `raydpzv resume URI`" in complaint(call("fetch", other))


def test_the_lines_of_the_page_run(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text()
    section = page.partition("## Machines that do not last")[2].partition("\n## ")[0]
    blocks = "".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL))
    commands = [
        shlex.split(line)
        for line in blocks.replace("s3://bucket", f"file://{tmp_path}/bucket").splitlines()
    ]
    assert [words[1] for words in commands] == ["run", "report"]
    for words in commands:
        stdout_of(call(*words[1:], *([*SET, "--quiet"] if words[1] == "run" else [])))
    assert Path("runs/digits/report.html").is_file()
    (line,) = re.findall(r"`(raydpzv\.run\(spec, .*?\))`", section)
    there = {"raydpzv": raydpzv, "spec": scenarios.load("digits_dpzv", CHANGES)}
    again = eval(line.replace("s3://bucket", f"file://{tmp_path}/bucket"), there)
    assert again.summary["digest"] == summary("runs/digits")["digest"]
