from __future__ import annotations

import numpy as np
import pytest
import torch

from raydpzv.zo.directions import LAWS, Direction, Law
from raydpzv.zo.update import Descent, Rule, Step

SIZE = 200_000  # more than three pieces of a replay with momentum


def start() -> torch.Tensor:
    return torch.linspace(-1, 1, SIZE)


def step(number: int, count: int) -> Step:
    return Step(
        [100 * number + p for p in range(count)],
        [0.7 * (number + 1) - p for p in range(count)],
        0.05 / (1 + number),
    )


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("momentum", "damped"), [(0.0, False), (0.9, False), (0.9, True)])
def test_steps_follow_the_formula(law: Law, count: int, momentum: float, damped: bool) -> None:
    """v <- βv + g, or βv + (1-β)g (DeComFL Eq. (8)), with g = mean_p Δ_p u_p; w <- w - η v, in float64."""
    x = start()
    descent = Descent(x, Rule(law, momentum, damped))
    w, v = start().double().numpy(), np.zeros(SIZE)
    for number in range(4):
        taken = step(number, count)
        descent.apply([taken])
        each = [
            scalar * Direction(seed, SIZE, law).values().astype(np.float64)
            for seed, scalar in zip(taken.seeds, taken.scalars, strict=True)
        ]
        v = momentum * v + (1 - momentum if damped else 1) * np.mean(each, axis=0)
        w = w - taken.lr * v
    assert np.abs(x.numpy() - w).max() < 3e-6
    assert np.abs(start().numpy() - w).max() > 1e-3


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_many_steps_in_one_call_have_the_bits_of_one_after_the_other(law: Law, momentum: float) -> None:
    steps, rule = [step(number, 3) for number in range(7)], Rule(law, momentum)
    one, two, three = (Descent(start(), rule, threads=threads) for threads in (1, 1, 3))
    for each in steps:
        one.apply([each])
    two.apply(steps[:2])
    two.apply([])
    two.apply(steps[2:])
    three.apply(steps)
    for other in (two, three):
        assert torch.equal(one.x, other.x)
        if momentum:
            assert torch.equal(one.velocity, other.velocity)


def test_the_order_of_steps_moves_bits() -> None:
    """The control: were sums exact, the equalities above would say nothing."""
    steps = [step(number, 3) for number in range(7)]
    one, two = Descent(start(), Rule()), Descent(start(), Rule())
    one.apply(steps)
    two.apply(steps[::-1])
    assert not torch.equal(one.x, two.x)


def test_a_copy_goes_on_alone() -> None:
    descent = Descent(start(), Rule(momentum=0.9))
    descent.apply([step(0, 2)])
    kept, twin = descent.x.clone(), descent.copy()
    twin.apply([step(1, 2)])
    assert torch.equal(descent.x, kept)
    descent.apply([step(1, 2)])
    assert torch.equal(descent.x, twin.x)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_each_term_is_one_product_and_one_sum_in_order(momentum: float) -> None:
    x, expected, velocity = start(), start(), torch.zeros(SIZE)
    taken = step(2, 3)
    Descent(x, Rule("sphere", momentum)).apply([taken])
    for seed, scalar in zip(taken.seeds, taken.scalars, strict=True):
        direction = Direction(seed, SIZE, "sphere")
        if momentum:
            direction.add_to(velocity, scalar / 3)
        else:
            direction.add_to(expected, -taken.lr * scalar / 3)
    if momentum:
        expected = expected + np.float32(-taken.lr) * velocity
    assert torch.equal(x, expected)
