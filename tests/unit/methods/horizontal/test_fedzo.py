from typing import Any

import numpy as np
import pytest
import torch

from raydpzv.keys import direction_seed
from raydpzv.methods.horizontal.compression import Codec, Whole
from raydpzv.methods.horizontal.fedzo import Estimate, FedzoConfig, ZerothOrderTrainers
from raydpzv.methods.roles import Order
from raydpzv.wire.weights import Update
from raydpzv.zo import philox
from raydpzv.zo.directions import Direction, Law
from tests.helpers import weight_parties as toy

X_0 = toy.initial(toy.softmax_regression).numpy()
D = X_0.size
RADIUS = 1e-2  # wide, so that rounding of the float32 losses stays small beside the difference


def client_group(
    *, codec: Codec | None = None, threads: int = 1, **settings: Any
) -> ZerothOrderTrainers:
    zo = FedzoConfig(**{"smoothing": RADIUS, "lr": 0.1, "batch": 8, "perturbations": 1, **settings})
    objectives = [toy.objective(toy.softmax_regression) for _ in range(threads)]
    return ZerothOrderTrainers(objectives, toy.parts(), codec or Whole(), zo, toy.KEY)


def zo_server(**settings: Any) -> Any:
    return toy.server(make=toy.softmax_regression, **settings)


def by_hand(
    start: np.ndarray,
    client: int,
    round: int,
    steps: int,
    perturbations: int,
    law: Law,
    estimate: Estimate,
) -> np.ndarray:
    """x_K - x_0 in float64, with losses by numpy."""
    x = start.astype(np.float64)
    for k in range(steps):
        rows = toy.batch_of(toy.parts(), client, round, k, 8)
        change = np.zeros(D)
        for p in range(perturbations):
            z = (
                Direction(direction_seed(toy.KEY, client, round * steps + k, p), D, law)
                .values()
                .astype(np.float64)
            )
            plus, minus = (
                toy.regression_loss(x + RADIUS * z, rows),
                toy.regression_loss(x - RADIUS * z, rows),
            )
            forward = (plus - toy.regression_loss(x, rows)) / RADIUS
            change += (forward if estimate == "forward" else (plus - minus) / (2 * RADIUS)) * z
        x = x - 0.1 / perturbations * change
    return x - start


def values(upload: Any) -> np.ndarray:
    assert isinstance(upload.body, Update)
    return upload.body.values


def test_one_step_along_one_direction_equals_the_generators_definition_and_numpy() -> None:
    """Normals by `philox`, which defines them, losses by numpy: nothing of the compiled path."""
    for upload in client_group().process(zo_server().first_orders()):
        z = philox.normals(direction_seed(toy.KEY, upload.client, 1, 0), 0, D).astype(np.float64)
        rows = toy.batch_of(toy.parts(), upload.client, 1, 0, 8)
        slope = (
            toy.regression_loss(X_0 + RADIUS * z, rows) - toy.regression_loss(X_0, rows)
        ) / RADIUS
        assert np.abs(values(upload) - -0.1 * slope * z).max() < 2e-5
        assert np.abs(values(upload)).max() > 1e-2


@pytest.mark.parametrize("law", ["gaussian", "sphere", "rademacher"])
@pytest.mark.parametrize("estimate", ["forward", "central"])
def test_steps_and_perturbations_equal_their_slow_rederivation(
    law: Law, estimate: Estimate
) -> None:
    orders = [Order(o.client, o.body, 5) for o in zo_server().first_orders()]
    other: Estimate = "central" if estimate == "forward" else "forward"
    for upload in client_group(
        local_steps=2, perturbations=3, direction=law, estimate=estimate
    ).process(orders):
        expected = by_hand(X_0, upload.client, 5, 2, 3, law, estimate)
        assert np.abs(values(upload) - expected).max() < 3e-5
        control = by_hand(X_0, upload.client, 5, 2, 3, law, other)
        assert np.abs(control - expected).max() > 1e-4


def test_central_differences_have_the_smaller_bias() -> None:
    """Against the exact slope along one direction, at a radius where curvature shows."""
    order = zo_server().first_orders()[:1]
    rows = toy.batch_of(toy.parts(), 0, 1, 0, 8)
    z = Direction(direction_seed(toy.KEY, 0, 1, 0), D).values()
    _, gradient = toy.objective(toy.softmax_regression).gradient(torch.from_numpy(X_0), rows)
    exact = -0.1 * float(gradient.numpy() @ z) * z
    error = {
        how: np.abs(
            values(client_group(smoothing=0.1, estimate=how).process(order)[0]) - exact
        ).max()
        for how in ("forward", "central")
    }
    assert error["central"] < 0.2 * error["forward"]


@pytest.mark.parametrize(("estimate", "bound"), [("forward", 1e-6), ("central", 1e-2)])
def test_the_loss_for_the_record_is_the_one_before_the_first_step(
    estimate: Estimate, bound: float
) -> None:
    for upload in client_group(local_steps=2, perturbations=2, estimate=estimate).process(
        zo_server().first_orders()
    ):
        loss = toy.regression_loss(X_0, toy.batch_of(toy.parts(), upload.client, 1, 0, 8))
        assert upload.loss == pytest.approx(loss, abs=bound)


def test_no_two_clients_rounds_or_steps_share_a_direction() -> None:
    used = client_group(local_steps=3, perturbations=2)
    seeds = [
        seed
        for client in range(toy.CLIENTS)
        for round in (1, 2)
        for step in range(3)
        for seed in used._seeds(client, round, step)
    ]
    assert len(set(seeds)) == len(seeds) == toy.CLIENTS * 2 * 3 * 2


@pytest.mark.slow
@pytest.mark.parametrize("estimate", ["forward", "central"])
def test_it_learns_and_a_tiny_step_does_not(estimate: Estimate) -> None:
    def loss(lr: float) -> float:
        used = client_group(
            lr=lr, local_steps=2, perturbations=4, smoothing=1e-3, estimate=estimate
        )
        x, _ = toy.run(zo_server(), used, 40)
        return (
            toy.objective(toy.softmax_regression).evaluate(torch.from_numpy(x), toy.X, toy.Y).loss
        )

    start = toy.objective(toy.softmax_regression).evaluate(torch.from_numpy(X_0), toy.X, toy.Y).loss
    assert loss(0.1) < 0.5 * start
    assert loss(1e-6) == pytest.approx(start, rel=1e-2)
