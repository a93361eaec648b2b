"""How messages travel between actors: plain tuples around one `bytes`."""

from __future__ import annotations

from typing import Any

from raydpzv.methods.roles import Order, Upload
from raydpzv.wire.messages import pack, unpack

Wire = tuple[Any, ...]


def pack_order(order: Order) -> Wire:
    """Return what a client needs of an order; the service's facts stay with the server."""
    return order.client, pack(order.body), order.round, order.at_once, order.aside, order.reply_bytes


def unpack_order(wire: Wire) -> Order:
    """Return the order that was packed."""
    client, body, round, at_once, aside, reply_bytes = wire
    return Order(client, unpack(body), round, at_once, aside, reply_bytes)


def pack_upload(upload: Upload) -> Wire:
    """Return an upload as a tuple."""
    return upload.client, upload.step, pack(upload.body), upload.releases, upload.aside


def unpack_upload(wire: Wire) -> Upload:
    """Return the upload that was packed."""
    client, step, body, releases, aside = wire
    return Upload(client, step, unpack(body), releases=releases, aside=aside)
