from __future__ import annotations

import pytest

from raydpzv.errors import RunError
from raydpzv.secure.attempts import Attempt, Attempts
from raydpzv.wire.messages import Acknowledged, Start

A, B = Start(), Acknowledged()


def test_uploads_come_out_in_silo_order_once_all_are_there() -> None:
    attempts = Attempts()
    attempt = attempts.begin(4, [2, 0])
    assert attempt == Attempt(4, 0, (0, 2))
    assert attempts.receive(2, attempt, B) is None
    assert attempts.receive(0, attempt, A) == [A, B]
    assert attempts.opened == [attempt]


def test_a_failed_silo_begins_another_attempt_and_its_late_upload_opens_a_second_sum() -> None:
    attempts = Attempts()
    first = attempts.begin(1, [0, 1, 2])
    for silo in (0, 2):
        attempts.receive(silo, first, A)
    second = attempts.without(1)
    assert second == Attempt(1, 1, (0, 2))
    assert attempts.receive(0, second, A) is None
    assert attempts.receive(2, second, A) == [A, A]
    assert attempts.opened == [second]  # what the first one's others sent tells nothing
    third = attempts.begin(2, [0, 1, 2])
    assert attempts.receive(1, first, B) is None
    assert attempts.opened == [second, first]
    assert third.number == 0


def test_nobody_answers_twice_or_unasked() -> None:
    attempts = Attempts()
    attempt = attempts.begin(1, [0, 1])
    attempts.receive(0, attempt, A)
    for silo, which in ((0, attempt), (2, attempt), (0, Attempt(9, 0, (0, 1)))):
        with pytest.raises(RunError, match="nothing to answer"):
            attempts.receive(silo, which, A)


def test_one_silo_alone_is_not_asked() -> None:
    attempts = Attempts()
    attempts.begin(3, [0, 1])
    with pytest.raises(
        RunError, match="round 3 has 1 silos left, whose sum nothing would hide: wanted at least 2"
    ):
        attempts.without(0)
