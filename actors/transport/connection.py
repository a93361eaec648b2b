"""A line: a socket between two actors that know one another by a secret, and frames of bytes on it.

A frame is its length, 8 bytes, and so many bytes. Both ends prove that they have the secret by answering a challenge of
the other (HMAC-SHA256) before anything else is read; the secret itself never travels.
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

from raydpzv.errors import Stalled, TransportError

_LENGTH = struct.Struct("<Q")
MOST = 2**40
"""Bytes of a frame at most, where nothing less was promised."""
_COPIED = 2**16
"""Bytes of a frame up to which its parts become one before they are sent, rather than one call of the system each."""
_BACKLOG = 128
_CREDENTIALS = struct.Struct("iII")
"""Process, user and group of a peer, as Linux tells them."""
_CHALLENGE = 32
_PROOF = 32
HANDSHAKE_TIMEOUT = 30.0
"""Seconds in which each of the two frames must come by which a peer proves itself."""


@dataclass(frozen=True)
class TransportAddress:
    """Where the server's actor listens, and the secret by which peers know one another.

    host: of a TCP socket; "" of a Unix socket, which has a name in place of a port.
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
    """Listen for peers; host: of this machine's network, "" for peers on this machine alone. Raises TransportError.

    peers: how many may connect at once, as far as the system allows (`net.core.somaxconn`).
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
            f'the server\'s actor cannot listen on {host or "this machine"} ({error}); set resources.lane = "ray"'
        ) from None
    return listener, address


def dial(address: TransportAddress, timeout: float) -> Connection:
    """Return a line to who listens there, both ends proved; timeout: of every frame on it. Raises TransportError."""
    try:
        if address.host:
            connected = socket.create_connection((address.host, int(address.port)), HANDSHAKE_TIMEOUT)
        else:
            connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            # waits in the system while too many others connect; with Python's own timeout it would fail at once
            seconds, fraction = divmod(HANDSHAKE_TIMEOUT, 1)
            limit = struct.pack("ll", int(seconds), int(1e6 * fraction))
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            connected.connect(f"\0{address.port}")
    except OSError as error:
        raise TransportError(f"no line to {address.where}: {error}") from None
    line = Connection(connected, timeout)
    try:
        prove(line, address.secret, listens=False)
    except BaseException:
        line.close()
        raise
    return line


class Connection:
    """One end. timeout: seconds in which a frame that has begun must be there, and in which one must be taken."""

    def __init__(self, connected: socket.socket, timeout: float) -> None:
        self._socket, self._timeout = connected, timeout
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, *parts: bytes, meanwhile: Callable[[], None] | None = None) -> None:
        """Send one frame. Raises TransportError.

        meanwhile: receives a frame; called while the peer takes none because it is at sending one itself.
        """
        size = sum(map(len, parts))
        if size > MOST:
            raise TransportError(f"a frame of {size} bytes is longer than any that travels ({MOST})")
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
            raise TransportError(f"the line broke while {size} bytes were sent: {error}") from None

    def receive(self, most: int = MOST, *, begins_within: float | None = None) -> memoryview:
        """Return the next frame, of at most so many bytes.

        begins_within: seconds for its first byte (None: as long as it takes); Stalled past them. TransportError: the
        frame is longer, cut off, or comes too slowly; then the line is closed.
        """
        head = bytearray(_LENGTH.size)
        try:
            self._socket.settimeout(begins_within)
            got = self._socket.recv_into(head)
        except TimeoutError:
            raise Stalled(f"waited {begins_within:g} s for the peer") from None
        except OSError as error:
            self.close()
            raise TransportError(f"the line broke: {error}") from None
        if not got:
            self.close()
            raise TransportError("the line was closed by the peer")
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
        """Close this end; the other learns of it."""
        self._socket.close()

    def cut(self) -> None:
        """End the line from another thread than the one that waits on it."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # it is closed already
            return

    def _send_between(self, data: memoryview, meanwhile: Callable[[], None]) -> None:
        """Send as much as the peer takes, and receive where it has something to say before it takes more."""
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


def prove(line: Connection, secret: bytes, *, listens: bool) -> None:
    """Prove to the peer that this end has the secret, and have it prove the same. TransportError: it could not."""
    usual, line._timeout = line._timeout, HANDSHAKE_TIMEOUT
    mine = os.urandom(_CHALLENGE)
    line.send(mine)
    theirs = bytes(line.receive(_CHALLENGE, begins_within=HANDSHAKE_TIMEOUT))
    line.send(_answer(secret, theirs, mine, listens=listens))
    answer = bytes(line.receive(_PROOF, begins_within=HANDSHAKE_TIMEOUT))
    if not hmac.compare_digest(answer, _answer(secret, mine, theirs, listens=not listens)):
        line.close()
        raise TransportError("the peer does not have the run's secret: it is no actor of this run")
    line._timeout = usual


def from_another_user(connected: socket.socket) -> bool:
    """Tell whether another user of this machine connected; False where the system does not say who did."""
    if connected.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return False
    _, user, _ = _CREDENTIALS.unpack(
        connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return bool(user != os.getuid())


def _answer(secret: bytes, challenge: bytes, own: bytes, *, listens: bool) -> bytes:
    """Both challenges and the end that answers are in it, so that no answer serves at the other end or again."""
    role = b"server" if listens else b"client"
    return hmac.digest(secret, role + challenge + own, "sha256")
