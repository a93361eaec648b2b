import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import raydpzv
from raydpzv.files import PLAN
from scenarios.options import chosen_logs, logs_begun
from tests.helpers.commands import call, complaint, stdout_of
from tests.helpers.small_horizontal import stop_after

SHORT = ["--set", "budget.updates=12", "--set", "evaluate.every=4"]
PAGE = (Path(__file__).parents[3] / "docs" / "watching.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_every_command_runs_and_a_stopped_run_continues_with_its_logs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in "".join(blocks("sh")).splitlines():
        words = shlex.split(line)[1:]
        stdout_of(call(*words, *SHORT, "--quiet"))
    files = {path.name for path in (tmp_path / "runs" / "watched").iterdir()}
    assert {"scalars.csv", "tensorboard", "log.jsonl"} <= files
    spec = raydpzv.load("digits_decomfl", ["budget.updates=8", "evaluate.every=4"])
    raydpzv.run(spec, tmp_path / "run", **stop_after(5), callbacks=chosen_logs("csv,json"))
    stdout_of(call("resume", "run", "--log", "csv,json", "--quiet"))
    scalars = (tmp_path / "run" / "scalars.csv").read_text().splitlines()
    assert [line for line in scalars if line.startswith("update")] == scalars[:1]
    assert {line.split(",")[0] for line in scalars if ",accuracy," in line} == {"0", "4", "5", "8"}
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines if line["event"] == "end"] == ["stopped", "done"]


def test_a_run_continues_with_the_logs_that_it_has_whichever_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = raydpzv.load("digits_decomfl", ["budget.updates=8", "evaluate.every=4"])
    begun = chosen_logs("csv,json,tensorboard")
    raydpzv.run(spec, tmp_path / "run", **stop_after(5), callbacks=begun[:2])
    stdout_of(call("resume", "run", "--log", "json", "--quiet"))
    scalars = (tmp_path / "run" / "scalars.csv").read_text().splitlines()
    assert {line.split(",")[0] for line in scalars if ",accuracy," in line} == {"0", "4", "5", "8"}
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines if line["event"] in ("start", "end")] == [
        "start",
        "end",
    ] * 2
    assert not (tmp_path / "run" / "tensorboard").exists()
    (tmp_path / "run" / "tensorboard").mkdir()
    kinds = [type(log) for log in logs_begun(tmp_path / "run", begun[:1])]
    assert kinds == [type(log) for log in (begun[2], begun[1])]
    assert logs_begun(tmp_path / "none", ()) == []


def test_a_log_that_cannot_continue_is_said_and_the_run_continues(tmp_path, monkeypatch, capsys):
    (tmp_path / "tensorboard").mkdir()
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert logs_begun(tmp_path, ()) == []
    said = capsys.readouterr().err
    assert (
        f"warning: {tmp_path}/tensorboard ends here: --log tensorboard: tensorboardX is not" in said
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("run", "digits_dpzv", "--log", "cvs"), 'unknown log "cvs". Did you mean "csv"?'),
        (("resume", "many", "--log", "csv"), "--log: goes with a single run, and many holds many"),
    ],
)
def test_a_wrong_log_is_refused_in_one_line(tmp_path, monkeypatch, command, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / PLAN).touch()
    assert said in complaint(call(*command))
    assert [path.name for path in tmp_path.iterdir()] == ["many"]


def test_the_callback_of_the_page_hears_the_runs_evaluations(capsys):
    (example,) = blocks("python")
    shown: dict[str, Any] = {}
    exec(example, shown)
    lines = capsys.readouterr().out.splitlines()
    rows = shown["run"].rows("evaluation").to_pylist()
    best = max(row["accuracy"] for row in rows if row["part"] == "validation")
    assert lines[-1] == f"done after 200 updates, at best {best:.3f}"
    assert lines[-2].endswith(f": {best:.3f}")
