import dataclasses

import numpy as np
import pytest

from raydpzv.errors import RunError, SpecError
from raydpzv.keys import Key
from raydpzv.secure.attempts import Attempt
from raydpzv.secure.private_server import PrivateServer
from raydpzv.secure.private_silo import PrivateSilo
from raydpzv.secure.set_up import SetUp
from raydpzv.secure.weighting import Weighting
from raydpzv.wire.secure_sums import PackedSum
from tests.helpers.private_weights import Parties, drawn_counts, no_dither, packed, parties, play

SMALL = Weighting(silos=3, users=5, cap=3, key_bits=256, value_bits=8, values=7, multiplier=2.0)


def counts() -> np.ndarray:
    return drawn_counts(3, 5, 4, Key(2).generator())


def uploads(
    played: Parties,
    attempt: Attempt,
    *,
    seeded: bool = True,
    noise: bool = True,
    coins: np.ndarray | None = None,
) -> list[PackedSum]:
    """A round's uploads; noise and, if seeded, dithers are the same in every run."""
    generator, found = (Key(6) / attempt.round).generator(), []
    sampled = None if coins is None else played.server.sampled(coins)
    for silo in attempt.silos:
        draws = generator.integers(-500, 500, SMALL.values) * noise
        values = played.values(silo, (Key(7) / silo).generator())
        dither = {"dither": (Key(8) / silo / attempt.round).generator().bytes} if seeded else {}
        found.append(played.silos[silo].upload([values], draws, attempt, sampled=sampled, **dither))
    return packed(found)


def test_messages_of_a_set_up_are_as_large_as_promised() -> None:
    width, users, silos = 32, 5, 3
    for sampling in (False, True):
        told = parties(SMALL, counts(), sampling=sampling).messages
        sizes = {0: [[], []], 1: [[], []], 2: [[], []]}
        for silo, down, up in told:
            sizes[silo][0].append(down.wire_bytes)
            sizes[silo][1].append(up.wire_bytes)
        for silo, share in enumerate((2, 2, 1)):
            last = [] if sampling else [2 * width * users]
            down = [width, 32 * silos, 0 if silo == 0 else 60, 2 * width * share, *last]
            up = [32, 120 if silo == 0 else 0, width * users, 2 * width * share, *([0] * len(last))]
            assert sizes[silo] == [down, up]
    assert (
        parties(SMALL, counts(), sampling=True).server.sampled(np.ones(5, bool)).wire_bytes
        == 4 * width * users
    )


def test_the_mean_is_the_weighted_mean_and_what_a_round_adds() -> None:
    played = parties(SMALL, counts())
    capped = np.minimum(counts(), 3)
    weights = capped / capped.sum(0)
    expected = np.zeros(7)
    for silo in range(3):
        values = played.values(silo, (Key(7) / silo).generator())
        expected += weights[silo][capped[silo] > 0] @ values
    found = played.server.total(uploads(played, played.everybody(1), noise=False))
    assert (
        np.abs(found - expected).max() < 1.5
    )  # three dithers, each within half a unit of its mean


def test_with_seeded_noise_runs_repeat_to_the_bit_whatever_the_encryption_draws() -> None:
    one, other = parties(SMALL, counts()), parties(SMALL, counts())
    for round in (1, 2):
        attempt = one.everybody(round)
        ours, theirs = uploads(one, attempt), uploads(other, attempt)
        assert not np.array_equal(ours[0].values, theirs[0].values)
        assert one.server.total(ours).tobytes() == other.server.total(theirs).tobytes()
    last = one.everybody(3)  # the control: the dither from the operating system
    found = [p.server.opened(uploads(p, last, seeded=False)) for p in (one, other)]
    assert found[0] != found[1]


def test_a_protocol_that_is_set_up_again_gives_the_same_sums() -> None:
    played, lost = parties(SMALL, counts()), parties(SMALL, counts())
    lost.silos[2] = PrivateSilo(2, SMALL, counts()[2])
    play(SetUp(lost.server.phases), lost.silos)
    attempt = played.everybody(4)
    assert lost.server.opened(uploads(lost, attempt)) == played.server.opened(
        uploads(played, attempt)
    )


