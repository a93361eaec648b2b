"""Frames of bytes on a socket between two actors that know each other by a secret.

A frame is its length (8 bytes) and its bytes. Before anything else is read, each end proves that it
has the secret by answering the other's challenge (HMAC-SHA256). The secret itself never travels.
"""

from __future__ import annotations

import hmac
import os
import secrets
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from actors.machines import noticed_within
from raydpzv.errors import Stalled, TransportError

_LENGTH = struct.Struct("<Q")
MOST = 2**40
"""Most bytes of a frame, where no smaller size was promised."""
_COPIED = 2**16
"""Frames of up to this many bytes are joined before sending, to save system calls."""
_BACKLOG = 128
_CREDENTIALS = struct.Struct("iII")
"""Process, user and group of a peer (Linux)."""
_CHALLENGE = 32
_PROOF = 32
_PROBES = 4
"""Unanswered questions of the system after which a peer's machine is gone."""
HANDSHAKE_TIMEOUT = 30.0
"""Time limit in seconds for each of the two frames by which a peer proves itself."""


@dataclass(frozen=True)
class TransportAddress:
    """The address at which an actor listens, and the secret of its run.

    host: of a TCP socket; "" for a Unix socket, which has a name in place of a port.
    """

    host: str
    port: int | str
    secret: bytes

    def __repr__(self) -> str:
        return f"TransportAddress({self.where!r})"  # never the secret: this ends up in logs

    @property
    def where(self) -> str:
        """The address in words."""
        return f"{self.host}:{self.port}" if self.host else f"the Unix socket {str(self.port)!r}"


def listen(host: str, secret: bytes, peers: int = 0) -> tuple[socket.socket, TransportAddress]:
    """Listen for peers. Raises TransportError.

    host: an address of this machine, "" for peers on this machine alone; peers: how many may
    connect at once, as far as the system allows (`net.core.somaxconn`).
    """
    try:
        if not host and sys.platform.startswith("linux"):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            name = f"raydpzv-{secrets.token_hex(16)}"
            listener.bind("\0" + name)  # no file: nothing is left of it when its process is killed
            address = TransportAddress("", name, secret)
        else:
            listener = socket.create_server((host or "127.0.0.1", 0))
            name, port = listener.getsockname()[:2]
            address = TransportAddress(name, port, secret)
        listener.listen(max(_BACKLOG, peers))
    except OSError as error:
        raise TransportError(
            f"the server's actor cannot listen on {host or 'this machine'}: {error}"
        ) from None
    return listener, address


def dial(address: TransportAddress, timeout: float) -> FrameSocket:
    """Connect to an address; both ends have proved themselves. timeout: of every frame. Raises
    TransportError.
    """
    try:
        if address.host:
            connected = socket.create_connection(
                (address.host, int(address.port)), HANDSHAKE_TIMEOUT
            )
        else:
            connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            # waits in the system while too many others connect; with Python's own timeout it would
            # fail at once
            seconds, fraction = divmod(HANDSHAKE_TIMEOUT, 1)
            limit = struct.pack("ll", int(seconds), int(1e6 * fraction))
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            connected.connect(f"\0{address.port}")
    except OSError as error:
        raise TransportError(f"no connection to {address.where}: {error}") from None
    peer = FrameSocket(connected, timeout)
    try:
        prove(peer, address.secret, listens=False)
    except BaseException:
        peer.close()
        raise
    return peer


