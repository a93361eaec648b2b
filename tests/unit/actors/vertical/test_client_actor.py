"""Where clients on actors start under the wall clock: with their segment, or in the place of a lost actor."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

import scenarios
from actors.vertical import client_actor as module
from raydpzv.experiment.vertical import PreparedVertical, prepare_vertical
from raydpzv.ledger.ledger import Ledger
from raydpzv.sim.wall import ClientLoop, ClientStart, SegmentStart

SEGMENT = SegmentStart(2, 12.5, 40, {0: 11, 2: 7})


@pytest.fixture(scope="module")
def prepared() -> PreparedVertical:
    small = ("data.train_rows=150", "data.test_rows=40", "clock.kind=wall")
    return prepare_vertical(scenarios.load("digits_dpzv", small))


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[float, int]]:
    """After which time each client's epochs count, and how many pieces of work it has done."""
    found = dict[int, tuple[float, int]]()

    class Watched(ClientLoop):
        def __init__(self, client: int, *others: Any, start: ClientStart) -> None:
            found[client] = tuple(start)
            super().__init__(client, *others, start=start)

    monkeypatch.setattr(module, "ClientLoop", Watched)
    monkeypatch.setattr(module, "run_together", lambda loops, stop: None)
    monkeypatch.setattr(module, "claim_device", lambda share: "cpu")
    return found


def run(actor: module.ClientActor, prepared: PreparedVertical, segment: SegmentStart) -> None:
    server: Any = None
    actor.run(server, prepared.timing, time.time() - 20.0, 5.0, None, segment)  # noqa: TID251


@pytest.mark.parametrize("number", [1, 2])
def test_clients_start_with_their_segment(
    prepared: PreparedVertical, loops: dict[int, tuple[float, int]], number: int
) -> None:
    segment = SEGMENT._replace(number=number)
    run(module.ClientActor([prepared.clients[m] for m in (0, 1, 2)], 0.0), prepared, segment)
    after = 12.5 if number == 2 else -math.inf
    assert loops == {0: (after, 11), 1: (after, 0), 2: (after, 7)}


def test_who_takes_a_lost_actors_place_begins_now_with_the_uploads_on_record(
    prepared: PreparedVertical, loops: dict[int, tuple[float, int]]
) -> None:
    plan = prepared.plan()
    assert plan is not None
    pasts = [(Ledger.create(None, plan.header()).since(0), 0) for _ in range(2)]
    run(module.ClientActor([prepared.clients[m] for m in (0, 1)], 0.0, pasts), prepared, SEGMENT)
    assert [works for _, works in loops.values()] == [0, 0], "not those of the segment's start"
    assert all(20.0 <= after < 20.0 + 60.0 for after, _ in loops.values())


def test_clients_that_were_stopped_before_they_began_do_nothing(
    prepared: PreparedVertical, loops: dict[int, tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    began = list[int]()
    monkeypatch.setattr(module, "run_together", lambda loops, stop: began.append(len(loops)))
    actor = module.ClientActor([prepared.clients[0]], 0.0)
    run(actor, prepared, SEGMENT)
    actor.stop()
    run(actor, prepared, SEGMENT)
    assert began == [1]
