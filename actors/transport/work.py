"""Frames between server and hosts, besides those of `frames`: orders to many clients at once, and
probes of the model.

Orders that share a body share its bytes. A body's wire bytes are aligned for numbers of any width,
so that computing with them needs no copy.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np

from actors.transport import frames
from actors.transport.sockets import MOST
from raydpzv.errors import RaydpzvError, TransportError
from raydpzv.methods.roles import Metrics, Order, Sync, Upload
from raydpzv.wire.frames import body_parts, decode_body
from raydpzv.wire.messages import Body, ClientModels, Packed, pack
from raydpzv.wire.seeds import CatchUp, PulledModel, Tail

_WORK, _PROBE, _TAIL, _DONE = range(16, 20)  # besides the kinds of `frames.answered`
PROBES = ("evaluate", "state", "drift", "models")
"""What the server asks of a host's model: a score, parameters and momentum, how far its clients'
own models are from it, and these models."""
_BODIES: dict[str, type[Body]] = {"state": PulledModel, "models": ClientModels}
"""The message that carries a probe's arrays."""
_COUNTS = struct.Struct("<BII")
_PROBED = struct.Struct("<BBq")
_TAILED = struct.Struct("<Biqq")
_ALIGNED = 16
_ROW = np.dtype(
    [
        ("client", "<i4"),
        ("body", "<u4"),
        ("round", "<i8"),
        ("synced", "?"),
        ("read", "<i8"),
        ("missed", "<i8"),
        ("pairs", "<i8"),
        ("pulled", "?"),
    ]
)
_NO_SEEDS, _NO_SCALARS = np.zeros(0, np.uint64), np.zeros(0, np.float32)


class HostTask(NamedTuple):
    """A host's task: orders, or a probe at a version."""

    orders: Sequence[Order] = ()
    probe: str = ""
    version: int = 0


class KnownTail(Tail):
    """A tail whose pairs the host has from the ledger; `size`: bytes on the simulated wire."""

    size: int

    @property
    def wire_bytes(self) -> int:
        return self.size


def known_tail(client: int, round: int, size: int) -> Order:
    """Return the order of a client that wakes in a process which follows the ledger."""
    return Order(client, KnownTail(_NO_SEEDS, _NO_SCALARS, size), round, start_immediately=True)


def work(orders: Sequence[Order], *, lean: bool) -> tuple[bytes, ...]:
    """Return the frame of one host's orders; a body that several orders share travels once.

    lean: leave out what the host has from the ledger (its clients share one model), so that all
    orders of a round have one body; else clients need their own messages.
    """
    bodies: dict[Packed, int] = {}
    places: dict[int, int] = {}
    table = np.zeros(len(orders), _ROW)
    for row, order in enumerate(orders):
        shared = id(order.body)
        if shared not in places:
            body = _without_history(order.body) if lean else order.body
            places[shared] = bodies.setdefault(pack(body), len(bodies))
        sync = None if lean else order.sync
        table[row] = (
            order.client,
            places[shared],
            order.round,
            sync is not None,
            *(sync or (0, 0, 0, False)),
        )
    head = _COUNTS.pack(_WORK, len(bodies), len(orders))
    return _behind(head, table.tobytes(), [body_parts(packed) for packed in bodies])


def probe(name: str, version: int) -> tuple[bytes, ...]:
    """Return the frame that asks for one of `PROBES` at the model after `version` updates."""
    return (_PROBED.pack(_PROBE, PROBES.index(name), version),)


def tail(order: Order) -> tuple[bytes, ...]:
    """Return the frame of an order to a client whose host has the missed updates from the
    ledger.
    """
    return (_TAILED.pack(_TAIL, order.client, order.round, order.body.wire_bytes),)


def read_task(frame: memoryview) -> HostTask | None:
    """Return a host's task, None where no task follows, or raise the server's error.

    TransportError: the frame is none of these.
    """
    try:
        kind = frame[0]
        if kind == _WORK:
            return HostTask(_orders(frame))
        if kind == _PROBE:
            _, name, version = _PROBED.unpack(frame)
            return HostTask(probe=PROBES[name], version=version)
        if kind == _TAIL:
            return HostTask([known_tail(*_TAILED.unpack(frame)[1:])])
    except (struct.error, IndexError, ValueError, TypeError) as error:
        raise TransportError(
            f"wanted a host's orders, got {len(frame)} other bytes: {error}"
        ) from None
    if frames.read_answer(frame).order is not None:
        raise TransportError("wanted a host's orders, got a single client's")
    return None


