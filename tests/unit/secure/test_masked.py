import numpy as np
import pytest

from raydpzv.errors import RunError
from raydpzv.keys import Key
from raydpzv.secure.attempts import Attempt
from raydpzv.secure.masked import MaskedServer, MaskedSilo
from raydpzv.secure.set_up import SetUp
from raydpzv.wire.secure_sums import KeysLost, MaskedSum
from tests.helpers.private_weights import play

S, D = 4, 500


def everybody() -> tuple[MaskedServer, list[MaskedSilo]]:
    server, silos = MaskedServer(S), [MaskedSilo(s, b"run") for s in range(S)]
    told = play(SetUp(server.phases), silos)
    assert [(type(up).__name__, up.wire_bytes) for _, _, up in told] == [
        ("AgreementKey", 32)
    ] * S + [("Acknowledged", 0)] * S
    assert sum(down.wire_bytes for _, down, _ in told) == S * 32 * S
    return server, silos


def uploads(silos: list[MaskedSilo], values: np.ndarray, attempt: Attempt) -> list[MaskedSum]:
    found = [silos[s].upload(values[s], attempt) for s in attempt.silos]
    masked = [body for body in found if isinstance(body, MaskedSum)]
    assert len(masked) == len(found)
    return masked


VALUES = Key(1).generator().integers(-(2**60), 2**60, (S, D))


def test_sums_are_those_of_the_integers_for_whoever_takes_part() -> None:
    server, silos = everybody()
    for attempt in (Attempt(1, 0, (0, 1, 2, 3)), Attempt(1, 1, (0, 2, 3)), Attempt(2, 0, (1, 3))):
        sums = uploads(silos, VALUES, attempt)
        assert sums[0].wire_bytes == 8 * D
        assert np.array_equal(server.total(sums), VALUES[list(attempt.silos)].sum(0))


def test_without_one_silo_of_the_attempt_the_sum_is_noise() -> None:
    server, silos = everybody()
    sums = uploads(silos, VALUES // 2**30, Attempt(1, 0, (0, 1, 2, 3)))
    assert np.abs(server.total(sums) - (VALUES // 2**30).sum(0)).max() == 0
    less = server.total(sums[:3]) - (VALUES // 2**30)[:3].sum(0)
    # uniform in 64 bits
    assert np.abs(np.log2(np.abs(less.astype(float))).mean() - (63 - 1 / np.log(2))) < 0.5


def test_no_mask_is_used_twice() -> None:
    _, silos = everybody()
    uploads(silos, VALUES, Attempt(2, 1, (0, 1, 2, 3)))
    for attempt in (
        Attempt(2, 1, (0, 1)),
        Attempt(2, 0, (0, 1)),
        Attempt(1, 5, (0, 1)),
        Attempt(3, 0, (1, 2)),
    ):
        with pytest.raises(RunError, match="begin another attempt"):
            silos[0].upload(VALUES[0], attempt)


def test_a_silo_that_lost_its_keys_says_so_and_the_protocol_is_set_up_again() -> None:
    server, silos = everybody()
    silos[2] = MaskedSilo(2, b"run")
    attempt = Attempt(1, 0, (0, 1, 2, 3))
    assert isinstance(silos[2].upload(VALUES[2], attempt), KeysLost)
    set_up = SetUp(server.phases)
    messages = set_up.begin()
    answers = [silo.receive(body) for silo, body in zip(silos, messages, strict=True)]
    again = set_up.receive(answers)
    assert again is not None
    silos[1] = MaskedSilo(1, b"run")  # lost between two phases
    answers = [silo.receive(body) for silo, body in zip(silos, again, strict=True)]
    assert isinstance(answers[1], KeysLost)
    messages = set_up.receive(answers)
    while messages is not None:
        messages = set_up.receive(
            [silo.receive(body) for silo, body in zip(silos, messages, strict=True)]
        )
    sums = uploads(silos, VALUES // 8, attempt)
    assert np.array_equal(server.total(sums), (VALUES // 8).sum(0))
