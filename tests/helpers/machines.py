"""Machines of a cluster on this one computer: namespaces, each with its own Ray, address and
processes, on a network of their own.

No packet leaves: the network is a program (`tests.helpers.cables`) with no other end. All names are
inside the namespaces. A machine's processes end with its first one, which ends with the test's,
however that ends.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.helpers.ray_heads import BIN, family, free_port, kill

ROOT = Path(__file__).parents[2]
_NET = "10.77.0"
"""The addresses of the machines. Beds have networks of their own, so that two never meet."""
_STORE = 100 * 2**20
"""Bytes of each machine's object store."""
_UP_WITHIN = 150.0
"""Seconds for a machine's Ray to come up on a busy computer."""
_NOTICED = {"RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "1000"}
_NOTICED |= {"RAY_health_check_failure_threshold": "4"}
"""Ray takes 15 s or more to find out that a machine is gone, unless it asks more often."""
_SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def _die_with_parent() -> None:
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


@cache
def refused() -> str:
    """Return why this computer makes no namespaces; "" if it does."""
    for tool in ("unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc"]
    command += ["ip", "tuntap", "add", "dev", "eth0", "mode", "tap"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip()


class _Space:
    """The namespaces of one machine: network, mounts and processes."""

    def __init__(self) -> None:
        command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]
        command += ["--mount-proc", "sh", "-c", "echo up; exec sleep infinity"]
        self._outer = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, preexec_fn=_die_with_parent
        )
        assert self._outer.stdout is not None
        assert self._outer.stdout.readline() == "up\n"
        self.first = family(self._outer.pid)[-1]

    def inside(self, *command: str) -> list[str]:
        """Return the command line of a command in here."""
        return ["nsenter", "--target", str(self.first), "--net", "--mount", "--pid", "--", *command]

    def processes(self) -> list[int]:
        """Return all processes in here, by the numbers that this process knows them by."""
        found, there = [], os.readlink(f"/proc/{self.first}/ns/pid")
        for path in Path("/proc").glob("[0-9]*/ns/pid"):
            try:
                if os.readlink(path) == there:
                    found.append(int(path.parts[2]))
            except OSError:
                continue  # it ended meanwhile
        return found

    def end(self) -> None:
        """Kill all processes at once."""
        self._outer.kill()
        self._outer.communicate()


