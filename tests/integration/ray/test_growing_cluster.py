"""A cluster of two machines, the second of which joins while a run waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_a_run_waits_for_a_machine_with_its_labels_and_goes_there():
    command = [sys.executable, "-m", "tests.helpers.growing_cluster"]
    # socket paths below the temporary folder must stay under 107 bytes; nobody else is to find this cluster
    with tempfile.TemporaryDirectory(prefix="rz", ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, "RAY_TMPDIR": folder}
        found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    told = json.loads(found.stdout.splitlines()[-1])
    asked = "labels ask zone = b for clients, which no machine carries; labels there are zone = a"
    assert f"a machine with zone = b, up to 150 s: {asked}" in told["stages"]
    assert told["zones"] == {"0": "a", "1": "b"}
    assert told["digests"][0] == told["digests"][1]
