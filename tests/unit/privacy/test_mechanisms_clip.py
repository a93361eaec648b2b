from __future__ import annotations

import math

import pytest
import torch

from raydpzv.privacy.mechanisms import clip_two_sided


def test_both_sides_are_clipped() -> None:
    slopes = torch.tensor([-3.0, -0.5, 0.0, 0.5, 3.0])
    clipped, nonfinite = clip_two_sided(slopes, 1.0)
    assert clipped.tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert nonfinite == 0
    assert slopes.tolist() == [-3.0, -0.5, 0.0, 0.5, 3.0]


def test_what_is_not_finite_counts_as_zero_and_is_counted() -> None:
    clipped, nonfinite = clip_two_sided(torch.tensor([math.nan, math.inf, -math.inf, 0.25]), 1.0)
    assert clipped.tolist() == [0.0, 0.0, 0.0, 0.25]
    assert nonfinite == 3


def test_without_a_threshold_finite_values_stay() -> None:
    clipped, nonfinite = clip_two_sided(torch.tensor([1e30, -1e30, math.nan]), math.inf)
    assert torch.equal(clipped.float(), torch.tensor([1e30, -1e30, 0.0]))
    assert nonfinite == 1


@pytest.mark.parametrize("threshold", [0.1, 10.1, 1 / 3])
def test_a_threshold_that_float32_cannot_hold_is_not_rounded_up(threshold: float) -> None:
    clipped, _ = clip_two_sided(torch.tensor([1e30, -1e30]), threshold)
    assert clipped.abs().max().item() <= threshold
