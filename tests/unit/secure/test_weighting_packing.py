from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raydpzv.secure.weighting import Packing

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
    sums = [a + b for a, b in zip(packing.packed(values[:count]), packing.packed(more[:count]), strict=True)]
    assert packing.unpacked(sums, count) == [a + b for a, b in zip(values, more, strict=False)]
