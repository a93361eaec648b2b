import json
from contextlib import nullcontext

import numpy as np
import pyarrow as pa
import pytest

import scenarios
from raydpzv.errors import DataError, InputError, ReplayMismatch, RunError
from raydpzv.experiment.finalize import RunFinalizer
from raydpzv.experiment.initial_model import BottomPlan
from raydpzv.experiment.rebuild import from_ledger, rebuild, replay
from raydpzv.experiment.release_ledger import LedgerServer, recorded
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.keys import Key, direction_seed
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.roles import Order, Upload
from raydpzv.records.run_folder import RunFolder
from raydpzv.wire.messages import Start
from tests.helpers.ledger_samples import HEADER

ADDRESS = ("client", "step", "perturbation")
MESSY = (
    "clock.compute=0.2",
    "network.latency=0.05",
    "network.up=50000",
    "arrivals.rate=[1.0, 2.0, 0.5, 1.5]",
)


@pytest.fixture
def kept(small):
    """A ledger server on a fresh server, its ledger, and fresh clients, of the small scenario."""

    def make(*overrides, ledger=None):
        experiment = prepare_vertical(small(*overrides))
        ledger = ledger or Ledger.create(None, experiment.plan().header())
        server = LedgerServer(
            experiment.server.make(), ledger, updates=experiment.plan().updates, key=Key(0)
        )
        return server, ledger, [recipe.make() for recipe in experiment.clients]

    return make


def exchange(server, clients, order_of_wakes):
    orders = {order.client: order for order in server.first_orders()}
    for client in order_of_wakes:
        [orders[client]] = server.receive(clients[client].process(orders[client]))
    return orders


@pytest.mark.parametrize("doubled", [False, True])
def test_a_release_that_the_ledger_has_twice_is_seen_though_the_rows_have_what_it_begins_with(
    doubled,
):
    ledger, written = Ledger.create(None, HEADER), [(0, 0, 0.5), (1, 0, 0.25), (1, 1, -1.0)]
    for client, step, value in [*written, (0, 0, 2.0) if doubled else (0, 1, 2.0)]:
        ledger.append(
            party=client,
            read=0,
            lr=0.1,
            step=[step],
            perturbation=[0],
            seed=[7],
            scalar=[np.float32(value)],
        )
    clients, steps, values = zip(*written, strict=True)
    rows = pa.table({"client": clients, "step": steps, "perturbation": [0, 0, 0], "value": values})
    with pytest.raises(ReplayMismatch, match="client 0, step 0") if doubled else nullcontext():
        assert recorded(rows, ledger).value.tolist() == [0.5, 2.0, 0.25, -1.0]


@pytest.mark.parametrize(
    "overrides", [(), MESSY, ("method.perturbations=3", "method.momentum=0.0")]
)
def test_the_ledger_is_the_release_rows_with_seeds(small, tmp_path, overrides):
    run = scenarios.run(small(*overrides), tmp_path / "run")
    rows, lr = run.rows("release").sort_by("round"), 3e-3
    with Ledger.open(tmp_path / "run" / "ledger") as ledger:
        kept = ledger.since(0)
        assert run.summary["ledger"] | {"memory_bytes": 0} == {
            "updates": 120, "pairs": rows.num_rows, "bytes": ledger.disk_bytes, "memory_bytes": 0,
            "digest": ledger.digest,
        }  # fmt: skip
    assert (
        json.loads((tmp_path / "run" / "summary.json").read_text())["ledger"]
        == run.summary["ledger"]
    )
    columns = {
        "round": kept.round,
        "client": kept.party,
        "step": kept.step,
        "perturbation": kept.perturbation,
    }
    for name, values in columns.items():
        assert rows.column(name).to_pylist() == values.tolist()
    assert rows.column("value").to_numpy().tolist() == kept.scalar.astype(float).tolist()
    seeds = [
        direction_seed(Key(0), *a)
        for a in zip(*(columns[n].tolist() for n in ADDRESS), strict=True)
    ]
    assert kept.seed.tolist() == seeds
    assert set(kept.lr) == {lr}
    read = {}
    for round, client, held in zip(kept.round, kept.party, kept.read, strict=True):
        assert held == max((r for r in read.get(client, ()) if r < round), default=0)
        read.setdefault(client, []).append(round)


