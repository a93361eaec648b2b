"""Uploads that come when the run is over: anyone who sees them has what they release, so they are
accounted for.
"""

import math

import pytest

from raydpzv.errors import Diverged, RunError, Stalled
from raydpzv.methods.roles import Release
from raydpzv.privacy.mechanisms import Receipt
from raydpzv.privacy.release import UNACCOUNTED
from raydpzv.records.recorder import Recorder
from raydpzv.sim.arrivals import Trace
from raydpzv.sim.clock import WallClock
from raydpzv.sim.executor import LocalExecutor, split_score
from raydpzv.sim.interfaces import Activation, Budget
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.virtual import Scoring, VirtualRun
from raydpzv.sim.wall import LockedServerLoop
from raydpzv.wire.messages import Evaluate
from raydpzv.wire.network import Network
from tests.helpers.toy_parties import ToyClient, ToyServer, timing

RECEIPT = Receipt("gaussian rows", "seeded", 1.0, 2.0, 1.0, 1, 1, 0)


class CountingGuard:
    """Counts releases by client; refuses those of one client."""

    def __init__(self, of_uploads, refused=None):
        self.of_uploads, self.refused, self.charged = of_uploads, refused, []

    def refuses(self, upload):
        return "no more" if upload.client == self.refused else None

    def charge(self, client, ids, releases, attempt=None):
        self.charged.append((client, len(ids), releases))
        return UNACCOUNTED

    def spent(self):
        return None

    def give_up(self):
        self.charged.append("given up")


def noised(client):
    """An upload of one row with two releases."""
    upload = ToyClient(client).work()
    return upload._replace(releases=tuple(Release(p, math.nan, RECEIPT) for p in range(2)))


def test_time_that_is_over_ends_a_run_that_has_a_limit_and_no_end_yet():
    ends = {}
    for seconds, first in ((5.0, None), (5.0, "4 updates done"), (None, None)):
        loop = ServerLoop(ToyServer(1), CountingGuard(True), Recorder(), Budget(seconds=seconds))
        if first:
            loop.stop(first)
        loop.stop_at_time()
        ends[seconds, first] = loop.stop_reason, loop.time
    assert ends == {
        (5.0, None): ("the budget of 5 seconds is spent", 5.0),
        (5.0, "4 updates done"): ("4 updates done", 0.0),
        (None, None): (None, 0.0),
    }


@pytest.mark.parametrize(
    ("privacy_filter", "charged"),
    [
        (CountingGuard(True), [(1, 1, 2)]),
        (CountingGuard(False), []),
        (CountingGuard(True, refused=1), []),
    ],
    ids=["uploads release", "answers release", "the client has no room for it and did not send it"],
)
def test_an_upload_after_the_end_is_charged_but_not_served(privacy_filter, charged):
    server, recorder = ToyServer(2), Recorder()
    server_loop = ServerLoop(server, privacy_filter, recorder, Budget())
    wall = LockedServerLoop(server_loop, WallClock(), lambda which: 0.0, 2)
    wall.stop("enough")
    answer = wall.exchange(noised(1), Activation(0.0, 0.0, False, 0.0), math.nan)
    assert answer.over
    assert answer.order is None
    assert server.updates == 0
    assert privacy_filter.charged == charged
    rows = recorder.drain()
    assert rows["release"].num_rows == 2 * len(charged)
    assert rows["service"].num_rows == 0


def test_a_release_that_only_the_ledger_knows_is_charged_without_rows():
    counts = CountingGuard(True)
    ServerLoop(ToyServer(2), counts, Recorder(), Budget()).released(1)
    assert counts.charged == [(1, 0, 1)]


class FailingServer(ToyServer):
    """Fails at its second upload."""

    def receive(self, upload):
        if self.round:
            raise Diverged("the second upload")
        return super().receive(upload)


