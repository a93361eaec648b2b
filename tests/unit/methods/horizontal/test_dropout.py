"""Silos that stay away from rounds: who is drawn, and what that does to sums, noise, keys and the
account.
"""

import math
from typing import Any

import numpy as np
import pytest

from raydpzv.keys import Key
from raydpzv.methods.horizontal.dropout import Absences, AvailableSilos, of_absences
from raydpzv.privacy.users import UserReleasePlan
from raydpzv.secure.attempts import Attempt
from raydpzv.sim.privacy_filter import PlanFilter
from raydpzv.wire.secure_sums import DroppedOut, MaskedSum, PackedSum, UserSum
from tests.helpers.user_parties import SILOS, SIZE, USERS
from tests.unit.methods.horizontal.test_aggregation import UNIT, Running

ABSENT: dict[str, Any] = {"availability": 0.4, "least_silos": 2}
FAILING: dict[str, Any] = {"dropout": 0.3, "late_uploads": 1.0}
MOVED, ROUNDS = 2**16 - 1, 10


def test_each_silo_takes_part_by_a_coin_of_its_own_and_some_always() -> None:
    drawn = [AvailableSilos(9, 2, Key(3), rate=0.3).draw(round) for round in range(1, 2001)]
    sizes = np.array([len(silos) for silos in drawn])
    assert sizes.min() == 2
    law = np.array([math.comb(9, a) * 0.3**a * 0.7 ** (9 - a) for a in range(10)])
    law[2] += law[:2].sum()
    law[:2] = 0
    found = np.bincount(sizes, minlength=10) / len(sizes)
    assert np.abs(found - law).max() < 0.04
    assert np.abs(np.bincount(np.concatenate(drawn)) / len(drawn) - sizes.mean() / 9).max() < 0.04
    assert AvailableSilos(9, 2, Key(3), rate=1.0).draw(5).tolist() == list(range(9))
    again = AvailableSilos(9, 2, Key(3), rate=0.3).draw(7)
    assert again.tolist() == drawn[6].tolist() == sorted(again)


def took_part(running: Running, kind: type) -> list[Attempt]:
    return [
        u.attempt for u in running.uploads if isinstance(u.body, kind) and u.attempt is not None
    ]


@pytest.mark.parametrize("settings", [{"weights": "uniform", "count_cap": None}, {"sampling": 0.6}])
def test_masked_sums_of_those_who_are_there_move_the_model_by_the_same_bits(
    settings: dict[str, Any],
) -> None:
    plain, masked = (Running(how, **ABSENT, **settings) for how in ("plain", "masked"))
    assert plain.until(6).tobytes() == masked.until(6).tobytes()
    sizes = {len(attempt.silos) for attempt in took_part(plain, UserSum)}
    assert sizes == {2, 3}
    assert took_part(plain, UserSum) == took_part(masked, MaskedSum)


@pytest.mark.parametrize("aggregation", ["plain", "masked", "private_weights"])
def test_who_takes_part_shares_the_noise_of_a_whole_release(aggregation: str) -> None:
    running = Running(aggregation, multiplier=1.5, **ABSENT)
    running.until(4)
    rounds: dict[int, float] = {}
    for upload in running.uploads:
        for release in upload.releases:
            rounds[upload.step] = rounds.get(upload.step, 0.0) + release.receipt.sigma**2
    moved = MOVED + (np.sqrt(SIZE) if aggregation == "private_weights" else 0)
    assert list(rounds.values()) == pytest.approx([(1.5 * moved) ** 2] * 4)
    fewer = [
        u for u in running.uploads if u.attempt and len(u.attempt.silos) < SILOS and u.releases
    ]
    short = (
        sum(r.receipt.sigma**2 for u in fewer[:2] for r in u.releases) * 2 / SILOS
    )  # shares for S, of 2
    assert short < 0.7 * (1.5 * moved) ** 2


@pytest.mark.parametrize("sampling", [1.0, 0.6])
def test_private_weights_without_some_silos_open_the_plain_sum_of_the_others(
    sampling: float,
) -> None:
    given = {"multiplier": 0.0, "sampling": sampling, **ABSENT}
    plain, private = Running("plain", **given), Running("private_weights", **given)
    ours, theirs = private.until(2), plain.until(2)
    assert min(len(attempt.silos) for attempt in took_part(private, PackedSum)) == 2
    # each pair's weighed integers are cut to whole ones where weights are known, dithers are within
    # half a unit each
    rounding = 2 * 2.0 * UNIT * (USERS * SILOS + SILOS) / (sampling * USERS)
    assert np.abs(ours - theirs).max() < rounding
    everybody = Running("plain", **{**given, "availability": 1.0}).until(2)
    assert np.abs(everybody - theirs).max() > 10 * rounding


def test_a_silo_that_lost_its_upload_says_so_for_the_round_it_is_asked_in() -> None:
    running = Running("masked", least_silos=2, dropout=0.3, late_uploads=0.5)
    running.until(ROUNDS)
    steps = [upload.step for upload in running.uploads]
    assert running.bodies(DroppedOut)
    assert steps == sorted(steps)


