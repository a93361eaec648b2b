"""What is released about users: their vectors, each clipped as a whole, in whole numbers, and the
silos' noise shares.

A pair is a user and a silo where the user has records. A pair's vector v becomes E = trunc(v min(1,
C/‖v‖) C'/C), whole numbers of Euclidean norm at most C' = 2^b − 1 whatever was rounded. Sums of E
over pairs, uniform over S silos or by weights that add up to 1 or less for each user, move by a
known number of units if all of one user's terms are set to zero; their noise is discrete Gaussian,
in equal shares of the silos that take part.
"""

# S silos, A of them take part, n pairs, d numbers of a pair's vector, D numbers of a release

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from raydpzv.errors import RunError
from raydpzv.keys import Key
from raydpzv.privacy.discrete_gaussian import discrete_gaussian
from raydpzv.privacy.mechanisms import Receipt
from raydpzv.privacy.rounded_gaussian import RandomBytes

Integers = npt.NDArray[np.int64]

_BELOW = 1 - 2.0**-40  # of the largest norm: more than double precision gets wrong in it


@dataclass(frozen=True)
class UserPlan:
    """The releases of a method about users, and their facts that an account needs.

    kind: sums of the users' clipped vectors ("sum"); the silos' clipped updates ("naive"); DP-SGD
    in every silo on at most `group` records of a user ("group"; "max" and "median" are read off the
    data). weights: w_su of "sum", 1/S or
    by records. sampling: q, the rate of the users' coins. asynchronous: every silo's sum is a
    release by itself, with the noise of its share; else a round is one release. aggregation: what
    the server sees of a round. fewest: silos in
    a round at the least, None: always all. late: whether uploads that come late may open sums
    beside the rounds' own.
    bits: of the grid. rate, steps: of "group", Poisson rate γ of a record in a step, and steps a
    round.
    """

    kind: Literal["sum", "naive", "group"] = "sum"
    weights: Literal["uniform", "records"] = "uniform"
    sampling: float = 1.0
    asynchronous: bool = False
    aggregation: Literal["plain", "masked", "private_weights"] = "plain"
    fewest: int | None = None
    late: bool = False
    bits: int = 16
    group: int | Literal["max", "median"] = 1
    rate: float = 1.0
    steps: int = 1

    @property
    def coins_shared(self) -> bool:
        """Whether silos draw users or records by coins; under private weights the server alone
        knows who is drawn.
        """
        by_silos = self.sampling < 1 and self.aggregation != "private_weights"
        return self.rate < 1 or by_silos

    @property
    def counts_shared(self) -> bool:
        """Whether a silo's work depends on how many records its users have in the others."""
        by_records = self.weights == "records" and self.aggregation != "private_weights"
        return self.kind == "group" or (self.kind == "sum" and by_records)


@dataclass(frozen=True)
class UserRelease:
    """What a release about users is made with: clip C, grid of b bits, noise multiplier σ, silos S
    in a user's reach.

    reach: in a plain sum of the pairs' integers a user moves the sum by one vector of norm C' in
    each of S silos (the weight 1/S is a constant of the divisor); in a sum of vectors whose weights
    add up to 1, by one (reach is 1).
    """

    clip: float
    bits: int
    multiplier: float
    reach: int = 1

    @property
    def limit(self) -> int:
        """Largest norm of one pair's integers, C' = 2^b − 1."""
        return (1 << self.bits) - 1

    @property
    def sensitivity(self) -> int:
        """How far the sum moves where all of one user's terms are set to zero, in units of the
        grid.
        """
        return self.reach * self.limit

    @property
    def unit(self) -> float:
        """What one unit of the sum is worth in Y: a user moves Y by at most C."""
        return self.clip / self.sensitivity

    def deviation(self, parties: int = 1, beyond: float = 0.0) -> float:
        """Return the deviation of one party's share of the noise in units, all shares together
        being σ times C.

        beyond: units that a user moves the release by beside its sensitivity.
        """
        return self.multiplier * (self.sensitivity + beyond) / math.sqrt(parties)


@dataclass(frozen=True)
class UserNoiseParts:
    """The resolved [privacy] of a run of users, for the silos that add noise and anyone who draws
    the sample of users.

    release: what releases are made with; its multiplier is 0 where the scenario adds no noise.
    users: U, those on the
    public list. coins: the key of the users' coins, which is a secret of the run where its ε needs
    them secret; None in the processes of silos that need not know who is drawn. seeded: noise that
    anyone with the seed subtracts, for runs that repeat bit for bit. NOT PRIVATE.
    """

    release: UserRelease
    users: int
    key: Key
    coins: Key | None
    seeded: bool = False

    def coin(self, purpose: str) -> Key:
        """Return the key of the coins of a purpose. Raises RunError in a process that has none."""
        if self.coins is None:
            raise RunError(
                f"the key of the coins ({purpose}) was asked for in a process of silos that need "
                "not know who is drawn"
            )
        return self.coins / purpose

    def share(
        self,
        count: int,
        parties: int,
        address: tuple[int, int, int],
        *,
        pairs: int,
        nonfinite: int,
        beyond: float = 0.0,
    ) -> tuple[Integers, Receipt | None]:
        """Return one silo's share of a release's noise, int64 [D], and its receipt (None: there is
        no noise).

        parties: A, the silos that take part, known before; address: (silo, release, attempt), no
        two shares of a run
        have the same. pairs: those in the silo's sum; nonfinite: those of them whose vector was set
        to zero. beyond: by how much more than the sensitivity a user moves what is released, where
        it is rounded later. σ and sensitivities of the receipt are in units of the grid: the
        share's deviation, and what one user moves.
        """
        if self.release.multiplier == 0:
            return np.zeros(count, np.int64), None
        scale, moved = self.release.deviation(parties, beyond), self.release.sensitivity + beyond
        source = self.random_bytes("user noise", address)
        receipt = Receipt(
            "discrete gaussian",
            "seeded" if self.seeded else "system",
            scale,
            2 * moved,
            moved,
            divisor=1,
            batch=pairs,
            nonfinite=nonfinite,
        )
        return discrete_gaussian(scale, count, source), receipt

    def random_bytes(self, purpose: str, address: tuple[int, int, int]) -> RandomBytes:
        """Return the source of what hides a share: the operating system, or, seeded, a stream of
        this address.
        """
        silo, release, attempt = address
        return (
            (self.key / purpose / silo / release / attempt).generator().bytes
            if self.seeded
            else os.urandom
        )


def user_integers(
    vectors_nd: npt.NDArray[np.floating], *, clip: float, bits: int
) -> tuple[Integers, int]:
    """Return each pair's E, int64 [n, d], and how many vectors had a number that was not finite
    (those are zero).

    vectors_nd: float32 or float64 [n, d]. A row of E is a function of its vector alone, and its
    norm at most 2^b − 1.
    """
    finite_n = np.isfinite(vectors_nd).all(1)
    kept_nd = np.where(finite_n[:, None], vectors_nd, 0).astype(np.float64, order="C")
    with np.errstate(over="ignore"):
        norms_n = np.sqrt((kept_nd * kept_nd).sum(1))
    factors_n = ((1 << bits) - 1) * _BELOW / np.maximum(norms_n, clip)
    return (kept_nd * factors_n[:, None]).astype(np.int64), int((~finite_n).sum())