def test_an_upload_whose_service_fails_is_charged_before():
    counts = CountingGuard(True)
    wall = LockedServerLoop(
        ServerLoop(FailingServer(2), counts, Recorder(), Budget()),
        WallClock(),
        lambda which: 0.0,
        2,
    )
    wall.exchange(noised(0), Activation(0.0, 0.0, False, 0.0), math.nan)
    with pytest.raises(Diverged):
        wall.exchange(noised(1), Activation(0.0, 0.0, False, 0.0), math.nan)
    assert counts.charged == [(0, 1, 2), (1, 1, 2)]


@pytest.mark.parametrize(("of_uploads", "last"), [(True, (1, 1, 2)), (False, "given up")])
def test_an_answer_that_a_failure_may_have_released_leaves_no_account(of_uploads, last):
    class Broken(ToyServer):
        def receive(self, upload):
            raise ZeroDivisionError

    counts = CountingGuard(of_uploads)
    wall = LockedServerLoop(
        ServerLoop(Broken(2), counts, Recorder(), Budget()), WallClock(), lambda which: 0.0, 2
    )
    with pytest.raises(ZeroDivisionError):
        wall.exchange(noised(1), Activation(0.0, 0.0, False, 0.0), math.nan)
    assert counts.charged[-1] == last


class SomeHost(LocalExecutor):
    """Makes noised uploads when they are asked for; client 2's cannot be had if it is lost."""

    def __init__(self, lost):
        super().__init__([ToyClient(m) for m in range(3)])
        self.lost = lost

    def submit(self, order):
        return super().submit(order) if isinstance(order.body, Evaluate) else order.client

    def result(self, handle):
        if not isinstance(handle, int):
            return handle
        if handle == 2 and self.lost:
            raise RunError("client 2 is lost")
        return noised(handle)


@pytest.mark.parametrize(("lost", "last"), [(False, (2, 1, 2)), (True, "given up")])
def test_what_is_under_way_when_a_run_breaks_off_is_charged_or_there_is_no_account(lost, last):
    """They send at 1, 2 and 3 s; client 1's breaks the run off at 4 s: client 2's is under way,
    client 0 sends at 5.
    """
    counts, host = CountingGuard(True), SomeHost(lost)
    epochs = Trace({0: [1.0, 5.0], 1: [1.0], 2: [1.0]})
    when = timing(
        [1.0] * 3, arrivals=epochs, network=Network([1.0, 2.0, 3.0], [math.inf] * 3, [math.inf] * 3)
    )
    server_loop = ServerLoop(FailingServer(3, fixed=False), counts, Recorder(), Budget())
    score = split_score(server_loop.server, host, 3)
    with pytest.raises(Diverged):
        VirtualRun(server_loop, host, when, Scoring(score, 10**9)).run()
    assert counts.charged == [(0, 1, 2), (1, 1, 2), last]


class SilentHost(SomeHost):
    """Nothing comes from client 1, which is waited for."""

    def __init__(self):
        super().__init__(False)
        self.awaited = []

    def result(self, handle):
        self.awaited.append(handle)
        if handle == 1:
            raise Stalled("waited 25 s for the upload of client 1")
        return super().result(handle)


@pytest.mark.parametrize(("of_uploads", "last"), [(True, [(0, 1, 2), "given up"]), (False, [])])
def test_who_does_not_answer_is_waited_for_once_and_leaves_no_account_of_uploads(of_uploads, last):
    """What it may have sent nobody knows; nor is any other of its actor's clients waited for as
    long again.
    """
    counts, host = CountingGuard(of_uploads), SilentHost()
    counts.charge = counts.charge if of_uploads else lambda *release: UNACCOUNTED
    epochs = Trace({0: [1.0], 1: [2.0], 2: [1.0]})
    when = timing(
        [1.0] * 3, arrivals=epochs, network=Network([1.0, 1.0, 3.0], [math.inf] * 3, [math.inf] * 3)
    )
    server_loop = ServerLoop(ToyServer(3, fixed=False), counts, Recorder(), Budget())
    with pytest.raises(Stalled):
        VirtualRun(
            server_loop, host, when, Scoring(split_score(server_loop.server, host, 3), 10**9)
        ).run()
    assert counts.charged == last
    assert host.awaited.count(1) == 1
    assert host.awaited[-1] == 1
