"""Ends the processes of a Ray of our own when its driver is killed; run as a program of its own, by
`watched`.

Ray binds the lives of its first processes to the driver, but not from their first instruction on,
and their children (agents, workers) notice its end late or never. All of Ray's processes inherit
the driver's environment, so a mark in it identifies them. A killed driver cannot clean up: this
program reads a pipe that the system closes with the driver, and then kills the processes with the
mark.

It imports the standard library alone, and runs with `python -I -S`, so that it costs a few
milliseconds and megabytes.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

MARK = "RAYDPZV_DRIVER"
"""Environment variable of all processes of a Ray of ours; its value is the driver's and no
other's.
"""
MOST_WAITED = 30.0
"""Seconds to search for processes: one that is being started when the driver dies appears a little
later.
"""
QUIET = 1.0
"""Seconds without any such process after which the search ends."""
DONE, SWEEP = b"d", b"s"
"""Messages of a living driver: it has ended its Ray; or some processes are left and must be
killed.
"""


def marked(mark: str) -> list[int]:
    """Return the other processes that have the mark in their environment."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                lines = (entry / "environ").read_bytes().split(b"\0")
            except OSError:  # it has ended, or is another user's
                continue
            if wanted in lines:
                found.append(int(entry.name))
    return found


def sessions(driver: int, since: float) -> list[Path]:
    """Return the session folders, not older than `since` (epoch seconds), that Ray made for a
    driver's process id.
    """
    above = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp") / "ray"
    found = []
    for folder in above.glob(f"session_*_{driver}"):
        try:
            made = folder.stat().st_mtime
        except FileNotFoundError:  # removed meanwhile
            continue
        if made >= since:
            found.append(folder)
    return found


def end(mark: str) -> None:
    """Kill all processes with the mark until none appears any more."""
    last = began = time.monotonic()
    while time.monotonic() - last < QUIET and time.monotonic() - began < MOST_WAITED:
        for pid in marked(mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            last = time.monotonic()
        time.sleep(0.05)


def main() -> None:
    """Wait for the driver's end. If it was killed, delete its session's folder too, which nobody
    reads.
    """
    mark, driver = sys.argv[1], int(sys.argv[2])
    since = Path(f"/proc/{os.getpid()}").stat().st_mtime - 1  # file systems round
    said = sys.stdin.buffer.read(1)
    if said == DONE:
        return
    end(mark)
    if said != SWEEP:
        for folder in sessions(driver, since):
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
