"""Bytes that one receiver alone can read, whoever else reads the way they come by: a log, a queue, a mail.

The sender needs nothing but the receiver's public half; it draws a key pair for each message and forgets it
(X25519 and ChaCha20-Poly1305, as in `raydpzv.secure.agreement`).
"""

from __future__ import annotations

from raydpzv.errors import RunError
from raydpzv.secure.agreement import KEY_BYTES, KeyPair, seal, unseal
from raydpzv.secure.secret import Secret

_PURPOSE = b"sealed box"


class Receiver(Secret):
    """Whoever may read: a key pair that lives as long as this object."""

    def __init__(self) -> None:
        self._pair = KeyPair()

    @property
    def public(self) -> bytes:
        """What senders need, 32 bytes; anybody may know it."""
        return self._pair.public

    def read(self, box: bytes) -> bytes:
        """Return what was sealed for this receiver. Raises RunError if it was not, or was changed on its way."""
        drawn = box[:KEY_BYTES]
        try:
            key = self._pair.pair_keys(0, [self.public, drawn], _PURPOSE)[1]
            return unseal(key, box[KEY_BYTES:])
        except (RunError, ValueError):
            raise RunError(
                "wanted a message that was sealed for this receiver, got another one, or one that was changed on its "
                "way; ask for it again"
            ) from None


def sealed_for(public: bytes, message: bytes) -> bytes:
    """Return a message that the receiver with this public half alone can read: 60 bytes more."""
    pair = KeyPair()
    key = pair.pair_keys(1, [public, pair.public], _PURPOSE)[0]
    return pair.public + seal(key, message)
