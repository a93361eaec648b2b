"""Keys that two silos share and the server, which relays their public halves, does not have.

X25519 (RFC 7748), HKDF-SHA256 (RFC 5869), ChaCha20 and ChaCha20-Poly1305 (RFC 8439).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence

from raydpzv.errors import RunError, missing
from raydpzv.secure.secret import Secret

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
except ImportError:
    raise missing("cryptography", "secure") from None

KEY_BYTES = 32
_NONCE_BYTES, _TAG_BYTES = 12, 16
SEALED_BYTES = _NONCE_BYTES + KEY_BYTES + _TAG_BYTES
"""Bytes of a sealed seed of 32 bytes."""


class KeyPair(Secret):
    """One silo's X25519 key pair, for one setting-up of the protocol."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()

    @property
    def public(self) -> bytes:
        """The half that the server relays, 32 bytes."""
        return self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def pair_keys(self, silo: int, publics: Sequence[bytes], run: bytes) -> Mapping[int, bytes]:
        """Return the key shared with every other silo.

        silo: whose this pair is; publics: those of all silos, in order; run: identifies this run.
        """
        return {
            other: derived(
                self._private.exchange(X25519PublicKey.from_public_bytes(public)),
                "pair",
                run,
                *sorted((silo, other)),
            )
            for other, public in enumerate(publics)
            if other != silo
        }


def derived(key: bytes, purpose: str, *about: bytes | int) -> bytes:
    """Return the key for a purpose that follows from another key: HKDF-SHA256, what it is about in
    its info.

    Different addresses give unrelated keys: each part travels with its kind and length.
    """
    info = b""
    for part in (purpose.encode(), *about):
        data = struct.pack("<q", part) if isinstance(part, int) else part
        info += struct.pack("<?Q", isinstance(part, int), len(data)) + data
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(key)


def keystream(key: bytes, size: int) -> bytes:
    """Return the first bytes of ChaCha20's stream under a key that is used for nothing else."""
    return Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(size))


def seal(key: bytes, secret: bytes) -> bytes:
    """Return the secret so that holders of the key alone can read it: nonce, ciphertext, tag; 28
    bytes more.
    """
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, secret, None)


def unseal(key: bytes, sealed: bytes) -> bytes:
    """Return the secret. Raises RunError if it was sealed under another key, or changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
    except InvalidTag:
        raise RunError(
            "wanted what silo 0 sealed for this silo, got something else: the keys are of "
            "different settings-up; set the protocol up again"
        ) from None
