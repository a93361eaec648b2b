"""Where clients on actors start under the wall clock: with their segment, or in the place of a lost
actor.
"""

import math
import time
from typing import Any

import pytest

import scenarios
from actors.vertical import client_actor
from actors.vertical import client_actor as module
from actors.vertical.server_actor import VerticalServerActor
from raydpzv.errors import Diverged
from raydpzv.experiment.client_warm_up import throw_away_clients, warm_up_loops
from raydpzv.experiment.vertical import PreparedVertical, prepare_vertical
from raydpzv.experiment.vertical import prepare_vertical as prepare
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.roles import Upload
from raydpzv.methods.vertical.dpzv import DpzvServer
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
    actor.run(prepared.timing, time.time() - 20.0, 5.0, server, segment)  # noqa: TID251


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


# The warm-up between actors, and again for an actor that is replaced. Actors' classes are in this
# process.


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors' classes in this process: no Ray."""
    monkeypatch.setattr("actors.device.claim_device", lambda gpus: "cpu")
    monkeypatch.setattr(client_actor, "claim_device", lambda gpus: "cpu")
    monkeypatch.setattr("actors.server_actor.claim_device", lambda gpus: "cpu")


@pytest.mark.usefixtures("here")
# a message's arrays are views of its bytes
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_warm_up_leaves_the_actors_parties_and_records_as_they_were() -> None:
    experiment = prepare(scenarios.load("digits_dpzv", ["privacy.noise=seeded"]))
    server = VerticalServerActor(experiment, 0.0)
    plan = experiment.plan()
    server.keep(None, plan.header(), None)
    server.begin(None, keeps=False)
    client = client_actor.ClientActor(experiment.clients, 0.0)
    before = server.parameters().tobytes(), [client.parameters(m).tobytes() for m in range(4)]
    server.open_warm_up(range(4))
    uploads = client.warm_up(60.0, server.open_transport("", b"k" * 32, 4))
    server.close_warm_up([uploads[m] for m in range(4)])
    server.close_transport()
    assert before == (
        server.parameters().tobytes(),
        [client.parameters(m).tobytes() for m in range(4)],
    )
    assert server.facts()["ledger"]["updates"] == 0
    assert server.status().uploads == 0
    spent = server.spent()
    assert spent.releases == 0
    ((rows, _),) = server.drain()
    assert not any(table.num_rows for table in rows.values())


@pytest.mark.usefixtures("here")
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_replaced_actors_warm_up_touches_nothing_of_the_run_that_continues() -> None:
    experiment = prepare(scenarios.load("digits_dpzv", ["privacy.noise=seeded"]))
    server = VerticalServerActor(experiment, 0.0)
    server.begin(None, keeps=False)
    address = server.open_transport("", b"k" * 32, 4)
    server.bring_segment([], [])
    server.open_wall(0.0)
    server.open_warm_up([2])
    client = client_actor.ClientActor([experiment.clients[2]], 0.0)
    assert client.warm_up(60.0, address).keys() == {2}
    server.close_transport()
    assert server.status().uploads == 0
    assert server.first(2).order is not None  # the run's own first order is still there
    with pytest.raises(RuntimeError, match="open_warm_up comes first"):
        server.connection(True)


@pytest.mark.usefixtures("here")
def test_a_warm_up_that_fails_in_the_server_ends_for_all_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def diverge(self: DpzvServer, upload: Upload) -> None:
        raise Diverged("a release must be finite")

    monkeypatch.setattr(DpzvServer, "receive", diverge)
    experiment = prepare(scenarios.load("digits_dpzv", []))
    server = VerticalServerActor(experiment, 0.0)
    server.open_warm_up(range(4))
    client = client_actor.ClientActor(experiment.clients[:1], 0.0)
    address = server.open_transport("", b"k" * 32, 4)
    with pytest.raises(Diverged):
        client.warm_up(60.0, address)
    server.close_transport()
    assert server.connection(True).first(3).over  # the others learn that it is over


def test_clients_without_a_barrier_stop_by_themselves() -> None:
    """Else those that are ready would keep the processors busy while others still compile."""
    experiment = prepare(scenarios.load("frozen", []))
    roles = throw_away_clients(experiment.clients[:1], "cpu")
    (loop,) = warm_up_loops(roles, None, experiment.spec)  # type: ignore[arg-type]
    assert list(loop._timing.arrivals.epochs(0)) == [0.0, 0.0]
