"""Short searches by the command line, and what they leave behind."""

from __future__ import annotations

import json
import signal
import time

import pyarrow.parquet as pq
from typer.testing import CliRunner

from raydpzv.records.run_folder import RunFolder
from scenarios.cli import app
from tests.helpers.programs import Forked

UPDATES = 50
SHORT = (f"budget.updates={UPDATES}", "evaluate.every=5", "data.train_rows=120", "data.test_rows=60")
FREE = ("privacy.mode=none",)
NOISED = ("privacy.epsilon=1e4", "method.perturbations=2")
"""So little noise that the order of trials is the same each time."""
SPACE = "method.lr.loguniform = [1e-3, 1e-1]\nmethod.momentum.uniform = [0.0, 0.95]\n"
ALONE = ("--runner", "local", "--quiet")
_LIMIT = 120


def raydpzv(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def command(folder, scenario, space, changes, samples, *more):
    """Return the words of a search by the loss."""
    path = folder.with_suffix(".toml")
    path.write_text(space)
    words = [w for change in (*SHORT, *changes) for w in ("--set", change)]
    drawn = ["--samples", samples, "--draw-seed", 1, "--metric", "loss", *more]
    return ["tune", scenario, "--space", path, *drawn, *words, "--out", folder]


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
    """Return the first loss after each number of updates; a run that ends has a second, of what was on its way."""
    rows = RunFolder(path).rows()["evaluation"].to_pylist()
    return {row["round"]: row["loss"] for row in reversed(rows) if row["part"] == "test"}


def table(folder):
    """Return the rows of a search's table but for what is timed, as text: there NaN is like NaN."""
    found = pq.read_table(folder / "trials.parquet").drop_columns(["seconds", "throughput"])
    return [str(row) for row in found.to_pylist()]


def killed_at(words, moment):
    """Run a command in a process of its own until a file is there, then kill it."""
    process, limit = Forked(["-m", "raydpzv", *map(str, words)]), time.monotonic() + _LIMIT
    while not moment.exists() and time.monotonic() < limit:
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