def test_without_one_silo_of_the_attempt_nothing_can_be_read() -> None:
    played = parties(SMALL, counts())
    whole = uploads(played, played.everybody(1))
    less = played.server.opened(whole[:2])
    room = 1 << SMALL.packing.slot - 4
    assert max(map(abs, played.server.opened(whole))) < room < max(map(abs, less))
    two = played.server.opened(uploads(played, Attempt(1, 1, (0, 2))))
    assert max(map(abs, two)) < room


def test_who_is_not_sampled_adds_nothing_and_silos_see_no_difference() -> None:
    played = parties(SMALL, counts(), sampling=True)
    coins = np.array([True, False, True, False, False])
    sums = uploads(played, played.everybody(1), coins=coins, noise=False)
    values = [played.values(silo, (Key(7) / silo).generator()) for silo in range(3)]
    plain = played.plain_sum(values, coins, range(3))
    dithered = [
        found - wanted for found, wanted in zip(played.server.opened(sums), plain, strict=True)
    ]
    assert all(0 <= rest < 3 * SMALL.multiple for rest in dithered)
    sent = played.server.sampled(coins)
    assert len({row.tobytes() for row in (*sent.coins, *sent.weights)}) == 10


def test_a_user_without_records_and_settings_that_do_not_fit_are_refused() -> None:
    nobody = counts()
    nobody[:, 3] = 0
    with pytest.raises(RunError, match="user 3 has no records in any silo"):
        parties(SMALL, nobody)
    with pytest.raises(SpecError, match=r"method\.count_cap = 200 does not fit a key of 256 bits"):
        PrivateServer(dataclasses.replace(SMALL, cap=200))


CAP, USERS, VALUES, ROUNDS = 8, 12, 16, 25


def divisible(opened: list[int], prime: int, power: int, multiple: int) -> bool:
    """Tell whether some summed user's total must have this prime power as a factor, judging by
    residues modulo Λ.
    """
    whole = 0
    while multiple % prime ** (whole + 1) == 0:
        whole += 1
    return any(value % prime ** (whole - power + 1) for value in opened)


def attack(rounds: list[tuple[np.ndarray, list[int]]], weighting: Weighting) -> list[set[int]]:
    """The totals that each user may have, after all that opened integers and known samples say of
    their factors.
    """
    largest = weighting.cap * weighting.silos
    powers = [
        (p, k)
        for p in range(2, largest + 1)
        if all(p % d for d in range(2, p))
        for k in range(1, 6)
        if p**k <= largest
    ]
    left = [set(range(1, largest + 1)) for _ in range(weighting.users)]
    facts = [
        (np.flatnonzero(coins), p, k, divisible(opened, p, k, weighting.multiple))
        for coins, opened in rounds
        for p, k in powers
    ]
    for _ in range(4):  # until nothing more follows
        for users, p, k, found in facts:
            able = [u for u in users if any(total % p**k == 0 for total in left[u])]
            if not found:
                for u in able:
                    left[u] = {total for total in left[u] if total % p**k}
            elif len(able) == 1:
                left[able[0]] = {total for total in left[able[0]] if total % p**k == 0}
    return left


def recovered(*, dither: bool) -> int:
    """How many users' totals a server reads off its residues in all rounds."""
    generator = Key(11).generator()
    weighting = Weighting(3, USERS, CAP, 256, 4, VALUES, 1.0)
    played = parties(weighting, drawn_counts(3, USERS, CAP, generator), sampling=True)
    rounds = []
    for round in range(1, ROUNDS + 1):
        coins = generator.random(USERS) < 0.2
        sampled = played.server.sampled(coins)
        source = {} if dither else {"dither": no_dither}
        found = [
            silo.upload(
                [played.values(s, generator)],
                generator.integers(-40, 40, VALUES),
                played.everybody(round),
                sampled=sampled,
                **source,
            )
            for s, silo in enumerate(played.silos)
        ]
        rounds.append((coins, played.server.opened(packed(found))))
    totals = played.counts.clip(max=CAP).sum(0).tolist()
    return sum(
        left == {total} for left, total in zip(attack(rounds, weighting), totals, strict=True)
    )


def test_residues_of_opened_integers_recover_nobody() -> None:
    assert recovered(dither=True) == 0


def test_the_control_recovers_users_where_the_noise_is_not_dithered() -> None:
    assert recovered(dither=False) >= 4
