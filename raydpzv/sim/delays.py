"""How long a piece of work takes: constant, exponential or Poisson delays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from raydpzv.keys import Key

Law = Literal["constant", "exponential", "poisson"]


class DelayModel:
    """Seconds of work, addressed by (who, which): constant, exponential or Poisson with the given
    means.

    quantum: of the Poisson law, the seconds that a count stands for: a delay is quantum ·
    Poisson(mean / quantum), of variance mean · quantum. VAFL, Section G.2: worker m of M has
    Poisson(2m) / 2M, mean m / M and quantum 1 / 2M.
    """

    def __init__(
        self, means: Sequence[float], law: Law, key: Key, quantum: float | None = None
    ) -> None:
        self._means, self._law, self._key, self._quantum = means, law, key, quantum

    def of(self, who: int, which: int) -> float:
        """Return how long `who`'s piece of work number `which` takes."""
        mean = self._means[who]
        if mean == 0 or self._law == "constant":
            return mean
        generator = (self._key / who / which).generator()
        if self._law == "exponential":
            return float(generator.exponential(mean))
        assert self._quantum is not None
        return self._quantum * float(generator.poisson(mean / self._quantum))
