from __future__ import annotations

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scenarios.cli import app

PAGE = (Path(__file__).parents[3] / "docs" / "tune.md").read_text()
SHORT = ["--set", "budget.updates=18", "--set", "evaluate.every=2", "--set", "data.train_rows=200"]

pytestmark = pytest.mark.ray


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def place(ray_session, tmp_path, monkeypatch):
    """A folder with the page's space files, in which its commands run."""
    monkeypatch.chdir(tmp_path)
    for text in blocks("toml"):
        Path(text.split()[1]).write_text(text)
    return tmp_path


def test_every_command_runs(place):
    commands = [shlex.split(line) for line in "".join(blocks("sh")).splitlines()]
    assert [words[1] for words in commands] == [
        "search",
        "run",
        "search",
        "search",
        "search",
        "search",
        "search",
        "resume",
    ]
    for words in commands:
        more = []
        if words[1] == "search":  # on Ray where it must be: its processes take seconds to come up
            more = [*SHORT, *(("--jobs", "1") if "--actors" in words else ("--runner", "local"))]
            more += ["--set", "resources.client_actors=0"] if "--actors" in words else []
        done = CliRunner().invoke(app, [*words[1:], *more, "--quiet"])
        if "optuna" in words and find_spec("optuna") is None:
            assert done.exit_code == 2
            assert "pip install 'raydpzv[optuna]'" in done.stderr
            continue
        assert done.exit_code == 0, (words, done.output)
    said = (place / "runs" / "private" / "best.toml").read_text()
    assert re.search(
        r"the whole search of 2 runs ε=1\.\d+ of all releases made \(replace, δ=", said
    )
    assert len(list((place / "runs" / "search" / "runs").iterdir())) == 8


def test_the_python_example_runs_and_tune_may_stop_its_trials(place):
    short, example = blocks("python")
    scope: dict[str, object] = {}
    exec(short, scope)
    assert scope["found"].table.num_rows == 4
    assert scope["again"].summary["updates"] == 60  # with noise of its own: no digest is a trial's
    exec(example, scope)
    assert scope["results"].num_errors == 0
    assert scope["best"] in (1e-3, 1e-2)
    summaries = [
        json.loads(path.read_text()) for path in (place / "runs" / "own").glob("*/summary.json")
    ]
    assert [summary["seed"] for summary in summaries] == [1, 1]
    # stopped by Tune, which leaves a whole summary of the updates made
    assert all(summary["status"] == "stopped" and summary["updates"] <= 20 for summary in summaries)
