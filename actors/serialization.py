"""How messages travel between actors: plain tuples around one `bytes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raydpzv.methods.roles import Order, Sync, Upload
from raydpzv.wire.messages import Body, Packed, pack, unpack
from raydpzv.wire.seeds import CatchUp, PulledModel, Tail

Wire = tuple[Any, ...]
Work = tuple[list[Packed], list[tuple[int, int, int, Sync | None]]]
"""Different bodies, and per order: client, place of its body, round, and how far behind the client was."""
_NO_SEEDS, _NO_SCALARS = np.zeros(0, np.uint64), np.zeros(0, np.float32)


def pack_order(order: Order) -> Wire:
    """Return what a client needs of an order; the service's facts stay with the server."""
    return (
        order.client,
        pack(order.body),
        order.round,
        order.start_immediately,
        order.is_query,
        order.upload_bytes,
        order.version,
        order.asks,
    )


def unpack_order(wire: Wire) -> Order:
    """Return the order that was packed."""
    client, body, round, start_immediately, is_query, upload_bytes, version, asks = wire
    return Order(
        client, unpack(body), round, start_immediately, is_query, upload_bytes, version=version, asks=asks
    )


def pack_upload(upload: Upload) -> Wire:
    """Return an upload as a tuple."""
    return upload.client, upload.step, pack(upload.body), *upload[3:]


def unpack_upload(wire: Wire) -> Upload:
    """Return the upload that was packed."""
    client, step, body, *facts = wire
    return Upload(client, step, unpack(body), *facts)


def pack_work(orders: Sequence[Order], *, lean: bool) -> Work:
    """Return one host's orders; a body that several share travels once.

    lean: without what the host has from the ledger anyway (its clients share one model), so that all orders of a round
    have one body; else clients need their own messages.
    """
    bodies: dict[Packed, int] = {}
    places: dict[int, int] = {}
    rows = []
    for order in orders:
        whose = id(order.body)
        if whose not in places:
            body = _without_history(order.body) if lean else order.body
            places[whose] = bodies.setdefault(pack(body), len(bodies))
        rows.append((order.client, places[whose], order.round, None if lean else order.sync))
    return list(bodies), rows


def unpack_work(work: Work) -> list[Order]:
    """Return the orders that were packed."""
    bodies = [unpack(packed) for packed in work[0]]
    return [
        Order(client, bodies[place], round, start_immediately=True, sync=sync)
        for client, place, round, sync in work[1]
    ]


@dataclass(frozen=True)
class KnownTail(Tail):
    """A tail whose pairs the host has from the ledger; `size` is what it weighs on the simulated wire."""

    size: int

    @property
    def wire_bytes(self) -> int:
        """Bytes on the wire of the message that this stands for."""
        return self.size


def known_tail(client: int, round: int, size: int) -> Order:
    """Return the order of a client that wakes in a process which follows the ledger."""
    return Order(client, KnownTail(_NO_SEEDS, _NO_SCALARS, size), round, start_immediately=True)


def _without_history(body: Body) -> Body:
    if isinstance(body, CatchUp):
        return replace(body, missed_seeds=_NO_SEEDS, missed_scalars=_NO_SCALARS)
    if isinstance(body, Tail):
        return Tail(_NO_SEEDS, _NO_SCALARS)
    if isinstance(body, PulledModel):
        return PulledModel(np.zeros((0, 0), np.float32), body.seeds)
    return body
