"""Sums of silos over their users, each user's part clipped as a whole: Uldp-FL.

Source: Kato et al., "Uldp-FL: federated learning with across-silo user-level differential privacy"
(2023), Algorithm 3 with its weights, and user sampling. Sums are of integers, so that their
sensitivity is exact (`raydpzv.privacy.user_release`). A user's integers are a function of the
model, of the user's own records in the silo
and of public values: the same bits with any other users. Silos that stay away from a round add
nothing to it.
"""

# S silos, U users, n pairs of a silo, d parameters, D numbers of a release

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from raydpzv.data.horizontal import Partition
from raydpzv.data.users import Pairs, UserParts
from raydpzv.engine.objective import Objective
from raydpzv.errors import SpecError
from raydpzv.methods.descriptor import ClientGroupParts, HorizontalMethod, HorizontalServerParts
from raydpzv.methods.horizontal.aggregation import (
    AgreeingRounds,
    MaskedSilos,
    PrivateSilos,
    SumsOverUsers,
    added,
    aggregation_of,
    in_the_open,
    of_aggregation,
    sample_of,
    users_drawn,
)
from raydpzv.methods.horizontal.dropout import attempt_of
from raydpzv.methods.horizontal.local_training import ObjectiveThreads, model_of
from raydpzv.methods.horizontal.rounds import ModelServer, cohorts
from raydpzv.methods.roles import Order, Release, Upload
from raydpzv.privacy.user_release import Integers, UserNoiseParts, user_integers
from raydpzv.secure.attempts import Attempt
from raydpzv.wire.secure_sums import UserSum
from raydpzv.zo.vectors import Vector

_BLOCK_NUMBERS = 1 << 20
"""Numbers of pairs' vectors that are kept at a time: 4 MiB of float32, more while they are
clipped.
"""
_BLOCK_PAIRS = 2_048
"""Pairs at a time: under private weights each has a table of powers beside it, 13 kB at 3072 bits
and 16 values.
"""


class UserSums:
    """Clips, weighs, adds up and noises the vectors of a silo's users; the silos of one process
    share it.
    """

    def __init__(
        self, parts: Partition, noise: UserNoiseParts | None, config: SumsOverUsers
    ) -> None:
        self._parts, self._noise, self._config = users_of(parts), release_of(noise), config
        sides = (config, self._noise, self._parts)
        self._masked = MaskedSilos(*sides) if config.aggregation == "masked" else None
        self._private = PrivateSilos(*sides) if config.aggregation == "private_weights" else None
        self._counts: np.ndarray | None = None
        if config.weights == "records" and config.aggregation != "private_weights":
            cap = config.count_cap
            counts_SU = self._parts.counts()
            self._counts = counts_SU if cap is None else np.minimum(counts_SU, cap)
            self._totals_U = self._counts.sum(0)

    def drawn(self, round: int) -> np.ndarray:
        """Return which users take part in a round, bool [U]: the same in all silos."""
        return users_drawn(self._noise, self._config.sampling, round)

    @property
    def secure(self) -> MaskedSilos | PrivateSilos | None:
        """The silos' sides of an aggregation that hides their sums."""
        return self._masked or self._private

    def answer(self, order: Order, size: int) -> Upload | None:
        """Return the answer to a message beside the rounds, None for any other order."""
        return self.secure.answer(order, size) if self.secure else None

    def total(
        self, silo: int, round: int, size: int, vectors: Callable[[Pairs, np.ndarray], np.ndarray]
    ) -> SiloSum:
        """Return a silo's sum Σ_u w_su E_su before its noise.

        vectors: makes the vectors of the pairs at some places, float [m, D], each of its own pair's
        records alone; it is asked for as many at a time as fit into memory.
        """
        users = self._parts.pairs(silo).users
        places = np.flatnonzero(self.drawn(round)[users])
        total, nonfinite = np.zeros(size, np.int64), 0
        for block, integers_mD, bad in self._integers(silo, places, size, vectors):
            total += self._weighed(integers_mD, silo, users[block]).sum(0)
            nonfinite += bad
        return SiloSum(total, len(places), nonfinite)

    def upload(
        self, order: Order, size: int, vectors: Callable[[Pairs, np.ndarray], np.ndarray]
    ) -> Upload:
        """Return what comes of a silo in an attempt at a round.

        It is its sum with its share of the noise, hidden as the aggregation has it, or nothing
        where the silo fails.
        """
        silo, attempt = order.client, attempt_of(order, self._parts.clients)
        if self._private:
            everybody = np.arange(len(self._parts.pairs(silo)))
            integers = (
                (found, bad) for _, found, bad in self._integers(silo, everybody, size, vectors)
            )
            made = self._private.upload(silo, attempt, size, integers, sample_of(order))
        else:
            summed = self.total(silo, attempt.round, size, vectors)
            # the users that take part in the round, for the account; None: all
            users = np.flatnonzero(self.drawn(attempt.round)) if self._config.sampling < 1 else None
            made = noised(self._noise, summed, silo, attempt, users)
            if self._masked:
                made = self._masked.upload(made, attempt)
        made = made._replace(attempt=attempt)
        return self.secure.sent(made) if self.secure else made

    def _integers(
        self,
        silo: int,
        places: np.ndarray,
        size: int,
        vectors: Callable[[Pairs, np.ndarray], np.ndarray],
    ) -> Iterator[tuple[np.ndarray, Integers, int]]:
        """The integers E of the pairs at these places in blocks, int64 [m, D], and how many vectors
        were not finite.
        """
        pairs, release = self._parts.pairs(silo), self._noise.release
        for block in blocks(places, size):
            yield block, *user_integers(vectors(pairs, block), clip=release.clip, bits=release.bits)

    def _weighed(self, integers_mD: Integers, silo: int, users: np.ndarray) -> Integers:
        """Return trunc(w_su E_su), exactly, so that a user's norms add up to at most one E's;
        uniform: E_su itself.
        """
        if self._counts is None:
            return integers_mD
        counts, totals = self._counts[silo, users, None], self._totals_U[users, None]
        sizes_mD = np.abs(integers_mD) * counts // totals
        return np.where(integers_mD < 0, -sizes_mD, sizes_mD)


