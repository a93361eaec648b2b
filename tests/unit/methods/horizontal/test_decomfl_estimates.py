"""What clients measure, and how their own steps lead them on: the papers' formulas, in float64."""

# K local steps, P perturbations, d parameters

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax
from torch import nn

from raydpzv.data.horizontal import batch_rows
from raydpzv.methods.horizontal.decomfl import LocalSteps
from raydpzv.methods.horizontal.seeded import client_seeds, round_seeds
from raydpzv.methods.replica import Replica
from raydpzv.methods.roles import Order
from raydpzv.methods.schedule import Schedule
from raydpzv.wire.seeds import AgentScalars, AgentSeeds, CatchUp, Scalars, SeededScalars, Tail
from raydpzv.zo.directions import LAWS, Direction, Law
from raydpzv.zo.update import Rule, Step
from tests.helpers import seed_parties as toy
from tests.helpers.weight_parties import double_loss_and_gradient

NO_SEEDS, NO_SCALARS = np.zeros(0, np.uint64), np.zeros(0, np.float32)
MU = 1e-3


def order(how: Any, client: int = 1, round: int = 1) -> Order:
    return Order(client, CatchUp(NO_SEEDS, NO_SCALARS, round_seeds(how, round)), round)


def directions(how: Any, round: int) -> np.ndarray:
    """The seeds of a round's directions, uint64 [K, P]."""
    return np.array(
        [toy.directions(seed, how.width(round)) for seed in round_seeds(how, round).tolist()]
    )


def local(how: Any, make: Callable[[], nn.Module] = toy.two_layers) -> LocalSteps:
    return LocalSteps([toy.objective(make)], toy.parts(), how)


def work(how: Any, given: Order, replica: Replica | None = None) -> Any:
    return local(how).work([given], replica or toy.replica(how))[0]


def double(at: np.ndarray, rows: np.ndarray, make: Callable[[], nn.Module] = toy.two_layers) -> Any:
    """Loss and gradient by autograd in float64."""
    return double_loss_and_gradient(make, at, rows, (toy.X, toy.Y))


def regression(at: np.ndarray, rows: np.ndarray) -> float:
    """Softmax regression's mean cross-entropy in numpy; at: weights [C, F], then biases [C]."""
    weights = at[: toy.CLASSES * toy.FEATURES].reshape(toy.CLASSES, toy.FEATURES)
    scores = toy.X.numpy()[rows].astype(np.float64) @ weights.T + at[toy.CLASSES * toy.FEATURES :]
    return float(-np.mean(log_softmax(scores, axis=1)[np.arange(len(rows)), toy.Y.numpy()[rows]]))


def rows_of(how: Any, client: int, round: int, step: int) -> np.ndarray:
    return batch_rows(toy.parts(), how.key, client, round, step, how.batch).copy()


@pytest.mark.parametrize("law", LAWS)
def test_estimates_are_the_papers_formulas(law: Law) -> None:
    """(f(x+μz) - f(x)) / μ, (f(x+μz) - f(x-μz)) / 2μ, <∇f, z>, in float64; the perturbed point is
    float32.
    """
    for estimate in ("forward", "central", "projection"):
        how = toy.settings(
            law=law, perturbations=Schedule(4), smoothing=MU, estimate=estimate, batch=7
        )
        upload = work(how, order(how))
        x, rows = toy.initial().numpy(), rows_of(how, 1, 1, 0)
        base, gradient = double(x, rows)
        for p, seed in enumerate(directions(how, 1)[0].tolist()):
            z = Direction(seed, toy.D, law).values()
            plus, minus = (
                double(x + np.float32(MU) * z, rows)[0],
                double(x - np.float32(MU) * z, rows)[0],
            )
            slope = {
                "forward": (plus - base) / MU,
                "central": (plus - minus) / (2 * MU),
                "projection": float(gradient @ z.astype(np.float64)),
            }
            found = float(upload.body.values[0, p])
            # float32 scores: a loss is good to some 1e-7, and the differences divide that by μ
            assert found == pytest.approx(
                slope[estimate], abs=1e-5 if estimate == "projection" else 1e-3
            )
            others = [abs(value - found) for name, value in slope.items() if name != estimate]
            assert max(others) > 1e-5
        assert upload.loss == pytest.approx(base, abs=1e-4)


