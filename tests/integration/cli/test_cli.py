import json
import os
import shutil
import signal

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from typer.testing import CliRunner

import scenarios
from raydpzv.config.catalog import names
from raydpzv.errors import RunError
from raydpzv.records.run_folder import drop_checkpoints
from raydpzv.records.store import read_rows
from scenarios.cli import app
from scenarios.commands import resume
from tests.helpers.commands import call, changed, complaint, stdout_of
from tests.helpers.programs import start

QUICK = ["--set", "budget.updates=60", "--set", "evaluate.every=20"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of 60 updates, for what only reads it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert call("run", "digits_dpzv", *QUICK, "--out", folder).exit_code == 0
    return folder


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    """The folder of a run of the control."""
    folder = tmp_path_factory.mktemp("frozen") / "run"
    assert call("run", "frozen", *QUICK, "--out", folder).exit_code == 0
    return folder


def test_the_list_of_commands_is_whole_at_120_columns():
    said = CliRunner().invoke(app, ["--help"], terminal_width=120).stdout
    commands = said.partition("Commands:")[2].splitlines()
    assert len(commands) > 10
    assert not [line for line in commands if line.endswith("...")]


def test_run_prints_one_screen_or_every_table_and_writes_a_folder(tmp_path):
    short = call("run", "digits_dpzv", *QUICK, "--out", tmp_path / "short").stdout
    assert len(short.splitlines()) <= 24
    for word in (
        "NOT PRIVATE",
        "test accuracy",
        "staleness",
        "bytes",
        "time",
        "--explain",
        "raydpzv report",
    ):
        assert word in short
    stdout = stdout_of(call("run", "digits_dpzv", *QUICK, "--out", tmp_path / "run", "--explain"))
    for word in ("accuracy", "NOT PRIVATE", "paper", "client", "server", str(tmp_path / "run")):
        assert word in stdout.replace("\n", "") or word in stdout
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["updates"] == 60


def test_json_is_alone_on_stdout(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "raydpzv.records.callbacks.Callbacks.last_status", print
    )  # as Ray and others may
    result = call("run", "digits_dpzv", *QUICK, "--out", tmp_path / "run", "--json", "--seed", 3)
    summary = json.loads(result.stdout)
    assert (summary["scenario"], summary["seed"], summary["updates"]) == ("digits_dpzv", 3, 60)
    assert summary.pop("folder") == str(tmp_path / "run")
    assert "Status(" in result.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary


def test_the_default_folder_is_new_each_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert call("run", "frozen", *QUICK).exit_code == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_a_scenario_can_be_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        '[budget]\nupdates = 20\n[data]\nsource = "wine"\n[method]\nname = "frozen"\nbatch = 16\n'
    )
    result = call("run", path, "--out", tmp_path / "run", "--json")
    assert json.loads(result.stdout)["scenario"] == "mine"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["method.clipp=1"], "method.clipp: unknown setting"),
        (["split.clients=9"], "9 clients"),
        (["data.source=mnist", "data.folder=nowhere"], "train-images"),
        (['privacy={mode="paper", epsilon=1.0, clip=1.0}'], "privacy.delta: wanted with ε"),
        (["data.validation_fraction=0.001"], "too few to appear in training and validation rows"),
        (
            ["split.columns=[[1.5]]"],
            "split.columns.0.0: wanted a column's number or its name, got 1.5",
        ),
        (["seed=-1"], "seed: wanted greater than or equal to 0, got -1"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2_and_writes_nothing(tmp_path, overrides, said):
    result = call("run", "digits_dpzv", *changed(*overrides), "--out", tmp_path / "run")
    assert said in complaint(result)
    assert not (tmp_path / "run").exists()


def test_nan_in_features_is_refused(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text(
        "a,b,label\n" + "".join(f"{i},{'nan' if i == 7 else i},{i % 2}\n" for i in range(20))
    )
    scenario = tmp_path / "mine.toml"
    scenario.write_text(
        f'[data]\nsource = "csv"\nfile = "{table}"\ntarget = "label"\n[split]\nclients = 2\n'
        '[method]\nname = "frozen"\nbatch = 4\n[budget]\nupdates = 5\n'
    )
    line = complaint(call("run", scenario, "--out", tmp_path / "run"))
    assert '"b"' in line or " b" in line
    assert not (tmp_path / "run").exists()


def test_an_unwritable_output_folder(tmp_path):
    (tmp_path / "file").write_text("")
    line = complaint(call("run", "digits_dpzv", *QUICK, "--out", tmp_path / "file" / "run"))
    assert "cannot write the run folder" in line


def test_unknown_names():
    assert 'Did you mean "digits_dpzv"?' in complaint(call("run", "digits_dpz"))
    assert '--runner: wanted local or ray, got "rya"' in complaint(
        call("run", "digits_dpzv", "--runner", "rya")
    )
    assert call("runn").exit_code == 2


def test_privacy_shows_every_adversary_and_the_reason(tmp_path):
    stdout = stdout_of(call("privacy", "digits_dpzv"))
    for word in ("paper", "client", "external", "server", "replace", "NOT PRIVATE", "> 10"):
        assert word in stdout
    explained = call("privacy", "digits_dpzv", "--explain").stdout
    assert "157,480" in explained
    assert explained.count("PRIVATE") == 1, "the verdict is printed once"
    lines = call("privacy", "digits_private").stdout.strip().splitlines()
    assert lines[-1].startswith("--explain: "), "what is public comes before the hint"
    assert any(line.startswith("classes: ") for line in lines[:-1])
    found = json.loads(call("privacy", "digits_dpzv", "--json").stdout)
    assert found["private"] is False
    assert found["private_reason"].startswith("NOT PRIVATE")
    paper = [c for c in found["epsilon"] if c["adversary"] == "paper"]
    assert paper[0]["epsilon"] == pytest.approx(1.0)
    assert {c["adversary"] for c in found["epsilon"]} == {"paper", "client", "external", "server"}


def test_privacy_reproduces_the_papers_gap_without_the_data():
    """D=60,000, B=64, ε=1, δ=1e-3, 100 epochs: 106.6 (replace) for the client that chose its
    batches.
    """
    frozen = changed("method.server=frozen", "split.clients=1", "clock.compute=1")
    found = json.loads(call("privacy", "mnist_dpzv", "--rows", 60000, *frozen, "--json").stdout)
    client = {c["relation"]: c["epsilon"] for c in found["epsilon"] if c["adversary"] == "client"}
    assert client["replace"] == pytest.approx(106.6, rel=0.02)
    assert client["add_remove"] == pytest.approx(35.3, rel=0.02)


def test_privacy_of_a_run_without_noise():
    assert "NOT PRIVATE: no noise" in " ".join(stdout_of(call("privacy", "sgd")).split())


def test_list_names_everything():
    output = call("list").stdout
    assert all(
        name in output for name in (*names(), "dpzv", "frozen", "sgd", "mnist", "breast_cancer")
    )
    assert call("list", "--settings").stdout.startswith("# Settings of a scenario")


def test_report_writes_one_page_and_pictures(finished, tmp_path):
    stdout = stdout_of(call("report", finished))
    page = finished / "report.html"
    assert str(page) in stdout.replace("\n", "")
    text = page.read_text()
    assert "NOT PRIVATE" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    pictures = {p.name for p in (finished / "plots").glob("*.png")}
    assert {
        "accuracy_over_updates.png",
        "accuracy_over_seconds.png",
        "accuracy_over_bytes.png",
    } <= pictures
    assert len(pictures) >= 6
    complaint(call("report", tmp_path))


def test_replay_checks_and_writes_models(finished, tmp_path):
    result = call("replay", finished, "--out", tmp_path / "models.npz")
    assert (
        "replayed 60 updates; every loss and all final parameters have the recorded bits"
        in result.stdout
    )
    final, again = np.load(finished / "models.npz"), np.load(tmp_path / "models.npz")
    assert all(np.array_equal(final[name], again[name]) for name in final.files)
    one = call("replay", finished, "--client", 2, "--at", 30)
    assert "client 2: 610 parameters" in one.stdout
    assert "client 1" not in one.stdout
    assert "--client: wanted 0..3, got 4" in complaint(call("replay", finished, "--client", 4))
    assert "--at: wanted 1..60" in complaint(call("replay", finished, "--at", 99))


def test_a_replay_says_of_a_run_without_an_end_that_it_has_none_and_what_its_ledger_has_beyond(
    finished, tmp_path
):
    assert "has not finished" not in call("replay", finished).stdout
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "summary.json").unlink()
    said = "the run has not finished: "
    all_of_it = call("replay", folder).stdout
    assert f"{said}the run was killed; continue it first: raydpzv resume {folder}" in all_of_it
    assert "its ledger continues" not in all_of_it
    for part in (folder / "rows").rglob("*.parquet"):
        rows = pq.read_table(part)
        if "round" in rows.column_names:
            pq.write_table(rows.filter(pc.less_equal(rows["round"], 40)), part)
    cut = call("replay", folder).stdout
    assert "replayed 40 updates" in cut
    assert said in cut
    assert "its ledger continues to update 60; the rows to replay it by end at 40" in cut
    early = call("replay", folder, "--at", 10).stdout
    assert said in early
    assert "its ledger continues" not in early
    with FileLock(folder / ".lock"):
        assert (
            f"{said}another process is writing this run"
            in call("replay", folder, "--client", 2).stdout
        )


def test_a_replay_says_of_a_run_that_was_stopped_or_failed_that_it_has_not_come_to_its_end(
    finished, tmp_path
):
    folder = shutil.copytree(finished, tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    for status, said in (("stopped", "it was stopped"), ("failed", "it failed")):
        (folder / "summary.json").write_text(json.dumps(summary | {"status": status}))
        assert f"the run has not finished: {said}\n" in call("replay", folder, "--client", 1).stdout
    assert "has not finished" not in call("replay", finished, "--client", 1).stdout


def test_a_failed_run_is_one_line_and_exit_status_1(tmp_path, monkeypatch):
    from raydpzv.methods.vertical.dpzv import DpzvServer

    def failing(self, upload):
        raise ValueError("planted")

    monkeypatch.setattr(DpzvServer, "receive", failing)
    result = call("run", "digits_dpzv", *QUICK, "--quiet", "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert result.stderr.strip().count("\n") == 0
    assert "planted" in result.stderr
    assert "Traceback" in (tmp_path / "run" / "error.log").read_text()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_ctrl_c_leaves_a_readable_folder_and_says_how_to_continue(tmp_path, clock):
    folder = tmp_path / "run"
    process = start(folder, "--set", f"clock.kind={clock}", "--set", "arrivals.rate=30")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert f"raydpzv resume {folder}" in errors
    assert "Traceback" not in errors
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "stopped"
    assert summary["updates"] == read_rows(folder, "release").num_rows > 0
    assert call("report", folder).exit_code == 0
    assert call("replay", folder).exit_code == 0


@pytest.mark.parametrize(("clock", "runner"), [("wall", "ray"), ("virtual", "local")])
def test_real_time_continues_with_the_runner_that_made_it(tmp_path, monkeypatch, clock, runner):
    """Else the times of its legs would be those of two machines; virtual time is the same with
    any.
    """
    often = ("budget.updates=4000", "record.checkpoint_updates=5")
    changes = [f"clock.kind={clock}", "arrivals.rate=200", *often]

    def stop(status):
        if status.updates > 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scenarios.run(scenarios.load("digits_dpzv", changes), tmp_path / "run", progress=stop)
    path = tmp_path / "run" / "environment.json"
    path.write_text(path.read_text().replace('"runner": "local"', '"runner": "ray"'))

    def chosen(name):
        def went_on(experiment, options):
            raise RunError(f"went on with {name}")

        return went_on

    monkeypatch.setattr(resume, "RUNNERS", {name: chosen(name) for name in ("local", "ray")})
    result = call("resume", tmp_path / "run")
    assert f"went on with {runner}" in result.stderr
    new = "as a new segment " * (clock == "wall")
    assert f"resumes {new}from the checkpoint after update" in result.stderr
    if clock == "virtual":
        drop_checkpoints(tmp_path / "run")
        assert (
            "resumes from its start, as it has no checkpoint"
            in call("resume", tmp_path / "run").stderr
        )
    assert "went on with local" in call("resume", tmp_path / "run", "--runner", "local").stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "{run}", "--out", "/dev/null"),
        ("run", "frozen", "--out", "{tmp}/" + "y" * 300),
        ("run", "frozen", "--address", "auto"),
        ("run", "frozen", "--set", "seed=" + "[" * 5000),
        ("run", "digits_dpzv", "--set", "model.embedding=10000000000000"),
        ("privacy", "digits_dpzv", "--set", "privacy.clip=1e200"),
        (
            "run",
            "digits_dpzv",
            *changed("data.source=csv", "data.target=y", "data.file=" + "x" * 5000),
        ),
        ("replay", "{run}", "--out", "/dev/null"),
    ],
)
def test_odd_input_ends_with_one_line_and_status_2(frozen, tmp_path, arguments):
    complaint(call(*(a.format(run=frozen, tmp=tmp_path) for a in arguments)))
    assert not os.path.isfile("/dev/null")


def test_an_unforeseen_error_is_one_line_too(tmp_path, monkeypatch):
    monkeypatch.setattr("scenarios.commands.privacy.privacy", lambda spec, rows: 1 // 0)
    result = call("privacy", "digits_dpzv")
    assert result.exit_code == 1
    assert result.stderr.startswith("raydpzv: internal error, ZeroDivisionError")
    assert result.stderr.count("\n") == 1


def test_without_planned_updates_nothing_is_called_private():
    noise = 'privacy={mode="paper", sigma=1.0, delta=1e-5, clip=1.0}'
    settings = changed("method.server=frozen", "budget={seconds=60}", noise)
    found = json.loads(call("privacy", "digits_dpzv", *settings, "--json").stdout)
    assert found["planned"] is False
    assert found["private"] is False
    assert "ONE update" in found["private_reason"]
    assert not any(claim["holds"] for claim in found["epsilon"])
