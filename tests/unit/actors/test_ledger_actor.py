"""The server's ledger on Ray: trimmed here and at the ledger actor, whose log on disk has the
trimmed updates.

The actor is the plain class in this process, asked on a socket.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from actors.ledger_actor import LedgerActor, RelayedLedger
from actors.ledger_connection import LedgerRange
from actors.transport import frames
from actors.transport.connection import Connection
from raydpzv.errors import InputError, Lost, RunError, TransportError
from raydpzv.ledger.entries import Slice
from raydpzv.ledger.header import Header
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.horizontal.seeded import client_seeds
from raydpzv.methods.roles import Upload
from raydpzv.wire.seeds import SeededScalars
from tests.helpers import seed_parties as toy
from tests.helpers.actors_here import Here
from tests.helpers.ledger_samples import HEADER, assert_holds, fill


class Actor(LedgerActor):
    """`asked` holds the ranges that were fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = list[tuple[int, int | None]]()

    def since(self, version: int, until: int | None = None) -> Slice:
        self.asked.append((version, until))
        return super().since(version, until)


class Called(Here):
    """Its handle."""

    def __init__(self, actor: Actor) -> None:
        super().__init__(actor)
        self.actor, self.asked = actor, actor.asked
        self._actor_id = bytes.fromhex("0a0b")


@pytest.fixture(autouse=True)
def _results_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "actors.ledger_connection.get", lambda reference, timeout, awaited: reference
    )


def relayed(path: Path | None, header: Header = HEADER) -> tuple[RelayedLedger, Called]:
    actor = Actor()
    actor.open(path, header, False)
    actor.open_transport("", b"k" * 32, 3)
    handle = Called(actor)
    ledger = RelayedLedger(handle, header, 2.0)
    ledger.adopt()
    handle.asked.clear()
    return ledger, handle


def there(handle: Called) -> Ledger:
    return handle.actor._open()


def test_trimmed_updates_leave_both_memories(tmp_path: Path) -> None:
    ledger, handle = relayed(tmp_path / "ledger")
    fill(ledger, 500)
    held = ledger.memory_bytes
    # columns grow by what waits to be written
    assert there(handle).memory_bytes == pytest.approx(held, rel=0.01)
    ledger.trim(450)
    for each in (ledger, there(handle)):
        assert each._memory.trimmed == 450
        assert each.memory_bytes < held / 4
    handle.actor.close()


def test_a_trimmed_range_is_the_actors_and_any_other_is_answered_here(tmp_path: Path) -> None:
    ledger, handle = relayed(tmp_path / "ledger")
    fill(ledger, 60)
    ledger.trim(40)
    fill(ledger, 70)
    for a, b in ((40, 70), (40, 41), (55, 60), (70, 70)):
        assert_holds(ledger.since(a, b), a, b)
    assert_holds(ledger.since(40), 40, 70)
    assert handle.asked == []
    for a, b in ((0, 70), (0, 12), (39, 40), (39, 41), (20, 20), (7, 55)):
        assert_holds(ledger.since(a, b), a, b)
        assert handle.asked.pop() == (a, b)
    assert_holds(ledger.since(39), 39, 70)
    assert handle.asked == [(39, 70)]
    with pytest.raises(InputError, match="<= 70"):
        ledger.since(3, 71)
    assert ledger.pairs(0, 70) == ledger.entries == there(handle).entries
    handle.actor.close()


def test_a_host_gets_trimmed_ranges_too(tmp_path: Path) -> None:
    ledger, handle = relayed(tmp_path / "ledger")
    fill(ledger, 60)
    assert (there(handle).version, there(handle).digest) == (60, ledger.digest)
    ledger.trim(50)
    late = LedgerRange(handle, 2.0)
    late.reach(60)
    for a, b in ((0, 60), (0, 3), (44, 52), (50, 60), (60, 60)):
        assert_holds(late.since(a, b), a, b)
    assert handle.asked == [(0, 60)]
    assert_holds(late.since(12), 12, 60)
    assert handle.asked == [(0, 60), (12, None)]
    with pytest.raises(InputError, match="<= 60"):
        late.reach(61)
    late.reach(60)
    assert_holds(late.since(0, 3), 0, 3)
    handle.actor.close()


