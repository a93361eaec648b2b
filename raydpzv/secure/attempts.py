"""Who takes part in a round: the set is fixed before masks and noise shares are made, and a failure begins another.

An attempt without one of its silos opens nothing, since its masks stay in the sum. It is charged when all of its
uploads have come after all, beside the attempt that took its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raydpzv.errors import RunError
from raydpzv.wire.messages import Body


@dataclass(frozen=True)
class Attempt:
    """One try at a round by a fixed set of silos, ascending; round and number address its masks."""

    round: int
    number: int
    silos: tuple[int, ...]


class Attempts:
    """The attempts at rounds, and whose uploads have come.

    opened: attempts of which every upload came, so that their sums are open: each is one release to be charged.
    """

    def __init__(self) -> None:
        self.opened: list[Attempt] = []
        self._missing: dict[tuple[int, int], tuple[Attempt, set[int]]] = {}
        self._uploads: dict[int, Body] = {}
        self._current: Attempt | None = None

    def begin(self, round: int, silos: Sequence[int], *, least: int = 2) -> Attempt:
        """Return a new attempt at a round by these silos; what came of the last one is dropped.

        Raises RunError for fewer silos than `least`: one alone has no masks.
        """
        if len(silos) < least:
            raise RunError(
                f"round {round} has {len(silos)} silos left, whose sum nothing would hide: wanted at least {least}; "
                "wait until more of them are back"
            )
        last = self._current
        number = last.number + 1 if last is not None and last.round == round else 0
        self._current = Attempt(round, number, tuple(sorted(silos)))
        self._missing[round, number] = self._current, set(silos)
        self._uploads = {}
        return self._current

    def without(self, silo: int, *, least: int = 2) -> Attempt:
        """Return the attempt that follows when a silo of the current one has failed."""
        assert self._current is not None
        return self.begin(self._current.round, [s for s in self._current.silos if s != silo], least=least)

    def receive(self, silo: int, attempt: Attempt, upload: Body) -> list[Body] | None:
        """Take an upload, early or late; return those of the current attempt in silo order once all are there."""
        whose = attempt.round, attempt.number
        missing = self._missing[whose][1] if whose in self._missing else set()
        if silo not in missing:
            raise RunError(
                f"silo {silo} answered in round {attempt.round}, attempt {attempt.number}, in which it has nothing to "
                "answer: its order was sent twice or to another"
            )
        missing.remove(silo)
        if attempt == self._current:
            self._uploads[silo] = upload
        if missing:
            return None
        self.opened.append(self._missing.pop(whose)[0])
        if attempt != self._current:
            return None
        return [self._uploads[silo] for silo in attempt.silos]
