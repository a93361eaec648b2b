import json
import re
import shutil
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from raydpzv.compare import run_comparison
from raydpzv.storage import download
from raydpzv.storage.filesystem import StorageFolder, open_storage
from raydpzv.storage.lease import Lease
from raydpzv.storage.manifest import FRESH_NOISE, NO_NOISE, latest
from raydpzv.storage.uploader import FolderUploader
from scenarios.cli import app
from tests.helpers.kills import Killed
from tests.helpers.storages import QUICK

SHORT = (
    "budget.updates=12",
    "evaluate.every=6",
    "data.train_rows=200",
    "record.checkpoint_updates=4",
)
SEARCH = ["search", "digits_private", "--space", "space.toml", "--runner", "local", "--quiet"]
SEARCH += [word for change in SHORT for word in ("--set", change)]
SEEDED = ("--set", "privacy.mode=none")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMES", QUICK)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.toml").write_text("method.lr.grid = [0.1, 0.2, 0.3]\n")


@pytest.fixture
def uri(tmp_path):
    return (tmp_path / "storage").as_uri()


def call(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, (done.output, done.exception)
    return done


def lost(monkeypatch, *words, after=1, last=lambda self, **how: self.flush()):
    """Make a search, and end it as a kill does before its second trial is over; last: what is
    brought then.
    """
    run, made = run_comparison.run_planned, []

    def killed(*given, **named):
        if len(made) == after:
            raise Killed
        made.append(given)
        return run(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(run_comparison, "run_planned", killed)
        patch.setattr(FolderUploader, "_finish", last)
        patch.setattr("raydpzv.storage.lease.Lease.release", lambda self: None)
        with pytest.raises(Killed):
            CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def rows(folder):
    table = pq.read_table(f"{folder}/trials.parquet")
    return [str(row) for row in table.drop_columns(["seconds"]).to_pylist()]


def test_a_search_continues_on_another_machine_to_the_same_table(uri, monkeypatch):
    call(*SEARCH, *SEEDED, "--out", "whole")
    lost(monkeypatch, *SEARCH, *SEEDED, "--out", "lost", "--storage", uri)
    shutil.rmtree("lost")
    assert latest(open_storage(uri)).kind == "search"
    resumed = call("resume", uri, "--out", "here", "--runner", "local")
    assert "to show that it lives; if it has not after 0.5 s" in resumed.stderr
    assert rows("here") == rows("whole")
    call("fetch", uri, "fetched")
    assert rows("fetched") == rows("whole")
    # the same line again, wherever it is started, shows it
    call(*SEARCH, *SEEDED, "--storage", uri, "--out", "again")
    assert rows("again") == rows("whole")


def test_a_search_says_whose_lease_it_waits_for(uri):
    loud = [word for word in SEARCH if word != "--quiet"]
    for out in ("begun", "gone-on-with"):
        Lease.acquire(open_storage(uri), 0.1)
        done = call(*loud, *SEEDED, "--storage", uri, "--out", out)
        assert re.search(r"waiting for process \d+ on .*, which wrote to file://", done.stderr)


def test_a_lost_search_with_fresh_noise_resumes_in_its_own_folder_alone(uri, monkeypatch):
    lost(monkeypatch, *SEARCH, "--out", "lost", "--storage", uri)
    assert latest(open_storage(uri)).noise == FRESH_NOISE
    refused = CliRunner().invoke(app, ["resume", uri, "--out", "here", "--runner", "local"])
    assert refused.exit_code == 2, refused.output
    assert "this search draws its noise from the system" in refused.stderr
    again = json.loads(call("resume", "lost", "--runner", "local", "--quiet", "--json").stdout)
    assert [row["restarts"] for row in again["trials"]] == [0, 0, 0]
    assert latest(open_storage(uri)).over


def test_noise_of_trials_that_are_chosen_later_is_in_the_storage_before_they_begin(
    uri, monkeypatch, tmp_path
):
    """Trials without noise come first here; whoever takes over once there are others must know of
    these.
    """
    (tmp_path / "space.toml").write_text('privacy.mode.choice = ["none", "proved"]\n')

    def suggested(space, outcomes, count, seed, *, higher, accepts):
        return [('privacy.mode="proved"' if outcomes else 'privacy.mode="none"',)]

    for module in ("raydpzv.search.search_plan", "raydpzv.search.run_search"):
        monkeypatch.setattr(f"{module}.suggested", suggested)
    monkeypatch.setattr("raydpzv.search.run_search.require_optuna", lambda: None)
    monkeypatch.setattr(download, "TIMES", replace(QUICK, commit=1000.0))
    learning = (*SEARCH, "--search", "optuna", "--samples", "2", "--storage", uri)
    for out, after, noise in (("first", 0, NO_NOISE), ("second", 1, FRESH_NOISE)):
        lost(monkeypatch, *learning, "--out", out, after=after, last=lambda self, **how: None)
        shutil.rmtree(out)
        assert latest(open_storage(uri)).noise == noise
    done = CliRunner().invoke(app, ["resume", uri, "--out", "third", "--runner", "local"])
    assert done.exit_code == 2, done.output
    assert "did not end cleanly" in done.stderr


def test_a_storage_that_fails_for_good_stops_the_search(uri, monkeypatch):
    put = StorageFolder.write

    def full(self, name, data):
        if name.startswith("commits/") and not name.endswith("-00000000.json"):
            raise OSError(28, "No space left on device")
        put(self, name, data)

    monkeypatch.setattr(StorageFolder, "write", full)
    long = ("--set", "budget.updates=20000", "--storage", uri, "--out", "out")
    with pytest.warns(RuntimeWarning, match="tried again"):
        done = CliRunner().invoke(app, [*SEARCH, *long])
    assert done.exit_code == 1
    assert "cannot be written (No space left on device)" in done.stderr
    made = pq.read_table("out/trials.parquet")["updates"].to_pylist()
    assert max(n for n in made if n == n) < 20000