def test_the_forward_estimate_has_the_closed_form_of_a_regression() -> None:
    how = toy.settings(perturbations=Schedule(3), smoothing=0.1, batch=9)
    objective = toy.objective(toy.softmax_regression)
    x = objective.initial(toy.KEY)
    upload = LocalSteps([objective], toy.parts(), how).work(
        [order(how)], Replica(x.clone(), how.rule)
    )[0]
    rows, flat = rows_of(how, 1, 1, 0), x.double().numpy()
    for p, seed in enumerate(directions(how, 1)[0].tolist()):
        z = Direction(seed, objective.size).values().astype(np.float64)
        slope = (regression(flat + 0.1 * z, rows) - regression(flat, rows)) / 0.1
        assert float(upload.body.values[0, p]) == pytest.approx(slope, abs=1e-4)


def test_many_perturbations_average_to_the_gradient() -> None:
    """E[<∇f, z> z] = ∇f; with P directions the mean's squared error is about (d + 1)|∇f|² / P. Not
    so without z.
    """
    how = toy.settings(perturbations=Schedule(1024), estimate="central", batch=1000)
    upload = work(how, order(how))
    replica = toy.replica(how)
    _, gradient = double(replica.x.numpy(), rows_of(how, 1, 1, 0))
    local_copy = replica.fork()
    local_copy.apply([Step(directions(how, 1)[0], upload.body.values[0], 1.0)])
    step = (replica.x - local_copy.x).double().numpy()
    error = np.sum((step - gradient) ** 2) / np.sum(gradient**2)
    assert error < 2 * (toy.D + 1) / 1024
    assert error > 0.2 * (toy.D + 1) / 1024
    assert np.sum((1024 * step - gradient) ** 2) / np.sum(gradient**2) > 100


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("estimate", ["forward", "central", "projection"])
def test_local_steps_are_algorithm_4_and_leave_no_trace(momentum: float, estimate: Any) -> None:
    """Each scalar at the model that the client's own earlier scalars led to: x <- x - η m, m <- βm
    + (1-β) mean g z.
    """
    how = toy.settings(
        momentum=momentum,
        local_steps=4,
        perturbations=Schedule(3),
        lr=Schedule(9.0, ((3, 0.3),)),
        estimate=estimate,
        batch=6,
    )
    ledger, replica = toy.ledger(how), toy.replica(how)
    ledger.append(
        party=-1,
        read=0,
        lr=0.3,
        step=[0],
        perturbation=[0],
        seed=np.array([5], np.uint64),
        scalar=np.array([2.0], np.float32),
    )
    replica.go_to(1, ledger)
    before = replica.state()
    upload = work(how, order(how, 2, 3), replica)
    assert toy.bits(replica.state()) == toy.bits(before)
    assert replica.version == 1
    x = before[0].astype(np.float64)
    v = before[1].astype(np.float64) if momentum else np.zeros(toy.D)
    for k, seeds in enumerate(directions(how, 3)):
        rows, found = rows_of(how, 2, 3, k), upload.body.values[k].astype(np.float64)
        z = np.stack([Direction(int(s), toy.D).values().astype(np.float64) for s in seeds])
        base, gradient = double(x, rows)
        shift = {"forward": 1e-3, "central": 1e-3, "projection": 0.0}[estimate]
        plus = np.array([double(x + shift * u, rows)[0] for u in z])
        minus = np.array([double(x - shift * u, rows)[0] for u in z])
        if estimate == "projection":
            expected = z @ gradient
        else:
            expected = (
                (plus - base) / shift if estimate == "forward" else (plus - minus) / (2 * shift)
            )
        assert np.abs(found - expected).max() < 3e-3
        if k:
            assert (
                np.abs(found - z @ double(before[0], rows)[1]).max() > 0.02
            )  # not at the model it began at
        v = momentum * v + (1 - momentum) * (found[:, None] * z).mean(0)
        x = x - 0.3 * v


