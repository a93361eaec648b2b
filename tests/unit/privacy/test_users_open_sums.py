"""How many sums of a round are open: one for each attempt whose uploads have all come, and the newest."""

from __future__ import annotations

import itertools

import pytest

from raydpzv.privacy.users import OpenSums
from raydpzv.secure.attempts import Attempt

FIRST = Attempt(1, 0, (0, 1, 2))


def counted(sums: OpenSums, *uploads: tuple[int, Attempt]) -> list[bool]:
    """Which of these uploads makes for a release more; asking before moves nothing."""
    found = []
    for silo, attempt in uploads:
        asked = sums.more(silo, attempt), sums.more(silo, attempt)
        found.append(sums.add(silo, attempt))
        assert asked == (found[-1], found[-1])
    return found


def test_a_round_is_one_release_whoever_takes_part() -> None:
    sums = OpenSums(hidden=True)
    assert counted(sums, (0, FIRST), (2, FIRST), (1, FIRST)) == [True, False, False]
    assert counted(sums, (1, Attempt(2, 0, (1, 2))), (2, Attempt(2, 0, (1, 2)))) == [True, False]


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_late_upload_opens_a_second_sum_whenever_it_comes(late: int) -> None:
    second = FIRST.again([1], least=2)
    sums = OpenSums(hidden=True)
    assert counted(sums, (0, FIRST), (2, FIRST)) == [True, False]
    uploads = [(0, second), (2, second)]
    uploads.insert(late, (1, FIRST))
    assert sum(counted(sums, *uploads)) == 1
    assert not any(counted(OpenSums(hidden=True), *[(0, FIRST), (2, FIRST)], *uploads[:late])[1:])


def test_what_lacks_one_of_its_uploads_is_not_charged() -> None:
    third = FIRST.again([1], least=2).again([], least=2)
    sums = OpenSums(hidden=True)
    assert counted(sums, (0, FIRST), (1, FIRST), (0, third), (2, third)) == [True, False, False, False]


def test_an_attempt_that_is_begun_anew_with_new_keys_opens_one_sum_in_whatever_order() -> None:
    for before, after in itertools.product(itertools.permutations((0, 1)), itertools.permutations((0, 1, 2))):
        uploads = [(silo, FIRST) for silo in (*before, *after)]
        assert sum(counted(OpenSums(hidden=True), *uploads)) == 1
        # in the open whoever looks has two sums of a silo
        assert sum(counted(OpenSums(hidden=False), *uploads)) > 1
