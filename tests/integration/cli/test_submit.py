"""`raydpzv submit` up to the cluster, and after it: the cluster is played, by what the real one does with a job."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from actors.job_server import JobEnd
from raydpzv.errors import RunError, SpecError
from scenarios.cli import app
from scenarios.kuberay_command import check_words
from tests.helpers.rayjob_schema import errors

pytest.importorskip("ray")
ROOT = Path(__file__).parents[3]
# the copy that a cluster gets has no compiled kernels, and making them is not what is tried here
SMALL = ["--set", "budget.updates=4", "--set", "model.engine=torch"]
POD = ("--image", "registry.example/raydpzv:1", "--claim", "runs")


class Cluster:
    """Runs what is submitted as a shell does, in the unpacked package; the run on Ray as one in its process."""

    address = "http://head:8265"
    upload_limit = 100 * 2**20

    def __init__(self, home: Path):
        self.home, self.jobs, self.said = home, {}, {}
        self.interrupts = self.loses = False

    def __call__(self, address):
        return self

    def differences(self):
        return ["Ray 2.50.1 there, 2.60.0 here"]

    def submit(self, job, entrypoint, package, metadata):
        folder = self.home / "packages" / job
        zipfile.ZipFile(package).extractall(folder)
        self.jobs[job] = (entrypoint, folder)
        self.said[job] = dict(metadata)

    def metadata(self, job):
        return self.said[job]

    def stop(self, job):
        self.jobs[job] = ("echo stopped; exit 130", self.jobs[job][1])

    def forget(self, job):
        del self.jobs[job]

    def follow(self, job, write):
        if self.loses:
            raise RunError("lost the cluster at http://head:8265")
        if self.interrupts:
            raise KeyboardInterrupt
        entrypoint, folder = self.jobs[job]
        line = entrypoint.replace("--runner ray", "--runner local").replace(
            "python", shlex.quote(sys.executable), 1
        )
        done = subprocess.run(
            line,
            shell=True,
            cwd=folder,
            env={"HOME": str(self.home)},
            text=True,
            capture_output=True,
            check=False,
        )
        write(done.stdout + done.stderr)
        return JobEnd(done.returncode, "as Ray says")

    def output(self, job):
        texts = []
        self.follow(job, texts.append)
        return "".join(texts)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    played = Cluster(tmp_path / "cluster")
    monkeypatch.setattr("actors.job_server.JobServer", played)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return played


def submit(*words):
    return CliRunner().invoke(app, ["submit", *map(str, words)])


def own_scenario(path, data="data/own.csv"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'[data]\nsource = "csv"\nfile = "{data}"\ntarget = "y"\ntest_rows = 8\n'
        '[split]\nclients = 2\n[method]\nname = "vafl"\nbatch = 8\n[model]\nengine = "torch"\n[budget]\nupdates = 3\n'
    )


def own_table(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a,b,c,d,y\n" + "".join(f"{n},{n % 7},{n % 5},{n % 3},{n % 2}\n" for n in range(40)))


def test_what_bears_a_secrets_name_is_not_sent_and_a_folder_that_is_no_runs_not_brought(cluster, tmp_path):
    project, shared = tmp_path / "project", tmp_path / "shared"
    (project / "studies" / "one").mkdir(parents=True)
    for name in (".env", "studies/one/operator.json"):
        (project / name).write_text("secret")
    shared.mkdir()
    (shared / "theirs.csv").write_text("not of a run")
    own_scenario(project / "own.toml", "../elsewhere.csv")  # which the cluster has not
    done = submit("own.toml", "--quiet", "--there", shared, "--out", "here")
    assert done.exit_code == 2, done.output
    assert not (project / "here").exists()
    for _, folder in cluster.jobs.values():
        assert not (folder / ".env").exists()
        assert not list(folder.rglob("operator.json"))
    said = "note: not packed: 2 with the name of a secret (.env, studies/one/operator.json); !/NAME in .rayignore takes"
    assert said in " ".join(done.stderr.split())


def test_a_scenario_of_the_program_runs_and_comes_back(cluster, tmp_path):
    done = submit("vafl", *SMALL, "--seed", 3, "--quiet")
    assert done.exit_code == 0, done.output
    assert "Ray 2.50.1 there, 2.60.0 here; the run is made with the cluster's" in done.stderr
    assert "after 4 updates" in " ".join(done.stdout.split())
    ((job, (entrypoint, _)),) = cluster.jobs.items()
    assert entrypoint.startswith("python -m raydpzv run vafl --runner ray --or-resume --quiet --set ")
    assert entrypoint.endswith(f'--set seed=3 --out "$HOME"/raydpzv/{job}')
    (here,) = (tmp_path / "project" / "runs").iterdir()
    assert here.name.startswith("vafl-seed3-")
    there = cluster.home / "raydpzv" / job
    assert (here / "summary.json").read_bytes() == (there / "summary.json").read_bytes()
    assert CliRunner().invoke(app, ["replay", str(here)]).exit_code == 0


def test_a_scenario_of_ones_own_goes_with_its_data(cluster, tmp_path):
    project = tmp_path / "project"
    own_scenario(project / "studies" / "own scenario.toml", "../data/own.csv")
    own_table(project / "data" / "own.csv")
    done = submit("studies/own scenario.toml", "--there", tmp_path / "shared" / "a run", "--out", "here")
    assert done.exit_code == 0, done.output
    assert (project / "here" / "summary.json").is_file()
    # the same line again finds the run complete and shows it
    again = submit("studies/own scenario.toml", "--there", tmp_path / "shared" / "a run", "--out", "again")
    assert again.exit_code == 0, again.output
    assert (project / "again" / "summary.json").read_bytes() == (
        project / "here" / "summary.json"
    ).read_bytes()


def test_data_given_by_an_absolute_path_in_the_project_are_found_there(cluster, tmp_path):
    own_scenario(tmp_path / "project" / "own.toml", "nowhere.csv")
    own_table(tmp_path / "project" / "own.csv")
    done = submit("own.toml", "--set", f"data.file={tmp_path / 'project' / 'own.csv'}", "--no-fetch")
    assert done.exit_code == 0, done.output
    ((entrypoint, _),) = cluster.jobs.values()
    assert "'data.file=\"own.csv\"'" in entrypoint


def test_data_outside_the_project_stay_where_they_are_and_that_is_said(cluster, tmp_path):
    own_scenario(tmp_path / "project" / "own.toml", "../outside.csv")
    own_table(tmp_path / "outside.csv")
    done = submit("own.toml", "--no-fetch")
    assert done.exit_code == 0, done.output
    assert f"note: data.file is {tmp_path}/project/../outside.csv, outside the packed folder" in done.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["../outside.toml"], "lies outside the folder that is packed"),
        (["left/own.toml"], "own.toml: is left out by a .rayignore or .gitignore"),
        (["own.toml"], "data/own.csv is left out by a .rayignore"),
        (["none.toml"], "cannot read"),
        (["nothing_like_it"], 'scenario "nothing_like_it" is unknown'),
        (["vafl", "--there", "runs/x"], "--there: wanted an absolute path"),
        (["vafl", "--storage", "runs/x"], "--storage: wanted the URI of a folder"),
        (["--job", "x", "--storage", "s3://a/b"], "--storage: is what a job is submitted with"),
        (["vafl", "--kuberay", "--image", "x", "--storage", "x"], "--storage: wanted the URI of a folder"),
        (
            ["vafl", "--kuberay", "--image", "x", "--storage", "file:///x"],
            "lies on the disk of a pod, which goes with",
        ),
        (["vafl", "--out", "full"], "full: is there already"),
        (["vafl", "--out", "x", "--no-fetch"], "--out: is where the run folder is brought to"),
        (["vafl", "--project", "none"], "--project: wanted a folder, got none"),
        (["vafl", "--log", "gelf"], 'unknown log "gelf"'),
        (["vafl", "--kuberay", *POD, "--log", "gelf"], 'unknown log "gelf"'),
        (["vafl", "--kuberay", "--storage", "s3://a/b"], "--image: wanted the image of the pods"),
        (["vafl", "--stop"], "--stop: goes with --job ID"),
        ([], "wanted a SCENARIO to run, or --job ID"),
        (["vafl", "--job", "x"], "wanted a SCENARIO to run, or --job ID"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_ends_with_two_and_submits_nothing(cluster, tmp_path, words, line):
    project = tmp_path / "project"
    for place in ("../outside.toml", "left/own.toml", "own.toml"):
        own_scenario(project / place)
    own_table(project / "data" / "own.csv")
    (project / ".rayignore").write_text("left/\ndata/\n")
    (project / "full").mkdir()
    (project / "full" / "x").write_text("")
    done = submit(*words)
    assert done.exit_code == 2, done.output
    assert line in done.stderr
    assert cluster.jobs == {}


def test_data_that_are_not_there_are_named(cluster, tmp_path):
    own_scenario(tmp_path / "project" / "own.toml")
    done = submit("own.toml")
    assert done.exit_code == 2
    assert "data.file: wanted data to pack, " in done.stderr


def test_too_large_a_project_is_refused(cluster, tmp_path):
    cluster.upload_limit = 10_000
    done = submit("vafl")
    assert done.exit_code == 2
    assert "wanted a package of at most 0.0 MiB" in done.stderr
    assert cluster.jobs == {}


def test_a_job_that_is_refused_gives_its_status_and_brings_nobody_elses_run(cluster, tmp_path):
    assert submit("vafl", *SMALL, "--there", tmp_path / "shared", "--out", "one").exit_code == 0
    other = submit("vafl", *SMALL, "--there", tmp_path / "shared", "--out", "two", "--seed", 9)
    assert other.exit_code == 2
    assert "ended with 2: as Ray says" in other.stderr
    assert not (tmp_path / "project" / "two").exists()


def test_a_run_that_was_refused_leaves_no_folder(cluster, tmp_path):
    (tmp_path / "file").write_text("where the folder should be")
    done = submit("vafl", *SMALL, "--there", tmp_path / "file" / "x", "--out", "x")
    assert done.exit_code == 2
    assert not (tmp_path / "project" / "x").exists()


@pytest.mark.parametrize(("breaks", "status"), [("interrupts", 130), ("loses", 1)])
def test_one_comes_back_to_a_job(cluster, tmp_path, breaks, status):
    setattr(cluster, breaks, True)
    left = submit("vafl", *SMALL, "--there", tmp_path / "shared", "--out", "x")
    assert left.exit_code == status
    ((job, _),) = cluster.jobs.items()
    line = f"raydpzv submit --job {job} --address http://head:8265 --out x"
    assert f"come back to it, or bring its folder: {line}\n" in left.stderr
    assert f"stop it: {line} --stop\n" in left.stderr
    setattr(cluster, breaks, False)
    back = submit(*line.split()[2:])
    assert back.exit_code == 0, back.output
    assert "after 4 updates" in " ".join(back.stdout.split())
    assert (tmp_path / "project" / "x" / "summary.json").is_file()


def test_a_job_can_be_left_and_stopped(cluster, tmp_path):
    left = submit("vafl", *SMALL, "--no-wait")
    assert left.exit_code == 0
    assert "stop it: raydpzv submit --job " in left.stderr
    (job,) = cluster.jobs
    stopped = submit("--job", job, "--stop")
    assert stopped.exit_code == 130
    assert "stopped" in stopped.stdout


def test_a_job_of_another_kind_is_refused(cluster, tmp_path):
    cluster.said["other"] = {}
    done = submit("--job", "other")
    assert done.exit_code == 2
    assert "was not submitted by raydpzv submit" in done.stderr


def test_a_run_folder_that_is_nowhere_is_said(cluster, tmp_path):
    left = submit("vafl", *SMALL, "--no-wait", "--there", tmp_path / "shared")
    assert left.exit_code == 0
    (job,) = cluster.jobs
    cluster.jobs[job] = ("true", cluster.jobs[job][1])
    back = submit("--job", job, "--out", "x")
    assert back.exit_code == 1
    assert f"wanted the run folder {tmp_path}/shared on the machine of the cluster's head" in back.stderr


def documents(*words):
    done = submit(*words, "--kuberay", *POD)
    assert done.exit_code == 0, done.output
    return list(yaml.safe_load_all(done.stdout)), done.stderr


def test_a_manifest_runs_a_scenario_of_the_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (job,), _ = documents("vafl", "--seed", 3, "--set", "method.lr=0.2", "--quiet", "--log", "csv")
    assert errors(job) == []
    assert job["metadata"]["name"] == "vafl-3"
    assert "object-store-memory" in job["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]
    # where memory is given, the data need not be here
    ((other,), _) = documents("mnist_dpzv", "--set", "data.folder=/nowhere", "--memory", "12")
    assert "object-store-memory" not in other["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]
    assert shlex.split(job["spec"]["entrypoint"]) == [
        *("python", "-m", "raydpzv", "run", "vafl", "--runner", "ray", "--or-resume", "--quiet"),
        *("--set", "method.lr=0.2", "--set", "seed=3", "--log", "csv", "--out", "/raydpzv/vafl-3"),
    ]
    assert list(tmp_path.iterdir()) == []


def test_without_pyyaml_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    done = submit("vafl", "--kuberay", *POD)
    assert (done.exit_code, "PyYAML is not installed: pip install 'raydpzv[ray]'" in done.stderr) == (2, True)


def test_the_page_of_a_manifest_can_be_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = (ROOT / "docs" / "cluster.md").read_text().splitlines()
    lines = [line for line in lines if line.startswith("raydpzv submit ") and "--kuberay" in line]
    assert len(lines) == 2
    for line in lines:
        command, _, file = line.removeprefix("raydpzv ").partition(" > ")
        assert file == "job.yaml"
        done = CliRunner().invoke(app, shlex.split(command))
        assert done.exit_code == 0, done.output
        (job,) = yaml.safe_load_all(done.stdout)
        assert errors(job) == []


def test_with_a_storage_a_manifest_needs_no_claim_and_its_run_is_there():
    words = ("vafl", "--kuberay", *POD[:2], "--storage", "s3://bucket/runs/vafl")
    (job,) = yaml.safe_load_all(submit(*words).stdout)
    assert errors(job) == []
    assert shlex.split(job["spec"]["entrypoint"])[-5:] == [
        *("--or-resume", "--storage", "s3://bucket/runs/vafl", "--out", "/tmp/raydpzv/vafl-0")
    ]
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert "volumes" not in head
    assert "volumeMounts" not in head["containers"][0]
    assert job["spec"]["backoffLimit"] == 3
    wall = ("digits_dpzv", *words[1:], "--set", "clock.kind=wall", "--memory", "4")
    assert [
        next(yaml.safe_load_all(submit(*w).stdout))["spec"]["backoffLimit"] for w in (wall, (*wall, *POD[2:]))
    ] == [*(0, 3)], "with noise of the system's it does not go on from a storage alone"
    (both,) = yaml.safe_load_all(submit(*words, *POD[2:]).stdout)
    assert shlex.split(both["spec"]["entrypoint"])[-1] == "/raydpzv/vafl-0"


WALL, NOISE = (
    ("clock.kind=wall",),
    ("privacy.mode=paper", "privacy.sigma=1.0", "privacy.clip=1.0", "privacy.delta=1e-4"),
)


@pytest.mark.parametrize(
    ("scenario", "changes", "more", "retries"),
    [
        ("vafl", (*WALL, *NOISE), (), 0),
        ("vafl", (*WALL, *NOISE), ("--retries", "2"), 2),
        ("vafl", NOISE, (), 3),
        ("vafl", WALL, (), 3),
        ("digits_dpzv", WALL, (), 3),
    ],
)
def test_what_an_attempt_after_the_first_would_be_refused_for_is_not_tried_again(
    scenario, changes, more, retries
):
    words = (scenario, *(w for change in changes for w in ("--set", change)), "--memory", "4", *more)
    ((job,), _) = documents(*words)
    assert job["spec"]["backoffLimit"] == retries


@pytest.mark.parametrize(
    ("scenario", "changes", "more", "retries"),
    [
        ("digits_dpzv", (), (), 3),
        ("digits_dpzv", WALL, (), 0),
        ("digits_dpzv", WALL, ("--retries", "2"), 2),
        ("digits_dpzv", (*WALL, "privacy.mode=none"), (), 3),
        ("decomfl_async", (*WALL, "resources.hosts=2"), (), 3),
    ],
)
def test_from_a_storage_alone_a_run_of_real_time_with_noise_is_not_tried_again(
    scenario, changes, more, retries
):
    words = (scenario, *(w for change in changes for w in ("--set", change)), "--memory", "4", *more)
    done = submit(*words, "--kuberay", *POD[:2], "--storage", "s3://bucket/runs")
    (job,) = yaml.safe_load_all(done.stdout)
    assert job["spec"]["backoffLimit"] == retries


def test_a_job_is_gone_on_with_from_a_storage_by_another_machine(cluster, tmp_path):
    """Each job has a folder of its own on the head's machine; the run is in the storage."""
    uri = f"file://{tmp_path}/the storage"
    words = ("vafl", *(w for change in FEW for w in ("--set", change)), "--storage", uri)
    first = submit(*words, "--out", "first")
    assert first.exit_code == 0, first.output
    shutil.rmtree(cluster.home)
    again = submit(*words, "--out", "again")
    assert again.exit_code == 0, again.output
    found = [json.loads((Path(name) / "summary.json").read_text()) for name in ("first", "again")]
    assert found[0] == found[1]
    assert found[0]["storage"]["uri"] == uri


