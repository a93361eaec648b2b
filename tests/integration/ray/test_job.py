"""`ray job submit` against a local head: the way a cluster user starts a run."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except urllib.error.HTTPError as error:
        return error.code == 401
    except OSError:
        return False
    return True


@pytest.fixture
def head():
    """A Ray head with a token and a dashboard of its own; ended by signal, never by `ray stop`, which would end
    others' too.
    """
    port, dashboard, agent = free_port(), free_port(), free_port()
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **token}
    # socket paths below the temporary folder must stay under 107 bytes
    with tempfile.TemporaryDirectory(prefix="rz", ignore_cleanup_errors=True) as folder:
        command = [
            str(BIN / "ray"),
            "start",
            "--head",
            "--block",
            f"--port={port}",
            "--include-dashboard=true",
        ]
        command += ["--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", f"--temp-dir={folder}"]
        command += [f"--dashboard-agent-listen-port={agent}", "--num-cpus=2", "--num-gpus=0"]
        command += ["--disable-usage-stats"]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        url = f"http://127.0.0.1:{dashboard}"
        limit = time.monotonic() + 90
        # jobs are taken by the dashboard and started by the agent: both must be up
        ready = (f"{url}/api/version", f"http://127.0.0.1:{agent}/api/local_raylet_healthz")
        while not all(map(answers, ready)):
            assert process.poll() is None, "the head ended"
            assert time.monotonic() < limit, "the head did not come up within 90 s"
            time.sleep(0.3)
        yield url, f"127.0.0.1:{port}", environment
        process.terminate()
        process.wait(60)


def test_a_submitted_job_runs_on_the_cluster_uninstalled(head, tmp_path):
    url, address, environment = head
    out = tmp_path / "run"
    lines = (ROOT / "README.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("ray job submit ")]
    assert line in (ROOT / "docs" / "cluster.md").read_text().splitlines()
    here = {".": str(ROOT), "/shared/digits": str(out)}
    command = [str(BIN / "ray"), *(here.get(word, word) for word in line.split()[1:])]
    assert set(here.values()) <= set(command)
    command[3:3] = ["--address", url]
    # the copy that a cluster gets has no compiled kernels: making those of the compiled engine is half of this work,
    # and of what is compiled in an empty cache tests/integration/compiled tells
    command += ["--set", "model.engine=torch"]
    command += ["--json", "--set", "budget.updates=40", "--set", "resources.client_actors=1"]
    result = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert '"updates": 40' in result.stdout
    assert (out / "summary.json").exists()
    # the job joined the cluster and left it running
    assert answers(f"{url}/api/version")
    for token in ("disabled", ""), ("token", secrets.token_hex(32)):
        stranger = environment | dict(zip(("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"), token, strict=True))
        refused = subprocess.run(
            [str(BIN / "raydpzv"), "run", "digits_dpzv", "--runner", "ray", "--address", address],
            env=stranger,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert refused.returncode == 2, refused.stderr
        assert "wanted the cluster's token, got none or another one" in refused.stderr