def test_rows_ledger_and_account_count_the_same_releases(small, tmp_path, monkeypatch):
    accounts = []
    done = RunFinalizer.done
    monkeypatch.setattr(
        RunFinalizer, "done", lambda self, *a: accounts.append(a[2]) or done(self, *a)
    )
    run = scenarios.run(small("method.perturbations=3", "privacy.noise=system"), tmp_path / "run")
    assert (
        accounts[0].releases
        == run.rows("release").num_rows
        == run.summary["ledger"]["pairs"]
        == 360
    )


def test_the_header_says_what_the_models_were(small, tmp_path):
    scenarios.run(small("method.direction=gaussian"), tmp_path / "run")
    experiment = prepare_vertical(small())
    with Ledger.open(tmp_path / "run" / "ledger") as ledger:
        header = ledger.header
    assert (header.law, header.momentum, header.damped, header.shifted) == (
        "gaussian",
        0.9,
        False,
        False,
    )
    for m, recipe in enumerate(experiment.clients):
        client = recipe.make()
        model = header.models[f"client {m}"]
        assert (model.parameters, model.initial) == (client.parameters().size, client.sha256())
        assert model.layout == client.bottom.layout


def test_a_release_is_in_the_ledger_before_the_answer_leaves(kept):
    server, ledger, clients = kept()
    order = next(iter(server.first_orders()))
    upload = clients[0].process(order)
    appended, enter = [], ledger.enter

    def failing(update):
        appended.append(update)
        raise RunError("the disk is full")

    ledger.enter = failing
    with pytest.raises(RunError, match="the disk is full"):
        server.receive(upload)
    assert len(appended) == 1
    ledger.enter = enter


def test_other_methods_have_no_ledger(tmp_path):
    for name in ("frozen", "sgd"):
        run = scenarios.run(scenarios.load(name, ["budget.updates=40"]), tmp_path / name)
        assert "ledger" not in run.summary
        assert not (tmp_path / name / "ledger").exists()
        assert from_ledger(tmp_path / name, client=1) is None


def test_a_run_without_a_folder_keeps_it_in_memory(small, tmp_path):
    memory = scenarios.run(small()).summary["ledger"]
    disk = scenarios.run(small(), tmp_path / "run").summary["ledger"]
    assert memory["digest"] == disk["digest"]
    assert (memory["bytes"], disk["bytes"] > 0) == (0, True)


@pytest.mark.parametrize("law", ["sphere", "gaussian", "rademacher"])
@pytest.mark.parametrize(("momentum", "perturbations"), [(0.0, 1), (0.9, 3)])
def test_a_client_is_rebuilt_from_key_and_ledger_alone(
    small, tmp_path, law, momentum, perturbations
):
    settings = (
        f"method.direction={law}",
        f"method.momentum={momentum}",
        f"method.perturbations={perturbations}",
    )
    run = scenarios.run(small(*settings, *MESSY, "budget.updates=60"), tmp_path / "run")
    for client in range(4):
        rebuilt = rebuild(tmp_path / "run", client=client)
        assert (rebuilt.updates, rebuilt.verified) == (60, True)
        assert np.array_equal(rebuilt.models[f"client {client}"], run.models[f"client {client}"])
    then = replay(tmp_path / "run", at=25)
    rebuilt = rebuild(tmp_path / "run", 25, 1)
    assert rebuilt.verified is None
    assert np.array_equal(rebuilt.models["client 1"], then.models["client 1"])
    with pytest.raises(InputError, match=r"--client: wanted 0..3, got 4"):
        rebuild(tmp_path / "run", client=4)
    with pytest.raises(InputError, match=r"--at: wanted 0..60"):
        rebuild(tmp_path / "run", 61, 1)


def test_a_rebuild_needs_no_data(small, tmp_path, monkeypatch):
    run = scenarios.run(small(), tmp_path / "run")
    monkeypatch.setattr("raydpzv.experiment.prepare.load_data", None)
    rebuilt = from_ledger(tmp_path / "run", client=2)
    assert np.array_equal(rebuilt.models["client 2"], run.models["client 2"])
    folder = RunFolder.open(tmp_path / "run")
    facts = folder.environment()
    assert BottomPlan.of(folder.spec(), facts, {}).shapes == ((1, 2, 8),) * 4
    with pytest.raises(DataError, match="what each client's model takes in"):
        BottomPlan.of(folder.spec(), {"input_shapes": facts["input_shapes"][:3]}, {})
    with pytest.raises(DataError, match="what each client's model takes in"):
        BottomPlan.of(folder.spec(), {"input_shapes": [[1, 2, 2**40]] * 4}, {})


