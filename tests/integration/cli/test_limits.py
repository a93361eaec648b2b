"""Too little memory and too few open files end a command in one line that says so, with exit status 2."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

pytest.importorskip("ray")
COMMAND = (sys.executable, *["-m", "raydpzv", "run", "digits_dpzv", "--set", "budget.updates=10", "--quiet"])


@pytest.mark.parametrize(
    ("name", "limit", "runner", "says"),
    [
        ("RLIMIT_AS", 700_000_000, "local", "GiB of addresses for a run, got a limit of 0.652"),
        ("RLIMIT_AS", 2_500_000_000, "ray", "GiB of addresses for Ray's processes, got a limit of 2.33"),
        ("RLIMIT_NOFILE", 64, "ray", "open files for Ray, got a limit of 64"),
    ],
)
def test_a_limit_is_named(tmp_path, name, limit, runner, says):
    which = getattr(resource, name)
    found = subprocess.run(
        [*COMMAND, "--runner", runner, "--out", str(tmp_path / "run")],
        preexec_fn=lambda: resource.setrlimit(which, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2, found.stderr
    assert says in found.stderr
    assert "ulimit" in found.stderr
    assert "internal error" not in found.stderr
    assert not (tmp_path / "run").exists()
