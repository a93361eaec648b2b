"""The commands of cluster.md, on real Ray heads with and without a token."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from raydpzv.storage.filesystem import open_storage
from raydpzv.storage.index import latest
from tests.helpers.commands import call
from tests.helpers.ray_heads import BIN, family, free_port, kill, ray_head

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "cluster.md").read_text()
SECTION = PAGE.partition("## Submit a job")[2].partition("\n## ")[0]

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


def blocks(language):
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", SECTION)


def commands():
    """The section's commands: set the token, submit, download and report, stop."""
    return [line for block in blocks("sh") for line in block.replace("\\\n", " ").splitlines()]


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except urllib.error.HTTPError as error:
        return error.code == 401
    except OSError:
        return False
    return True


class Head:
    """A cluster's addresses, its first process, and its token ("": it wants none)."""

    def __init__(self, port, dashboard, token):
        self.address, self.url, self.token = f"127.0.0.1:{port}", dashboard, token
        self.process = None

    def start(self, command, folder, **here):
        """Start one of the page's commands as a user would; here: what stands for its names."""
        known = {"http://head:8265": self.url, **here}
        for name, value in known.items():
            command = command.replace(name, value)
        if self.token:
            command = f"{commands()[0].replace('...', self.token)}\n{command}"
        return subprocess.Popen(
            ["bash", "-ec", command],
            env=without_token(),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def do(self, command, folder, **here):
        with self.start(command, folder, **here) as process:
            said, _ = process.communicate()
        assert process.returncode == 0, said
        return said


def without_token():
    known = {name: value for name, value in os.environ.items() if "RAY_AUTH" not in name}
    return {**known, "PATH": f"{BIN}:{os.environ['PATH']}"}


@contextmanager
def started_head(*, token):
    """A Ray head with a dashboard of its own."""
    port, dashboard, agent = free_port(), free_port(), free_port()
    found = Head(port, f"http://127.0.0.1:{dashboard}", secrets.token_hex(32) if token else "")
    environment = without_token() | {"RAY_AUTH_MODE": "token" if token else "disabled"}
    environment |= {"RAY_AUTH_TOKEN": found.token} if token else {}
    # jobs are taken by the dashboard and started by the agent: both must be up
    ready = (f"{found.url}/api/version", f"http://127.0.0.1:{agent}/api/local_raylet_healthz")
    options = {
        "port": port,
        "num_cpus": 2,
        "include_dashboard": "true",
        "dashboard_host": "127.0.0.1",
    }
    options |= {"dashboard_port": dashboard, "dashboard_agent_listen_port": agent}
    with ray_head(environment, lambda: all(map(answers, ready)), **options) as found.process:
        yield found


@pytest.fixture(scope="module", params=["token", "open"])
def either_head(request):
    with started_head(token=request.param == "token") as found:
        yield found


@pytest.fixture(scope="module")
def head():
    with started_head(token=True) as found:
        yield found


# neither compiled kernels nor many processes are what is tried here
SMALL = ["--set", "model.engine=torch", "--set", "resources.client_actors=0"]


def more(*words):
    return f" {shlex.join([*SMALL, *words])}"


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "own.toml").write_text((ROOT / "scenarios" / "vafl.toml").read_text())
    return folder


@pytest.fixture
def here(tmp_path):
    """What the page's names stand for."""
    return {"s3://bucket/own": (tmp_path / "own").as_uri()}


def digests(folder):
    summary = json.loads((folder / "summary.json").read_text())
    return [summary[name] for name in ("status", "updates", "digest", "model_digest")]


def test_the_pages_commands_run_with_and_without_a_token(either_head, project, here):
    _, submit, download, _ = commands()
    line = submit + more("--set", "budget.updates=40")
    said = either_head.do(line, project, **here)
    assert "after 40 updates" in " ".join(said.split())
    either_head.do(download, project, **here)
    assert digests(project / "runs" / "own")[:2] == ["done", 40]
    # the same line again shows the run; the cluster is left running
    assert "after 40 updates" in " ".join(either_head.do(line, project, **here).split())
    assert answers(f"{either_head.url}/api/version")


