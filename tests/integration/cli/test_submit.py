"""`raydpzv submit`: what a job gets, and what comes back. A class plays the cluster; test_job.py
has a real one.
"""

import os
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from actors.job_server import JobEnd
from actors.project_package import package_folder
from raydpzv.errors import RunError
from scenarios.cli import app

pytest.importorskip("ray")
ROOT = Path(__file__).parents[3]
SMALL = ["--set", "budget.updates=4", "--set", "model.engine=torch"]


class Cluster:
    """Runs a job in this process, in a copy of the project and with the local runner."""

    address = "http://head:8265"

    def __init__(self, home: Path):
        self.home, self.jobs, self.said = home, {}, {}
        self.fails_with = self.answer = None

    def __call__(self, address):
        return self

    def differences(self):
        return ["Ray 2.50.1 there, 2.60.0 here"]

    def submit(self, job, entrypoint, folder, metadata):
        copy = self.home / "packages" / job
        copy.mkdir(parents=True)
        with package_folder(folder) as packed:
            own = [path for path in packed.iterdir() if not path.resolve().is_relative_to(ROOT)]
            for path in own:
                (shutil.copytree if path.is_dir() else shutil.copy)(path, copy / path.name)
        self.jobs[job], self.said[job] = (entrypoint, copy), dict(metadata)

    def metadata(self, job):
        return self.said[job]

    def stop(self, job):
        self.answer = JobEnd(130, "stopped")

    def follow(self, job, write):
        if self.fails_with:
            raise self.fails_with
        if self.answer:
            return self.answer
        entrypoint, folder = self.jobs[job]
        line = entrypoint.replace("--runner ray", "--runner local").replace("$HOME", str(self.home))
        here = Path.cwd()
        os.chdir(folder)
        try:
            done = CliRunner().invoke(app, shlex.split(line)[3:])
        finally:
            os.chdir(here)
        write(done.output)
        return JobEnd(done.exit_code, "as Ray says")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    played = Cluster(tmp_path / "cluster")
    monkeypatch.setattr("actors.job_server.JobServer", played)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return played


@pytest.fixture
def storage(tmp_path):
    return (tmp_path / "shared" / "own").as_uri()


def submit(*words):
    return CliRunner().invoke(app, ["submit", *map(str, words)])


def own_scenario(path, data="data/own.csv"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'[data]\nsource = "csv"\nfile = "{data}"\ntarget = "y"\ntest_rows = 8\n[split]\nclients = '
        '2\n[method]\nname = "vafl"\nbatch = 8\n[model]\nengine = "torch"\n[budget]\nupdates = 3\n'
    )


def own_table(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "a,b,c,d,y\n" + "".join(f"{n},{n % 7},{n % 5},{n % 3},{n % 2}\n" for n in range(40))
    )


def test_a_scenario_of_the_program_runs_and_comes_back(cluster, tmp_path, storage):
    done = submit("vafl", *SMALL, "--seed", 3, "--quiet", "--storage", storage)
    assert done.exit_code == 0, done.output
    assert "Ray 2.50.1 there, 2.60.0 here; the run uses the cluster's" in done.stderr
    assert "after 4 updates" in " ".join(done.stdout.split())
    ((job, (entrypoint, _)),) = cluster.jobs.items()
    assert entrypoint.startswith(
        "python -m raydpzv run vafl --runner ray --or-resume --quiet --set "
    )
    assert entrypoint.endswith(f'--set seed=3 --storage {storage} --out "$HOME"/raydpzv/{job}')
    (here,) = (tmp_path / "project" / "runs").iterdir()
    assert here.name.startswith("vafl-seed3-")
    there = cluster.home / "raydpzv" / job
    assert (here / "summary.json").read_bytes() == (there / "summary.json").read_bytes()
    assert CliRunner().invoke(app, ["replay", str(here)]).exit_code == 0


def test_the_same_line_shows_a_complete_run_on_a_new_cluster(cluster, tmp_path, storage):
    project = tmp_path / "project"
    own_scenario(project / "studies" / "own scenario.toml", "../data/own.csv")
    own_table(project / "data" / "own.csv")
    summaries = []
    for folder in ("here", "again"):
        done = submit("studies/own scenario.toml", "--storage", storage, "--out", folder)
        assert done.exit_code == 0, done.output
        assert f"run folder: {folder} (downloaded from {storage})" in done.stderr
        summaries.append((project / folder / "summary.json").read_bytes())
        shutil.rmtree(cluster.home)
    assert summaries[0] == summaries[1]


def test_without_a_storage_the_run_folder_stays_on_the_cluster(cluster, tmp_path):
    done = submit("vafl", *SMALL, "--there", tmp_path / "there" / "a run")
    assert done.exit_code == 0, done.output
    assert f"its run folder on the cluster: {tmp_path}/there/a run" in done.stderr
    assert (tmp_path / "there" / "a run" / "summary.json").is_file()
    assert list((tmp_path / "project").iterdir()) == []