def rewritten(folder, change):
    """Write the ledger of a run again, with changed scalars: every checksum fits."""
    with Ledger.open(folder / "ledger") as ledger:
        header, updates = ledger.header, list(ledger.since(0).updates())
    (folder / "ledger").rename(folder / "ledger was")
    with Ledger.create(folder / "ledger", header) as ledger:
        for u in change(updates):
            round = ledger.version + 1
            ledger.enter(u._replace(round=round, read=min(u.read, round - 1)))


def test_a_changed_scalar_is_found_out(small, tmp_path):
    scenarios.run(small(), tmp_path / "run")

    def change(updates):
        was = updates[39]
        changed.append(was.party)
        scalars = np.frombuffer(was.scalar, np.float32) + np.float32(0.01)
        return [*updates[:39], was._replace(scalar=scalars.tobytes()), *updates[40:]]

    changed = []
    rewritten(tmp_path / "run", change)
    with pytest.raises(ReplayMismatch, match="is not the one on record"):
        rebuild(tmp_path / "run", client=changed[0])
    assert rebuild(tmp_path / "run", client=(changed[0] + 1) % 4).verified
    with pytest.raises(ReplayMismatch, match="one of them was changed"):
        replay(tmp_path / "run")


def test_a_ledger_that_lacks_updates_is_found_out(small, tmp_path):
    run = scenarios.run(small(), tmp_path / "run")
    rewritten(tmp_path / "run", lambda updates: updates[:100])
    with pytest.raises(ReplayMismatch, match="lacks releases that the rows have"):
        replay(tmp_path / "run")
    (tmp_path / "run" / "ledger").rename(tmp_path / "run" / "ledger short")
    (tmp_path / "run" / "ledger was").rename(tmp_path / "run" / "ledger")
    left_out = next(r for r in run.rows("release").to_pylist() if r["round"] == 40)["client"]
    rewritten(tmp_path / "run", lambda updates: [u for u in updates if u.round != 40])
    with pytest.raises(DataError, match=f"lacks steps of client {left_out}"):
        rebuild(tmp_path / "run", client=left_out)


def test_a_damaged_ledger_is_named(small, tmp_path):
    scenarios.run(small(), tmp_path / "run")
    path = tmp_path / "run" / "ledger" / "segment-00000.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    for again in (lambda: rebuild(tmp_path / "run", client=0), lambda: replay(tmp_path / "run")):
        with pytest.raises(DataError, match=r"segment-00000\.arrow"):
            again()


def test_an_answer_on_record_is_sent_again_and_not_drawn_again(kept):
    server, ledger, clients = kept("privacy.noise=system")
    upload = clients[0].process(server.first_orders()[0])
    assert server.again(upload) is None
    [order] = server.receive(upload)
    again = server.again(upload)
    assert np.array_equal(again.body.values, order.body.values)
    assert (again.client, again.round, again.version) == (0, 1, 1)
    assert (ledger.version, server.updates) == (1, 1)
    for step in (0, 2):
        with pytest.raises(RunError, match=f"client 0 sent its upload {step} where 1 was due"):
            server.receive(Upload(0, step, upload.body))
    assert ledger.version == 1


def test_the_past_of_a_client_is_what_it_had_applied(kept):
    server, _, clients = kept()
    orders = exchange(server, clients, [0, 1, 0, 2, 0])
    for order, applied, uploads in (
        (Order(0, Start()), 0, 0),
        (orders[0], 2, 3),
        (orders[1], 0, 1),
        (orders[3], 0, 0),
        (None, 3, 3),
    ):
        history, made = server.past(order.client if order else 0, order)
        assert (len(history), made) == (applied, uploads)


def test_a_ledger_of_another_history_is_not_continued(kept):
    server, ledger, clients = kept()
    exchange(server, clients, [0, 1, 0])
    again, _, same = kept(ledger=ledger)
    exchange(again, same, [0, 1, 0, 1])
    assert ledger.version == 4
    other, _, fresh = kept(ledger=ledger)
    with pytest.raises(ReplayMismatch, match="update 2: party is"):
        exchange(other, fresh, [0, 2])
    louder, _, fresh = kept("privacy.epsilon=0.5", ledger=ledger)
    with pytest.raises(ReplayMismatch, match="update 1: scalar is"):
        exchange(louder, fresh, [0])
