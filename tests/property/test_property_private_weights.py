"""Whatever the settings, the server opens the integer sum that all counts in the clear would give."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from raydpzv.keys import Key
from raydpzv.secure.attempts import Attempt
from raydpzv.secure.weighting import Weighting
from tests.helpers.private_weights import drawn_counts, packed, parties


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
