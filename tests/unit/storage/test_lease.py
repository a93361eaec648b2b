import itertools
import json
import os
import socket
import subprocess
import sys

import pytest

from raydpzv.errors import InputError
from raydpzv.storage.lease import Fenced, Lease, last_writer
from tests.helpers.storages import RecordedStorage


def still(seconds):
    """Time passes, and nobody does anything."""


@pytest.fixture
def place(tmp_path):
    return RecordedStorage(tmp_path / "storage")


def test_the_first_writer_need_not_wait(place):
    lease = Lease.acquire(place, 30.0, sleep=lambda seconds: pytest.fail("waited"))
    assert lease.epoch == 1
    assert lease.renewals == 30.0 / 4, "three may fail, and it is not lost"
    assert last_writer(place) == (1, lease.writer)
    lease.check()


def test_a_lease_that_moves_is_held(place):
    first = Lease.acquire(place, 30.0)
    with pytest.raises(
        InputError, match=r"process \d+ on .* is writing to this storage; wait for it"
    ):
        Lease.acquire(place, 30.0, sleep=lambda seconds: first.renew())
    first.check()


def test_a_dead_writer_loses_it_after_the_time_that_it_named(place):
    first, waited = Lease.acquire(place, 8.0), []
    second = Lease.acquire(place, 99.0, sleep=waited.append)
    assert 8.0 <= sum(waited) <= 16.0
    assert second.epoch == 2
    with pytest.raises(Fenced, match=r"has taken this storage over.* for 8 s"):
        first.check()
    second.check()


def test_a_lease_that_moves_at_the_last_look_is_held(place):
    first, looks = Lease.acquire(place, 8.0), itertools.count(1)
    with pytest.raises(InputError, match="is writing"):
        Lease.acquire(
            place, 8.0, sleep=lambda seconds: first.renew() if next(looks) == 10 else None
        )


def test_a_released_lease_is_taken_at_once(place):
    first = Lease.acquire(place, 30.0)
    first.release()
    assert Lease.acquire(place, 30.0, sleep=lambda seconds: pytest.fail("waited")).epoch == 2


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.parametrize(("system", "waits"), [({}, False), ({"system": "another"}, True)])
def test_a_writer_that_ended_on_this_system_is_not_waited_for(place, system, waits):
    Lease.acquire(place, 30.0)
    (name,), waited = place.names("leases"), []
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as ended:
        held = json.loads(place.read(f"leases/{name}")) | system | {"pid": ended.pid}
    place.write(f"leases/{name}", json.dumps(held).encode())
    assert Lease.acquire(place, 30.0, sleep=waited.append).epoch == 2
    assert bool(waited) == waits


def test_one_that_is_released_while_somebody_waits_is_taken(place):
    first = Lease.acquire(place, 30.0)
    assert Lease.acquire(place, 30.0, sleep=lambda seconds: first.release()).epoch == 2


def test_of_two_that_take_it_at_once_at_most_one_continues(place):
    """Whoever comes second in making its file finds the other's, whichever looks first."""
    Lease.acquire(place, 1.0)
    taken, refused = [], []

    def other(act):
        if act.name.startswith("leases/00000002") and not taken and not refused:
            place.before = lambda act: None
            taken.append(Lease.acquire(place, 1.0, sleep=still))

    place.before = other  # the other one takes it whole just before this one's file is written
    with pytest.raises(InputError, match="at this moment"):
        Lease.acquire(place, 1.0, sleep=still)
    assert len(taken) == 1
    taken[0].check()
    assert [name[:8] for name in place.names("leases")] == ["00000001", "00000002"], (
        "who is refused leaves nothing"
    )


TORN = [b"", json.dumps({"host": "here"})[:7].encode(), b"[1]"]


@pytest.mark.parametrize("torn", TORN)
def test_a_writer_that_was_half_way_through_a_renewal_is_outlived(place, torn):
    first, waited = Lease.acquire(place, 99.0), []
    (name,) = place.names("leases")
    place.write(f"leases/{name}", torn)
    assert Lease.acquire(place, 8.0, sleep=waited.append).epoch == first.epoch + 1
    assert 8.0 <= sum(waited) <= 16.0, (
        "as long as one's own lease lasts, since that one does not say"
    )


@pytest.mark.parametrize("torn", TORN)
def test_one_that_is_half_way_through_a_renewal_while_it_is_watched_lives(place, torn):
    Lease.acquire(place, 8.0)
    (name,) = place.names("leases")
    with pytest.raises(InputError, match="is writing to this storage"):
        Lease.acquire(place, 8.0, sleep=lambda seconds: place.write(f"leases/{name}", torn))


def test_who_waits_says_for_whom_and_for_how_long(place):
    said = []
    Lease.acquire(place, 8.0)
    Lease.acquire(place, 99.0, sleep=still, waits=said.append)
    (line,) = said
    assert line.startswith(
        f"process {os.getpid()} on {socket.gethostname()}, which wrote to {place.uri}, to show that"
    )
    assert "after 10 s" in line
    Lease.acquire(place, 1.0, sleep=still).release()
    Lease.acquire(place, 1.0, waits=said.append)
    assert len(said) == 1, "nobody waits for one that is released"


def test_leases_that_somebody_deleted_are_nobodys(place):
    """As who makes room for another run does, by hand."""
    first = Lease.acquire(place, 8.0)

    def clear(seconds):
        for name in place.names("leases"):
            place.delete(f"leases/{name}")

    second = Lease.acquire(place, 8.0, sleep=clear)
    second.check()
    clear(0)
    first.check()
    assert last_writer(place) == (0, "")


def test_old_leases_are_cleared_away(place):
    for _ in range(4):
        Lease.acquire(place, 1.0, sleep=still)
    assert [name[:8] for name in place.names("leases")] == ["00000003", "00000004"]
