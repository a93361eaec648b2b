"""The program and its benchmarks in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
INFINITE = ["--set", "budget.updates=10000000", "--set", "record.flush=0.1"]


def start(folder, *arguments, **environment):
    """Start a run without end and return its process when the first releases are on disk."""
    command = [sys.executable, "-m", "scenarios", "run", "digits_dpzv", *INFINITE]
    command += ["--out", str(folder), *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    limit = time.monotonic() + 120
    while not list(folder.glob("rows/release/part-*.parquet")) and time.monotonic() < limit:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    return process


def script(name: str, *arguments: str) -> None:
    """Run a benchmark to its end."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(ROOT / "benchmarks" / name), *arguments]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
