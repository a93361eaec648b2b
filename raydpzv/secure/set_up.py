"""Key agreement before the first round, phase by phase, for masked and weighted sums.

In each phase every silo gets one message and answers it. A silo that has lost its keys says so, and
all begin again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

import numpy as np

from raydpzv.errors import RunError
from raydpzv.secure.agreement import KeyPair
from raydpzv.secure.attempts import Attempt
from raydpzv.secure.masks import Masks
from raydpzv.secure.secret import Secret
from raydpzv.wire.messages import Body
from raydpzv.wire.secure_sums import AgreementKey, AgreementKeys, KeysLost, Modulus

Phases = Generator[Sequence[Body], Sequence[Body], None]
"""A server's set-up: yields a message for every silo, is sent their answers, ends when the protocol
is set up.
"""

Answers = Generator[Body, Body, None]
"""A silo's set-up: yields its answer to each message it is sent."""

B = TypeVar("B", bound=Body)


class SetUp:
    """The server's way through the phases; phases: begins them anew; started: how often that
    was.
    """

    def __init__(self, phases: Callable[[], Phases]) -> None:
        self._begin = phases
        self._phases = phases()
        self.begun = 0

    def begin(self) -> Sequence[Body]:
        """Return the first message for every silo, in order; whatever was agreed on before is
        void.
        """
        self._phases = self._begin()
        self.begun += 1
        return next(self._phases)

    def receive(self, answers: Sequence[Body]) -> Sequence[Body] | None:
        """Return the next message for every silo, None when the protocol is set up; answers: of all
        silos, in order.
        """
        if any(isinstance(body, KeysLost) for body in answers):
            return self.begin()
        try:
            return self._phases.send(answers)
        except StopIteration:
            return None


def all_of(kind: type[B], bodies: Sequence[Body]) -> list[B]:
    """Return the bodies, which are of one kind. Raises RunError if one is not."""
    found = [body for body in bodies if isinstance(body, kind)]
    if len(found) < len(bodies):
        names = ", ".join(sorted({type(body).__name__ for body in bodies}))
        raise RunError(f"wanted {kind.__name__}, got {names}: set the protocol up again")
    return found


def relayed(keys: Sequence[Body]) -> AgreementKeys:
    """Return the list of the silos' public keys."""
    return AgreementKeys(np.stack([body.value for body in all_of(AgreementKey, keys)]))


class AgreeingSilo(Secret):
    """The silo's half of the key agreement. silo: its number; run: identifies this run.

    A subclass says what it answers to which message (`_set_up`), and has masks in the end.
    """

    def __init__(self, silo: int, run: bytes) -> None:
        self._silo, self._run = silo, run
        self._answers: Answers | None = None
        self._masks: Masks | None = None
        self._last = (-1, -1)

    def receive(self, body: Body) -> Body:
        """Return the answer to a message of the set-up: KeysLost where those before it are not
        known here.
        """
        if isinstance(body, Modulus):
            self._masks, self._last = None, (-1, -1)
            self._answers = self._set_up(body)
            return next(self._answers)
        if self._answers is None:
            return KeysLost()
        try:
            return self._answers.send(body)
        except StopIteration:
            raise RunError(
                f"silo {self._silo} has been set up and got another {type(body).__name__}: begin "
                "with new keys"
            ) from None

    def _set_up(self, begin: Modulus) -> Answers:
        raise NotImplementedError

    def _agreed(self) -> Generator[Body, Body, Masks]:
        """Send a public key and return the masks that follow from everybody's."""
        pair = KeyPair()
        keys = yield AgreementKey(np.frombuffer(pair.public, np.uint8))
        (found,) = all_of(AgreementKeys, [keys])
        return Masks(
            self._silo,
            pair.pair_keys(self._silo, [row.tobytes() for row in found.values], self._run),
        )

    def _masks_for(self, attempt: Attempt) -> Masks | None:
        """The masks for an attempt, once: two uploads under one mask would show their difference.

        None if the silo has no keys.
        """
        if self._masks is None:
            return None
        place = attempt.round, attempt.number
        if len(attempt.silos) < 2:
            raise RunError(
                f"round {attempt.round} has {len(attempt.silos)} silos left, whose sum nothing "
                "would hide: wanted at least 2; wait until more of them are back"
            )
        if place <= self._last or self._silo not in attempt.silos:
            raise RunError(
                f"silo {self._silo} takes part once in each attempt it belongs to, and round "
                f"{attempt.round}, attempt {attempt.number} is over or has no place for it: begin "
                "another attempt"
            )
        self._last = place
        return self._masks
