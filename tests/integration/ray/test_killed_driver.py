from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from actors import ray_watcher

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="Ray binds processes to drivers elsewhere"
    ),
]

DRIVER = """
import sys
from actors.cluster import connected
with connected("local", num_cpus=1, num_gpus=0):
    import ray

    @ray.remote
    class Sleeper:
        def ready(self):
            return True

    actor = Sleeper.options(num_cpus=0).remote()
    ray.get(actor.ready.remote())
    print("ready", flush=True)
    sys.stdin.read(1)
"""


def started(tmp_path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", DRIVER]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "HOME": str(tmp_path)}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def mark_of(driver: subprocess.Popen[str]) -> str:
    """Return the mark that the driver's watcher was given."""
    while driver.poll() is None:
        for entry in Path("/proc").iterdir():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            if parent == driver.pid and ray_watcher.__file__.encode() in arguments:
                return arguments[-3].decode()
        time.sleep(0.005)
    raise AssertionError("the driver started no watcher")


def programs(mark: str) -> list[str]:
    found = []
    for pid in ray_watcher.marked(mark):
        try:
            found.append(
                Path(f"/proc/{pid}/cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode(errors="replace")
            )
        except OSError:
            continue
    return found


def wait_until(holds) -> None:
    while not holds():
        time.sleep(0.005)


def began(driver: subprocess.Popen[str]) -> float:
    """When the driver's process began: numbers of processes come again, and with them names of old
    sessions.
    """
    return Path(f"/proc/{driver.pid}").stat().st_mtime - 1


@pytest.mark.parametrize("moment", ["gcs_server", "ready"])
def test_no_process_outlives_a_killed_driver(tmp_path, moment):
    driver = started(tmp_path)
    since = began(driver)
    try:
        mark = mark_of(driver)
        if moment == "ready":
            assert driver.stdout.readline() == "ready\n"
            running = programs(mark)
            assert any("raylet/raylet" in program for program in running)
            unasked = ("monitor.py", "dashboard.py")  # autoscaler, log monitor; dashboard
            assert not [program for program in running if any(name in program for name in unasked)]
        else:
            wait_until(lambda: any(moment in program for program in programs(mark)))
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.communicate()
    wait_until(lambda: not programs(mark))
    wait_until(lambda: not ray_watcher.sessions(driver.pid, since))


def test_a_driver_that_ends_takes_its_watcher_with_it_and_keeps_the_logs(tmp_path):
    driver = started(tmp_path)
    try:
        since, mark = began(driver), mark_of(driver)
        driver.communicate("x")
    finally:
        driver.kill()
    assert driver.returncode == 0
    wait_until(lambda: not programs(mark))
    assert ray_watcher.sessions(driver.pid, since)
