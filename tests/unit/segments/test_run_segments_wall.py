"""The cut of a wall-clock run: what the next leg begins with of messages under way, and how it
catches up.
"""

import numpy as np
import pytest

import scenarios
from raydpzv.experiment.release_ledger import LedgerServer
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.roles import Order
from raydpzv.records.checkpoint_codec import packed
from raydpzv.records.recorder import Recorder
from raydpzv.registry import METHODS
from raydpzv.segments.run_segments import WallSegment
from raydpzv.sim.interfaces import Activation, Budget, PrivacyFilter
from raydpzv.sim.privacy_filter import privacy_filter
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.wall import NOTHING_APPLIED, SavedClient, UnderWay
from raydpzv.wire.messages import Acknowledged, ClientState, Start
from tests.helpers.sound_runs import sound, table
from tests.helpers.toy_parties import ToyServer

FIRST, ANSWER = Order(0, Start()), Order(0, Acknowledged(), 7)


class StatefulServer(ToyServer):
    """Has a state to keep."""

    def state(self):
        return {"round": self.round}


def leg_of_one_client():
    server_loop = ServerLoop(StatefulServer(1), PrivacyFilter(), Recorder(), Budget())
    return WallSegment(server_loop, Recorder(), 1, None, None)


def saved(applied, step=3):
    return SavedClient(
        ClientState(np.array([step, 5], np.int64), np.ones((1, 2), np.float32)), applied
    )


@pytest.mark.parametrize(
    ("tray", "handed", "applied", "served", "begins"),
    [
        ((FIRST,), None, NOTHING_APPLIED, 0, [(FIRST, False)]),  # nothing has happened yet
        ((), FIRST, NOTHING_APPLIED, 0, [(FIRST, True)]),
        ((), FIRST, 0, 0, [(FIRST, True)]),  # it says what the first work is
        ((), ANSWER, 4, 3, [(ANSWER, True)]),  # on its way
        ((), ANSWER, 7, 3, [(Order(0, Start(), 7), False)]),  # applied: go on
        ((ANSWER,), None, 4, 3, [(ANSWER, False)]),  # ready, and not sent yet
        ((), None, 4, 3, []),  # its upload waits at the server for others
    ],
)
def test_a_client_begins_the_next_segment_with_the_answer_that_it_has_not_applied(
    tray, handed, applied, served, begins
):
    leg = leg_of_one_client()
    under_way = UnderWay(2.5, {0: tray}, {0: handed} if handed else {}, {0: served})
    state = leg.take(under_way, [saved(applied)]).state
    assert [(order, again) for order, again in state["run"]["orders"]] == begins
    assert state["run"]["time"] == 2.5


def test_an_upload_that_was_made_and_not_served_is_made_again():
    """The count is that of served uploads; what else the client counts, and its model, stay."""
    under_way = UnderWay(0.0, {0: ()}, {0: ANSWER}, {0: 2})
    (client,) = leg_of_one_client().take(under_way, [saved(7, step=3)]).state["clients"]
    assert client.counts.tolist() == [2, 5]
    assert client.vectors.tolist() == [[1.0, 1.0]]


def test_answers_are_sent_again_without_what_is_on_record_already():
    answer = ANSWER._replace(cache=np.zeros((1, 9), np.int64), releases=("a release",))
    under_way = UnderWay(0.0, {0: ()}, {0: answer}, {0: 2})
    ((order, _),) = leg_of_one_client().take(under_way, [saved(4)]).state["run"]["orders"]
    assert order == ANSWER


def keeper(experiment, ledger):
    server = experiment.server.make()
    updates = experiment.plan().updates
    return LedgerServer(server, ledger, updates=updates, key=Key(experiment.spec.seed))


@pytest.mark.parametrize("gather", [1, 2, 4])
def test_a_segment_catches_up_in_an_order_that_the_ledger_can_have_come_of(tmp_path, gather):
    """Each upload is served at the version that the ledger says was read: else it would not be the
    ledger's.
    """
    spec = sound(table(tmp_path / "table.csv"), f"method.gather={gather}", "budget.updates=240")
    experiment = prepare_vertical(spec)
    ledger = Ledger.create(tmp_path / "ledger", experiment.plan().header())
    server, clients = keeper(experiment, ledger), [factory.make() for factory in experiment.clients]
    orders = {order.client: order for order in server.first_orders()}
    wakes = (Key(3) / "wakes").generator().integers(0, 3, 60).tolist()
    for place, client in enumerate(wakes):
        [orders[client]] = server.receive(clients[client].process(orders[client]))
        if place == 23:
            state = server.state()
    ledger.close()
    with Ledger.open(tmp_path / "ledger", write=True) as again:
        kept = [again.digest, again.version]
        values = {
            (u.party, int.from_bytes(u.step[:8], "little")): u.scalar
            for u in again.since(0).updates()
        }
        recorded = {
            (client, step, p): float(value)
            for (client, step), scalars in values.items()
            for p, value in enumerate(np.frombuffer(scalars, np.float32))
        }
        late = keeper(experiment.with_record(recorded, continues=False), again)
        late.restore(state)
        fresh = [factory.make() for factory in experiment.clients]
        for m, role in enumerate(fresh):
            role.restore(*late.past(m))
        orders = {m: Order(m, Start()) for m in range(3)}
        for client in late.awaited():
            [orders[client]] = late.receive(fresh[client].process(orders[client]))
        assert [again.digest, again.version] == kept
        assert late.state()["entered"] == again.version
        assert sum(late.uploads.values()) <= 60


PLAIN = ("privacy.mode=none",)
NOISE = ("privacy.mode=paper", "privacy.sigma=0.1", "privacy.delta=1e-3", "privacy.clip=1.0")
CASES = [
    *[
        (name, () if name == "dpzv" else PLAIN)
        for name, found in METHODS.items()
        if found.kind == "vertical"
    ],
    ("vafl", NOISE),
    ("proved", ()),
]


@pytest.mark.parametrize(("name", "overrides"), CASES)
def test_what_a_checkpoint_was_given_does_not_change_after(tmp_path, name, overrides):
    """It is written while services go on."""
    small = ("data.train_rows=150", "data.test_rows=40")
    if name == "proved":
        spec = sound(table(tmp_path / "table.csv"), "method.gather=4", "method.average=0.9")
    else:
        spec = scenarios.load("digits_dpzv" if name == "dpzv" else name, [*small, *overrides])
    experiment = prepare_vertical(spec)
    filter = privacy_filter(experiment.setting)
    loop = ServerLoop(experiment.server.make(), filter, Recorder(), Budget())
    clients = [factory.make() for factory in experiment.clients]
    orders = {order.client: order for order in loop.start(0.0)}

    def serve(rounds):
        for _ in range(rounds):
            for client in clients:
                upload = client.process(orders[client.client])
                for order in loop.serve(
                    upload, Activation(0.0, 0.0, False, 0.0), 0.0, lambda: 0.0, 0
                ):
                    orders[order.client] = order

    serve(3)
    taken = [loop.server.state(), loop.account(), loop.services()]
    before = packed(taken)
    serve(3)
    assert packed(taken) == before
