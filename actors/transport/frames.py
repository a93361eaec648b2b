"""The frames that clients and server exchange on a connection.

Under the wall clock a client asks (`TransportRequest`) and the server answers. Under the virtual
clock the server orders and an actor of clients returns the result. Fixed fields are packed by
`struct`, bodies as in `raydpzv.wire.frames`; facts that only some methods record (receipts of
noise, attempts at a round) are JSON.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from actors.transport.sockets import MOST
from raydpzv import errors
from raydpzv.errors import RaydpzvError, RunError, TransportError
from raydpzv.methods.roles import Order, Release, Upload
from raydpzv.privacy.mechanisms import Receipt
from raydpzv.secure.attempts import Attempt
from raydpzv.sim.interfaces import Activation
from raydpzv.sim.wall import Answer
from raydpzv.wire.frames import body_parts, decode_body, encode_body
from raydpzv.wire.messages import pack

HELLO, FIRST, EXCHANGE, WAIT, FINISH, JOIN, WAKE = range(7)
"""Kinds of requests: which client asks; the first order; an upload; wait for an order; the client
leaves; the number of a socket on which the server orders; a client of a host wakes."""
_REQUEST = struct.Struct("<Bqd?")
_EXCHANGE = struct.Struct("<Bdd?dd")
_UPLOAD = struct.Struct("<iqd?I")
_ANSWER, _NOTHING, _FAILED = range(3)
_ORDER = struct.Struct("<B?iq???qq")
_NO_PROMISE = -1
OVERHEAD = 2**16
"""Most bytes of a frame besides its body and the numbers of its rows."""


@dataclass(frozen=True)
class TransportRequest:
    """A request. number: of the client, host or socket; seconds: of a wait, or when the last answer
    was applied.
    """

    kind: int
    number: int = 0
    seconds: float = 0.0
    warm_up: bool = False
    upload: Upload | None = None
    how: Activation | None = None


def request(
    kind: int, number: int = 0, seconds: float = 0.0, *, warm_up: bool = False
) -> tuple[bytes, ...]:
    """Return the frame of a request without an upload."""
    return (_REQUEST.pack(kind, number, seconds, warm_up),)


def exchange(upload: Upload, how: Activation, applied: float) -> tuple[bytes, ...]:
    """Return the frame that hands in an upload."""
    return (_EXCHANGE.pack(EXCHANGE, *how, applied), *encode_upload(upload))


def read_request(frame: memoryview) -> TransportRequest:
    """Return a client's request. TransportError: the frame is no request."""
    try:
        return _read_request(frame)
    except (struct.error, IndexError, ValueError, TypeError, KeyError) as error:
        raise TransportError(
            f"wanted a client's request, got {len(frame)} other bytes: {error}"
        ) from None


def _read_request(frame: memoryview) -> TransportRequest:
    kind = frame[0]
    if kind == EXCHANGE:
        _, due, woke, late, sent, applied = _EXCHANGE.unpack_from(frame)
        upload, how = read_upload(frame[_EXCHANGE.size :]), Activation(due, woke, late, sent)
        return TransportRequest(kind, upload.client, applied, upload=upload, how=how)
    if kind > WAKE:
        raise ValueError(f"no request is of kind {kind}")
    return TransportRequest(*_REQUEST.unpack(frame))


def answered(answer: Answer) -> tuple[bytes, ...]:
    """Return the frame of an answer."""
    order = answer.order
    if order is None:
        return (bytes((_NOTHING, answer.over)),)
    promised = _NO_PROMISE if order.upload_bytes is None else order.upload_bytes
    head = _ORDER.pack(
        _ANSWER,
        answer.over,
        order.client,
        order.round,
        order.start_immediately,
        order.is_query,
        order.asks,
        promised,
        order.version,
    )
    return head, encode_body(order.body)


def failed(error: BaseException) -> tuple[bytes, ...]:
    """Return the frame of an error that a request raised."""
    fields = [
        type(error).__name__,
        str(error),
        error.actor if isinstance(error, errors.Lost) else "",
    ]
    return bytes((_FAILED,)), json.dumps(fields).encode()


