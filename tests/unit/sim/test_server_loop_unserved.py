"""Uploads that come when the run is over: whoever sees them has what they release, so they are accounted for."""

from __future__ import annotations

import math

import pytest

from raydpzv.methods.roles import Release
from raydpzv.privacy.mechanisms import Receipt
from raydpzv.records.recorder import Recorder
from raydpzv.sim.clock import WallClock
from raydpzv.sim.interfaces import UNACCOUNTED, Activation, Budget
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.wall import LockedServerLoop
from tests.helpers.toy_parties import ToyClient, ToyServer

RECEIPT = Receipt("gaussian rows", "seeded", 1.0, 2.0, 1.0, 1, 1, 0)


class CountingGuard:
    """Counts releases by client; refuses those of one client."""

    def __init__(self, of_uploads, refused=None):
        self.of_uploads, self.refused, self.charged = of_uploads, refused, []

    def refuses(self, upload):
        return "no more" if upload.client == self.refused else None

    def charge(self, client, ids, releases):
        self.charged.append((client, len(ids), releases))
        return UNACCOUNTED

    def spent(self):
        return None


def noised(client):
    """An upload of one row with two releases."""
    upload = ToyClient(client).work()
    return upload._replace(releases=tuple(Release(p, math.nan, RECEIPT) for p in range(2)))


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
