"""method.average: the mean of the last models is what is scored, kept, published, rebuilt; and it
is no release.
"""

from pathlib import Path

import numpy as np
import pytest

import raydpzv
from raydpzv.experiment.finalize import Run
from raydpzv.experiment.rebuild import check_rebuilt, rebuild, replay
from raydpzv.experiment.resuming import resuming
from raydpzv.experiment.vertical import PreparedVertical, prepare_vertical
from raydpzv.keys import Key, direction_seed
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.roles import Order
from raydpzv.methods.vertical.base import composed
from raydpzv.records.publish import publish
from raydpzv.seed_file.seed_publication import publish_seed_file
from raydpzv.seed_file.seed_replay import replay_seed_file
from raydpzv.zo.philox import normals
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import stop_after
from tests.helpers.sound_runs import CLASSES, CLIENTS, sound, table, transcript

UNEVEN = ("arrivals.rate=[4.0, 1.0, 0.5]", "evaluate.every=20")
JOINT = ("model.head=linear", "method.server=joint", "method.server_lr=0.5")
RUNS = {
    "joint": (*UNEVEN, *JOINT, "method.average=0.5", "model.engine=torch"),
    "gathered": (*UNEVEN, "method.gather=2", "method.average=0.4"),
    "wall": ("clock.kind=wall", "arrivals.rate=500", *JOINT, "method.average=0.5"),
}
BEGIN = {"joint": 30, "gathered": 18, "wall": 30}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return table(tmp_path_factory.mktemp("table") / "rows.csv")


@pytest.fixture(scope="module", params=list(RUNS))
def made(request, rows, tmp_path_factory):
    """A run, what it was made of, its folder, and the update of its ledger after which its tail
    begins.
    """
    experiment = prepare_vertical(sound(rows, *RUNS[request.param]))
    folder = tmp_path_factory.mktemp("average") / "run"
    return run_prepared(experiment, folder), experiment, folder, BEGIN[request.param]


def iterates(
    experiment: PreparedVertical, folder: Path
) -> tuple[list[dict[int, np.ndarray]], dict[int, np.ndarray]]:
    """Return every party's models by update of the ledger (clients' from 0 on, their first),
    float64, by numpy alone.

    v <- βv + mean_p R_p u_p and w <- w - ηv, u_p on the sphere of radius √d, from the parameters
    before update 1.
    """
    method, start = experiment.spec.method, Key(experiment.spec.seed) / "head"
    w = [c.make().parameters().astype(float) for c in experiment.clients]
    head = experiment.server.make().parameters().astype(float)
    speed, head_speed = [np.zeros(len(x)) for x in w], np.zeros(len(head))
    clients: list[dict[int, np.ndarray]] = [{0: x} for x in w]
    heads: dict[int, np.ndarray] = {}
    with Ledger.open(folder / "ledger") as ledger:
        for update in ledger.since(0).each():
            m, scalars, lr = int(update.party[0]), update.scalar.astype(float), float(update.lr[0])
            speed[m] = method.momentum * speed[m] + along(update.seed.tolist(), scalars, len(w[m]))
            w[m] = w[m] - lr * speed[m]
            clients[m][update.last] = w[m]
            if method.server == "joint":
                seeds = [
                    direction_seed(start, m, int(update.step[0]), p) for p in range(len(scalars))
                ]
                head_lr = method.server_lr * lr / method.lr
                head_speed = method.server_momentum * head_speed + along(seeds, scalars, len(head))
                head = head - head_lr * head_speed
            heads[update.last] = head
    return clients, heads


def along(seeds: list[int], scalars: np.ndarray, size: int) -> np.ndarray:
    z = np.array([normals(seed, 0, size) for seed in seeds], float)
    u: np.ndarray = z * np.sqrt(size) / np.linalg.norm(z, axis=1, keepdims=True)
    found: np.ndarray = (scalars[:, None] * u).mean(0)
    return found


def tail(models: dict[int, np.ndarray], begin: int) -> np.ndarray:
    inside = [x for update, x in models.items() if update > begin]
    found: np.ndarray = np.mean(inside, axis=0) if inside else models[max(models)]
    return found


def test_what_is_kept_is_the_mean_of_each_partys_last_models(made):
    run, experiment, folder, begin = made
    clients, heads = iterates(experiment, folder)
    assert run.summary["evaluated_model"] == (
        f"mean of each party's models after the ledger's updates {begin + 1} to "
        f"{run.summary['ledger']['updates']}"
    )
    for m, models in enumerate(clients):
        kept, inside = run.models[f"client {m}"], sum(update > begin for update in models)
        assert kept == pytest.approx(tail(models, begin), rel=2e-5, abs=2e-5)
        own = list(models.values())
        others = [
            *(
                [own[-inside - 1 :]] if inside else []
            ),  # under the wall clock a client may come to none
            *((own[-inside + 1 :], own[-inside:-1], own[-1:]) if inside > 1 else ()),
        ]
        for other in others:
            assert np.abs(kept - np.mean(other, axis=0)).max() > 1e-3, (
                "control: another tail, or the newest"
            )
    assert run.models["server"] == pytest.approx(tail(heads, begin), rel=2e-5, abs=2e-5)
    if experiment.spec.method.server == "joint":
        assert np.abs(run.models["server"] - heads[max(heads)]).max() > 1e-3


