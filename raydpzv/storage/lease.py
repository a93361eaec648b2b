"""One writer per storage: a lease that its holder renews, and loses when it dies.

leases/00000003-<id>.json says who writes in epoch 3, and has a counter that grows. Who wants to write watches the
newest one for the time that it names; if the counter stands still, the holder is dead, and a file of the next epoch is
made. No clock is compared with another machine's, and file systems need no compare-and-swap: each process writes files
of its own alone, and then looks at those of others. Where a listing shows what was written before it, of two that make
the same epoch at most one goes on; and a holder that was only slow finds the newer epoch when it looks, which it does
after each commit and before it relies on one.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raydpzv.errors import InputError, RunError
from raydpzv.storage.filesystem import StorageFolder

LEASES = "leases"
_LOOKS = 8
"""Looks at a lease within the time after which it is lost, and twice the times that its holder renews it."""
_MARGIN = 1.25
"""A lease is lost after so many times its seconds: a renewal takes its time too."""
Waits = Callable[[str], None]
"""Told what is waited for, and for how long at the most."""


class Fenced(RunError):
    """Another process has taken over: this one may write nothing more."""


@dataclass(frozen=True)
class _Found:
    """A lease as it was read."""

    epoch: int
    name: str
    data: bytes

    def fact(self, key: str, default: Any = None) -> Any:
        try:
            found = json.loads(self.data)
        except ValueError:  # in the midst of a renewal
            return default
        return found.get(key, default) if isinstance(found, dict) else default

    @property
    def who(self) -> str:
        return f"process {self.fact('pid', '?')} on {self.fact('host', 'an unknown machine')}"


class Lease:
    """The right to write to a storage. Make one with `take`; it is this process's until `release`."""

    def __init__(self, place: StorageFolder, epoch: int, seconds: float) -> None:
        self._place, self.epoch, self.seconds = place, epoch, seconds
        self.writer = secrets.token_hex(8)
        self._name, self._count = f"{epoch:08d}-{self.writer}.json", 0

    @classmethod
    def take(
        cls,
        place: StorageFolder,
        seconds: float,
        above: int = 0,
        sleep: Callable[[float], None] = time.sleep,
        waits: Waits = lambda what: None,
    ) -> Lease:
        """Return the lease, for an epoch above this one and above all that were held before.

        Waits where there is another until that has not moved for its seconds. Raises InputError if it moves, or if
        another process takes it at the same time; OSError where the storage cannot be read or written.
        """
        last = _newest(place)
        if last and not last.fact("released", False):
            _outlive(place, last, seconds, sleep, waits)
        lease = cls(place, max(above, last.epoch if last else 0) + 1, seconds)
        lease.renew()
        others = [other for other in _all(place) if other.epoch >= lease.epoch and other.name != lease._name]
        if others:
            place.delete(f"{LEASES}/{lease._name}")
            raise InputError(
                f"{place.uri}: {others[-1].who} takes this storage at this moment; wait for it, or choose another"
            )
        for other in _all(place):
            if other.epoch < lease.epoch - 1:
                place.delete(f"{LEASES}/{other.name}")
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
        """Raise Fenced if another process has taken over."""
        newest = _newest(self._place)
        if newest and newest.epoch > self.epoch:
            raise Fenced(
                f"{self._place.uri}: {newest.who} has taken this storage over, since this process's lease had not "
                f"moved for {self.seconds:g} s; nothing more is written there, and what came after the last commit is "
                "only in this machine's copy"
            )

    def _write(self, *, released: bool) -> None:
        facts = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "count": self._count,
            "seconds": self.seconds,
            "released": released,
        }
        self._place.write(f"{LEASES}/{self._name}", json.dumps(facts).encode())


def _outlive(
    place: StorageFolder, last: _Found, usual: float, sleep: Callable[[float], None], waits: Waits
) -> None:
    """Wait as long as a lease lasts, or as usual where it cannot be read just now.

    Raises InputError if its holder renews it meanwhile.
    """
    pause, looks = float(last.fact("seconds", usual)) / _LOOKS, int(_LOOKS * _MARGIN)
    waits(
        f"{last.who}, which wrote to {place.uri}, to show that it lives; if it has not after {looks * pause:.3g} s, it "
        "is given up"
    )
    for _ in range(looks):
        sleep(pause)
        found = _newest(place)
        if found is None or found == last:
            continue
        if found.fact("released", False) and found.epoch == last.epoch:
            return
        raise InputError(
            f"{place.uri}: {found.who} is writing to this storage; wait for it, stop it, or choose another"
        )


def last_writer(place: StorageFolder) -> tuple[int, str]:
    """Return the newest epoch and its writer; (0, "") if nobody has ever written."""
    newest = _newest(place)
    return (newest.epoch, newest.name.partition("-")[2].partition(".")[0]) if newest else (0, "")


def _newest(place: StorageFolder) -> _Found | None:
    found = _all(place)
    return found[-1] if found else None


def _all(place: StorageFolder) -> list[_Found]:
    read = [(name, place.read(f"{LEASES}/{name}")) for name in place.names(LEASES) if name[:8].isdigit()]
    return [_Found(int(name[:8]), name, data) for name, data in read if data is not None]
