"""What a run of privacy.mode = "user" releases about users, as far as its accounting depends on it.

The unit is one user: all its records in all silos. Neighbours ("add_remove"): a user's terms become zero, U, the
divisor and the public list of users staying as they are; "replace" changes them to any others. A release is a sum of
vectors, each clipped to norm C, by which one user moves it C at most, with Gaussian noise of deviation σC in all, in
equal shares of the silos. Two of the paper's methods are other than that: "naive" clips the silos' updates, of which
one user may turn every one around; "group" is DP-SGD in every silo, of which a user has at most k records.
"""

# U users, S silos, q rate of the users' coins, k records of a user, T releases

from __future__ import annotations

import math
from dataclasses import dataclass

from raydpzv.errors import SpecError

RELATIONS = {"add_remove": 1, "replace": 2}
"""Neighbouring relations, and how far one moves a sum of vectors that are each clipped to C, in units of C."""
ADVERSARIES = ("external", "client", "server")
"""Who sees the released models; one silo, against which the others' records of a user are protected; the server."""


@dataclass(frozen=True, kw_only=True)
class UserSetting:
    """A run with its length and its noise, planned or made. SpecError where it cannot be.

    users: U, those who have records; silos: S; fewest: silos that take part in a release at the least, planned or
    counted, None: always all; late: may sums that late uploads open come on top of the releases? releases: rounds, or
    of an asynchronous run the silos' single sums; kind, weights, sampling, asynchronous, aggregation, bits, rate,
    steps: of the method (`UserPlan`); group: k in numbers, and group_rule what it was read off the data by ("max",
    "median"), if it was. multiplier: σ; target: the ε asked for, None where it follows from σ; against: whose ε that
    is. planned: does the budget say how many releases there are (else all of this is of one)? exposed: why the users'
    coins hide nobody from outsiders, "" if they do. fitted: where one user moves what others are before any release,
    one clause each. drawn: what of the records the program looked at when it shared them out among users, and takes as
    public, a clause; "" for nothing. counted: of a finished run, the most releases that one user was drawn in; None
    before, when the plan bounds it. remade: releases (of single silos, or rounds) that a kill lost and that were made
    once more on the same coins; `releases` has both.
    """

    users: int
    silos: int
    releases: int
    clip: float
    delta: float
    multiplier: float
    kind: str = "sum"
    weights: str = "uniform"
    sampling: float = 1.0
    asynchronous: bool = False
    aggregation: str = "plain"
    fewest: int | None = None
    late: bool = False
    bits: int = 16
    group: int = 1
    group_rule: str = ""
    rate: float = 1.0
    steps: int = 1
    noise: str = "system"
    target: float | None = None
    against: str = "external"
    planned: bool = True
    exposed: str = ""
    fitted: tuple[str, ...] = ()
    drawn: str = ""
    counted: int | None = None
    remade: int = 0

    def __post_init__(self) -> None:
        for name in ("users", "silos", "releases", "clip", "multiplier", "group", "steps"):
            if not 0 < getattr(self, name) < math.inf:
                raise SpecError(f"privacy {name} must be positive and finite, not {getattr(self, name)}")
        for name in ("sampling", "rate"):
            if not 0 < getattr(self, name) <= 1:
                raise SpecError(
                    f"privacy {name}: wanted a rate above 0 and at most 1, got {getattr(self, name)}"
                )
        if self.fewest is not None and not 1 <= self.fewest <= self.silos:
            raise SpecError(
                f"method.least_silos: wanted a number from 1 to {self.silos}, the silos, got {self.fewest}"
            )
        if not 0 < self.delta < 1:
            raise SpecError(f"privacy.delta: wanted a number between 0 and 1, got {self.delta}")

    @property
    def sampled(self) -> bool:
        """Whether users have coins."""
        return self.sampling < 1

    @property
    def participations(self) -> int:
        """The most releases one user is drawn in: counted, or all of them."""
        return self.releases if self.counted is None or not self.sampled else self.counted

    @property
    def counts_known(self) -> bool:
        """Whether silos and server are told how many records a user has elsewhere: by weights, or by who is used."""
        weighed = self.kind == "sum" and self.weights == "records" and self.aggregation != "private_weights"
        return weighed or self.kind == "group"

    def change(self, adversary: str, relation: str) -> str:
        """Return the relation by whose numbers this adversary's are bounded.

        Without a user's records elsewhere a silo's own weight of it grows, up to 1 (or more of the silo's own records
        are among the user's k): what the others held goes and as much comes, as if all of it were replaced.
        """
        follows = self.kind == "group" or (self.kind == "sum" and self.weights == "records")
        return "replace" if adversary == "client" and follows else relation

    def moved(self, relation: str) -> float:
        """How far one user moves a release, in units of C: k records as far as k, a turned update through its ball."""
        if self.kind == "naive":
            return 2.0  # whatever the neighbours differ in, a silo's update lies anywhere in its ball
        return float(RELATIONS[relation] * self.group)

    def noise_multiplier(self, adversary: str, relation: str) -> float:
        """Return the noise of one release over what one user moves of it, as this adversary sees both.

        Infinite for the only silo, to which nothing of other silos is released. Of "group" it is that of a step in
        which all of a user's records are drawn.
        """
        silos, base = self.silos, self.multiplier / self.moved(self.change(adversary, relation))
        if self.kind == "group":
            return base
        if (
            self.asynchronous
        ):  # a silo's sum alone: it moves by C/S, its noise is σC/√S, and everybody sees all of them
            return base * math.sqrt(silos)
        if adversary == "client":
            if silos == 1:
                return math.inf
            # the others' share of the noise's variance; and of what a user moves, unless weights follow the counts
            if self.weights == "records" and self.kind == "sum":
                # least where few take part; in a release of one a silo sees nothing of others, or all of the noise
                fewest = max(self.fewest or silos, 2)
                return base * math.sqrt((fewest - 1) / fewest)
            # of A silos a user moves A / S at the most, so that no release shows more than one of all
            return base / math.sqrt((silos - 1) / silos)
        if adversary == "server" and self.aggregation == "plain" and self.weights == "records":
            return base / math.sqrt(
                silos
            )  # all of a user's weight may lie in one silo, whose share of the noise is 1/S
        return base

    def amplified(self, adversary: str) -> bool:
        """Whether a user's coins are hidden from this adversary, so that they add to its privacy.

        Private weights hide them from a silo's role, but the process that plays it holds their key, for the account.
        """
        return self.sampled and not self.exposed and adversary == "external"
