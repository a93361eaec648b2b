"""The warm-up between actors, and again for an actor that is replaced. Actors' classes are in this process."""

from __future__ import annotations

import pytest

import scenarios
from actors.vertical import client_actor
from actors.vertical.server_actor import VerticalServerActor
from raydpzv.errors import Diverged
from raydpzv.experiment.client_warm_up import throw_away_clients, warm_up_loops
from raydpzv.experiment.vertical import prepare_vertical as prepare
from raydpzv.methods.roles import Upload
from raydpzv.methods.vertical.dpzv import DpzvServer
from tests.helpers.actors_here import Here


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors' classes in this process: no Ray."""
    monkeypatch.setattr("actors.device.claim_device", lambda gpus: "cpu")
    monkeypatch.setattr(client_actor, "claim_device", lambda gpus: "cpu")
    monkeypatch.setattr("actors.server_actor.claim_device", lambda gpus: "cpu")
    monkeypatch.setattr("actors.transport.connection.get", lambda found, timeout, awaited: found)


@pytest.mark.usefixtures("here")
@pytest.mark.filterwarnings(
    "ignore:The given NumPy array is not writable"
)  # a message's arrays are views of its bytes
def test_a_warm_up_leaves_the_actors_parties_and_records_as_they_were() -> None:
    experiment = prepare(scenarios.load("digits_dpzv", ["privacy.noise=seeded"]))
    server = VerticalServerActor(experiment, 0.0)
    plan = experiment.plan()
    assert plan is not None
    server.keep(None, plan.header(), None)
    server.begin(None, keeps=False)
    client = client_actor.ClientActor(experiment.clients, 0.0)
    before = server.parameters().tobytes(), [client.parameters(m).tobytes() for m in range(4)]
    server.open_warm_up(range(4))
    uploads = client.warm_up(Here(server), 60.0, None)
    server.close_warm_up([uploads[m] for m in range(4)])
    assert before == (server.parameters().tobytes(), [client.parameters(m).tobytes() for m in range(4)])
    assert server.facts()["ledger"]["updates"] == 0
    assert server.status().uploads == 0
    spent = server.spent()
    assert spent is not None
    assert spent.releases == 0
    ((rows, _),) = server.drain()
    assert not any(table.num_rows for table in rows.values())


@pytest.mark.usefixtures("here")
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_replaced_actors_warm_up_touches_nothing_of_the_run_that_continues() -> None:
    experiment = prepare(scenarios.load("digits_dpzv", ["privacy.noise=seeded"]))
    server = VerticalServerActor(experiment, 0.0)
    server.begin(None, keeps=False)
    server.bring_segment([], [])
    server.open_wall(0.0)
    server.open_warm_up([2])
    client = client_actor.ClientActor([experiment.clients[2]], 0.0)
    assert client.warm_up(Here(server), 60.0, None).keys() == {2}
    assert server.status().uploads == 0
    assert server.first(2, False).order is not None  # the run's own first order is still there
    with pytest.raises(RuntimeError, match="open_warm_up comes first"):
        server.first(2, True)


@pytest.mark.usefixtures("here")
def test_a_warm_up_that_fails_in_the_server_ends_for_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(self: DpzvServer, upload: Upload) -> None:
        raise Diverged("a release must be finite")

    monkeypatch.setattr(DpzvServer, "receive", diverge)
    experiment = prepare(scenarios.load("digits_dpzv", []))
    server = VerticalServerActor(experiment, 0.0)
    server.open_warm_up(range(4))
    client = client_actor.ClientActor(experiment.clients[:1], 0.0)
    with pytest.raises(Diverged):
        client.warm_up(Here(server), 60.0, None)
    assert server.first(3, True).over  # the others learn that it is over


def test_clients_without_a_barrier_stop_by_themselves() -> None:
    """Else those that are ready would keep the processors busy while others still compile."""
    experiment = prepare(scenarios.load("frozen", []))
    roles = throw_away_clients(experiment.clients[:1], "cpu")
    (loop,) = warm_up_loops(roles, None, experiment.spec)  # type: ignore[arg-type]
    assert list(loop._timing.arrivals.epochs(0)) == [0.0, 0.0]
