"""The differences between the clocks of a run's machines, whose times are compared in rows of the
wall clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from actors.remote import get
from raydpzv.errors import Stalled
from raydpzv.sim.clock import WallClock

_TRIES = 8
"""Questions to a clock; the one with the fastest answer counts."""
_ANSWERS_WITHIN = 10.0
"""Time limit of an answer in seconds; an actor that does not answer is lost, which others
report.
"""


class _Reading(NamedTuple):
    """Seconds by which a clock is ahead of this process's, and the largest error of that."""

    ahead: float
    error: float


def offsets(server: Any, parties: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row of type `clock` without its time for each party that answers, relative to the
    server's machine.

    Actors on one machine share one clock, which is asked once; on the server's machine nobody is
    asked.
    """
    nodes = {party: _answer(actor.node.remote()) for party, actor in parties.items()}
    home, own = _answer(server.node.remote()), None
    read: dict[str, _Reading | None] = {home: _Reading(0.0, 0.0)}
    rows = []
    for party, node in nodes.items():
        if node is None or home is None:
            continue
        if node not in read:
            own = own or _read(server)
            there = _read(parties[party])
            read[node] = (
                _Reading(there.ahead - own.ahead, there.error + own.error)
                if own and there
                else None
            )
        if found := read[node]:
            rows.append({"party": party, "node": node, "offset": found.ahead, "error": found.error})
    return rows


def _read(actor: Any) -> _Reading | None:
    """Return an actor's clock at the middle of a question; None: it is lost."""
    clock, found = WallClock(0.0), list[_Reading]()
    for _ in range(_TRIES):
        asked = clock.now()
        there = _answer(actor.real_time.remote())
        if there is None:
            return None
        half = (clock.now() - asked) / 2
        found.append(_Reading(there - asked - half, half))
    return min(found, key=lambda reading: reading.error)


def _answer(reference: Any) -> Any:
    """Return an actor's answer; None: it is lost."""
    import ray

    try:
        return get(reference, _ANSWERS_WITHIN, "a machine's clock")
    except (ray.exceptions.RayError, Stalled):
        return None