FEW = ("budget.updates=3", "data.train_rows=100", "data.test_rows=30")


def test_a_scenario_of_ones_own_travels_in_the_manifest(tmp_path):
    own_scenario(tmp_path / "0_My Study.toml", "own.csv")
    own_table(tmp_path / "own.csv")
    (config, job), said = documents(tmp_path / "0_My Study.toml")
    assert errors(job) == []
    assert job["metadata"]["name"] == "run-0-my-study-0"
    assert config["data"] == {"scenario.toml": (tmp_path / "0_My Study.toml").read_text()}
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    (volume,) = [v for v in head["volumes"] if v["name"] == "scenario"]
    assert volume["configMap"]["name"] == config["metadata"]["name"] == "run-0-my-study-0-scenario"
    (mount,) = [m for m in head["containers"][0]["volumeMounts"] if m["name"] == "scenario"]
    assert (mount["mountPath"], mount["readOnly"]) == ("/etc/raydpzv", True)
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[4] == "/etc/raydpzv/scenario.toml"
    assert f'data.file="{tmp_path}/own.csv"' in words
    assert f"note: data.file: the image, or the claim, must have {tmp_path}/own.csv" in said


AS_IT_STANDS = [
    *('data.file="/a b/c.csv"', "model.hidden=[8,4]", "method.lr_at=[[4, 0.5]]", 'data.target="#"'),
    *("title='a title'", "x=~"),
]
CHANGED = [
    *("data.target='y'", "data.target='it is'$x", 'data.file="/a$HOME/c"', 'data.target="a;b"', "x=(1)"),
    *("title=it's", 'data.target="a\\tb"', 'data.target="`id`"', "x=a\nb", "x=a&b", "x=<b"),
]


