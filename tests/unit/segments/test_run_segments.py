"""The run's clock over legs: it never goes back, whatever the machines' clocks say."""

from __future__ import annotations

import pytest

from raydpzv.records.recorder import Recorder
from raydpzv.segments.run_segments import PullSegment
from raydpzv.sim.interfaces import Budget, NoPrivacyFilter
from raydpzv.sim.server_loop import ServerLoop
from tests.helpers.toy_parties import ToyServer


class StatefulServer(ToyServer):
    """Has a state to keep, and counts its updates."""

    updates = 6

    def state(self):
        return None


def leg_after(checkpoint=None):
    recorder = Recorder()
    loop = ServerLoop(StatefulServer(1), NoPrivacyFilter(), recorder, Budget())
    return PullSegment(loop, recorder, checkpoint), recorder


def ended(time, origin):
    """The checkpoint of a first leg whose clock began at `origin` and ended at `time`."""
    leg, _ = leg_after()
    leg.record_start(origin)
    return leg.take(time, stopped=True)


def test_a_segment_begins_when_the_one_before_it_ended():
    checkpoint = ended(4.5, 100.0)
    leg, recorder = leg_after(checkpoint)
    assert (leg.start.number, leg.start.time) == (2, 4.5)
    leg.record_start(130.0)
    (row,) = recorder.drain()["leg"].to_pylist()
    assert (row["leg"], row["time"], row["gap"]) == (2, 4.5, 30.0)


@pytest.mark.parametrize("now", [-0.5, 0.0, 4.4, 4.5, 4.6])
def test_no_checkpoint_is_of_a_time_before_its_segment(now):
    """A leg's clock begins a while before the leg does, and another machine's may be behind."""
    leg, _ = leg_after(ended(4.5, 100.0))
    leg.record_start(130.0)
    assert leg.take(now, stopped=True).state["run"]["time"] == max(now, 4.5)


def test_a_first_segment_that_stops_before_its_clock_begins_ends_at_zero():
    assert ended(-0.3, 100.0).state["run"]["time"] == 0.0


@pytest.mark.parametrize("origin", [99.0, 100.0, 101.5])
def test_the_gap_before_a_segment_is_never_below_zero(origin):
    leg, recorder = leg_after(ended(4.5, 100.0))
    leg.record_start(origin)
    (row,) = recorder.drain()["leg"].to_pylist()
    assert row["gap"] == max(origin - 100.0, 0.0)