def test_what_is_scored_at_the_end_is_what_is_kept(made):
    run, experiment, folder, _ = made
    scored = run.rows("evaluation").to_pylist()[-1]["loss"]
    assert loss(experiment, run.models) == pytest.approx(scored, rel=1e-5)
    assert run.summary["loss"] == scored
    clients, heads = iterates(experiment, folder)
    newest = {f"client {m}": models[max(models)] for m, models in enumerate(clients)}
    newest["server"] = heads[max(heads)]
    # the noise is drawn anew each time, and now and then both losses are alike to a thousandth
    assert loss(experiment, newest) != pytest.approx(scored, rel=1e-5), (
        "control: what is asked for above"
    )


@pytest.mark.parametrize("engine", ["compiled", "torch"])
def test_on_the_way_the_newest_model_is_scored_and_then_the_mean_so_far(rows, engine):
    experiment = prepare_vertical(
        sound(rows, *JOINT, f"model.engine={engine}", "method.average=0.5")
    )
    server, clients = experiment.server.make(), [c.make() for c in experiment.clients]
    for round in range(1, 41):
        m = round % CLIENTS
        (order,) = server.receive(clients[m].work())
        clients[m].apply(order)
        newest = [server.top, *(c.bottom for c in clients)]
        before = [model.parameters() for model in newest]
        found = composed(server, [c.evaluate() for c in clients]).loss
        shown = {"server": server.parameters()} | {
            f"client {n}": c.parameters() for n, c in enumerate(clients)
        }
        assert loss(experiment, shown) == pytest.approx(found, rel=1e-5)
        same = [np.array_equal(a, b) for a, b in zip(before, shown.values(), strict=True)]
        assert all(same) == (round <= 31), "the mean of one model is that model"
        assert all(
            np.array_equal(a, model.parameters()) for a, model in zip(before, newest, strict=True)
        )


def loss(experiment: PreparedVertical, models: dict[str, np.ndarray]) -> float:
    """Mean cross-entropy of the held-out rows by linear bottoms and a linear or summing head, in
    numpy.
    """
    embedded = []
    for m, client in enumerate(experiment.clients):
        x, flat = (
            client.x_held_out.reshape(len(client.x_held_out), -1).astype(float),
            models[f"client {m}"],
        )
        embedded.append(x @ flat[:-CLASSES].reshape(CLASSES, -1).T + flat[-CLASSES:])
    if experiment.spec.model.head == "sum":
        scores = sum(embedded) + models["server"]
    else:
        flat, joined = models["server"], np.concatenate(embedded, axis=1)
        scores = joined @ flat[:-CLASSES].reshape(CLASSES, -1).T + flat[-CLASSES:]
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    return float(-logs[np.arange(len(logs)), experiment.server.y_held_out].mean())


