"""Masked sums: the two sides, message in and message out. The server learns the sum over all silos
and no other.
"""

# D values

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raydpzv.secure.attempts import Attempt
from raydpzv.secure.set_up import AgreeingSilo, Answers, Phases, all_of, relayed
from raydpzv.wire.messages import Acknowledged
from raydpzv.wire.secure_sums import KeysLost, MaskedSum, Modulus


class MaskedSilo(AgreeingSilo):
    """A silo that adds its masks modulo 2^64 to its integers."""

    def _set_up(self, begin: Modulus) -> Answers:
        self._masks = yield from self._agreed()
        yield Acknowledged()

    def upload(self, values_D: npt.NDArray[np.int64], attempt: Attempt) -> MaskedSum | KeysLost:
        """Return the silo's noised sum plus masks; values: int64 [D]."""
        masks = self._masks_for(attempt)
        if masks is None:
            return KeysLost()
        mask_D = masks.words(attempt.silos, len(values_D), "sum", attempt.round, attempt.number)
        return MaskedSum(values_D.astype(np.uint64) + mask_D)


class MaskedServer:
    """Relays public keys and adds masked sums."""

    def __init__(self, silos: int) -> None:
        self._silos = silos

    def phases(self) -> Phases:
        """Return the phases of a set-up."""
        keys = yield [Modulus(np.zeros(0, np.uint8))] * self._silos
        done = yield [relayed(keys)] * self._silos
        all_of(Acknowledged, done)

    def total(self, sums: Sequence[MaskedSum]) -> npt.NDArray[np.int64]:
        """Return the sum over the silos of one attempt, int64 [D]."""
        total_D = np.zeros_like(sums[0].values)
        for masked in sums:
            total_D += masked.values
        return total_D.astype(np.int64)