def read_once_more(words):
    """What reaches the run where `ray job submit` gives a shell these words as Windows reads them."""
    line = subprocess.list2cmdline([sys.executable, "-c", "import sys; print(sys.argv[1:])", *words])
    return subprocess.run(
        line, shell=True, text=True, capture_output=True, check=False, cwd=ROOT
    ).stdout.strip()


@pytest.mark.parametrize("word", AS_IT_STANDS)
def test_a_setting_that_an_older_ray_hands_on_as_it_is_is_taken(word):
    words = ["python", word, "--out", "/raydpzv/x"]
    check_words(words, "2.59.0")
    assert read_once_more(words) == repr(words)


@pytest.mark.parametrize("word", CHANGED)
def test_a_setting_that_an_older_rays_submission_would_change_is_refused(word):
    words = ["python", word, "--out", "/raydpzv/x"]
    check_words(words, "2.60.0")
    with pytest.raises(SpecError, match=r"the `ray job submit` of Ray 2\.59\.0 hands this to a shell"):
        check_words(words, "2.59.0")
    assert read_once_more(words) != repr(words)


def test_a_manifest_for_an_older_ray_asks_for_settings_that_reach_the_run():
    words = ("vafl", "--kuberay", *POD, "--set", "title='a $title'")
    assert submit(*words, "--ray-version", "2.60.0").exit_code == 0
    done = submit(*words, "--ray-version", "2.52.1")
    assert done.exit_code == 2
    assert "title='a $title': the `ray job submit` of Ray 2.52.1" in done.stderr


