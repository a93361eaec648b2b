import json
import signal

import pytest

from tests.helpers.programs import start

pytestmark = pytest.mark.ray


def test_the_ray_runner_works_from_the_command_line_and_stops_cleanly(tmp_path):
    folder, cache = tmp_path / "run", tmp_path / "cache"
    settings = ["--set", "resources.client_actors=2", "--set", "model.engine=torch"]
    process = start(
        folder, "--runner", "ray", *settings, HOME=str(tmp_path), NUMBA_CACHE_DIR=str(cache)
    )
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "stopped"
    # each kernel was compiled by one of the processes, and loaded by the others
    called = ("_", "add_signs")  # by other kernels, with which they are compiled
    kernels = [
        path for path in cache.rglob("*.nbi") if not path.name.split(".")[1].startswith(called)
    ]
    assert summary["kernels"]["compiled"] == len(kernels) > 1
    assert summary["kernels"]["seconds"] > 0