def test_zo_svrg_sends_differences_to_the_first_model_of_its_epoch() -> None:
    """Liu et al. 2018b, Algorithm 2: an epoch's first round asks all clients about all their rows
    and moves nothing.

    The other rounds send z·(∇f(x) - ∇f(w̃)) on one batch, and at x = w̃ nothing but zeros.
    """
    rule = Rule(optimizer="svrg", epoch=4)
    how = toy.settings(
        rule=rule,
        local_steps=2,
        perturbations=Schedule(2),
        lr=Schedule(0.3),
        estimate="projection",
        batch=6,
    )
    ledger = toy.ledger(how)
    server, client_group = toy.server(ledger, how, cohort=3), toy.shared(ledger, how)
    models = [toy.initial().numpy()]
    for round, (orders, uploads) in enumerate(toy.rounds(server, client_group, 6), 1):
        anchors = round in (1, 5)
        cohort = [o.client for o in orders]
        assert cohort == list(range(toy.CLIENTS)) if anchors else len(cohort) == 3
        for order, upload in zip(orders, uploads, strict=True):
            rows = (
                toy.parts().rows(order.client).copy()
                if anchors
                else rows_of(how, order.client, round, 0)
            )
            z = np.stack(
                [
                    Direction(int(s), toy.D).values().astype(np.float64)
                    for s in directions(how, round)[0]
                ]
            )
            expected = z @ double(models[-1], rows)[1]
            if not anchors:
                expected = expected - z @ double(models[4 * ((round - 1) // 4)], rows)[1]
            assert np.abs(upload.body.values[0] - expected).max() < 1e-4
            if round in (2, 6):
                assert not upload.body.values[0].any()
                assert np.abs(upload.body.values[1]).max() > 1e-3
            if anchors:  # both local steps at the same model, along other directions
                z = np.stack([Direction(int(s), toy.D).values() for s in directions(how, round)[1]])
                assert np.abs(upload.body.values[1] - z @ double(models[-1], rows)[1]).max() < 1e-4
        models.append(client_group.state(round)[0])
    still = [np.array_equal(before, after) for before, after in itertools.pairwise(models)]
    assert still == [True, False, False, False, True, False]


def test_a_secret_moves_what_is_measured_and_not_what_is_sent() -> None:
    how = toy.settings(local_steps=2, perturbations=Schedule(3))
    insider = toy.replica(how, toy.SECRET)
    upload = work(how, order(how), insider)
    x, rows = toy.initial().numpy(), rows_of(how, 1, 1, 0)
    seeds = directions(how, 1)
    base = double(x, rows)[0]
    for p, seed in enumerate(insider.seeds(seeds)[0].tolist()):
        z = Direction(seed, toy.D).values()
        slope = (double(x + np.float32(MU) * z, rows)[0] - base) / MU
        assert float(upload.body.values[0, p]) == pytest.approx(slope, abs=2e-3)
    assert np.abs(work(how, order(how)).body.values - upload.body.values).max() > 0.05
    own = toy.settings()
    async_upload = work(own, Order(3, Tail(NO_SEEDS, NO_SCALARS), 5), toy.replica(own, toy.SECRET))
    assert np.array_equal(async_upload.body.seeds, client_seeds(own, 3, 4))


def test_each_kind_of_order_has_its_answer() -> None:
    how = toy.settings(local_steps=2)
    seeds = round_seeds(how, 1)
    for given, kind in (
        (CatchUp(NO_SEEDS, NO_SCALARS, seeds), Scalars),
        (AgentSeeds(NO_SEEDS, NO_SCALARS, seeds), AgentScalars),
    ):
        body = work(how, Order(1, given, 1)).body
        assert type(body) is kind
        assert (body.values.shape, body.values.dtype) == ((2, 2), np.float32)
    one = toy.settings()
    assert type(work(one, Order(1, Tail(NO_SEEDS, NO_SCALARS), 1)).body) is SeededScalars