def test_a_run_without_the_clusters_token_is_refused_in_words(head, tmp_path):
    command = [str(BIN / "raydpzv"), "run", "vafl", "--runner", "ray", "--address", head.address]
    refused = subprocess.run(
        command,
        env=without_token() | {"RAY_AUTH_MODE": "disabled"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2, refused.stderr
    assert "wanted the cluster's token, got none or another one" in refused.stderr


MEASURE = """
import time
from pathlib import Path

import raydpzv

calls = []


def share(scores, y):
    calls.append(len(y))
    Path({where!r}).write_text(raydpzv.__file__)
    while len(calls) == 4 and not Path({gate!r}).exists():  # the run waits in its midst
        time.sleep(0.01)
    return {{"share": float((scores.argmax(1) == y).mean())}}
"""


@pytest.fixture
def gate(project, tmp_path):
    """A file for which runs with the measure wait in their midst."""
    found = tmp_path / "gate"
    text = MEASURE.format(gate=str(found), where=str(tmp_path / "where"))
    (project / "measure.py").write_text(text)
    return found


def test_the_pages_python_runs_a_clone_uninstalled(head, project, here, gate, tmp_path):
    for name in ("actors", "raydpzv", "scenarios"):
        (project / name).symlink_to(ROOT / name)
    gate.touch()
    (script,) = blocks("python")
    entry = "--runner ray" + more(
        "--set", "budget.updates=20", "--set", "evaluate.metrics=measure:share"
    )
    script = script.replace("--runner ray", entry)
    until = "while not client.get_job_status(job).is_terminal():\n    time.sleep(0.2)\n"
    script = f"import time\n{script}{until}print(client.get_job_info(job))"
    said = head.do(f"python -c {shlex.quote(script)}", project, **here)
    assert "SUCCEEDED" in said, said
    assert "_ray_pkg_" in (tmp_path / "where").read_text()


def has_checkpoint(storage):
    index = latest(open_storage(storage))
    return index is not None and "checkpoint.state" in index.files


def test_a_stopped_job_leaves_a_run_that_resumes(head, project, here, tmp_path):
    (storage,) = here.values()
    _, submit, download, stop = commands()
    endless = more("--set", "budget.updates=10000000", "--set", "record.flush=0.1")
    sent = submit.replace("job submit", "job submit --no-wait")
    said = head.do(sent + endless, project, **here)
    (job,) = set(re.findall(r"raysubmit_\w+", said))
    while not has_checkpoint(storage):
        time.sleep(0.1)
    head.do(stop, project, JOB=job, **here)
    head.do(download, project, **here)
    assert digests(project / "runs" / "own")[0] == "stopped"
    assert call("replay", project / "runs" / "own", "--at", "1").exit_code == 0


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_after_the_loss_of_the_head_the_same_line_resumes_the_run(
    head, project, here, gate, tmp_path, monkeypatch
):
    (storage,) = here.values()
    _, submit, download, _ = commands()
    settings = ("budget.updates=800", "record.checkpoint_updates=100", "record.flush=0.1")
    settings += ("evaluate.metrics=measure:share",)
    words = [word for setting in settings for word in ("--set", setting)]
    with started_head(token=False) as first:
        sent = first.start(submit + more(*words), project, **here)
        while not has_checkpoint(storage):
            assert sent.poll() is None, sent.communicate()
            time.sleep(0.02)
        kill(family(first.process.pid))
        sent.communicate()
    gate.touch()
    head.do(submit + more(*words), project, **here)
    head.do(download, project, **here)
    monkeypatch.chdir(project)  # where the measure is
    undisturbed = call(
        "run", "own.toml", *SMALL, *words, "--quiet", "--out", tmp_path / "undisturbed"
    )
    assert undisturbed.exit_code == 0, undisturbed.output
    assert digests(project / "runs" / "own") == digests(tmp_path / "undisturbed")
