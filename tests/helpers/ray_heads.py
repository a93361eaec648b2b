"""Heads of Ray clusters in processes of their own, made with `ray start`."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

BIN = Path(sys.executable).parent


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def family(pid):
    """Return a process and all that descend from it, by number."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found


def kill(processes):
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def ray_head(environment, is_up, **options):
    """Start a head with these options and yield its process once it is up; end it by signal, never
    by `ray stop`, which would end others' too.
    """
    # socket paths below the temporary folder must stay under 107 bytes
    with tempfile.TemporaryDirectory(prefix="rz", ignore_cleanup_errors=True) as folder:
        given = {"temp_dir": folder, "num_gpus": 0, **options}
        command = [str(BIN / "ray"), "start", "--head", "--block", "--disable-usage-stats"]
        command += [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        # on a busy machine a head comes up later than Ray waits for it
        patient = {f"RAY_{of}_wait_time_s": "120" for of in ("gcs_server_port", "raylet_start")}
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(
            command, env=environment | patient, start_new_session=True, **silent
        ) as process:
            try:
                while not is_up():
                    assert process.poll() is None, "the head ended"
                    time.sleep(0.2)
                yield process
            finally:
                # where nobody can tell its processes, it ends them, which takes its time
                kill(family(process.pid)) if sys.platform == "linux" else process.terminate()
