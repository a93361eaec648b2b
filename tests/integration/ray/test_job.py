from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from raydpzv.storage.filesystem import open_storage
from raydpzv.storage.manifest import latest
from tests.helpers.commands import call
from tests.helpers.ray_heads import BIN, family, free_port, kill, ray_head

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except urllib.error.HTTPError as error:
        return error.code == 401
    except OSError:
        return False
    return True


@contextmanager
def started_head():
    """A Ray head with a token and a dashboard of its own, and its process."""
    port, dashboard, agent = free_port(), free_port(), free_port()
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **token}
    url = f"http://127.0.0.1:{dashboard}"
    # jobs are taken by the dashboard and started by the agent: both must be up
    ready = (f"{url}/api/version", f"http://127.0.0.1:{agent}/api/local_raylet_healthz")
    options = {
        "port": port,
        "num_cpus": 2,
        "include_dashboard": "true",
        "dashboard_host": "127.0.0.1",
    }
    options |= {"dashboard_port": dashboard, "dashboard_agent_listen_port": agent}
    with ray_head(environment, lambda: all(map(answers, ready)), **options) as process:
        yield (url, f"127.0.0.1:{port}", environment), process


@pytest.fixture(scope="module")
def head():
    with started_head() as (found, _):
        yield found


def test_a_submitted_job_runs_on_the_cluster_uninstalled(head, tmp_path):
    url, address, environment = head
    out = tmp_path / "run"
    lines = (ROOT / "docs" / "cluster.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("ray job submit ")]
    here = {".": str(ROOT), "/shared/digits": str(out)}
    command = [str(BIN / "ray"), *(here.get(word, word) for word in line.split()[1:])]
    assert set(here.values()) <= set(command)
    command[3:3] = ["--address", url]
    # the copy that a cluster gets has no compiled kernels: making those of the compiled engine is
    # half of this work, and of what is compiled in an empty cache tests/integration/compiled tells
    command += ["--set", "model.engine=torch"]
    command += ["--json", "--set", "budget.updates=40", "--set", "resources.client_actors=0"]
    how = {"cwd": tmp_path, "capture_output": True, "text": True, "check": False}
    result = subprocess.run(command, env=environment, **how)
    assert result.returncode == 0, result.stdout + result.stderr
    assert '"updates": 40' in result.stdout
    assert (out / "summary.json").exists()
    # the job joined the cluster and left it running
    assert answers(f"{url}/api/version")
    command = [str(BIN / "raydpzv"), "run", "digits_dpzv", "--runner", "ray", "--address", address]
    without = environment | {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": ""}
    refused = subprocess.run(command, env=without, **how)
    assert refused.returncode == 2, refused.stderr
    assert "RAY_AUTH_MODE: wanted token, since Ray" in refused.stderr
    del without["RAY_AUTH_MODE"]
    without |= {"HOME": str(tmp_path), "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    refused = subprocess.run(command, env=without, **how)
    assert refused.returncode == 2, refused.stderr
    assert "wanted the cluster's token, got another one in RAY_AUTH_TOKEN;" in refused.stderr


# neither kernels compiled in the copy that the cluster gets nor many processes are what is tried
# here
SMALL = ["--set", "model.engine=torch", "--set", "resources.client_actors=0"]


def page_lines():
    """The page's lines of `raydpzv submit` for a cluster that is there: a scenario, coming back,
    stopping.
    """
    lines = (ROOT / "docs" / "cluster.md").read_text().splitlines()
    return [
        line for line in lines if line.startswith("raydpzv submit ") and "http://head:8265" in line
    ]


def submit(head, folder, line, *words, **here):
    """Start what stands in a line; here: what its placeholders are on this machine."""
    url, _, environment = head
    known = {
        "http://head:8265": url,
        "JOB": here.get("job"),
        "file:///shared/own": here.get("storage"),
    }
    return subprocess.Popen(
        [str(BIN / "raydpzv"), *(known.get(word, word) for word in line.split()[1:]), *words],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # where the tests run in a shell's background it would be ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def newest(storage):
    """Return the name of a storage's newest commit; names ascend."""
    commit = latest(open_storage(storage))
    return commit.name if commit else ""


def test_ctrl_c_leaves_the_job_which_is_stopped_later(head, tmp_path):
    storage = (tmp_path / "shared").as_uri()
    endless = [*SMALL, "--set", "budget.updates=10000000", "--set", "record.flush=0.1"]
    begin, _, stop = page_lines()
    sent = submit(head, tmp_path, begin.replace("own.toml", "vafl"), *endless, storage=storage)
    while not newest(storage):
        assert sent.poll() is None, sent.communicate()
        time.sleep(0.1)
    sent.send_signal(signal.SIGINT)
    _, err = sent.communicate()
    assert sent.returncode == 130, err
    (job,) = re.findall(r"stop it: raydpzv submit --job (\S+) --address \S+ --out \S+ --stop", err)
    before = newest(storage)
    while newest(storage) <= before:  # the job continues
        time.sleep(0.1)
    assert not (tmp_path / "runs").exists()
    stopped = submit(head, tmp_path, stop, job=job)
    out, err = stopped.communicate()
    assert stopped.returncode == 130, out + err
    assert re.search(
        r"Running entrypoint for job .*stopped; continue with", out, re.DOTALL
    )  # its whole log
    assert digests(tmp_path / "runs" / "own")[0] == "stopped"
    assert call("replay", tmp_path / "runs" / "own", "--at", "1").exit_code == 0


def digests(folder):
    summary = json.loads((folder / "summary.json").read_text())
    return [summary[name] for name in ("status", "updates", "digest", "model_digest")]


MEASURE = """
import time
from pathlib import Path

calls = []


def share(scores, y):
    calls.append(len(y))
    while len(calls) == 4 and not Path({gate!r}).exists():  # the run waits in its midst
        time.sleep(0.01)
    return {{"share": float((scores.argmax(1) == y).mean())}}
"""


@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_after_the_loss_of_the_head_the_same_line_resumes_the_run_and_downloads_it(
    head, tmp_path, monkeypatch
):
    there, storage, gate = tmp_path / "there", (tmp_path / "shared").as_uri(), tmp_path / "gate"
    monkeypatch.chdir(tmp_path)  # where the measure is
    words = [*SMALL, "--there", str(there), "--set", "budget.updates=800"]
    words += ["--set", "record.checkpoint_updates=100", "--set", "record.flush=0.1"]
    words += ["--set", "evaluate.metrics=measure:share"]
    line, _, _ = page_lines()
    (tmp_path / "own.toml").write_text((ROOT / "scenarios" / "vafl.toml").read_text())
    (tmp_path / "measure.py").write_text(MEASURE.format(gate=str(gate)))
    with started_head() as (first, process):
        sent = submit(first, tmp_path, line, *words, storage=storage)
        while not ((there / "checkpoint.state").exists() and newest(storage)):
            assert sent.poll() is None, sent.communicate()
            time.sleep(0.02)
        kill(family(process.pid))
        sent.send_signal(signal.SIGINT)
        sent.communicate()
    assert not (there / "summary.json").exists()
    gate.touch()
    again = submit(head, tmp_path, line, *words, storage=storage)
    out, err = again.communicate()
    assert again.returncode == 0, out + err
    assert f"run folder: runs/own (downloaded from {storage})" in err
    settings = [word for word in words if word not in ("--there", str(there))]
    undisturbed = call(
        "run", tmp_path / "own.toml", *settings, "--quiet", "--out", tmp_path / "undisturbed"
    )
    assert undisturbed.exit_code == 0, undisturbed.output
    assert digests(tmp_path / "runs" / "own") == digests(tmp_path / "undisturbed")
