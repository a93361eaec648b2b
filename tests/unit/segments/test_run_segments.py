"""The run's clock over legs: it never goes back, whatever the machines' clocks say."""

import pytest

import scenarios
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.ledger.ledger import Ledger
from raydpzv.records.recorder import Recorder
from raydpzv.segments.run_segments import PullSegment
from raydpzv.sim.interfaces import Activation, Budget, PrivacyFilter
from raydpzv.sim.pull import wake
from raydpzv.sim.server_loop import ServerLoop
from tests.helpers.toy_parties import ToyServer


class StatefulServer(ToyServer):
    """Has a state to keep, and counts its updates."""

    updates = 6

    def state(self):
        return None


def leg_after(checkpoint=None):
    recorder = Recorder()
    loop = ServerLoop(StatefulServer(1), PrivacyFilter(), recorder, Budget())
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
    third, _ = leg_after(leg.take(6.0, stopped=True))
    assert (third.start.number, third.start.time) == (3, 6.0)


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


# Where clients that pull are: a leg brings rows and accounts to the ledger's end, each request and
# update once.

SMALL = (
    "data.train_rows=60",
    "data.test_rows=20",
    "model.hidden=[3]",
    "split.clients=4",
    "method.batch=4",
)


def test_requests_that_came_before_the_checkpoint_are_not_recorded_again():
    prepared = prepare_horizontal(scenarios.load("decomfl_async", ["clock.kind=wall", *SMALL]))
    ledger = Ledger.create(None, prepared.plan.header())
    group, recorder = prepared.client_group(ledger), Recorder()

    def begun():
        loop = ServerLoop(prepared.server(ledger), prepared.privacy_filter(), recorder, Budget())
        return loop, PullSegment(loop, recorder, None)

    def work(client):
        (made[client],) = group.process([wake(loop, client, 0.0)])

    def upload(client):
        how = Activation(0.0, 0.0, False, 0.0)
        loop.serve(made[client], how, 0.0, lambda: 0.0, made[client].body.wire_bytes)

    made, (loop, leg) = {}, begun()
    work(0)
    work(1)
    upload(0)
    work(2)
    checkpoint = leg.take(0.5, stopped=False)
    assert checkpoint.round == 1
    upload(2)
    work(3)
    upload(1)
    upload(3)
    whole = recorder.drain()
    loop, _ = begun()
    loop.server.restore(checkpoint.round, checkpoint.weights)
    leg = PullSegment(loop, recorder, checkpoint)
    leg.bring(ledger, accounted=False)
    leg.record_start(7.0)
    rows = recorder.drain()
    kept = {
        name: table.to_pylist()
        for name, table in whole.items()
        if name in ("message", "sync") and table.num_rows
    }
    assert loop.updates == ledger.version == 4
    # three requests and the first upload were on record already
    assert [
        row["client"] for row in rows["message"].to_pylist() if row["kind"] == "PullRequest"
    ] == [3]
    assert rows["sync"].to_pylist() == kept["sync"][1:]
    assert rows["message"].num_rows + 7 == len(kept["message"])
    (row,) = rows["leg"].to_pylist()
    assert (row["leg"], row["round"], row["time"], row["recovered"]) == (2, 4, 0.5, 3)
