from __future__ import annotations

import numpy as np
import pytest
import torch

from raydpzv.zo.descent import Descent
from raydpzv.zo.directions import LAWS, Direction, Law

SIZE = 3000


def start() -> torch.Tensor:
    return torch.linspace(-1, 1, SIZE)


def terms(law: Law, step: int, count: int) -> list[tuple[Direction, float]]:
    return [(Direction(100 * step + p, SIZE, law), 0.7 * (step + 1) - p) for p in range(count)]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_follow_the_formula(law: Law, count: int, momentum: float) -> None:
    """v <- βv + mean_p Δ_p u_p; w <- w - η v, in float64."""
    x = start()
    descent = Descent(x, 0.05, momentum)
    w, v = start().double().numpy(), np.zeros(SIZE)
    for step in range(4):
        pairs = terms(law, step, count)
        descent.step(pairs)
        v = momentum * v + np.mean([scalar * u.values().astype(np.float64) for u, scalar in pairs], axis=0)
        w = w - 0.05 * v
    assert np.abs(x.numpy() - w).max() < 2e-6
    assert np.abs(start().numpy() - w).max() > 0.1


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_whoever_applies_the_same_pairs_holds_the_same_bits(momentum: float) -> None:
    one, two = start(), start()
    a, b = Descent(one, 0.05, momentum), Descent(two, 0.05, momentum)
    for step in range(5):
        a.step(terms("sphere", step, 3))
    for step in range(5):
        b.step(terms("sphere", step, 3))
    assert torch.equal(one, two)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_pass_over_the_parameters_keeps_the_bits_of_one_term_after_the_other(momentum: float) -> None:
    """Terms of different laws too, in their order."""
    x, expected = start(), start()
    velocity = torch.zeros_like(expected)
    descent = Descent(x, 0.05, momentum)
    for step in range(3):
        pairs = [*terms("sphere", step, 3), *terms("rademacher", step, 6), *terms("gaussian", step, 1)]
        descent.step(pairs)
        velocity.mul_(momentum)
        for direction, scalar in pairs:
            if momentum:
                direction.add_to(velocity, scalar / 10)
            else:
                direction.add_to(expected, -0.05 * scalar / 10)
        if momentum:
            expected = expected + np.float32(-0.05) * velocity
    assert torch.equal(x, expected)


def test_without_momentum_each_term_is_one_product_and_one_sum_in_order() -> None:
    x, expected = start(), start().numpy()
    pairs = terms("gaussian", 2, 3)
    Descent(x, 0.05).step(pairs)
    for direction, scalar in pairs:
        expected = expected + np.float32(-0.05 * scalar / 3) * direction.values()
    assert np.array_equal(x.numpy(), expected)