class SiloSum(NamedTuple):
    """A silo's sum of integers before its noise, int64 [D], the pairs in it, and those of them not
    finite.
    """

    total: Integers
    pairs: int
    nonfinite: int


def noised(
    noise: UserNoiseParts,
    summed: SiloSum,
    silo: int,
    attempt: Attempt,
    drawn: np.ndarray | None = None,
) -> Upload:
    """Return a silo's upload: the sum with the silo's share of the noise, and the receipt of it.

    drawn: the users that take part in the round, in whatever silo; None: all.
    """
    address, parties = (silo, attempt.round, attempt.number), len(attempt.silos)
    total, pairs, nonfinite = summed
    share, receipt = noise.share(len(total), parties, address, pairs=pairs, nonfinite=nonfinite)
    releases = (Release(0, math.nan, receipt, ids=drawn),) if receipt else ()
    return Upload(silo, attempt.round - 1, UserSum(total + share), releases=releases)


class UserSilos(ObjectiveThreads):
    """Silos that send sums over their users of descents from the model they get.

    A subclass says what a user's descent is (`_descents`).
    """

    def __init__(self, parts: ClientGroupParts, config: SumsOverUsers) -> None:
        super().__init__(parts.objectives)
        self._sums = UserSums(parts.parts, parts.users, config)

    def _work(self, order: Order, objective: Objective) -> Upload:
        if answer := self._sums.answer(order, objective.size):
            return answer
        x = objective.vector(model_of(order))

        def descents(pairs: Pairs, places: np.ndarray) -> np.ndarray:
            return self._descents(objective, x, order, pairs, places)

        return self._sums.upload(order, objective.size, descents)

    def _descents(
        self, objective: Objective, x: Vector, order: Order, pairs: Pairs, places: np.ndarray
    ) -> np.ndarray:
        """Return the descents of the pairs at these places, float32 [m, d]."""
        raise NotImplementedError


class UserSumServer(AgreeingRounds, ModelServer):
    """Makes x <- x + gain · Σ_s Y_s of the silos' sums of descents, [d] each; gain: η_g / (qU) in
    units.

    config: of a method with an aggregation; None: sums come in the open.
    """

    def __init__(
        self, parts: HorizontalServerParts, gain: float, config: SumsOverUsers | None = None
    ) -> None:
        initial = parts.initial()
        size, silos = initial.size, len(parts.rows)
        everybody = cohorts(parts, silos)
        super().__init__(
            config.available(silos, parts.key) if config else everybody, initial, 8 * size
        )
        self._gain = gain
        self.aggregation = in_the_open()
        if config is not None:
            self.aggregation = aggregation_of(config, release_of(parts.users), silos, size)

    def _orders(self, round: int, cohort: Sequence[int]) -> list[Order]:
        return self._hidden(super()._orders(round, cohort), round)

    def _close(self, round: int, uploads: Sequence[Upload]) -> None:
        self._move(self._gain * self.aggregation.total([upload.body for upload in uploads]), round)


def sum_of(uploads: Sequence[Upload]) -> Integers:
    """Return the sum of the silos' sums in the open, int64 [D]: the one number that leaves the
    aggregation.
    """
    return added([upload.body for upload in uploads])


def mean_over_users(noise: UserNoiseParts | None, sampling: float) -> float:
    """Return 1 / (qU) in units of the grid: what a sum of integers is multiplied by to be a mean
    over users.
    """
    found = release_of(noise)
    return found.release.unit / (sampling * found.users)


def blocks(places: np.ndarray, size: int) -> list[np.ndarray]:
    """Return the places in pieces of which vectors of `size` numbers fit into memory."""
    several = min(max(1, _BLOCK_NUMBERS // size), _BLOCK_PAIRS)
    return [places[first : first + several] for first in range(0, len(places), several)]


def users_of(parts: Partition) -> UserParts:
    """Return the partition as one of users. Raises SpecError for another."""
    if not isinstance(parts, UserParts):
        raise SpecError(
            'split.how: wanted "users" with a table [users], which this method protects; add them'
        )
    return parts


def release_of(noise: UserNoiseParts | None) -> UserNoiseParts:
    """Return what releases are made with. Raises SpecError where nothing says it."""
    if noise is None:
        raise SpecError(
            "privacy.clip: wanted, since every user's part of a sum is clipped; give a number "
            "above 0"
        )
    return noise


def user_sums_method(
    config: type[Any], silos: Callable[[ClientGroupParts, Any], UserSilos]
) -> HorizontalMethod[Any]:
    """Return the descriptor of a method whose server steps along the mean over users; `server_lr`:
    η_g.
    """

    def server(parts: HorizontalServerParts, given: Any) -> UserSumServer:
        return UserSumServer(
            parts, given.server_lr * mean_over_users(parts.users, given.sampling), given
        )

    return HorizontalMethod(
        config=config,
        server=server,
        clients=silos,
        cohort=lambda given, clients: clients,
        own_keys=lambda given: given.aggregation != "plain",
        users=lambda given: given.plan,
        contradictions=of_aggregation,
    )