def test_an_absolute_data_path_in_the_project_becomes_its_packed_name(cluster, tmp_path):
    own_scenario(tmp_path / "project" / "own.toml", "nowhere.csv")
    own_table(tmp_path / "project" / "own.csv")
    done = submit(
        "own.toml", "--set", f"data.file={tmp_path / 'project' / 'own.csv'}", "--no-fetch"
    )
    assert done.exit_code == 0, done.output
    ((entrypoint, _),) = cluster.jobs.values()
    assert "'data.file=\"own.csv\"'" in entrypoint


def test_data_outside_the_project_keep_their_path_with_a_note(cluster, tmp_path):
    own_scenario(tmp_path / "project" / "own.toml", "../outside.csv")
    own_table(tmp_path / "outside.csv")
    done = submit("own.toml", "--no-fetch")
    assert done.exit_code == 0, done.output
    assert (
        f"note: data.file is {tmp_path}/project/../outside.csv, outside the packed folder"
        in done.stderr
    )


KEPT = ("--storage", "file:///shared/x")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["vafl"],
            "wanted --storage URI, through which the run folder comes back, or --there FOLDER",
        ),
        (["../outside.toml", *KEPT], "lies outside the folder that is packed"),
        (["own.toml", *KEPT], "data.file: wanted data to pack, "),
        (["none.toml", *KEPT], "cannot read"),
        (["nothing_like_it", *KEPT], 'scenario "nothing_like_it" is unknown'),
        (["vafl", "--there", "runs/x"], "--there: wanted an absolute path"),
        (
            ["vafl", "--there", "/x", "--out", "x"],
            "--out: the run folder comes back through a storage",
        ),
        (["vafl", "--storage", "runs/x"], "--storage: wanted the URI of a folder"),
        (["--job", "x", "--storage", "s3://a/b"], "--storage: is what a job is submitted with"),
        (["--job", "other"], "was not submitted by raydpzv submit"),
        (["vafl", *KEPT, "--out", "full"], "full: is there already"),
        (["vafl", "--out", "x", "--no-fetch"], "--out: is the folder to download to"),
        (["vafl", *KEPT, "--project", "none"], "--project: wanted a folder, got none"),
        (["vafl", *KEPT, "--log", "gelf"], 'unknown log "gelf"'),
        (["vafl", "--stop"], "--stop: goes with --job ID"),
        ([], "wanted a SCENARIO to run, or --job ID"),
        (["vafl", "--job", "x"], "wanted a SCENARIO to run, or --job ID"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_ends_with_two_and_submits_nothing(cluster, tmp_path, words, line):
    cluster.said["other"] = {}
    for place in ("../outside.toml", "own.toml"):
        own_scenario(tmp_path / "project" / place)
    (tmp_path / "project" / "full").mkdir()
    (tmp_path / "project" / "full" / "x").write_text("")
    done = submit(*words)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert line in done.stderr
    assert cluster.jobs == {}


def test_a_refused_job_gives_its_status_and_downloads_no_other_run(cluster, tmp_path, storage):
    assert submit("vafl", *SMALL, "--storage", storage, "--out", "one").exit_code == 0
    other = submit("vafl", *SMALL, "--storage", storage, "--out", "two", "--seed", 9)
    assert other.exit_code == 2
    assert "ended with 2: as Ray says" in other.stderr
    assert (
        "a job lacks the files that .gitignore, .rayignore or a secret's name exclude"
        in other.stderr
    )
    assert not (tmp_path / "project" / "two").exists()


@pytest.mark.parametrize("status", [0, 1])
def test_only_a_job_that_succeeded_must_have_filled_its_storage(cluster, tmp_path, storage, status):
    cluster.answer = JobEnd(status, "as Ray says")
    done = submit("vafl", *SMALL, "--storage", storage, "--out", "x")
    assert done.exit_code == 1
    assert (f"wanted the run folder in {storage}, found nothing there" in done.stderr) == (
        status == 0
    )
    assert not (tmp_path / "project" / "x").exists()


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), 130), (RunError("lost the cluster"), 1)]
)
def test_a_job_can_be_followed_again_after_an_interruption(
    cluster, tmp_path, storage, error, status
):
    cluster.fails_with = error
    left = submit("vafl", *SMALL, "--storage", storage, "--out", "x")
    assert left.exit_code == status
    ((job, _),) = cluster.jobs.items()
    line = f"raydpzv submit --job {job} --address http://head:8265 --out x"
    assert f"follow it again, and download its folder: {line}\n" in left.stderr
    assert f"stop it: {line} --stop\n" in left.stderr
    cluster.fails_with = None
    back = submit(*line.split()[2:])
    assert back.exit_code == 0, back.output
    assert "after 4 updates" in " ".join(back.stdout.split())
    assert (tmp_path / "project" / "x" / "summary.json").is_file()


def test_a_job_can_be_left_and_stopped(cluster, tmp_path):
    left = submit("vafl", *SMALL, "--no-wait", "--there", tmp_path / "there")
    assert left.exit_code == 0
    assert "stop it: raydpzv submit --job " in left.stderr
    (job,) = cluster.jobs
    stopped = submit("--job", job, "--stop")
    assert (stopped.exit_code, "ended with 130: stopped" in stopped.stderr) == (130, True)
