import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from raydpzv.keys import Key
from raydpzv.secure.multi_exponentiation import Bases, OddPowers

N = (2**89 - 1) * (2**61 - 1)


@given(
    users=st.integers(0, 5),
    slots=st.integers(1, 6),
    bits=st.integers(1, 40),
    values=st.integers(1, 10_000),
    slot=st.integers(1, 60),
    seed=st.integers(0, 1000),
)
def test_it_is_the_product_of_the_powers(
    users: int, slots: int, bits: int, values: int, slot: int, seed: int
) -> None:
    generator = Key(seed).generator()
    bases = [3 + int(x) for x in generator.integers(0, 2**60, users)]
    exponents = generator.integers(-(2**bits), 2**bits, (users, slots), endpoint=True)
    expected = 1
    for base, row in zip(bases, exponents.tolist(), strict=True):
        expected = expected * pow(base, sum(x << slot * j for j, x in enumerate(row)), N) % N
    assert OddPowers(Bases.of(bases, N), bits, values).product(exponents, slot) == expected


def test_nothing_to_multiply_is_one() -> None:
    powers = OddPowers(Bases.of([5, 7], N), 16, 4)
    assert powers.product(np.zeros((2, 3), np.int64), 30) == 1
    assert OddPowers(Bases.of([], N), 16, 4).product(np.zeros((0, 3), np.int64), 30) == 1
