"""One writer per storage: a lease that its holder renews, and loses when it dies.

leases/00000003-<id>.json names the writer of epoch 3 and holds a counter that grows. A process that
wants to write watches the newest lease for the time that it names. If the counter does not move,
the holder is dead, and the process writes a lease of the next epoch, at once where the holder ran
on the same system and has ended. Clocks of two machines are never compared, and file systems need
no compare-and-swap: each process writes only its own file and then reads the others'. If a listing
shows everything written before it, at most one of two processes with the same epoch continues. A
holder that was only slow finds the newer epoch when it looks, which it does before and after each
manifest.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydpzv.errors import InputError, RunError
from raydpzv.storage.filesystem import StorageFolder

LEASES = "leases"
_LOOKS = 8
"""Looks at a lease within its seconds, and twice the times that its holder renews it."""
_MARGIN = 1.25
"""A lease is lost after so many times its seconds, since a renewal takes time too."""
Waits = Callable[[str], None]
"""Called with a sentence that says which process is waited for, and how long at most."""


class Fenced(RunError):
    """Another process took the lease: this one must not write any more."""


@dataclass(frozen=True)
class _Found:
    """A lease as it was read."""

    epoch: int
    name: str
    data: bytes

    def fact(self, key: str, default: Any = None) -> Any:
        try:
            found = json.loads(self.data)
        except ValueError:  # during a renewal
            return default
        return found.get(key, default) if isinstance(found, dict) else default

    @property
    def process(self) -> str:
        return f"process {self.fact('pid', '?')} on {self.fact('host', 'an unknown machine')}"

    @property
    def ended(self) -> bool:
        """Whether it was released, or its process ran on this system and is no more."""
        if self.fact("released", False):
            return True
        try:
            if self.fact("system") == _system():
                os.kill(self.fact("pid"), 0)
        except OSError as error:
            return isinstance(error, ProcessLookupError)  # not of one that another user may end
        return False


class Lease:
    """The right to write to a storage. Make one with `acquire`; this process holds it until
    `release`.
    """

    def __init__(self, storage: StorageFolder, epoch: int, seconds: float) -> None:
        self._storage, self.epoch, self.seconds = storage, epoch, seconds
        self.writer = secrets.token_hex(8)
        self._name, self._count = f"{epoch:08d}-{self.writer}.json", 0

    @classmethod
    def acquire(
        cls,
        storage: StorageFolder,
        seconds: float,
        above: int = 0,
        sleep: Callable[[float], None] = time.sleep,
        waits: Waits = lambda sentence: None,
    ) -> Lease:
        """Return the lease for an epoch above this one and above all that were held before.

        If another process holds the lease, wait until that has not been renewed for its seconds.
        Raises InputError if it is renewed, or if another process takes it at the same time; OSError
        if the storage fails.
        """
        last = _newest(storage)
        if last and not last.ended:
            _outlive(storage, last, seconds, sleep, waits)
        lease = cls(storage, max(above, last.epoch if last else 0) + 1, seconds)
        lease.renew()
        others = [
            other
            for other in _all(storage)
            if other.epoch >= lease.epoch and other.name != lease._name
        ]
        if others:
            storage.delete(f"{LEASES}/{lease._name}")
            raise InputError(
                f"{storage.uri}: {others[-1].process} takes this storage at this moment; wait for "
                "it, or choose another"
            )
        for other in _all(storage):
            if other.epoch < lease.epoch - 1:
                storage.delete(f"{LEASES}/{other.name}")
        return lease

    @property
    def renewals(self) -> float:
        """Seconds between two renewals."""
        return 2 * self.seconds / _LOOKS

    def renew(self) -> None:
        """Show that this process lives."""
        self._count += 1
        self._write(released=False)

    def release(self) -> None:
        """Let another writer in at once."""
        self._write(released=True)

    def check(self) -> None:
        """Raise Fenced if another process took the lease."""
        newest = _newest(self._storage)
        if newest and newest.epoch > self.epoch:
            raise Fenced(
                f"{self._storage.uri}: {newest.process} has taken this storage over, since this "
                f"process's lease had not moved for {self.seconds:g} s; nothing more is written "
                "there, and what came after the last commit is only in this machine's copy"
            )

    def _write(self, *, released: bool) -> None:
        facts = {
            "host": socket.gethostname(),
            "system": _system(),
            "pid": os.getpid(),
            "count": self._count,
            "seconds": self.seconds,
            "released": released,
        }
        self._storage.write(f"{LEASES}/{self._name}", json.dumps(facts).encode())


def _outlive(
    storage: StorageFolder, last: _Found, usual: float, sleep: Callable[[float], None], waits: Waits
) -> None:
    """Wait for the seconds that a lease names, or the usual ones if it cannot be read now.

    Raises InputError if its holder renews it meanwhile.
    """
    pause, looks = float(last.fact("seconds", usual)) / _LOOKS, int(_LOOKS * _MARGIN)
    waits(
        f"{last.process}, which wrote to {storage.uri}, to show that it lives; if it has not after "
        f"{looks * pause:.3g} s, it is given up"
    )
    for _ in range(looks):
        sleep(pause)
        found = _newest(storage)
        if found is None or found == last:
            continue
        if found.fact("released", False) and found.epoch == last.epoch:
            return
        raise InputError(
            f"{storage.uri}: {found.process} is writing to this storage; wait for it, stop it, or "
            "choose another"
        )


def _system() -> str:
    """Return the boot and the container whose processes have these numbers; where that is unknown,
    no other's.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return secrets.token_hex(8)


def last_writer(storage: StorageFolder) -> tuple[int, str]:
    """Return the newest epoch and its writer; (0, "") if no process has ever written."""
    newest = _newest(storage)
    return (newest.epoch, newest.name.partition("-")[2].partition(".")[0]) if newest else (0, "")


def _newest(storage: StorageFolder) -> _Found | None:
    return max(_all(storage), key=lambda found: found.name, default=None)


def _all(storage: StorageFolder) -> list[_Found]:
    read = [
        (name, storage.read(f"{LEASES}/{name}"))
        for name in storage.names(LEASES)
        if name[:8].isdigit()
    ]
    return [_Found(int(name[:8]), name, data) for name, data in read if data is not None]
