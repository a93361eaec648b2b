from dataclasses import replace

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
    """v <- βv + g, or βv + (1-β)g (DeComFL Eq. (8)), with g = mean_p Δ_p u_p; w <- w - η v, in
    float64.
    """
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


def test_the_rules_beside_sgd_follow_their_papers_formulas() -> None:
    """In float64, from the equations alone; anchors: updates 1, 4, ... of an epoch of three."""
    beta, beta2, v0 = 0.9, 0.3, 1e-3
    signs, adam, svrg = (
        Rule(optimizer="signsgd"),
        Rule("gaussian", beta, True, "adam", beta2, v0),
        Rule(optimizer="svrg", epoch=3),
    )
    moved = [Descent(start(), rule) for rule in (signs, adam, svrg)]
    by_sign, by_adam, by_svrg = (start().double().numpy() for _ in range(3))
    m, v, largest, mean = np.zeros(SIZE), np.full(SIZE, v0), np.full(SIZE, v0), np.zeros(SIZE)
    for number in range(5):
        taken = step(number, 2)._replace(anchor=svrg.anchors(number + 1))
        for descent in moved:
            descent.apply([taken])
        each = [
            s * Direction(seed, SIZE).values().astype(np.float64)
            for seed, s in zip(taken.seeds, taken.scalars, strict=True)
        ]
        g = np.mean(each, axis=0)
        by_sign = by_sign - taken.lr * np.sign(g)
        m, v = beta * m + (1 - beta) * g, beta2 * v + (1 - beta2) * g**2
        largest = np.maximum(largest, v)
        by_adam = by_adam - taken.lr * m / np.sqrt(largest)
        if number % 3 == 0:
            assert torch.equal(moved[2].kept[0], moved[2].x)
            mean = g
        else:
            by_svrg = by_svrg - taken.lr * (g + mean)
    for descent, w in zip(moved, (by_sign, by_adam, by_svrg), strict=True):
        assert np.abs(descent.x.numpy() - w).max() < 3e-6
        assert np.abs(start().numpy() - w).max() > 1e-2
    assert np.abs(moved[1].kept[2].numpy() / largest - 1).max() < 1e-5
    # the controls: the maximum over v matters, and so does the first estimate of an epoch
    assert np.abs(taken.lr * m * (1 / np.sqrt(largest) - 1 / np.sqrt(v))).max() > 1e-3
    assert np.abs(taken.lr * mean).max() > 1e-3


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    "rule",
    [
        Rule(),
        Rule(momentum=0.9),
        Rule(optimizer="signsgd"),
        Rule(momentum=0.9, damped=True, optimizer="adam", beta2=0.3, v0=1e-7),
        Rule(optimizer="svrg", epoch=2),
    ],
)
def test_many_steps_in_one_call_have_the_bits_of_one_after_the_other(law: Law, rule: Rule) -> None:
    rule = replace(rule, law=law)
    steps = [step(number, 3)._replace(anchor=rule.anchors(number + 1)) for number in range(7)]
    one, two, three = (Descent(start(), rule, threads=threads) for threads in (1, 1, 3))
    of_arrays = Descent(start().numpy(), rule)
    for each in steps:
        one.apply([each])
    two.apply(steps[:2])
    two.apply([])
    two.apply(steps[2:])
    three.apply(steps)
    of_arrays.copy().apply(steps[2:])
    of_arrays.apply(steps)
    assert isinstance(of_arrays.x, np.ndarray)
    for mine, other in zip((one.x, *one.kept), (of_arrays.x, *of_arrays.kept), strict=True):
        assert np.array_equal(mine.numpy(), other)
    for other in (two, three):
        assert torch.equal(one.x, other.x)
        assert all(map(torch.equal, one.kept, other.kept))


def test_the_order_of_steps_moves_bits() -> None:
    """The control: were sums exact, the equalities above would say nothing."""
    steps = [step(number, 3) for number in range(7)]
    one, two = Descent(start(), Rule()), Descent(start(), Rule())
    one.apply(steps)
    two.apply(steps[::-1])
    assert not torch.equal(one.x, two.x)


def test_a_copy_continues_alone() -> None:
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
