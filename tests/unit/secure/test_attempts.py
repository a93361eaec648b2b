import numpy as np
import pytest

from raydpzv.errors import RunError
from raydpzv.secure.attempts import Attempt
from raydpzv.secure.masked import MaskedServer, MaskedSilo
from raydpzv.secure.set_up import SetUp
from tests.helpers.private_weights import play

FIRST = Attempt(1, 0, (0, 1, 2))
FIRST_VALUES = np.zeros(4, np.int64)


@pytest.mark.parametrize(
    ("failed", "least", "silos"),
    [([1], 2, (0, 2)), ([0, 1], 2, (0, 1, 2)), ([0, 1], 1, (2,))],
)
def test_the_next_attempt_is_without_those_who_failed_while_enough_are_left(
    failed: list[int], least: int, silos: tuple[int, ...]
) -> None:
    assert FIRST.again(failed, least=least) == Attempt(1, 1, silos)


def test_one_silo_alone_is_not_asked() -> None:
    silos = [MaskedSilo(s, b"run") for s in range(3)]
    play(SetUp(MaskedServer(3).phases), silos)
    with pytest.raises(
        RunError, match="round 3 has 1 silos left, whose sum nothing would hide: wanted at least 2"
    ):
        silos[0].upload(FIRST_VALUES, Attempt(3, 0, (0,)))
