"""When checkpoints are due, and what is said of their cost, under a clock that stands where the test says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydpzv.records import checkpoint_policy as checkpoint_pace
from raydpzv.records.checkpoint_policy import CheckpointPolicy, own_seconds


class Clock:
    """Both clocks, of a thread that waits for nobody."""

    def __init__(self) -> None:
        self.now = 1000.0

    def take(self, pace: CheckpointPolicy, seconds: float, updates: int = 0, size: int = 0) -> float:
        """Take a checkpoint that costs so many seconds."""
        pace.begin()
        self.now += seconds
        return pace.taken(updates, size)


@pytest.fixture
def clock() -> Iterator[Clock]:
    found = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_pace, "own_seconds", lambda: found.now)
        patch.setattr(checkpoint_pace.time, "monotonic", lambda: found.now)
        yield found


def until_due(pace: CheckpointPolicy, clock: Clock) -> float:
    """Seconds that pass until a checkpoint is due, to a hundredth."""
    begun = clock.now
    while not pace.due(0):
        clock.now += 0.01
    return clock.now - begun


def test_every_so_many_updates(clock: Clock) -> None:
    pace = CheckpointPolicy(None, 4, 5.0)
    assert [updates for updates in range(9) if pace.due(updates)] == [4, 5, 6, 7, 8]
    clock.take(pace, 9.0, updates=5)
    assert [updates for updates in range(5, 12) if pace.due(updates)] == [8, 9, 10, 11], "whatever they cost"
    clock.take(pace, 9.0, updates=8)
    assert [updates for updates in range(8, 14) if pace.due(updates)] == [12, 13]


def test_every_so_many_seconds_but_not_so_often_that_they_take_more_than_a_small_part(clock: Clock) -> None:
    pace = CheckpointPolicy(3.0, None, 5.0)
    assert until_due(pace, clock) == pytest.approx(3, abs=0.02)
    clock.take(pace, 0.01)
    assert until_due(pace, clock) == pytest.approx(3, abs=0.02)
    for _ in range(5):
        clock.take(pace, 0.2)
        until_due(pace, clock)
    clock.take(pace, 0.2)
    assert until_due(pace, clock) == pytest.approx(40 * 0.2, abs=0.02)
    clock.take(pace, 50.0)
    assert until_due(pace, clock) == pytest.approx(40 * 0.2, abs=0.02), (
        "one that was kept waiting counts little"
    )


def test_the_first_one_rests_less_since_it_costs_more(clock: Clock) -> None:
    pace = CheckpointPolicy(0.5, None, 5.0)
    until_due(pace, clock)
    clock.take(pace, 0.4)
    assert until_due(pace, clock) == pytest.approx(10 * 0.4, abs=0.02)
    clock.take(pace, 0.2)
    assert until_due(pace, clock) == pytest.approx(40 * 0.2, abs=0.02)
    clock.take(pace, 0.1)
    assert until_due(pace, clock) == pytest.approx(40 * 0.1, abs=0.02), "the lower of the two after the first"


def test_a_share_of_what_was_computed_at_most_so_many_seconds(clock: Clock) -> None:
    pace = CheckpointPolicy(None, None, 5.0)
    assert until_due(pace, clock) == pytest.approx(0.5, abs=0.02)
    clock.take(pace, 0.0)
    assert until_due(pace, clock) < 0.05
    for begun, gap in ((100, 1), (300, 3), (600, 5), (2000, 5)):
        clock.now = 1000.0 + begun
        clock.take(pace, 0.0)
        assert until_due(pace, clock) == pytest.approx(gap, abs=0.05)


def test_a_checkpoint_says_what_it_took_and_the_run_what_all_took(clock: Clock) -> None:
    pace = CheckpointPolicy(None, 1, 5.0)
    clock.now += 7.0
    assert clock.take(pace, 0.25, 1, 100) == 0.25
    clock.now += 7.0
    assert clock.take(pace, 0.5, 2, 80) == 0.5
    assert (pace.count, pace.spent, pace.bytes) == (2, 0.75, 80)
    assert pace.facts() == {"checkpoints": {"count": 2, "seconds": 0.75, "bytes": 80}}


def test_time_in_which_others_had_the_processor_is_not_a_threads_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "schedstat"
    monkeypatch.setattr(checkpoint_pace, "_WAITED", said)
    monkeypatch.setattr(time, "monotonic", lambda: 50.0)
    assert own_seconds() == 50.0, "where the system does not tell"
    said.write_text("123456789 4000000000 17\n")
    assert own_seconds() == 46.0
    for odd in ("", "123", "some words here"):
        said.write_text(odd)
        assert own_seconds() == 50.0