class _NoSpace:
    """One machine that is processes of this computer, where it makes no namespaces."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[Any]] = []

    def inside(self, *command: str) -> list[str]:
        return list(command)

    def processes(self) -> list[int]:
        return [pid for process in self.started for pid in family(process.pid)]

    def end(self) -> None:
        kill(self.processes())


class Machine:
    """One machine: its number, its address, and its processes."""

    def __init__(self, number: int, space: _Space | _NoSpace, address: str) -> None:
        self.number, self.space, self.address = number, space, address
        self.name = f"m{number}"
        self.ray: subprocess.Popen[Any] | None = None

    def lost(self) -> bool:
        """Return whether its Ray has ended."""
        return self.ray is None or self.ray.poll() is not None

    def start(self, *command: str, environment: Mapping[str, str], **how: Any) -> Any:
        """Start a command here."""
        process = subprocess.Popen(
            self.space.inside(*command), env=dict(environment), start_new_session=True, **how
        )
        if isinstance(self.space, _NoSpace):
            self.space.started.append(process)
        return process


class Machines:
    """A cluster whose head is the first machine, and that may lose and gain machines."""

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        self.reason = refused()
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), **_NOTICED, **environment}
        self.machines: list[Machine] = []
        self.hurt: set[Machine] = set()  # whose cable was cut, or that were paused
        self._folder, self._count = folder, 0
        self._port = free_port() if self.reason else 6379
        self._switch: subprocess.Popen[str] | None = None
        if not self.reason:
            command = [sys.executable, "-m", "tests.helpers.cables"]
            self._switch = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
            )

    @property
    def address(self) -> str:
        """The address of the cluster."""
        return f"{self.machines[0].address}:{self._port}"

    def add(self, cpus: int, **labels: str) -> Machine:
        """Start a machine, the first one as the head; it is up when its Ray has joined."""
        self._count += 1
        machine = self._machine(self._count)
        options: dict[str, Any] = {
            "node-ip-address": machine.address,
            "node-name": machine.name,
            "num-cpus": cpus,
            "num-gpus": 0,
            "object-store-memory": _STORE,
            "include-log-monitor": "false",
        }
        if labels:
            options["labels"] = ",".join(f"{name}={value}" for name, value in labels.items())
        words = [f"--{name}={value}" for name, value in options.items()]
        if self.machines:
            words += [f"--address={self.address}"]
        else:
            words += ["--head", f"--port={self._port}", "--include-dashboard=false"]
            words += ["--no-monitor", f"--temp-dir={self._folder}"]
        log = Path(self._folder) / f"{machine.name}.log"
        with log.open("w") as said:
            process = machine.start(
                str(BIN / "ray"),
                "start",
                "--block",
                "--disable-usage-stats",
                *words,
                environment=self.environment,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        machine.ray = process
        self.machines.append(machine)
        until = time.monotonic() + _UP_WITHIN
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, f"{log.read_text()}\nno Ray after {_UP_WITHIN:g} s"
            time.sleep(0.1)
        return machine

    def _machine(self, number: int) -> Machine:
        """Return a machine on the network, with nothing on it."""
        if self.reason:
            return Machine(number, _NoSpace(), "127.0.0.1")
        space, address = _Space(), f"{_NET}.{number}"
        machine = Machine(number, space, address)
        self._tell("plug", machine.name, str(space.first))
        # a route to everywhere, as Ray asks for it: it leads to the other machines alone
        for words in (
            "ip link set lo up",
            f"ip addr add {address}/24 dev eth0",
            "ip link set eth0 mtu 9000 up",
            "ip route add default dev eth0",
        ):
            subprocess.run(space.inside(*words.split()), check=True)
        return machine

    def _tell(self, *words: str) -> None:
        assert self._switch is not None, f"no cables here: {self.reason}"
        stdin, stdout = self._switch.stdin, self._switch.stdout
        assert stdin is not None
        assert stdout is not None
        print(*words, file=stdin, flush=True)
        assert stdout.readline() == "done\n"

    def cut(self, machine: Machine) -> None:
        """Cut a machine's cable."""
        self.hurt.add(machine)
        self._tell("cut", machine.name)

    def mend(self, machine: Machine) -> None:
        """Mend a machine's cable."""
        self._tell("mend", machine.name)

    def slow(self, delay: float, bits: float) -> None:
        """Let all cables take their time: a message of one machine to another `delay` seconds, and
        at the most so many bits a second.
        """
        for machine in self.machines:
            self._tell("slow", machine.name, str(delay), str(bits))

    def lose(self, machine: Machine) -> None:
        """Lose a machine whole: nobody hears of it again, not even that its connections ended."""
        if self._switch:
            self.cut(machine)
        machine.space.end()
        self.machines.remove(machine)

    def pause(self, machine: Machine, number: signal.Signals = signal.SIGSTOP) -> None:
        """Stop all processes of a machine; with SIGCONT, let them continue."""
        self.hurt.add(machine)
        for pid in machine.space.processes():
            os.kill(pid, number)

    def run(self, machine: Machine, *arguments: str, **environment: str) -> Any:
        """Run Python on a machine to its end; return what it printed, and its exit status."""
        process = self.start(machine, *arguments, **environment)
        out, err = process.communicate(timeout=280)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def start(self, machine: Machine, *arguments: str, **environment: str) -> Any:
        """Start Python on a machine; an empty variable is none."""
        given = {**self.environment, "RAY_ADDRESS": self.address, **environment}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return machine.start(
            str(BIN / "python"),
            *arguments,
            environment={name: value for name, value in given.items() if value},
            text=True,
            cwd=ROOT,
            **pipes,
        )

    def end(self) -> None:
        """End all machines, and their network."""
        for machine in list(self.machines):
            machine.space.end()
        if self._switch:
            self._switch.communicate()


@contextmanager
def cluster(**environment: str) -> Iterator[Machines]:
    """Yield a cluster without machines; `add` starts them. They end with the block."""
    # socket paths below it must stay under 107 bytes
    with tempfile.TemporaryDirectory(prefix="rz", ignore_cleanup_errors=True) as folder:
        machines = Machines(folder, environment)
        try:
            yield machines
        finally:
            machines.end()
