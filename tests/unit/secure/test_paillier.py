import math
from collections import Counter

import pytest

from raydpzv.secure import paillier
from raydpzv.secure.paillier import PrivateKey, new_key

P, Q = 1_000_003, 999_983


def textbook(ciphertext: int, p: int, q: int) -> int:
    """Decryption as Paillier prints it: L(c^λ mod n²) / L(g^λ mod n²) mod n."""
    n, order = p * q, math.lcm(p - 1, q - 1)

    def part(x: int) -> int:
        return (pow(x, order, n * n) - 1) // n

    return part(int(ciphertext)) * pow(part(1 + n), -1, n) % n


@pytest.mark.parametrize("plain", [0, 1, -1, P * Q // 2, -(P * Q // 2), 123_456_789])
def test_the_owner_reads_what_anybody_encrypts(plain: int) -> None:
    key = PrivateKey(P, Q)
    for ciphertext in (
        key.encrypt(plain),
        key.public.joined(key.public.bare(plain), key.public.zero()),
    ):
        assert key.decrypt(ciphertext) == plain
        assert textbook(ciphertext, P, Q) == plain % (P * Q)


def test_products_are_sums_and_powers_products() -> None:
    key = PrivateKey(P, Q)
    a, b = key.encrypt(1000), key.encrypt(-2345)
    assert key.decrypt(key.public.joined(a, b)) == -1345
    assert key.decrypt(pow(int(a), 77, (P * Q) ** 2)) == 77_000


def test_encryptions_of_one_plaintext_differ() -> None:
    key = PrivateKey(P, Q)
    assert len({int(key.encrypt(5)) for _ in range(20)}) == 20
    assert len({int(key.public.zero()) for _ in range(20)}) == 20


def test_the_owners_zeros_are_all_n_th_powers_equally_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p, q = 7, 11
    powers = {pow(x, p * q, (p * q) ** 2) for x in range(1, p * q) if math.gcd(x, p * q) == 1}
    key, found = PrivateKey(p, q), Counter()
    for x in range(p - 1):
        for y in range(q - 1):
            draws = iter((x, y))
            monkeypatch.setattr(
                paillier.secrets, "randbelow", lambda limit, draws=draws: next(draws)
            )
            found[int(key.encrypt(0))] += 1
    assert found.keys() == powers
    assert set(found.values()) == {1}


def test_a_new_key_has_its_length() -> None:
    key = new_key(128)
    assert int(key.public.modulus).bit_length() == 128
    assert (key.public.width, key.public.ciphertext_width) == (16, 32)
    assert key.decrypt(key.encrypt(-(10**30))) == -(10**30)
