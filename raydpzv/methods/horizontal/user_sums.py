"""What methods share that release sums over users: their settings, weights and coins, and a silo's sum with its noise.

A pair is a user and a silo where the user has records. Its vector becomes whole numbers E (`user_integers`), and a
release is the sum over all pairs of E (weights 1/S, a constant of the divisor) or of trunc(ñ_su E / Ñ_u).
Source: Kato et al., "Uldp-FL" (2023), Algorithm 3 and Section 3.4.
"""

# S silos, U users, n pairs of a silo, D numbers of a release

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from raydpzv.data.users import UserParts
from raydpzv.methods.descriptor import ClientGroupParts, MethodConfig, UserPlan
from raydpzv.methods.roles import Release
from raydpzv.privacy.user_release import Integers, UserNoiseParts, user_integers
from raydpzv.settings.bounds import Bits, Bounds, Count

if TYPE_CHECKING:
    from raydpzv.settings.sections_horizontal import HorizontalSections


@dataclass(frozen=True)
class UserSumsConfig(MethodConfig):
    """Settings of methods that release sums of users' clipped vectors."""

    weights: Literal["uniform", "records"] = "records"
    """A user's weight in a silo: 1/S, also where it has nothing, or the share of its records that lie there."""
    count_cap: Count | None = None
    """Records of a user in one silo that its weights count at most; left out: all of them."""
    sampling: Annotated[float, Bounds(gt=0, le=1)] = 1.0
    """Rate q of the coin that each user throws in each round, the same coin in all silos; tails: it counts zero."""
    value_bits: Bits = 16
    """Bits b of the grid: a pair's vector becomes whole numbers of norm at most 2^b - 1."""


@dataclass(frozen=True)
class SiloSum:
    """A silo's part of a release: whole numbers [D] with its share of the noise, and how that was drawn, if any was."""

    values: Integers
    releases: tuple[Release, ...]


class UserSums:
    """How silos make their parts of a release of pairs' vectors."""

    def __init__(self, parts: UserParts, config: UserSumsConfig, noise: UserNoiseParts) -> None:
        self._parts, self._config, self._noise = parts, config, noise
        cap = config.count_cap or len(parts.ids)
        counts = np.minimum(np.diff(parts.offsets), cap)
        self._totals_U = np.zeros(parts.users, np.int64)
        np.add.at(self._totals_U, parts.owners, counts)
        self._cap = cap

    def present(self, silo: int, release: int) -> np.ndarray:
        """Return the places of the silo's pairs whose users take part in release 0, 1, ..., int64 [n]."""
        users = self._parts.pairs(silo).users
        return np.flatnonzero(users_coins(self._noise, self._config.sampling, release)[users])

    def rows(self, silo: int, places: np.ndarray) -> list[np.ndarray]:
        """Return the rows of each of these pairs of a silo."""
        pairs = self._parts.pairs(silo)
        return [pairs.of(place) for place in places.tolist()]

    def summed(self, silo: int, places: np.ndarray, vectors_nD: np.ndarray) -> tuple[Integers, int]:
        """Return the weighted sum of the vectors of these pairs, int64 [D], and how many of them were not finite."""
        how = self._noise.release
        integers_nD, nonfinite = user_integers(vectors_nD, clip=how.clip, bits=how.bits)
        if self._config.weights == "records":
            pairs = self._parts.pairs(silo)
            counts_n = np.minimum(pairs.counts[places], self._cap)
            integers_nD = weighted(integers_nD, counts_n, self._totals_U[pairs.users[places]])
        return integers_nD.sum(0), nonfinite

    def released(self, silo: int, release: int, places: np.ndarray, vectors_nD: np.ndarray) -> SiloSum:
        """Return the silo's part of release 0, 1, ..., in which all silos take part."""
        sum_D, nonfinite = self.summed(silo, places, vectors_nD)
        address = (silo, release, 0)
        share_D, receipt = self._noise.share(
            len(sum_D), self._parts.clients, address, pairs=len(places), nonfinite=nonfinite
        )
        releases = () if receipt is None else (Release(0, float("nan"), receipt),)
        return SiloSum(sum_D + share_D, releases)


def weighted(integers_nD: Integers, counts_n: np.ndarray, totals_n: np.ndarray) -> Integers:
    """Return trunc(ñ_su E / Ñ_u), int64 [n, D]: exactly, so that a user's terms have norms of C' or less together."""
    sizes_nD = np.abs(integers_nD) * counts_n[:, None] // totals_n[:, None]
    return np.sign(integers_nD) * sizes_nD


def users_coins(noise: UserNoiseParts, sampling: float, release: int) -> np.ndarray:
    """Return which users take part in release 0, 1, ..., bool [U]: each by a coin of its own, of rate q."""
    if sampling == 1:
        return np.ones(noise.users, bool)
    return (noise.coins / "users' coins" / release).generator().random(noise.users) < sampling


def user_plan(config: UserSumsConfig, *, asynchronous: bool = False) -> UserPlan:
    """Return what such a method releases about users."""
    return UserPlan(
        "sum",
        weights=config.weights,
        sampling=config.sampling,
        asynchronous=asynchronous,
        bits=config.value_bits,
    )


def user_sums(parts: ClientGroupParts, config: UserSumsConfig) -> UserSums:
    """Return how a group of silos makes its parts of releases."""
    assert isinstance(parts.parts, UserParts)
    assert parts.users is not None
    return UserSums(parts.parts, config, parts.users)


def mean_unit(noise: UserNoiseParts, config: UserSumsConfig) -> float:
    """Return what one unit of the released sum is worth in the mean over users, of which qU are expected to count."""
    return noise.release.unit / (config.sampling * noise.users)


def of_users(config: UserSumsConfig, sections: HorizontalSections) -> Iterator[str]:
    """Complain of settings that do not go with sums over users."""
    if config.weights == "uniform" and config.count_cap is not None:
        yield 'method.count_cap: has no meaning with method.weights = "uniform", which counts no records; leave it out'