class FrameSocket:
    """One end of a socket. timeout: seconds in which a frame must arrive once it has started, or be
    sent.
    """

    def __init__(self, connected: socket.socket, timeout: float) -> None:
        self._socket, self._timeout = connected, timeout
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end_with_machine(connected, noticed_within())

    def send(self, *parts: bytes, meanwhile: Callable[[], None] | None = None) -> None:
        """Send one frame. Raises TransportError.

        meanwhile: receives a frame; called while the peer reads nothing because it sends a frame
        itself.
        """
        size = sum(map(len, parts))
        if size > MOST:
            raise TransportError(
                f"a frame of {size} bytes is longer than any that travels ({MOST})"
            )
        head = _LENGTH.pack(size)
        pieces = (head, *parts) if size > _COPIED else (b"".join((head, *parts)),)
        try:
            for piece in pieces:
                if meanwhile:
                    self._send_between(memoryview(piece), meanwhile)
                else:
                    self._socket.settimeout(self._timeout)
                    self._socket.sendall(piece)
        except OSError as error:
            self.close()
            raise TransportError(
                f"the connection broke while {size} bytes were sent: {error}"
            ) from None

    def receive(self, most: int = MOST, *, begins_within: float | None = None) -> memoryview:
        """Return the next frame, of at most `most` bytes.

        begins_within: time limit in seconds for its first byte (None: no limit); Stalled beyond it.
        Raises TransportError and closes the socket if the frame is longer, cut off or too slow.
        """
        head = bytearray(_LENGTH.size)
        try:
            self._socket.settimeout(begins_within)
            got = self._socket.recv_into(head)
        except OSError as error:
            # of the system's own, after which a connection is dead, it has a number
            if isinstance(error, TimeoutError) and error.errno is None:
                raise Stalled(f"waited {begins_within:g} s for the peer") from None
            self.close()
            raise TransportError(f"the connection broke: {error}") from None
        if not got:
            self.close()
            raise TransportError("the connection was closed by the peer")
        deadline = time.monotonic() + self._timeout
        self._fill(memoryview(head)[got:], deadline)
        (size,) = _LENGTH.unpack(head)
        if size > most:
            self.close()
            raise TransportError(f"a frame of {size} bytes came where at most {most} were promised")
        data = memoryview(bytearray(size))
        self._fill(data, deadline)
        return data

    def close(self) -> None:
        """Close this end; the peer notices."""
        self._socket.close()

    def cut(self) -> None:
        """End the connection from a thread other than the one that waits on it."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # it is closed already
            return

    def _send_between(self, data: memoryview, meanwhile: Callable[[], None]) -> None:
        """Send what the peer reads, and receive when the peer sends first."""
        deadline = time.monotonic() + self._timeout
        while data:
            self._socket.settimeout(0)
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                with selectors.DefaultSelector() as selector:
                    selector.register(self._socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
                    ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise TimeoutError("timed out") from None
                if ready[0][1] & selectors.EVENT_READ:
                    meanwhile()

    def _fill(self, data: memoryview, deadline: float) -> None:
        place = 0
        while place < len(data):
            try:
                if (left := deadline - time.monotonic()) <= 0:  # however little comes at a time
                    raise TimeoutError("timed out")
                self._socket.settimeout(left)
                got = self._socket.recv_into(data[place:])
            except OSError as error:
                self.close()
                raise TransportError(
                    f"a frame was cut off after {place} of {len(data)} bytes: {error}"
                ) from None
            if not got:
                self.close()
                raise TransportError(f"a frame was cut off after {place} of {len(data)} bytes")
            place += got


def end_with_machine(connected: socket.socket, seconds: float) -> None:
    """Have a connection break when the peer's machine is silent for so long.

    A machine that loses its power or its cable ends no connection. A shorter silence is none of
    the connection's.
    """
    probe = max(1, round(seconds / (1 + _PROBES)))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {
        "TCP_KEEPIDLE": probe,
        "TCP_KEEPINTVL": probe,
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": round(1000 * seconds),
    }.items():
        if option := getattr(socket, name, None):  # not every system has all
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


def prove(peer: FrameSocket, secret: bytes, *, listens: bool) -> None:
    """Prove to the peer that this end has the secret, and check the peer's proof. Raises
    TransportError.
    """
    usual, peer._timeout = peer._timeout, HANDSHAKE_TIMEOUT
    mine = os.urandom(_CHALLENGE)
    peer.send(mine)
    theirs = bytes(peer.receive(_CHALLENGE, begins_within=HANDSHAKE_TIMEOUT))
    peer.send(_answer(secret, theirs, mine, listens=listens))
    answer = bytes(peer.receive(_PROOF, begins_within=HANDSHAKE_TIMEOUT))
    if not hmac.compare_digest(answer, _answer(secret, mine, theirs, listens=not listens)):
        peer.close()
        raise TransportError("the peer does not have the run's secret: it is no actor of this run")
    peer._timeout = usual


def from_another_user(connected: socket.socket) -> bool:
    """Return whether another user of this machine connected; False where the system does not name
    the user.
    """
    if connected.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return False
    _, user, _ = _CREDENTIALS.unpack(
        connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return bool(user != os.getuid())


def _answer(secret: bytes, challenge: bytes, own: bytes, *, listens: bool) -> bytes:
    """Return a proof that covers both challenges and the answering end, so that nobody can replay
    it.
    """
    return hmac.digest(secret, (b"server" if listens else b"client") + challenge + own, "sha256")
