from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from raydpzv.keys import Key, direction_seed
from raydpzv.models.flat import FlatModel
from raydpzv.zo.directions import LAWS, Direction, Law
from raydpzv.zo.perturbation import LayerwisePerturbation, slope


def smooth_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


class Problem:
    """A small smooth classification loss of a flat parameter vector."""

    def __init__(self) -> None:
        self.model = FlatModel(smooth_net, Key(0) / "problem")
        generator = (Key(0) / "data").generator()
        self.x = torch.from_numpy(generator.standard_normal((16, 3)).astype(np.float32))
        self.y = torch.from_numpy(generator.integers(0, 2, 16))
        self.perturb = LayerwisePerturbation(self.model.module, self.model.offsets)

    def loss(self) -> torch.Tensor:
        return functional.cross_entropy(self.model.module(self.x).double(), self.y)

    def gradient(self) -> torch.Tensor:
        parts = torch.autograd.grad(self.loss(), list(self.model.module.parameters()))
        return torch.cat([p.reshape(-1) for p in parts]).double()

    def slope(self, direction: Direction, radius: float) -> float:
        with torch.no_grad():
            with self.perturb.at(direction, radius):
                plus = self.loss()
            with self.perturb.at(direction, -radius):
                minus = self.loss()
        return float(slope(plus, minus, radius))


@pytest.fixture(scope="module")
def problem() -> Iterator[Problem]:
    # thousands of tiny forward passes: a second torch thread makes them up to thirty times slower
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Problem()
    torch.set_num_threads(threads)


def test_the_slope_is_elementwise_and_divides_by_two_lambda() -> None:
    plus, minus = torch.tensor([3.0, 1.0]), torch.tensor([1.0, 2.0])
    assert slope(plus, minus, 0.25).tolist() == [4.0, -2.0]


@pytest.mark.parametrize("law", LAWS)
def test_the_slope_becomes_autograds_directional_derivative(problem: Problem, law: Law) -> None:
    """The error falls with λ² until float32's round-off (about 1e-7 / λ) takes over."""
    gradient = problem.gradient()
    errors = []
    for radius in (0.2, 0.02, 0.002):
        error = 0.0
        for seed in range(5):
            direction = Direction(seed, problem.model.size, law)
            exact = float(gradient @ torch.from_numpy(direction.values()).double())
            error = max(error, abs(problem.slope(direction, radius) - exact))
        errors.append(error)
    assert errors[0] > 1e-3, "the largest λ must leave an error to see"
    assert errors[1] < errors[0] / 50, "a tenth of λ, about a hundredth of the error"
    assert errors[2] < 2e-4


def test_control_a_one_sided_difference_is_only_first_order(problem: Problem) -> None:
    direction = Direction(0, problem.model.size)
    exact = float(problem.gradient() @ torch.from_numpy(direction.values()).double())
    errors = []
    for radius in (0.2, 0.02):
        with torch.no_grad(), problem.perturb.at(direction, radius):
            plus = float(problem.loss())
        errors.append(abs((plus - float(problem.loss().detach())) / radius - exact))
    assert errors[1] > errors[0] / 50


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_the_mean_over_directions_is_the_gradient(problem: Problem, law: Law) -> None:
    """E‖g - ∇f‖² <= (d + 1) ‖∇f‖² / N for both laws; the bound is twice its root."""
    count, size, gradient = 1500, problem.model.size, problem.gradient()
    mean = torch.zeros(size, dtype=torch.float64)
    for step in range(count):
        direction = Direction(direction_seed(Key(5), 0, step), size, law)
        mean += problem.slope(direction, 0.02) * torch.from_numpy(direction.values()).double() / count
    bound = 2 * gradient.norm() * np.sqrt((size + 1) / count)
    assert (mean - gradient).norm() < bound
    assert (2 * mean - gradient).norm() > bound, "control: λ in place of 2λ"
    assert (mean.roll(1) - gradient).norm() > bound, "control: misplaced elements"
