import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydpzv.errors import SpecError
from raydpzv.secure.weighting import Packing, Weighting, check_masked_range

PAPER = Weighting(
    silos=5, users=1000, cap=8, key_bits=2048, value_bits=16, values=16, multiplier=5.0
)


@pytest.mark.parametrize(
    ("silos", "cap", "held"),
    [
        (5, 1, (60, 90)),
        (5, 8, (25, 37)),
        (5, 16, (14, 21)),
        (5, 50, (5, 8)),
        (20, 8, (8, 12)),
        (5, 400, (0, 1)),
    ],
)
def test_values_to_a_ciphertext(silos: int, cap: int, held: tuple[int, int]) -> None:
    """The table of the method's source; 400 records in each of 5 silos is the paper's N_max =
    2,000.
    """
    for key_bits, wanted in zip((2048, 3072), held, strict=True):
        weighting = dataclasses.replace(PAPER, silos=silos, cap=cap, key_bits=key_bits)
        if wanted:
            assert weighting.packing.per_plaintext == wanted
        else:
            with pytest.raises(SpecError, match="does not fit"):
                _ = weighting.packing


def test_every_total_divides_the_multiple_and_blindings_are_longer() -> None:
    assert all(PAPER.multiple % total == 0 for total in range(1, 41))
    # no smaller one would do
    assert all(PAPER.multiple // p % (p ** int(math.log(40, p))) for p in (2, 3, 5, 37))
    assert PAPER.shift_limit == 2 ** (53 + 128)


def test_a_cap_that_does_not_fit_is_refused_with_the_largest_that_does() -> None:
    large = dataclasses.replace(PAPER, cap=500)
    with pytest.raises(SpecError) as error:
        _ = large.packing
    length = math.lcm(*range(1, 2501)).bit_length()
    assert (
        f"Λ = lcm(1..2500) has {length} bits, a slot {length} + 1 + 27 = {length + 28} of 2046"
        in str(error.value)
    )
    assert "method.count_cap = 500 does not fit a key of 2048 bits: with 5 silos" in str(
        error.value
    )
    largest = int(str(error.value).rsplit(" ", 1)[1])
    assert dataclasses.replace(PAPER, cap=largest).packing.per_plaintext == 1
    with pytest.raises(SpecError, match=f"the largest that fits is {largest}$"):
        _ = dataclasses.replace(PAPER, cap=largest + 1).packing
    with pytest.raises(SpecError, match="no cap fits; use a longer key"):
        _ = dataclasses.replace(PAPER, key_bits=64).packing


def test_one_silo_has_nobody_to_hide_among() -> None:
    with pytest.raises(SpecError, match="at least 2 silos, and there is 1"):
        _ = dataclasses.replace(PAPER, silos=1).packing


def test_what_is_opened_is_decoded_exactly() -> None:
    weighting = dataclasses.replace(PAPER, cap=50)
    huge = weighting.multiple**2 + weighting.multiple // 2
    found = weighting.decoded([0, huge, -huge], silos=3)
    from fractions import Fraction

    middle = Fraction(3 * (weighting.multiple - 1), 2)
    assert found.tolist() == [
        float((value - middle) / weighting.multiple) for value in (0, huge, -huge)
    ]


def test_a_masked_sum_out_of_64_bits_is_refused_with_the_arithmetic() -> None:
    check_masked_range(10_000, 5, 16, 5.0)
    edge = next(bits for bits in range(16, 64) if (2**bits - 1) * 5 * (1000 + 60) >= 2**63)
    check_masked_range(1000, 5, edge - 1, 5.0)
    with pytest.raises(
        SpecError, match=rf"1000 users × {2**edge - 1} .* × 5 silos \+ 12 × 5 × 5 .*2\^63"
    ):
        check_masked_range(1000, 5, edge, 5.0)


SLOT = 20
VALUES = st.lists(st.integers(-(2 ** (SLOT - 1)) + 1, 2 ** (SLOT - 1) - 1), min_size=1, max_size=12)


@given(values=VALUES, per_plaintext=st.integers(1, 5))
def test_values_come_back(values: list[int], per_plaintext: int) -> None:
    packing = Packing(SLOT, per_plaintext)
    plaintexts = packing.packed(values)
    assert len(plaintexts) == -(-len(values) // per_plaintext)
    assert all(abs(plaintext) < 2 ** (SLOT * per_plaintext - 1) for plaintext in plaintexts)
    assert packing.unpacked(plaintexts, len(values)) == values


@given(values=VALUES, more=VALUES)
def test_sums_of_plaintexts_are_plaintexts_of_sums(values: list[int], more: list[int]) -> None:
    packing, count = Packing(SLOT + 1, 3), min(len(values), len(more))
    sums = [
        a + b
        for a, b in zip(packing.packed(values[:count]), packing.packed(more[:count]), strict=True)
    ]
    assert packing.unpacked(sums, count) == [a + b for a, b in zip(values, more, strict=False)]