def test_a_run_under_the_wall_clock_that_cannot_go_on_is_not_tried_again():
    for changes, retries in (([], 3), (["method.max_delay=3"], 0)):
        wall = [word for change in ["clock.kind=wall", *changes] for word in ("--set", change)]
        (job,), _ = documents("vafl", *wall)
        assert job["spec"]["backoffLimit"] == retries
        (job,), _ = documents("vafl", *wall, "--retries", 2)
        assert job["spec"]["backoffLimit"] == 2
    (job,), _ = documents("digits_dpzv", "--set", "clock.kind=wall")
    assert job["spec"]["backoffLimit"] == 3


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["vafl", "--kuberay"], "--image: wanted the image of the pods"),
        (["vafl", "--kuberay", "--image", "x"], "--claim: wanted a persistent volume claim"),
        (
            ["vafl", "--kuberay", *POD, "--address", "http://x"],
            "--address: goes with a cluster that is there",
        ),
        (["vafl", "--kuberay", *POD, "--no-wait"], "--no-wait: goes with a cluster that is there"),
        (["--kuberay", *POD], "wanted a SCENARIO to run, got none"),
        (["vafl", "--no-token"], "--no-token: goes with --kuberay"),
        (["vafl", "--ray-version", "2.60.0"], "--ray-version: goes with --kuberay"),
        (["vafl", "--kuberay", *POD, "--name", "Vafl"], "--name: wanted at most 47 characters"),
        (["vafl", "--kuberay", *POD, "--workers", "0"], "--workers"),
        (["vafl", "--kuberay", *POD, "--set", "resources.client_gpus=1.5"], "must be a whole number"),
        (["digits_decomfl", "--kuberay", *POD], 'resources.hosts: wanted a number, got "auto"'),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_manifest_that_cannot_be_ends_with_two(words, line):
    done = submit(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert line in done.stderr
