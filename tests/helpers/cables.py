"""The network between machines that are namespaces of this computer: a switch that can be slow.

A program of its own: `python -m tests.helpers.cables`. It takes commands line by line and answers
each with a line: `plug NAME PID` gives the namespace of a process the device eth0, `cut NAME` and
`mend NAME` its cable, `slow NAME SECONDS BITS` delays and paces what it sends. Linux has all of
this too (veth, bridge, netem), but not every kernel is built with it.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import selectors
import struct
import sys
import time
from dataclasses import dataclass, field

FRAME = 9000
"""Bytes of the largest frame."""
_TUN_SET_IFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_EVERYBODY = b"\xff" * 6


@dataclass
class Cable:
    """One machine's cable."""

    device: int
    """The other end of its eth0: a file."""
    whole: bool = True
    """Whether anything passes."""
    delay: float = 0.0
    """Seconds that a frame takes, apart from its length."""
    bits: float = float("inf")
    """Bits per second."""
    busy: float = 0.0
    """When the last frame will have left."""


@dataclass
class Switch:
    """Passes frames on to the machine that they are for."""

    cables: dict[str, Cable] = field(default_factory=dict)
    """The machines' cables by name."""
    addresses: dict[bytes, Cable] = field(default_factory=dict)
    """Whose frames came from which cable."""
    waiting: list[tuple[float, int, bytes, Cable]] = field(default_factory=list)
    """Frames that are on their way, by the time at which they arrive."""
    count: int = 0
    """Frames so far."""

    def take(self, cable: Cable) -> None:
        """Take a frame that a machine sends."""
        frame, now = os.read(cable.device, FRAME + 18), time.monotonic()
        self.addresses[frame[6:12]] = cable
        if not cable.whole:
            return
        self.count += 1
        cable.busy = max(cable.busy, now) + len(frame) * 8 / cable.bits
        heapq.heappush(self.waiting, (cable.busy + cable.delay, self.count, frame, cable))

    def deliver(self) -> float | None:
        """Hand over what has arrived; return how long nothing else will."""
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            _, _, frame, sender = heapq.heappop(self.waiting)
            known = self.addresses.get(frame[:6])
            receivers = [known] if known else list(self.cables.values())
            for receiver in receivers:
                if receiver is not sender and receiver.whole and sender.whole:
                    os.write(receiver.device, frame)
        return max(0.0, self.waiting[0][0] - time.monotonic()) if self.waiting else None

    def obey(self, command: str) -> None:
        """Do what a line says."""
        what, name, *rest = command.split()
        if what == "plug":
            self.cables[name] = Cable(tap_in(int(rest[0])))
        elif what == "slow":
            self.cables[name].delay, self.cables[name].bits = map(float, rest)
        else:
            self.cables[name].whole = what == "mend"


def tap_in(process: int) -> int:
    """Make eth0 in the network of a process, and return the file of its other end."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as here, open(f"/proc/{process}/ns/net") as there:
        assert libc.setns(there.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        try:
            device = os.open("/dev/net/tun", os.O_RDWR)
            wanted = struct.pack("16sH22x", b"eth0", _IFF_TAP | _IFF_NO_PI)
            fcntl.ioctl(device, _TUN_SET_IFF, wanted)
        finally:
            assert libc.setns(here.fileno(), _CLONE_NEWNET) == 0
    return device


def main() -> None:
    """Pass on frames until nobody gives commands any more."""
    switch, ready = Switch(), selectors.DefaultSelector()
    ready.register(sys.stdin.fileno(), selectors.EVENT_READ)
    wait = None
    while True:
        for key, _ in ready.select(wait):
            if key.data is not None:
                switch.take(key.data)
                continue
            line = sys.stdin.readline()
            if not line:
                return
            before = set(switch.cables)
            switch.obey(line)
            for name in switch.cables.keys() - before:
                cable = switch.cables[name]
                ready.register(cable.device, selectors.EVENT_READ, cable)
            print("done", flush=True)
        wait = switch.deliver()


if __name__ == "__main__":
    main()
