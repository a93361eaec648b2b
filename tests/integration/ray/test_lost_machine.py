import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow]
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SHORTER = """
import lost_machines
settings = ("privacy.noise=seeded", "budget.updates=1500", "resources.client_actors=2")
lost_machines.CASES = (("digits_dpzv", 500, settings),)
lost_machines.main()
"""
"""The benchmark with fewer updates and actors."""


def test_a_run_that_loses_a_machine_continues_to_the_same_bits(tmp_path):
    # Ray takes 15 s to find out that a machine is gone, unless it asks more often
    health = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "2"}
    environment = {**os.environ, **health}
    command = [sys.executable, "-c", SHORTER, "--times", "1", "--json", str(tmp_path / "found")]
    found = subprocess.run(
        command, cwd=BENCHMARKS, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
    (lost,) = json.loads((tmp_path / "found").read_text())["lost"]
    scenario, actors, faults, _, digest = lost
    assert (scenario, digest) == ("digits_dpzv", "same")
    assert int(actors) >= 1
    assert int(faults) >= 1
