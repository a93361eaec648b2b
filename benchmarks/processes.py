"""CPU seconds of this process and its descendants by what they do, from /proc (Linux)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GROUPS = ("driver", "server", "clients", "ray")
"""This process; the server's actor and the ledger's; the clients' actors; the rest (Ray's daemons
and idle workers).
"""
_ACTORS = {
    "server": ("ray::VerticalServerActor", "ray::HorizontalServerActor", "ray::LedgerActor"),
    "clients": ("ray::ClientActor", "ray::ClientGroupActor"),
}
"""How the titles of actors' processes begin, by group."""
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Census:
    """The processes to watch: group by process id."""

    groups: Mapping[int, str]

    @staticmethod
    def take() -> Census:
        """Find this process and its descendants; actors are known by the title Ray gives their
        process.
        """
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (fields := _stat(int(entry.name))):
                parents[int(entry.name)] = int(fields[1])
        here = os.getpid()
        family, grown = {here}, True
        while grown:
            children = {pid for pid, parent in parents.items() if parent in family} - family
            family |= children
            grown = bool(children)
        return Census({pid: "driver" if pid == here else _group(pid) for pid in family})

    def cpu_seconds(self) -> Counter[str]:
        """Return user and system seconds so far by group."""
        seconds: Counter[str] = Counter()
        for pid, group in self.groups.items():
            if fields := _stat(pid):
                seconds[group] += (int(fields[11]) + int(fields[12])) / _TICK  # type: ignore[assignment]
        return seconds


def _group(pid: int) -> str:
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return "ray"
    for group, actors in _ACTORS.items():
        if title.startswith(actors):
            return group
    return "ray"


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/pid/stat after the name, state first; nothing if the process is
    gone.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