@pytest.mark.parametrize("aggregation", ["masked", "private_weights"])
def test_a_failure_begins_another_attempt_whose_sum_is_that_of_the_others(aggregation: str) -> None:
    given: dict[str, Any] = {"multiplier": 0.0, "least_silos": 2, "dropout": 0.3}
    running = Running(aggregation, **given)
    model, kind = running.until(6), MaskedSum if aggregation == "masked" else PackedSum
    assert running.bodies(DroppedOut)
    last: dict[int, Attempt] = {}
    for attempt in took_part(running, kind):
        last[attempt.round] = attempt
    assert min(len(attempt.silos) for attempt in last.values()) == 2

    # the same rounds in the open, of those who were left
    plain = Running("plain", multiplier=0.0, availability=0.5)
    plain.server._cohorts = _Given(last)
    others = plain.until(6)
    rounding = 6 * 2.0 * UNIT * (USERS * SILOS + SILOS) / USERS
    assert np.abs(model - others).max() < (rounding if aggregation == "private_weights" else 1e-12)


class _Given:
    def __init__(self, attempts: dict[int, Attempt]) -> None:
        self._attempts = attempts

    def draw(self, round: int) -> np.ndarray:
        at = self._attempts.get(
            round, Attempt(round, 0, (0, 1))
        )  # the round after the last is not looked at
        return np.array(at.silos)


def account(running: Running) -> tuple[int, int | None]:
    """Releases and the fewest silos in one, as a run's account has them."""
    setting = UserReleasePlan(
        users=USERS,
        silos=SILOS,
        releases=ROUNDS,
        clip=0.5,
        delta=1e-5,
        multiplier=1.0,
        weights="records",
        aggregation=running.config.aggregation,
        fewest=running.config.fewest,
    )
    found = PlanFilter(setting)
    for upload in running.uploads:
        if upload.releases:
            found.charge(upload.client, upload.ids, len(upload.releases), upload.attempt)
    spent = found.spent()
    return spent.releases, spent.fewest


def test_a_sum_that_a_late_upload_opens_is_charged_and_one_that_stays_closed_is_not() -> None:
    late, never = Running("masked", **FAILING), Running("masked", **FAILING | {"late_uploads": 0.0})
    model = late.until(ROUNDS)
    assert (
        model.tobytes() == never.until(ROUNDS).tobytes()
    )  # what comes too late is in no sum that is used
    assert account(never)[0] == ROUNDS
    complete: dict[Attempt, set[int]] = {}
    for upload in late.uploads:
        if isinstance(upload.body, MaskedSum) and upload.attempt:
            complete.setdefault(upload.attempt, set()).add(upload.client)
    opened = [attempt for attempt, silos in complete.items() if silos == set(attempt.silos)]
    assert len(opened) > ROUNDS
    assert account(late) == (len(opened), 2)


def test_noise_and_masks_of_two_attempts_have_nothing_in_common() -> None:
    running = Running("masked", **FAILING)
    running.until(ROUNDS)
    sums: dict[tuple[int, int], list[np.ndarray]] = {}
    for upload in running.uploads:
        if isinstance(upload.body, MaskedSum):
            sums.setdefault((upload.step, upload.client), []).append(upload.body.values)
    tried_twice = [found for found in sums.values() if len(found) > 1]
    assert tried_twice
    for first, second, *_ in tried_twice:
        assert not (first == second).any()


def test_keys_lost_in_a_later_attempt_are_made_anew_and_that_attempt_again() -> None:
    whole, lossy = Running("masked", **FAILING), Running("masked", **FAILING)
    expected, orders = whole.until(ROUNDS), lossy.server.first_orders()
    lost = False
    while lossy.server.updates < ROUNDS:
        uploads = lossy.group.process(orders)
        lossy.uploads += uploads
        if not lost and any(isinstance(u.body, DroppedOut) for u in uploads):
            lossy.group._sums.secure._roles.clear()
            lost = True
        orders = [order for upload in uploads for order in lossy.server.receive(upload)]
    assert lossy.server.parameters().tobytes() == expected.tobytes()
    assert account(lossy)[0] <= account(whole)[0]


def test_what_does_not_go_together_is_refused() -> None:
    def complaints(silos: int, aggregation: str, **given: Any) -> str:
        return "; ".join(of_absences(Absences(**given), silos, aggregation))  # type: ignore[arg-type]

    assert complaints(5, "masked", availability=0.5, dropout=0.1) == ""
    assert complaints(1, "plain") == ""
    assert "method.dropout: wanted 0" in complaints(5, "plain", dropout=0.1)
    assert "method.least_silos: wanted at most 3" in complaints(
        3, "masked", availability=0.5, least_silos=4
    )
    assert "method.least_silos: wanted at least 2" in complaints(
        3, "masked", availability=0.5, least_silos=1
    )
