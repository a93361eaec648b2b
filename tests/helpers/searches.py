"""Short searches by the command line, and what they leave behind."""

import json

import pyarrow.parquet as pq
import pytest

from raydpzv.records.run_folder import RunFolder
from raydpzv.search.search_folder import decisions
from tests.helpers.commands import call as raydpzv
from tests.helpers.commands import changed
from tests.helpers.programs import Kill, killed

UPDATES = 50
SHORT = (
    f"budget.updates={UPDATES}",
    "evaluate.every=5",
    "data.train_rows=120",
    "data.test_rows=60",
)
FREE = ("privacy.mode=none",)
NOISED = ("privacy.epsilon=1e4", "method.perturbations=2")
"""So little noise that the order of trials is the same each time."""
SPACE = "method.lr.loguniform = [1e-3, 1e-1]\nmethod.momentum.uniform = [0.0, 0.95]\n"
ALONE = ("--runner", "local", "--quiet")


def command(folder, scenario, space, changes, samples, *more):
    """Return the words of a search by the loss."""
    path = folder.with_suffix(".toml")
    path.write_text(space)
    drawn = ["--samples", samples, "--draw-seed", 1, "--metric", "loss", *more]
    return [
        "search",
        scenario,
        "--space",
        path,
        *drawn,
        *changed(*SHORT, *changes),
        "--out",
        folder,
    ]


def searched(folder, scenario, space, changes, samples, *more):
    """Search, and return what the command prints as JSON."""
    done = raydpzv(*command(folder, scenario, space, changes, samples, *more), "--json", "--quiet")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def ran(scenario, out):
    """Run a scenario, and return its summary."""
    done = raydpzv("run", scenario, "--out", out, "--quiet", "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def losses(path):
    """Return the first loss after each number of updates; a run that ends has a second, of what was
    on its way.
    """
    rows = RunFolder(path).rows()["evaluation"].to_pylist()
    return {row["round"]: row["loss"] for row in reversed(rows) if row["part"] == "test"}


def table(folder):
    """Return the rows of a search's table but for what is timed, as text: there NaN is like NaN."""
    found = pq.read_table(folder / "trials.parquet").drop_columns(["seconds", "throughput"])
    return [str(row) for row in found.to_pylist()]


def killed_at(words, folder, moment):
    """Run a command in a process of its own, killed once a file of this name, or like it, is below
    a folder.
    """
    killed(["-m", "raydpzv", *map(str, words)], Kill(folder, moment))


def check_bits_of_whole_runs(said, full, folder, out):
    """Who came to the end has the bits of the full search and of the run alone; who did not has
    others.
    """
    whole = {row["trial"]: row["digest"] for row in full["trials"]}
    for row in said["trials"]:
        assert (row["digest"] == whole[row["trial"]]) == (row["status"] == "done")
    assert ran(folder / "best.toml", out)["digest"] == whole[said["best"]]


def check_no_update_was_made_twice(folder, trials):
    """Each run holds its updates once, one after the other, and there is one run a trial."""
    for path in (folder / "runs").iterdir():
        rounds = RunFolder(path).rows()["service"]["round"].to_pylist()
        assert rounds == list(range(1, RunFolder(path).summary()["updates"] + 1))
    assert {path.name for path in (folder / "runs").iterdir()} == {
        f"{n:04d}" for n in range(trials)
    }


def check_goes_on(folder, whole):
    """What was killed comes to the table and decisions of what was not; continued again, it touches
    no run.
    """
    before = decisions(folder)
    on = raydpzv("resume", folder, *ALONE)
    assert on.exit_code == 0, on.output
    assert table(folder) == table(whole)
    assert decisions(folder) == decisions(whole)
    assert decisions(folder)[: len(before)] == before
    again = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")}
    assert raydpzv("resume", folder, *ALONE).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")} == again


def epsilon_by_end(said, folder):
    """Return each trial's ε by how many updates it made: that of its releases, of noise for the
    whole budget.
    """
    by_end = {}
    for row in said["trials"]:
        released = RunFolder(folder / "runs" / f"{row['trial']:04d}").rows()["release"]
        assert row["epsilon"] == released["epsilon_client"].to_pylist()[-1]
        assert set(released["round"].to_pylist()) == set(range(1, int(row["updates"]) + 1))
        by_end.setdefault(row["updates"], set()).add(row["epsilon"])
    assert all(len(found) == 1 for found in by_end.values()), "as many releases, the same ε"
    assert max(by_end[UPDATES]) == pytest.approx(1e4, rel=1e-2)
    for one in said["spent"]:
        assert one["cut"]
        assert one["spent"] < one["planned"]
        assert "the plan's is the number to claim" in one["sentence"]
    return {end: min(found) for end, found in by_end.items()}
