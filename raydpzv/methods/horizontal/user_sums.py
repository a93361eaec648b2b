"""What methods share whose silos send a sum over their users, each user's part clipped as a whole: Uldp-FL.

Source: Kato et al., "Uldp-FL: federated learning with across-silo user-level differential privacy" (2023), Algorithm 3
with its weights, and user sampling. Sums are of integers, so that their sensitivity is exact
(`raydpzv.privacy.user_release`). A user's integers are a function of the model, of the user's own records in the silo
and of public values: the same bits whoever else is there. All silos take part in every round.
"""

# S silos, U users, n pairs of a silo, d parameters, D numbers of a release

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch

from raydpzv.data.horizontal import Partition
from raydpzv.data.users import Pairs, UserParts
from raydpzv.errors import SpecError
from raydpzv.methods.descriptor import HorizontalServerParts, MethodConfig, UserPlan
from raydpzv.methods.horizontal.rounds import ModelServer, cohorts
from raydpzv.methods.roles import Release, Upload
from raydpzv.privacy.user_release import Integers, UserNoiseParts, user_integers
from raydpzv.settings.bounds import Bounds, Count
from raydpzv.wire.grid_sums import UserSum

_BLOCK_NUMBERS = 1 << 20
"""Numbers of pairs' vectors that are kept at a time: 4 MiB of float32, more while they are clipped."""


@dataclass(frozen=True)
class ReleasedOnGrid(MethodConfig):
    """Settings of methods that release whole numbers of a grid."""

    value_bits: Annotated[int, Bounds(ge=4, le=20)] = 16
    """Bits b of the grid: a clipped vector is a whole-numbered one of norm at most 2^b - 1."""


@dataclass(frozen=True)
class SumsOverUsers(ReleasedOnGrid):
    """Settings of methods whose silos send sums over users."""

    weights: Literal["uniform", "records"] = "records"
    """Weight of a user in a silo: 1/S, or its share of the user's records, which whoever weighs must know."""
    count_cap: Count | None = None
    """Records of a user in a silo that count for its weight, at most; left out: all."""
    sampling: Annotated[float, Bounds(gt=0, le=1)] = 1.0
    """Probability q with which each user takes part in a round, by a coin that all silos share."""

    @property
    def plan(self) -> UserPlan:
        """What is released about users, for the account."""
        return UserPlan("sum", weights=self.weights, sampling=self.sampling, bits=self.value_bits)


class UserSums:
    """Clips, weighs, adds up and noises the vectors of a silo's users; the silos of one process share it."""

    def __init__(self, parts: Partition, noise: UserNoiseParts | None, config: SumsOverUsers) -> None:
        self._parts, self._noise = users_of(parts), release_of(noise)
        self._rate = config.sampling
        self._counts: np.ndarray | None = None
        if config.weights == "records":
            cap = config.count_cap
            counts_SU = self._parts.counts()
            self._counts = counts_SU if cap is None else np.minimum(counts_SU, cap)
            self._totals_U = self._counts.sum(0)

    def drawn(self, round: int) -> np.ndarray:
        """Return which users take part in a round, bool [U]: the same in all silos."""
        if self._rate == 1:
            return np.ones(self._parts.users, bool)
        generator = (self._noise.coins / "users of a round" / round).generator()
        drawn: np.ndarray = generator.random(self._parts.users) < self._rate
        return drawn

    def total(
        self, silo: int, round: int, size: int, vectors: Callable[[Pairs, np.ndarray], np.ndarray]
    ) -> tuple[Integers, int, int]:
        """Return a silo's sum Σ_u w_su E_su before its noise, int64 [D], the pairs in it, and those not finite.

        vectors: makes the vectors of the pairs at some places, float [m, D], each of its own pair's records alone;
        it is asked for as many at a time as fit into memory.
        """
        pairs, release = self._parts.pairs(silo), self._noise.release
        places = np.flatnonzero(self.drawn(round)[pairs.users])
        total, nonfinite = np.zeros(size, np.int64), 0
        for block in blocks(places, size):
            integers_mD, bad = user_integers(vectors(pairs, block), clip=release.clip, bits=release.bits)
            total += self._weighed(integers_mD, silo, pairs.users[block]).sum(0)
            nonfinite += bad
        return total, len(places), nonfinite

    def upload(
        self, silo: int, round: int, size: int, vectors: Callable[[Pairs, np.ndarray], np.ndarray]
    ) -> Upload:
        """Return what a silo sends in a round: its sum with its share of the noise."""
        total, pairs, nonfinite = self.total(silo, round, size, vectors)
        return noised(self._noise, total, silo, self._parts.clients, round, pairs, nonfinite)

    def _weighed(self, integers_mD: Integers, silo: int, users: np.ndarray) -> Integers:
        """Return trunc(w_su E_su), exactly, so that a user's norms add up to at most one E's; uniform: E_su itself."""
        if self._counts is None:
            return integers_mD
        counts, totals = self._counts[silo, users, None], self._totals_U[users, None]
        sizes_mD = np.abs(integers_mD) * counts // totals
        return np.where(integers_mD < 0, -sizes_mD, sizes_mD)


def noised(
    noise: UserNoiseParts,
    total: Integers,
    silo: int,
    parties: int,
    round: int,
    pairs: int,
    nonfinite: int,
) -> Upload:
    """Return a silo's upload: the sum with the silo's share of the noise, and the receipt of it."""
    share, receipt = noise.share(len(total), parties, (silo, round, 0), pairs=pairs, nonfinite=nonfinite)
    releases = (Release(0, math.nan, receipt),) if receipt else ()
    return Upload(silo, round - 1, UserSum(total + share), releases=releases)


class UserSumServer(ModelServer):
    """Makes x <- x + gain · Σ_s Y_s of the silos' sums of descents, int64 [d] each; gain: η_g / (qU) in units."""

    def __init__(self, parts: HorizontalServerParts, gain: float) -> None:
        initial: torch.Tensor = parts.initial()
        super().__init__(cohorts(parts, len(parts.rows)), initial, 8 * initial.numel())
        self._gain = gain

    def _close(self, round: int, uploads: Sequence[Upload]) -> None:
        self._move(self._gain * sum_of(uploads), round)


def sum_of(uploads: Sequence[Upload]) -> Integers:
    """Return the sum of the silos' sums, int64 [D]: the one number that leaves the aggregation."""
    total: Integers | None = None
    for upload in uploads:
        if not isinstance(upload.body, UserSum):
            raise TypeError(f"a server of users' sums cannot serve {type(upload.body).__name__}")
        total = upload.body.values if total is None else total + upload.body.values
    assert total is not None
    return total


def mean_over_users(noise: UserNoiseParts | None, sampling: float) -> float:
    """Return 1 / (qU) in units of the grid: what a sum of integers is multiplied by to be a mean over users."""
    found = release_of(noise)
    return found.release.unit / (sampling * found.users)


def blocks(places: np.ndarray, size: int) -> list[np.ndarray]:
    """Return the places in pieces of which vectors of `size` numbers fit into memory."""
    several = max(1, _BLOCK_NUMBERS // size)
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
            "privacy.clip: wanted, since every user's part of a sum is clipped; give a number above 0"
        )
    return noise
