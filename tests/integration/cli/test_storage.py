import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

import raydpzv
import scenarios
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.runner import run_local
from raydpzv.storage import download
from raydpzv.storage.download import stored_kind
from raydpzv.storage.filesystem import open_storage
from raydpzv.storage.lease import Lease
from tests.helpers.commands import call, changed, complaint
from tests.helpers.kills import Killed
from tests.helpers.small_horizontal import stop_after
from tests.helpers.storages import QUICK, leave_as_killed

CHANGES = ("privacy.noise=seeded", "budget.updates=60", "evaluate.every=20", "data.train_rows=200")
SET = changed(*CHANGES)
RUN = ("run", "digits_dpzv", *SET, "--quiet")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, unrendered):
    monkeypatch.setattr(download, "TIMES", QUICK)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def uri(tmp_path):
    return f"file://{tmp_path}/my storage"


def summary(folder):
    return json.loads((Path(folder) / "summary.json").read_text())


def stopped(uri, folder, at=25):
    spec = scenarios.load("digits_dpzv", CHANGES)
    stop, progress = stop_after(at)
    with download.created(uri, "run") as uploader:
        run_local(prepare(spec), RunOptions(folder, storage=uploader, progress=progress, stop=stop))


def test_one_line_begins_continues_and_shows_wherever_it_is_started(uri):
    digest = scenarios.run(scenarios.load("digits_dpzv", CHANGES)).summary["digest"]
    line = (*RUN, "--storage", uri, "--or-resume")
    stopped(uri, Path("first"))
    done = call(*line)
    assert done.exit_code == 0, done.output
    assert summary("runs/my storage")["digest"] == digest
    shutil.rmtree("runs")
    shown = call(*line, "--json")
    assert json.loads(shown.stdout)["digest"] == digest
    assert summary("runs/my storage")["digest"] == digest
    for out, (named, option) in {
        "runs/my storage": ("my storage", "--out"),
        "other": (uri, "--storage"),
    }.items():
        before = Path(out).exists()
        said = complaint(call(*line, "--out", out, "--set", "method.lr=0.5"))
        assert f"{named}: holds a run with other settings: method.lr is " in said
        assert f"asked for is 0.5; choose another {option}" in said
        assert Path(out).exists() is before


def test_a_place_that_holds_a_search_or_other_things_is_left_as_it_is(uri, tmp_path):
    place = open_storage(uri)
    place.write("notes.txt", b"mine")
    assert "holds other things (notes.txt)" in complaint(
        call(*RUN, "--storage", uri, "--out", "first")
    )
    assert place.entries() == ["notes.txt"]
    assert not Path("first").exists()
    with (
        download.created(f"{uri} 2", "search") as uploader,
        uploader.uploads(tmp_path / "nothing", fresh_noise=False),
    ):
        pass
    line = (*RUN, "--storage", f"{uri} 2", "--or-resume", "--out", "first")
    assert "holds a search; choose another --storage" in complaint(call(*line))
    assert not Path("first").exists()


def test_a_storage_is_continued_with_by_its_uri_and_by_its_folder(uri):
    stopped(uri, Path("first"))
    assert call("resume", uri, "--out", "second", "--quiet").exit_code == 0
    assert summary("second")["updates"] == 60
    assert "nothing to resume" in complaint(call("resume", "second", "--quiet"))
    assert "an older copy of this storage" in complaint(call("resume", "first", "--quiet"))
    other = f"{uri} 2"
    stopped(other, Path("third"))
    assert call("resume", "third", "--quiet").exit_code == 0
    assert summary("third")["digest"] == summary("second")["digest"]


def test_what_is_there_is_fetched_and_read(uri):
    stopped(uri, Path("first"))
    assert call("fetch", uri, "copy").stdout == "copy\n"
    assert call("replay", "copy").exit_code == 0
    assert call("report", "copy").exit_code == 0
    assert "is there already" in complaint(call("fetch", uri, "copy"))
    assert "holds no run" in complaint(call("fetch", f"{uri} 2", "other"))


def killed(uri, folder, at=25):
    """Leave a run in its storage as a kill does."""

    def die(status):
        if status.updates >= at:
            uploader.flush()
            leave_as_killed(uploader)
            raise Killed

    with download.created(uri, "run") as uploader, pytest.raises(Killed):
        run_local(
            prepare(scenarios.load("digits_dpzv", (*CHANGES, "record.checkpoint_updates=10"))),
            RunOptions(folder, storage=uploader, progress=die),
        )


