import copy
import pickle
import traceback
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from raydpzv.errors import RunError
from raydpzv.keys import Key
from raydpzv.secure.secret import Secret
from raydpzv.secure.set_up import SetUp
from raydpzv.secure.weighting import Weighting
from raydpzv.wire.secure_sums import SealedSeed
from tests.helpers.private_weights import Parties, drawn_counts, parties


def two() -> Parties:
    weighting = Weighting(
        silos=2, users=3, cap=2, key_bits=256, value_bits=6, values=2, multiplier=1.0
    )
    return parties(weighting, drawn_counts(2, 3, 2, Key(5).generator()))


def held(thing: object) -> Iterator[object]:
    """Everything that an object holds, at any depth."""
    yield thing
    if isinstance(thing, dict):
        inside = [*thing.values()]
    elif isinstance(thing, list | tuple):
        inside = [*thing]
    elif type(thing).__module__.startswith("raydpzv"):
        inside = [*vars(thing).values()]
    else:
        inside = []
    for part in inside:
        yield from held(part)


def spellings(secret: object) -> list[str]:
    if isinstance(secret, bytes):
        return [secret.hex(), repr(secret)]
    return [str(int(secret)), f"{int(secret):x}"]  # type: ignore[call-overload]


def test_what_holds_a_secret_neither_shows_nor_leaves() -> None:
    played = two()
    parts = [part for party in (played.server, *played.silos) for part in held(party)]
    secrets = [part for part in parts if isinstance(part, bytes) and len(part) == 32]
    secrets += [
        part
        for part in parts
        if type(part).__name__ == "mpz" or (isinstance(part, int) and part > 2**60)
    ]
    assert len(secrets) > 10  # pair keys, primes, blindings, shifted weights
    keepers = [part for part in parts if isinstance(part, Secret)]
    assert {type(keeper).__name__ for keeper in keepers} > {
        "PrivateServer",
        "PrivateSilo",
        "PrivateKey",
        "Masks",
    }
    for keeper in keepers:
        shown = f"{keeper} {keeper!r}"
        assert not any(text in shown for secret in secrets for text in spellings(secret))
        for leave in (pickle.dumps, copy.deepcopy):
            with pytest.raises(RunError, match="secrets that stay in its process"):
                leave(keeper)


def failures(played: Parties) -> Iterator[Callable[[], object]]:
    """What goes wrong with secrets at hand."""
    silo, attempt = played.silos[1], played.everybody()
    values, noise = played.values(1, Key(1).generator()), np.array([77_777_777, -77_777_777])
    yield lambda: silo.upload([values[:1]], noise, attempt)
    yield lambda: silo.upload([values], noise, attempt)
    yield lambda: silo.upload([values + 4_444_444], noise, played.everybody(2))
    yield lambda: silo.receive(SealedSeed(np.zeros(60, np.uint8)))
    other = two()
    set_up = SetUp(other.server.phases)
    set_up.receive(
        [one.receive(body) for one, body in zip(other.silos, set_up.begin(), strict=True)]
    )
    yield (
        lambda: (
            other.silos[1].receive(set_up.begin()[0])
            and other.silos[1].receive(SealedSeed(np.zeros(60, np.uint8)))
        )
    )


def test_no_failure_names_a_secret_or_a_value() -> None:
    played = two()
    parts = [part for party in (played.server, *played.silos) for part in held(party)]
    secrets = [part for part in parts if isinstance(part, bytes) and len(part) == 32]
    secrets += [part for part in parts if type(part).__name__ == "mpz"]
    seen = 0
    for fail in failures(played):
        with pytest.raises(RunError) as error:
            fail()
        text = "".join(traceback.format_exception(error.value))
        assert not any(spelt in text for secret in secrets for spelt in spellings(secret))
        assert "77777777" not in text
        assert "4444" not in text.replace("4_444_444", "")
        seen += 1
    assert seen == 5
