"""What a ledger audit says of the noise, against draws whose law is known."""

import dataclasses

import numpy as np
import pytest

from raydpzv.audit.forced_queries import Queries
from raydpzv.audit.ledger_audit import noise_seen, rounded_from
from raydpzv.keys import Key
from raydpzv.privacy.rounded_gaussian import rounded_gaussian


def queries(values: np.ndarray, sigma: float) -> Queries:
    count = len(values)
    batches = tuple(np.arange(2) for _ in range(count))
    return Queries(
        tuple((0, n, 0) for n in range(count)), values, np.full(count, sigma), batches, {}
    )


def test_the_deviation_is_bounded_from_above_in_95_of_100_runs():
    generator = (Key(1) / "coverage").generator()
    values = generator.normal(size=40)
    bounds = [
        noise_seen(queries(values, 3.0), values + generator.normal(0, 3, 40)).deviation_up
        for _ in range(300)
    ]
    covered = np.mean(np.array(bounds) >= 1)
    assert 0.92 < covered < 0.98
    assert max(bounds) < 2  # a control: a bound that bounds nothing covers always


@pytest.mark.parametrize(("share", "accepted"), [(1.0, True), (0.9, False), (1.1, False)])
def test_noise_of_another_deviation_is_told(share, accepted):
    draws = (Key(2) / "law").generator().normal(0, share * 7, 20_000)
    assert (noise_seen(queries(np.zeros(20_000), 7.0), draws).p > 1e-3) is accepted


# s, sums about: small noise on whole numbers, and noise that float32 keeps coarsely beside its sum
COARSE = (
    pytest.param(0.05, 100, id="all noise rounds to 0"),
    pytest.param(0.8, 100, id="below 1"),
    pytest.param(10.0, 100, id="10"),
    pytest.param(10.0, 2**28, id="steps of 32"),
    pytest.param(4096.0, 2**31, id="steps of 256"),
    pytest.param(4096.0, 10_000, id="fine"),
)


def coarse(scale, about, stated):
    """What is seen of rounded noise of deviation `scale` where `stated` is said, on sums about this
    large.
    """
    generator = (Key(3) / "coarse").generator()
    sums = generator.integers(about, about + about // 4, 20_000)
    found = sums + rounded_gaussian(scale, len(sums), generator.bytes)
    asked = dataclasses.replace(queries(sums.astype(float), stated), whole=True)
    return noise_seen(asked, found.astype(np.float32).astype(float))


@pytest.mark.parametrize(("scale", "about"), COARSE)
def test_noise_as_stated_is_not_falsified_by_how_coarsely_it_is_kept(scale, about):
    seen = coarse(scale, about, scale)
    assert seen.p > 1e-3
    assert 1 <= seen.deviation_up < 1.03


@pytest.mark.parametrize(("scale", "about"), COARSE[2:])
def test_control_half_the_noise_or_twice_is_told(scale, about):
    for share in (0.5, 2):
        assert coarse(scale * share, about, scale).p < 1e-3


def test_what_is_rounded_to_a_release_is_found_by_trying():
    whole = np.arange(2**25 - 40, 2**25 + 40)
    kept = whole.astype(np.float32).astype(float)
    low, high = rounded_from(kept, whole=True)
    for release, least, most in zip(kept, low, high, strict=True):
        inside = whole[kept == release]
        if whole[0] < inside[0] and inside[-1] < whole[-1]:
            assert (least, most) == (inside[0] - 0.5, inside[-1] + 0.5)
    low, high = rounded_from(np.array([1.0, 0.0, -3.0]), whole=True)
    assert (low.tolist(), high.tolist()) == ([0.5, -0.5, -3.5], [1.5, 0.5, -2.5])
    low, high = rounded_from(np.array([1.0]), whole=False)
    assert (low[0], high[0]) == (1 - 2.0**-25, 1 + 2.0**-24)


def test_noise_far_outside_what_is_stated_is_seen_at_its_size():
    seen = noise_seen(queries(np.zeros(100), 1.0), np.linspace(-500, 500, 100))
    assert seen.p < 1e-9
    assert seen.deviation_up == pytest.approx(
        np.sqrt(np.mean(np.linspace(-500, 500, 100) ** 2)), rel=0.2
    )


def test_a_row_is_in_the_batches_that_hold_it():
    rows = [np.array([0, 3]), np.array([1]), np.array([3])]
    found = Queries(
        ((0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 1, 0)),
        np.zeros(4),
        np.ones(4),
        (rows[0], rows[0], *rows[1:]),
        {},
    )
    assert found.about(3).tolist() == [True, True, False, True]
    assert found.about(2).tolist() == [False] * 4
