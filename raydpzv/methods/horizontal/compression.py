"""Codecs of an update of d parameters: whole, in 8 bits per parameter, or by its largest entries
alone.
"""

# d parameters, k of them kept

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from raydpzv.errors import SpecError
from raydpzv.keys import Key
from raydpzv.wire.messages import Body
from raydpzv.wire.weights import QuantisedUpdate, SparseUpdate, Update

LEVELS = 127  # on either side of zero, as many as an int8 has on both


class Codec(Protocol):
    """Makes a message of an update and an update of a message; the server and the clients hold
    equal ones.

    What is not finite must not become finite on the way: the server looks for it in the decoded
    update.
    """

    def encode(self, update: np.ndarray, client: int, round: int) -> Body:
        """Return the message for a client's update, float32 [d]."""
        ...

    def decode(self, body: Body, size: int) -> np.ndarray:
        """Return the update that the server works with, float32 [size]; TypeError for another
        codec's message.
        """
        ...

    def wire_bytes(self, size: int) -> int:
        """Return the bytes that an update of `size` parameters takes."""
        ...


@dataclass(frozen=True)
class Whole:
    """Every parameter as float32: 4d bytes."""

    def encode(self, update: np.ndarray, client: int, round: int) -> Update:
        return Update(update)

    def decode(self, body: Body, size: int) -> np.ndarray:
        if not isinstance(body, Update):
            raise TypeError(f"a server of whole updates cannot serve {type(body).__name__}")
        return body.values

    def wire_bytes(self, size: int) -> int:
        """Return 4d."""
        return 4 * size


@dataclass(frozen=True)
class Quantised:
    """8-bit stochastic rounding with one scale for the whole update: d + 4 bytes.

    FedCom (Haddadpour et al. 2021), which asks for an unbiased quantiser of bounded variance: here
    QSGD's (Alistarh et al. 2017, Section 3.1), its levels spread over [-max |u|, max |u|] in place
    of [-‖u‖, ‖u‖]. Each entry is rounded to a neighbouring level, up with the probability that
    makes its mean the entry; the error stays below max |u| / 127. The coins of a client's round are
    addressed by it.
    """

    key: Key

    def encode(self, update: np.ndarray, client: int, round: int) -> QuantisedUpdate:
        """Return levels and scale; an update that is not finite travels as a scale of NaN."""
        scale = np.abs(update).max()
        if not np.isfinite(scale):
            return QuantisedUpdate(np.zeros(update.size, np.int8), np.full(1, np.nan, np.float32))
        coins = (
            (self.key / "quantise" / client / round)
            .generator()
            .random(update.size, dtype=np.float32)
        )
        # divided first, so that the largest entry is exactly at level 127
        exact = update.astype(np.float64) / (scale or 1) * LEVELS
        return QuantisedUpdate(np.floor(exact + coins).astype(np.int8), scale.reshape(1))

    def decode(self, body: Body, size: int) -> np.ndarray:
        """Return level · scale / 127 for every parameter."""
        if not isinstance(body, QuantisedUpdate):
            raise TypeError(f"a server of quantised updates cannot serve {type(body).__name__}")
        return (body.levels * (body.scale.astype(np.float64) / LEVELS)).astype(np.float32)

    def wire_bytes(self, size: int) -> int:
        """Return d + 4."""
        return size + 4


@dataclass(frozen=True)
class TopK:
    """The k = ⌈share · d⌉ entries of largest magnitude, the lower place first among equals: 8k
    bytes.

    FedAvg+Top-k of the DeComFL paper (Appendix B.3.2: shares of 10, 5 and 1 %). What is left out is
    lost: error feedback (adding it to the next update) would need a client that keeps d numbers
    between its rounds, and clients here keep nothing.
    """

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise SpecError(
                f"a share of {self.share} of the parameters cannot be kept: choose one in (0, 1]"
            )

    def kept(self, size: int) -> int:
        """Return k. The share counts as the decimal it is written as: ⌈0.07 · 100⌉ is 7, not 8."""
        return math.ceil(Fraction(str(self.share)) * size)

    def encode(self, update: np.ndarray, client: int, round: int) -> SparseUpdate:
        """Return places and values; what is not finite counts as largest, so that it is not
        lost.
        """
        magnitudes = np.abs(update)
        magnitudes[np.isnan(magnitudes)] = np.inf
        kept = self.kept(update.size)
        least = np.partition(magnitudes, update.size - kept)[update.size - kept]
        above, equal = np.flatnonzero(magnitudes > least), np.flatnonzero(magnitudes == least)
        indices = np.sort(np.concatenate((above, equal[: kept - above.size]))).astype(np.int32)
        return SparseUpdate(indices, update[indices])

    def decode(self, body: Body, size: int) -> np.ndarray:
        """Return the kept entries in their places and zeros elsewhere."""
        if not isinstance(body, SparseUpdate):
            raise TypeError(f"a server of sparse updates cannot serve {type(body).__name__}")
        update = np.zeros(size, np.float32)
        update[body.indices] = body.values
        return update

    def wire_bytes(self, size: int) -> int:
        """Return 8k."""
        return 8 * self.kept(size)