def test_trimming_moves_no_digest_and_a_run_that_continues_takes_up_all(tmp_path: Path) -> None:
    ledger, handle = relayed(tmp_path / "ledger")
    fill(ledger, 60)
    ledger.trim(50)
    fill(ledger, 80)
    digest = fill(Ledger.create(None, HEADER), 80).digest
    assert (ledger.digest, ledger.verify(), there(handle).verify()) == (digest, digest, digest)
    handle.actor.close()
    again, other = relayed(tmp_path / "ledger")
    assert (again.version, again.digest, again.recalls) == (80, digest, True)
    assert_holds(again.since(10), 10, 80)
    assert other.asked == []
    other.actor.close()


@pytest.mark.parametrize("folder", [None, "ledger"])
def test_only_what_a_log_holds_can_be_recalled(tmp_path: Path, folder: str | None) -> None:
    ledger, handle = relayed(tmp_path / folder if folder else None)
    assert ledger.recalls == (folder is not None)
    fill(ledger, 9)
    handle.actor.trim(5)  # from whoever asks: without a log the actor keeps what nobody else has
    assert there(handle)._memory.trimmed == (5 if folder else 0)
    assert_holds(LedgerRange(handle, 2.0).since(0, 9), 0, 9)
    handle.actor.close()


@pytest.mark.parametrize("folder", [None, "ledger"])
def test_the_server_trims_where_there_is_a_log_and_a_late_replica_has_the_same_bits(
    tmp_path: Path, folder: str | None
) -> None:
    how = toy.settings()
    ledger, handle = relayed(tmp_path / folder if folder else None, toy.header(how))
    server, plain = toy.pull_server(ledger, how, clients=1), toy.ledger(how)
    for party in (server, toy.pull_server(plain, how, clients=1)):
        for version in range(200):
            party.wake(0)
            seeds = client_seeds(how, 0, version)
            scalars = np.full(how.width(1), 1.0 + version % 3, np.float32)
            party.receive(Upload(0, version, SeededScalars(seeds, scalars)))
    # at the third trimming, after update 192, the one client had read all but that update
    assert ledger._memory.trimmed == there(handle)._memory.trimmed == (191 if folder else 0)
    assert ledger.digest == there(handle).digest == plain.digest
    states = []
    for history in (ledger, LedgerRange(handle, 2.0), plain):
        replica = toy.replica(how)
        replica.go_to(200, history)
        states.append(toy.bits(replica.state()))
    assert len(set(states)) == 1
    handle.actor.close()


@pytest.fixture
def lined(tmp_path: Path) -> Iterator[tuple[RelayedLedger, Called]]:
    """The server's ledger and the handle of an actor that listens."""
    ledger, handle = relayed(tmp_path / "ledger")
    yield ledger, handle
    handle.actor.close()


@pytest.mark.parametrize("lost", [False, True])
def test_a_broken_connection_tells_whether_the_ledger_is_lost(
    lined: tuple[RelayedLedger, Called], lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, handle = lined
    late = LedgerRange(handle, 2.0)
    late.reach(0)
    assert late.since(0, None).last == 0
    handle.actor.close_transport()

    def died() -> None:
        raise ConnectionError("the actor died")

    if lost:
        monkeypatch.setattr(handle.actor, "ready", died)
        monkeypatch.setattr(
            "actors.ledger_connection.lost", lambda error: isinstance(error, ConnectionError)
        )
    with pytest.raises(
        RunError, match="the ledger actor was lost" if lost else "the connection"
    ) as caught:
        late.since(0, None)
    assert isinstance(caught.value, TransportError) != lost
    if lost:
        assert isinstance(caught.value, Lost)
        assert caught.value.actor == "0a0b"


def test_other_bytes_end_their_senders_connection_alone(
    lined: tuple[RelayedLedger, Called],
) -> None:
    ledger, handle = lined
    fill(ledger, 2)
    for frame in (b"", bytes(8), struct.pack("<Bqq", 9, 0, 1)):
        connection = Connection(handle.actor.address(), 2.0, frames.request(frames.HELLO))
        with pytest.raises(TransportError, match="ledger"):
            frames.read_answer(connection.ask((frame,), "an answer"))
        connection.close()
    fill(ledger, 4)
    assert there(handle).version == 4
