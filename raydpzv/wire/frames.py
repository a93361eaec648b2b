"""A message body as bytes that say what they are: its class, its arrays' types and shapes, then
exactly its wire bytes.

Nothing is evaluated when bytes are read: a class is looked up among the message bodies, arrays are
views of the bytes.
"""

from __future__ import annotations

import math
import struct

import numpy as np

from raydpzv.errors import TransportError
from raydpzv.wire.messages import Body, Packed, body_class, pack

_NUMERIC = "biufc"
"""Kinds of numpy types that a message may hold: integers and floats, never objects."""


def encode_body(body: Body) -> bytes:
    """Return a body's description and its bytes."""
    return b"".join(body_parts(pack(body)))


def body_parts(packed: Packed) -> tuple[bytes, bytes]:
    """Return a packed body's description, and its bytes as they are."""
    name, layout, data = packed
    parts = [_text(name), struct.pack("<B", len(layout))]
    for dtype, shape in layout:
        parts += [_text(dtype), struct.pack(f"<B{len(shape)}Q", len(shape), *shape)]
    return b"".join(parts), data


def decode_body(data: memoryview) -> Body:
    """Return the body that was encoded; its arrays are read-only views. TransportError: the bytes
    are no such thing.
    """
    try:
        return _decode(data)
    except (struct.error, ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise TransportError(
            f"wanted a message's bytes, got others: {type(error).__name__}: {error}"
        ) from None


def _decode(data: memoryview) -> Body:
    name, place = _read_text(data, 0)
    count, place = data[place], place + 1
    layout = []
    for _ in range(count):
        code, place = _read_text(data, place)
        dtype, ndim = np.dtype(code), data[place]
        if dtype.kind not in _NUMERIC:
            raise ValueError(f"arrays of type {code!r} do not travel")
        shape = struct.unpack_from(f"<{ndim}Q", data, place + 1)
        layout.append((dtype, shape))
        place += 1 + 8 * ndim
    arrays = []
    for dtype, shape in layout:
        size = math.prod(shape)
        array = np.frombuffer(data, dtype, size, place) if size else np.zeros(0, dtype)
        array = array.reshape(shape)
        array.flags.writeable = False
        arrays.append(array)
        place += array.nbytes
    if place != len(data):
        raise ValueError(f"{len(data) - place} bytes too many")
    return body_class(name)(*arrays)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<B", len(data)) + data


def _read_text(data: memoryview, place: int) -> tuple[str, int]:
    end = place + 1 + data[place]
    if end > len(data):
        raise ValueError("the text is cut off")
    return bytes(data[place + 1 : end]).decode(), end
