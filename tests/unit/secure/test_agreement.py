import hashlib
import hmac
import struct

import pytest

from raydpzv.errors import RunError
from raydpzv.secure.agreement import SEALED_BYTES, KeyPair, derived, keystream, seal, unseal


def test_two_silos_have_one_key_and_every_pair_and_run_another() -> None:
    pairs = [KeyPair() for _ in range(3)]
    publics = [pair.public for pair in pairs]
    assert [len(public) for public in publics] == [32, 32, 32]
    keys = [pair.pair_keys(silo, publics, b"run") for silo, pair in enumerate(pairs)]
    assert keys[0].keys() == {1, 2}
    assert all(keys[i][j] == keys[j][i] for i in range(3) for j in range(i))
    assert len({keys[0][1], keys[0][2], keys[1][2]}) == 3
    assert pairs[0].pair_keys(0, publics, b"another")[1] != keys[0][1]


def test_derived_keys_are_hkdf_of_an_injective_address() -> None:
    info = struct.pack("<?Q", False, 4) + b"mask" + struct.pack("<?Qq", True, 8, 5)
    pseudo_random = hmac.new(bytes(32), b"key", hashlib.sha256).digest()
    assert (
        derived(b"key", "mask", 5) == hmac.new(pseudo_random, info + b"\1", hashlib.sha256).digest()
    )
    addresses = [
        ("a", b"bc"),
        ("ab", b"c"),
        ("abc",),
        ("a", 1, 2),
        ("a", 2, 1),
        ("a", 12),
        ("a", struct.pack("<q", 12)),
    ]
    assert len({derived(b"key", *address) for address in addresses}) == len(addresses)


def test_the_stream_is_that_of_rfc_8439() -> None:
    # appendix A.1, test vectors 1 and 2: key and nonce 0, blocks 0 and 1
    first = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert keystream(bytes(32), 32).hex() == first
    assert keystream(bytes(32), 80)[64:].hex() == "9f07e7be5551387a98ba977c732d080d"


def test_what_is_sealed_is_read_with_the_key_alone() -> None:
    key, secret = bytes(range(32)), b"s" * 32
    sealed = seal(key, secret)
    assert len(sealed) == SEALED_BYTES == 60
    assert secret not in sealed
    assert sealed != seal(key, secret)
    assert unseal(key, sealed) == secret
    for wrong, data in ((bytes(32), sealed), (key, sealed[:-1] + bytes([sealed[-1] ^ 1]))):
        with pytest.raises(RunError, match="set the protocol up again"):
            unseal(wrong, data)
