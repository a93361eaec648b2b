"""The command line with Ray."""

from __future__ import annotations

import json
import signal

import pytest

from tests.helpers.programs import start

pytestmark = pytest.mark.ray


def test_the_ray_runner_works_from_the_command_line_and_stops_cleanly(tmp_path):
    folder = tmp_path / "run"
    process = start(folder, "--runner", "ray", "--set", "resources.client_actors=1", HOME=str(tmp_path))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 130, errors
    assert json.loads((folder / "summary.json").read_text())["status"] == "stopped"