def test_who_waits_for_a_lease_to_run_out_is_told_so(uri):
    place = open_storage(uri)
    Lease.acquire(place, 0.1)
    waited = re.compile(
        r"waiting for process \d+ on .*, which wrote to file://.*my storage( \d)?, to show that it"
        r" lives"
    )
    begun = call(*RUN[:-1], "--storage", uri, "--out", "first")
    assert waited.search(begun.stderr), begun.stderr
    assert begun.exit_code == 0
    assert (
        "to show that it lives"
        not in call(*RUN[:-1], "--storage", f"{uri} 2", "--out", "alone").stderr
    )
    killed(f"{uri} 3", Path("lost"))
    assert waited.search(call("resume", f"{uri} 3", "--out", "second").stderr)
    with download.created(f"{uri} 5", "run") as uploader:  # whole here, and its end was not brought

        def lost(status):
            if status.updates == 60:
                leave_as_killed(uploader)

        run_local(
            prepare(scenarios.load("digits_dpzv", CHANGES)),
            RunOptions(Path("whole"), storage=uploader, progress=lost),
        )
    shown = call(*RUN[:-1], "--storage", f"{uri} 5", "--out", "whole", "--or-resume")
    assert (shown.exit_code, bool(waited.search(shown.stderr))) == (0, True), shown.output
    killed(f"{uri} 4", Path("other"))
    assert call("resume", f"{uri} 4", "--out", "third", "--quiet").stderr == ""


def test_a_copy_of_a_run_under_way_is_not_sent_to_continue_with_it_here(uri):
    killed(uri, Path("first"))
    bring, on = f"raydpzv fetch '{uri}' FOLDER", f"raydpzv resume '{uri}' --out FOLDER"
    said = call("fetch", uri, "copy")
    assert said.stdout == "copy\n"
    assert (
        "copy: is of a run that had not ended: it is under way, or its machine is lost; if so, "
        in said.stderr
    )
    assert on in said.stderr
    for words in (("report", "copy"), ("audit", "copy"), ("publish", "copy", "--out", "out")):
        line = complaint(call(*words))
        assert f"copy: is a copy of {uri} from before its run ended" in line
        assert bring in line
        assert on in line
    assert "the run has not finished: is a copy of " in call("replay", "copy").stdout
    Path(
        "first/summary.json"
    ).unlink()  # which an error that is raised here leaves, and a kill does not
    # where it was made going on is the right thing, and so says the folder
    assert "continue it first: raydpzv resume first" in call("report", "first").stderr
    call(*shlex.split(on)[1:-1], "second", "--quiet")
    assert on in complaint(call("resume", "copy")), "it is older than the storage now"
    assert call("fetch", uri, "whole").stderr == ""
    assert call("report", "whole").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--storage", "ftp://host/x"), 'pyarrow knows no "ftp"'),
        (("--storage", "runs/x"), "wanted the URI of a folder"),
        (("--storage", "s3://key:secret@bucket/x"), "does not belong in a URI"),
        (
            ("--storage", "file:///proc/nothing/x"),
            "file:///proc/nothing/x: cannot be read or written",
        ),
        (("--or-resume",), "--or-resume: goes with --out FOLDER"),
    ],
)
def test_what_cannot_be_a_storage_is_refused_before_anything_is_written(arguments, said):
    assert said in complaint(call(*RUN, *arguments))
    assert not Path("runs").exists()


def test_a_storage_with_a_run_in_it_or_a_live_writer_is_refused(uri, monkeypatch):
    stopped(uri, Path("first"))
    assert "holds a run already" in complaint(call(*RUN, "--storage", uri))
    place = open_storage(uri)
    lease = Lease.acquire(place, 1.0)
    monkeypatch.setattr("raydpzv.storage.lease._outlive", moving(lease))
    said = complaint(call("resume", uri, "--quiet"))
    assert "is writing to this storage; wait for it, stop it, or choose another" in said


def moving(lease):
    from raydpzv.storage import lease as module

    watch = module._outlive

    def outlive(place, last, usual, sleep, waits):
        watch(place, last, usual, lambda seconds: lease.renew(), waits)

    return outlive


def test_the_commands_of_the_page_run(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text()
    section = page.partition("## Machines that do not last")[2].partition("\n## ")[0]
    blocks = "".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL))
    commands = [
        shlex.split(line) for line in blocks.replace("/shared/", f"{tmp_path}/").splitlines()
    ]
    assert [words[1] for words in commands] == ["run", "fetch", "report"]
    for words in commands:
        done = call(*words[1:], *([*SET, "--quiet"] if words[1] == "run" else []))
        assert done.exit_code == 0, (words, done.output)
    assert (tmp_path / "runs" / "copy" / "report.html").is_file()
    (line,) = re.findall(r"`(raydpzv\.run\(spec, .*?\))`", section)
    there = {"raydpzv": raydpzv, "spec": scenarios.load("digits_dpzv", CHANGES)}
    eval(
        line.replace("/shared/digits", f"{tmp_path}/python").replace("runs/digits", "runs/python"),
        there,
    )
    assert stored_kind(f"file://{tmp_path}/python") == "run"


def test_a_folder_that_is_no_copy_is_left_alone(uri):
    assert call(*RUN, "--out", "own").exit_code == 0
    assert "is no copy of" in complaint(call(*RUN, "--out", "own", "--storage", uri, "--or-resume"))
    assert "goes with its URI" in complaint(call("resume", "own", "--out", "other"))
    assert "holds no run and no search" in complaint(call("resume", uri))
