"""`raydpzv search ... --storage URI`: a search whose machine is lost goes on, and what it may have released counts."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from raydpzv.compare import run_comparison
from raydpzv.errors import NotRecomputable
from raydpzv.privacy.gdp import mu_of
from raydpzv.search import failed_trials as lost_trials
from raydpzv.storage import download
from raydpzv.storage.commits import NO_NOISE, TRIALS, Commit, latest
from raydpzv.storage.filesystem import StorageFolder, open_place
from raydpzv.storage.lease import Lease
from raydpzv.storage.uploader import FolderUploader
from scenarios.cli import app
from tests.helpers.kills import Killed
from tests.helpers.storages import QUICK

SHORT = ("budget.updates=12", "evaluate.every=6", "data.train_rows=200", "record.checkpoint_updates=4")
SEARCH = ["search", "digits_private", "--space", "space.toml", "--runner", "local", "--quiet"]
SEARCH += [word for change in SHORT for word in ("--set", change)]
SEEDED = ("--set", "privacy.mode=none")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "PACE", QUICK)
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
    """Make a search, and end it as a kill does before its second trial is over; last: what is brought then."""
    run, made = run_comparison.run_planned, []

    def killed(*given, **named):
        if len(made) == after:
            raise Killed
        made.append(given)
        return run(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(run_comparison, "run_planned", killed)
        patch.setattr(FolderUploader, "_last", last)
        patch.setattr("raydpzv.storage.lease.Lease.release", lambda self: None)
        with pytest.raises(Killed):
            CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def rows(folder):
    table = pq.read_table(f"{folder}/trials.parquet")
    return [str(row) for row in table.drop_columns(["seconds"]).to_pylist()]


def test_a_search_goes_on_on_another_machine_to_the_same_table(uri, monkeypatch):
    call(*SEARCH, *SEEDED, "--out", "whole")
    lost(monkeypatch, *SEARCH, *SEEDED, "--out", "lost", "--storage", uri)
    shutil.rmtree("lost")
    assert latest(open_place(uri)).kind == "search"
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
        Lease.take(open_place(uri), 0.1)
        done = call(*loud, *SEEDED, "--storage", uri, "--out", out)
        assert re.search(r"waiting for process \d+ on .*, which wrote to file://", done.stderr)


def test_trials_that_a_lost_machine_may_have_made_count_as_whole(uri, monkeypatch):
    whole = json.loads(call(*SEARCH, "--out", "whole", "--json").stdout)
    lost(monkeypatch, *SEARCH, "--out", "lost", "--storage", uri)
    shutil.rmtree("lost")
    assert latest(open_place(uri)).noise == TRIALS
    again = json.loads(call("resume", uri, "--out", "here", "--runner", "local", "--quiet", "--json").stdout)
    assert [row["restarts"] for row in again["trials"]] == [0, 1, 1]
    # μ² of three trials, and of these and the two that may have been made on the lost machine
    for now, before in zip(again["spent"], whole["spent"], strict=True):
        assert (now["runs"], before["runs"]) == (5, 3)
        squared = [mu_of(found["spent"], found["delta"]) ** 2 for found in (now, before)]
        assert squared[0] == pytest.approx(squared[1] * 5 / 3, rel=1e-6)
        assert now["winner"] == before["winner"]
        unknown = (
            "releases made or possibly made (nobody knows how far 2 of them came: all of their plan counts)"
        )
        assert unknown in now["sentence"]
        assert "possibly" not in before["sentence"]


def test_noise_of_trials_that_are_chosen_later_is_in_the_storage_before_they_begin(
    uri, monkeypatch, tmp_path
):
    """Trials without noise come first here; whoever takes over once there are others must know of these."""
    (tmp_path / "space.toml").write_text('privacy.mode.choice = ["none", "sound"]\n')

    def suggested(space, outcomes, count, seed, *, higher, accepts):
        return [('privacy.mode="sound"' if outcomes else 'privacy.mode="none"',)]

    for module in ("raydpzv.search.search_plan", "scenarios.commands.search"):
        monkeypatch.setattr(f"{module}.suggested", suggested)
    monkeypatch.setattr("scenarios.commands.search.require_optuna", lambda: None)
    monkeypatch.setattr(download, "PACE", replace(QUICK, commit=1000.0))
    learning = (*SEARCH, "--search", "optuna", "--samples", "2", "--storage", uri)
    for out, after, noise in (("first", 0, NO_NOISE), ("second", 1, TRIALS)):
        lost(monkeypatch, *learning, "--out", out, after=after, last=lambda self, **how: None)
        shutil.rmtree(out)
        assert latest(open_place(uri)).noise == noise
    done = CliRunner().invoke(app, ["resume", uri, "--out", "third", "--runner", "local"])
    assert done.exit_code == 2, done.output
    assert "nobody knows what was released" in done.stderr


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


def test_on_the_machine_that_is_not_lost_nothing_is_charged(uri, monkeypatch):
    lost(monkeypatch, *SEARCH, "--out", "lost", "--storage", uri)
    again = json.loads(call("resume", "lost", "--runner", "local", "--quiet", "--json").stdout)
    assert [row["restarts"] for row in again["trials"]] == [0, 0, 0]
    assert latest(open_place(uri)).over


@pytest.mark.parametrize("chosen", ["drawing", "population"])
def test_where_trials_hang_on_results_that_were_lost_it_is_refused(tmp_path, monkeypatch, chosen):
    class Plan:
        drawing = population = None

    setattr(Plan, chosen, object())
    monkeypatch.setattr(lost_trials, "read_search", lambda path: Plan())
    base = Commit(1, 0, "search", "w", {}, noise=TRIALS)
    with pytest.raises(NotRecomputable, match="nobody knows what was released"):
        lost_trials.charge_lost_trials(tmp_path, base)