def uploads(done: Sequence[Upload]) -> tuple[bytes, ...]:
    """Return the frame of the uploads that orders asked for."""
    encoded = [frames.encode_upload(upload) for upload in done]
    return _behind(
        _COUNTS.pack(_DONE, len(encoded), 0), b"", [(b"".join(e[:-1]), e[-1]) for e in encoded]
    )


def read_uploads(frame: memoryview) -> list[Upload] | RaydpzvError:
    """Return the orders' uploads, or a client's error. TransportError: the frame is neither."""
    try:
        if frame[0] != _DONE:
            return frames.read_failed(frame)
        _, count, _ = _COUNTS.unpack_from(frame)
        return [frames.read_upload(part) for part in _parts(frame, count, 0)]
    except (struct.error, IndexError, ValueError, TypeError, KeyError) as error:
        raise TransportError(
            f"wanted a host's uploads, got {len(frame)} other bytes: {error}"
        ) from None


def most_bytes(orders: Iterable[Order]) -> int:
    """Return how long the frame of these orders' uploads may be (see `frames.most_bytes`)."""
    return min(MOST, sum(frames.most_bytes([order.upload_bytes]) for order in orders))


def probed(name: str, found: Any) -> tuple[bytes, ...]:
    """Return the frame of a probe's result: metrics, a state float32 [1 or 2, d], a drift's two
    numbers, models.
    """
    if name in _BODIES:
        description, data = body_parts(
            pack(PulledModel(found, _NO_SEEDS) if name == "state" else found)
        )
        return _behind(_COUNTS.pack(_DONE, 1, 0), b"", [(description, data)])
    return bytes((_DONE,)), json.dumps(
        asdict(found) if isinstance(found, Metrics) else found
    ).encode()


def read_probed(name: str, frame: memoryview) -> Any:
    """Return a probe's result, or the host's error. TransportError: the frame is neither."""
    try:
        if frame[0] != _DONE:
            return frames.read_failed(frame)
        if kind := _BODIES.get(name):
            (part,) = _parts(frame, 1, 0)
            body = decode_body(part)
            if not isinstance(body, kind):
                raise ValueError(f"a {type(body).__name__} is no {kind.__name__}")
            return body.state if isinstance(body, PulledModel) else body
        found = json.loads(bytes(frame[1:]))
        return _metrics(**found) if name == "evaluate" else (float(found[0]), float(found[1]))
    except (struct.error, IndexError, ValueError, TypeError, KeyError) as error:
        raise TransportError(
            f"wanted a host's {name}, got {len(frame)} other bytes: {error}"
        ) from None


def _orders(frame: memoryview) -> list[Order]:
    _, bodies, rows = _COUNTS.unpack_from(frame)
    found = [decode_body(part) for part in _parts(frame, bodies, rows * _ROW.itemsize)]
    table = np.frombuffer(frame, _ROW, rows, _COUNTS.size)
    return [
        Order(
            client, found[body], round, start_immediately=True, sync=Sync(*sync) if synced else None
        )
        for client, body, round, synced, *sync in table.tolist()
    ]


def _behind(head: bytes, table: bytes, parts: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, ...]:
    """Return a frame: a head, a table, the offsets of all parts, and the parts with their second
    halves aligned.
    """
    place = len(head) + len(table) + 16 * len(parts)
    places, pieces = [], []
    for description, data in parts:
        begin = place + -(place + len(description)) % _ALIGNED
        pieces += [bytes(begin - place) + description, data]
        place = begin + len(description) + len(data)
        places += [begin, place]
    return b"".join((head, table, struct.pack(f"<{len(places)}Q", *places))), *pieces


def _parts(frame: memoryview, count: int, table: int) -> list[memoryview]:
    places = struct.unpack_from(f"<{2 * count}Q", frame, _COUNTS.size + table)
    if places and places[-1] != len(frame):
        raise ValueError("the parts do not end where the frame does")
    return [frame[begin:end] for begin, end in zip(places[::2], places[1::2], strict=True)]


def _without_history(body: Body) -> Body:
    if isinstance(body, CatchUp):
        return replace(body, missed_seeds=_NO_SEEDS, missed_scalars=_NO_SCALARS)
    if isinstance(body, Tail):
        return Tail(_NO_SEEDS, _NO_SCALARS)
    if isinstance(body, PulledModel):
        return PulledModel(np.zeros((0, 0), np.float32), body.seeds)
    return body


def _metrics(validation: dict[str, Any] | None, **numbers: Any) -> Metrics:
    return Metrics(**numbers, validation=None if validation is None else _metrics(**validation))
