from __future__ import annotations

import itertools

import numpy as np
import pytest

from raydpzv.errors import RunError
from raydpzv.secure.attempts import Attempt, OpenSums
from raydpzv.secure.masked import MaskedServer, MaskedSilo
from raydpzv.secure.set_up import SetUp
from tests.helpers.private_weights import play

FIRST = Attempt(1, 0, (0, 1, 2))
FIRST_VALUES = np.zeros(4, np.int64)


def counted(sums: OpenSums, *uploads: tuple[int, Attempt]) -> list[bool]:
    """Which of these uploads makes for a release more; asking before moves nothing."""
    found = []
    for silo, attempt in uploads:
        asked = sums.more(silo, attempt), sums.more(silo, attempt)
        found.append(sums.add(silo, attempt))
        assert asked == (found[-1], found[-1])
    return found


def test_the_next_attempt_is_without_those_who_failed_while_enough_are_left() -> None:
    assert FIRST.again([1], least=2) == Attempt(1, 1, (0, 2))
    assert FIRST.again([0, 1], least=2) == Attempt(1, 1, (0, 1, 2))
    assert FIRST.again([0, 1], least=1) == Attempt(1, 1, (2,))


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


def test_one_silo_alone_is_not_asked() -> None:
    silos = [MaskedSilo(s, b"run") for s in range(3)]
    play(SetUp(MaskedServer(3).phases), silos)
    with pytest.raises(
        RunError, match="round 3 has 1 silos left, whose sum nothing would hide: wanted at least 2"
    ):
        silos[0].upload(FIRST_VALUES, Attempt(3, 0, (0,)))
