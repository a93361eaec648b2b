"""Coupling: one record's slope is replaced by anything; the mean before the noise moves by at most
its claim.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raydpzv.keys import Key
from raydpzv.privacy.mechanisms import Address, Receipt
from raydpzv.secure.attempts import Attempt
from raydpzv.secure.weighting import Weighting
from tests.helpers.private_weights import drawn_counts, packed, parties
from tests.helpers.release import release_mean

ANYTHING = st.one_of(
    st.floats(width=32),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e30, -1e30, 0.0]),
    st.floats(-2, 2, width=32),
)
THRESHOLDS = st.one_of(st.sampled_from([0.1, 1 / 3, 1.0, 10.0, 10.1]), st.floats(1e-3, 1e3))
ROUND_OFF = 1 + 1e-12
"""Sums of doubles: far below the 1e-8 by which a threshold rounded to float32 would be off."""


class Unnoised:
    """Keeps the mean in full precision, before it is rounded to its wire format."""

    source = "none"

    def release(self, mean: float, sigma: float, address: Address) -> float:
        self.mean = mean
        return mean


def query(slopes: list[float], threshold: float, divisor: int) -> tuple[float, Receipt]:
    noise = Unnoised()
    _, receipt = release_mean(
        torch.tensor(slopes),
        threshold=threshold,
        divisor=divisor,
        sigma=0.0,
        noise=noise,
        address=(0, 0, 0),
    )
    return noise.mean, receipt


BATCHES = st.lists(ANYTHING, min_size=1, max_size=12)
quick = settings(max_examples=300, deadline=None, derandomize=True)


@quick
@given(
    slopes=BATCHES, other=ANYTHING, data=st.data(), threshold=THRESHOLDS, divisor=st.integers(1, 12)
)
def test_one_record_moves_the_mean_by_at_most_the_claimed_sensitivity(
    slopes: list[float], other: float, data: st.DataObject, threshold: float, divisor: int
) -> None:
    i = data.draw(st.integers(0, len(slopes) - 1))
    mean, receipt = query(slopes, threshold, divisor)
    replaced, _ = query([*slopes[:i], other, *slopes[i + 1 :]], threshold, divisor)
    without, _ = query([*slopes[:i], *slopes[i + 1 :]], threshold, divisor)
    zeroed, _ = query([*slopes[:i], 0.0, *slopes[i + 1 :]], threshold, divisor)
    slack = 1e-13 * threshold
    assert math.isfinite(mean)
    assert abs(mean - replaced) <= receipt.sensitivity_replace * ROUND_OFF + slack
    assert abs(mean - without) <= receipt.sensitivity_add_remove * ROUND_OFF + slack
    assert abs(mean - zeroed) <= receipt.sensitivity_add_remove * ROUND_OFF + slack
    assert receipt.nonfinite == sum(not math.isfinite(s) for s in slopes)


def test_the_claimed_sensitivities_are_reached() -> None:
    (low, receipt), (high, _), (none, _) = (query([v, 0.5], 2.0, 8) for v in (-9.0, 9.0, 0.0))
    assert high - low == receipt.sensitivity_replace == 0.5
    assert high - none == receipt.sensitivity_add_remove == 0.25


def test_control_the_printed_one_sided_clip_has_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_sided(slopes_B: torch.Tensor, threshold: float) -> tuple[torch.Tensor, int]:
        return slopes_B.clamp(max=threshold), 0

    monkeypatch.setattr("raydpzv.privacy.mechanisms.clip_two_sided", one_sided)
    (mean, receipt), (replaced, _) = query([-50.0, 0.5], 1.0, 4), query([50.0, 0.5], 1.0, 4)
    assert abs(mean - replaced) > 10 * receipt.sensitivity_replace


# Whatever the settings, the server opens the integer sum that all counts in the clear would give.


@settings(max_examples=40)
@given(
    silos=st.integers(2, 4),
    users=st.integers(1, 6),
    cap=st.integers(1, 6),
    value_bits=st.integers(1, 24),
    values=st.integers(1, 11),
    multiplier=st.floats(0, 50),
    sampling=st.booleans(),
    away=st.booleans(),
    blocks=st.integers(1, 3),
    seed=st.integers(0, 10_000),
)
def test_the_opened_integers_are_the_plaintext_sum(
    silos: int,
    users: int,
    cap: int,
    value_bits: int,
    values: int,
    multiplier: float,
    sampling: bool,
    away: bool,
    blocks: int,
    seed: int,
) -> None:
    generator = Key(seed).generator()
    weighting = Weighting(silos, users, cap, 320, value_bits, values, multiplier, b"run")
    played = parties(weighting, drawn_counts(silos, users, 9, generator), sampling=sampling)
    taking_part = tuple(range(1 if away and silos > 2 else 0, silos))
    for round in (1, 2):
        attempt = Attempt(round, 0, taking_part)
        coins = generator.random(users) < 0.5 if sampling else np.ones(users, bool)
        sampled = played.server.sampled(coins) if sampling else None
        given_values = [played.values(s, generator) for s in range(silos)]
        most = int(12 * multiplier * weighting.sensitivity / silos)
        noise = generator.integers(-most, most, (silos, values), endpoint=True)
        dithers = {s: Key(seed + s + round).generator().bytes for s in taking_part}
        uploads = packed(
            [
                played.silos[s].upload(
                    np.array_split(given_values[s], blocks),
                    noise[s],
                    attempt,
                    sampled=sampled,
                    dither=dithers[s],
                )
                for s in taking_part
            ]
        )
        plain = played.plain_sum(given_values, coins, taking_part)
        multiple, rest = weighting.multiple, [0] * values
        for s in taking_part:
            drawn = (
                Key(seed + s + round)
                .generator()
                .bytes((((multiple - 1).bit_length() + 7) // 8 + 17) * values)
            )
            size = len(drawn) // values
            rest = [
                total
                + multiple * int(noise[s, j])
                + int.from_bytes(drawn[size * j : size * (j + 1)], "little") % multiple
                for j, total in enumerate(rest)
            ]
        assert played.server.opened(uploads) == [a + b for a, b in zip(plain, rest, strict=True)]
        assert uploads[0].wire_bytes == 80 * -(-values // weighting.packing.per_plaintext)