def test_the_ledger_gives_it_again_bit_for_bit_at_any_update(made):
    run, experiment, folder, begin = made
    clients, _ = iterates(experiment, folder)
    final = run.summary["ledger"]["updates"]
    for m in range(CLIENTS):
        found = rebuild(folder, client=m)
        assert found.verified
        assert np.array_equal(found.models[f"client {m}"], run.models[f"client {m}"])
        for at in (begin - 1, begin, (begin + final) // 2):
            there = rebuild(folder, at, m).models[f"client {m}"]
            known = {update: x for update, x in clients[m].items() if update <= at}
            assert there == pytest.approx(tail(known, begin), rel=2e-5, abs=2e-5)
    again = replay(folder)
    assert again.verified
    assert all(np.array_equal(again.models[name], x) for name, x in run.models.items())
    if experiment.spec.method.gather == 1:
        at = (begin + final) // 2
        part = replay(folder, at).models
        for m in range(CLIENTS):
            assert np.array_equal(part[f"client {m}"], rebuild(folder, at, m).models[f"client {m}"])


def test_it_is_what_is_published_and_rebuilt_from_there(made, tmp_path):
    run, _, folder, _ = made
    public = publish(folder, tmp_path / "public", lambda made: check_rebuilt(made, quiet), quiet)
    assert public.summary()["evaluated_model"] == run.summary["evaluated_model"]
    models = public.models()
    assert all(np.array_equal(models[name], x) for name, x in run.models.items())
    found = rebuild(public.path)
    assert found.verified
    assert all(
        np.array_equal(found.models[f"client {m}"], models[f"client {m}"]) for m in range(CLIENTS)
    )


def quiet(what: str, done: int, of: int) -> None:
    """Show nothing."""


def test_it_enters_no_release(rows):
    """With a run's releases given out again, all sums before their noise are those of the run
    without a mean.
    """
    first = transcript(sound(rows, *JOINT))
    other = transcript(sound(rows, *JOINT, "method.average=0.5"), first)
    assert first.slopes.sums.keys() == other.slopes.sums.keys()
    assert all(np.array_equal(x, other.slopes.sums[a]) for a, x in first.slopes.sums.items())


@pytest.mark.parametrize("stopped", [13, 47])
def test_a_run_that_continues_has_the_mean_of_one_that_never_stopped(rows, tmp_path, stopped):
    experiment = prepare_vertical(sound(rows, *RUNS["joint"]))
    broken = run_prepared(experiment, tmp_path / "run", **stop_after(stopped))
    assert (broken.summary["evaluated_model"] == "newest") == (stopped < 30)
    resumed, folder, _ = resuming(tmp_path / "run")
    whole = run_prepared(resumed, folder)
    clients, heads = iterates(experiment, tmp_path / "run")
    assert whole.summary["status"] == "done"
    for m, models in enumerate(clients):
        assert whole.models[f"client {m}"] == pytest.approx(tail(models, 30), rel=2e-5, abs=2e-5)
    assert whole.models["server"] == pytest.approx(tail(heads, 30), rel=2e-5, abs=2e-5)
    assert replay(tmp_path / "run").verified


def test_a_private_head_is_averaged_over_the_same_releases(rows):
    """Its gradients are in no ledger: the server's own heads are watched."""
    spec = sound(
        rows,
        *UNEVEN,
        "model.head=linear",
        "method.server=dp_sgd",
        "privacy.head_clip=0.5",
        "method.average=0.5",
    )
    experiment = prepare_vertical(spec)
    server, clients = experiment.server.make(), [c.make() for c in experiment.clients]
    heads: list[np.ndarray] = []
    for m in (Key(6) / "wakes").generator().integers(0, CLIENTS, 60).tolist():
        (order,) = server.receive(clients[m].work())
        clients[m].apply(order)
        heads.append(server.top.parameters())
    assert server.parameters() == pytest.approx(np.mean(heads[30:], axis=0), rel=1e-6, abs=1e-7)
    assert np.abs(server.parameters() - heads[-1]).max() > 1e-3, "control"


@pytest.mark.parametrize("made", ["joint"], indirect=True)
@pytest.mark.parametrize("tail_begun", [False, True])
def test_a_lost_client_is_rebuilt_with_its_mean(made, tail_begun):
    """From the ledger, before and in the tail; it continues to the same mean as the one that was
    not lost.
    """
    run, experiment, folder, begin = made
    whole, lost = experiment.clients[0].make(), experiment.clients[0].make()
    with Ledger.open(folder / "ledger") as ledger:
        mine = ledger.since(0).of(0)
        known = list(mine.each())
        uploads = sum(update.last <= begin for update in known) + (4 if tail_begun else -4)
        lost.restore(ledger.since(0, known[uploads - 1].last).of(0), uploads)
    for number, update in enumerate(known):
        order = Order(
            0, experiment.plan().updates.answer(update.scalar), update.last, version=update.last
        )
        for client in (whole, lost) if number >= uploads else (whole,):
            client._step = number + 1
            client.apply(order)
        if number == uploads - 1:
            assert np.array_equal(lost.parameters(), whole.parameters())
    assert np.array_equal(lost.parameters(), run.models["client 0"])
    assert np.array_equal(whole.parameters(), run.models["client 0"])


def test_a_run_too_short_for_its_tail_keeps_its_newest_model(rows):
    run: Run = raydpzv.run(sound(rows, "method.average=0.5", "budget.bytes=9000"))
    assert run.summary["ledger"]["updates"] < 30
    assert run.summary["evaluated_model"] == "newest"


def test_a_seed_file_averages_over_the_updates_that_the_run_averaged_over(made, tmp_path):
    run, _, folder, begin = made
    publish_seed_file(folder, tmp_path / "run.seeds")
    with Ledger.open(folder / "ledger") as ledger:
        updates = [(update.last, int(update.party[0])) for update in ledger.since(0).each()]
    for name, (model, x) in replay_seed_file(tmp_path / "run.seeds").items():
        assert x.tobytes() == run.models[name].tobytes()
        own = [last for last, party in updates if name == f"client {party}"]
        assert model.average == sum(last <= begin for last in own)
