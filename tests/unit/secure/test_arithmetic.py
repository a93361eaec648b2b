import pytest

from raydpzv.secure.arithmetic import inverse, powmod, prime, product


def test_they_agree_with_pythons_own() -> None:
    a, b, n = 3**300 + 5, 7**211 - 2, 2**521 - 1
    assert powmod(a, b, n) == pow(a, b, n)
    assert product(a, b, n) == a * b % n
    assert inverse(a, n) * a % n == 1
    with pytest.raises(ZeroDivisionError):
        inverse(6, 9)


def test_primes_have_their_length_and_a_product_twice_it() -> None:
    p, q = prime(96), prime(96)
    assert p != q
    assert (p * q).bit_length() == 192
    for found in (p, q):  # Fermat, with Python's own powers
        assert all(pow(base, int(found) - 1, int(found)) == 1 for base in (2, 3, 5, 7, 11))