def read_answer(frame: memoryview) -> Answer:
    """Return the server's answer, or raise its error. TransportError: the frame is no answer."""
    try:
        kind = frame[0]
        if kind == _NOTHING:
            return Answer(None, bool(frame[1]))
        if kind == _ANSWER:
            _, over, client, round, start_immediately, is_query, asks, promised, version = (
                _ORDER.unpack_from(frame)
            )
            body = decode_body(frame[_ORDER.size :])
            upload_bytes = None if promised == _NO_PROMISE else promised
            order = Order(
                client,
                body,
                round,
                start_immediately,
                is_query,
                upload_bytes,
                version=version,
                asks=asks,
            )
            return Answer(order, over)
        name, text, actor = json.loads(bytes(frame[1:]))
    except (struct.error, IndexError, ValueError, TypeError) as error:
        raise TransportError(
            f"wanted the server's answer, got {len(frame)} other bytes: {error}"
        ) from None
    raise _raised(name, text, actor)


def done(upload: Upload) -> tuple[bytes, ...]:
    """Return the frame of the upload that an order asked for."""
    return bytes((_ANSWER,)), *encode_upload(upload)


def read_done(frame: memoryview) -> Upload | RaydpzvError:
    """Return an order's upload, or the client's error. TransportError: the frame is neither."""
    try:
        return read_upload(frame[1:]) if frame[0] == _ANSWER else read_failed(frame)
    except (struct.error, IndexError, ValueError, TypeError, KeyError) as error:
        raise TransportError(
            f"wanted a client's upload, got {len(frame)} other bytes: {error}"
        ) from None


def read_failed(frame: memoryview) -> RaydpzvError:
    """Return a peer's error. Other bytes raise the errors of JSON and of a wrong argument list."""
    return _raised(*json.loads(bytes(frame[1:])))


def most_bytes(promised: Iterable[int | None]) -> int:
    """Return how long a request may be, given the sizes of uploads that orders promised (None: no
    promise).

    Besides its body it has receipts, with a number of at most ten digits for each row of the body's
    four-byte numbers.
    """
    sizes = list(promised)
    return MOST if None in sizes else OVERHEAD + 4 * max(size for size in sizes if size is not None)


def _raised(name: str, text: str, actor: str) -> RaydpzvError:
    if name == errors.Lost.__name__:
        return errors.Lost(text, actor)
    known = getattr(errors, name, None)
    if isinstance(known, type) and issubclass(known, RaydpzvError):
        return known(text)
    return RunError(f"an actor failed: {name}: {' '.join(text.split())[:400]}")


def encode_upload(upload: Upload) -> tuple[bytes, ...]:
    """Return an upload's parts: fixed fields, facts for the record, and the body's description and
    wire bytes.
    """
    facts = json.dumps(found).encode() if (found := _facts(upload)) else b""
    head = _UPLOAD.pack(upload.client, upload.step, upload.loss, upload.is_query, len(facts))
    return head, facts, *body_parts(pack(upload.body))


def read_upload(data: memoryview) -> Upload:
    """Return the upload of these bytes. Other bytes raise the errors of `struct`, JSON and
    `decode_body`.
    """
    client, step, loss, is_query, size = _UPLOAD.unpack_from(data)
    begin = _UPLOAD.size + size
    facts = json.loads(bytes(data[_UPLOAD.size : begin])) if size else {}
    releases = tuple(_from_json(**receipt) for receipt in facts.get("releases", ()))
    attempt, cpu = None, facts.get("cpu", math.nan)
    if "attempt" in facts:
        round, number, silos = facts["attempt"]
        attempt = Attempt(round, number, tuple(silos))
    return Upload(client, step, decode_body(data[begin:]), loss, releases, is_query, attempt, cpu)


def dump_upload(upload: Upload) -> bytes:
    """Return an upload as bytes, for a call of Ray."""
    return b"".join(encode_upload(upload))


def load_upload(data: bytes) -> Upload:
    """Return the upload that was dumped."""
    return read_upload(memoryview(data))


def _facts(upload: Upload) -> dict[str, Any]:
    """Return those fields of an upload that only the record needs, as far as they are set."""
    found: dict[str, Any] = {}
    if upload.releases:
        found["releases"] = [_as_json(release) for release in upload.releases]
    if upload.attempt is not None:
        found["attempt"] = upload.attempt.round, upload.attempt.number, upload.attempt.silos
    if not math.isnan(upload.cpu):
        found["cpu"] = upload.cpu
    return found


def _as_json(release: Release) -> dict[str, Any]:
    ids = None if release.ids is None else (release.ids.dtype.str, release.ids.tolist())
    return {**release._asdict(), "receipt": release.receipt._asdict(), "ids": ids}


def _from_json(receipt: dict[str, Any], ids: Sequence[Any] | None, **others: Any) -> Release:
    return Release(
        **others,
        receipt=Receipt(**receipt),
        ids=None if ids is None else np.array(ids[1], np.dtype(ids[0])),
    )
