"""What one release about users is, and its ε against each adversary: μ in closed form, or loss
distributions.

The unit is one user: all its records in all silos. Neighbours ("add_remove"): a user's terms become
zero, U, the divisor and the public list of users staying as they are; "replace" changes them to any
others. A release is a sum of vectors, each clipped to norm C, by which one user moves it C at most,
with Gaussian noise of deviation σC in all, in equal shares of the silos. Two of the paper's methods
are other than that: "naive" clips the silos' updates, of which one user may turn every one around;
"group" is DP-SGD in every silo, of which a user has at most k records.

Releases without coins, or whose coins an adversary knows, are Gaussian mechanisms: μ = √n / z in
closed form, n those that the user was drawn in. Hidden coins: Poisson-sampled Gaussian mechanisms,
by privacy loss distributions. DP-SGD in
the silos: mixtures of Gaussians (`group_accountant`). Noise is discrete Gaussian, whose ε differs
from the continuous one's by 3e-14 at deviations of some 10^5 units; Rényi's divergence bounds it
without that, and is the second opinion.
"""

# U users, S silos, q rate of the users' coins, k records of a user, T releases, n of them that a
# user was drawn in, z noise over what a user moves

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raydpzv.errors import SpecError
from raydpzv.privacy.gdp import epsilon_of, guess_of, mu_of
from raydpzv.privacy.group_accountant import (
    converted,
    group_epsilon,
    group_epsilon_rdp,
    group_guess,
)
from raydpzv.privacy.pld import poisson_epsilon, poisson_guess
from raydpzv.privacy.release import require_positive
from raydpzv.privacy.user_release import UserPlan

RELATIONS = {"add_remove": 1, "replace": 2}
"""Neighbouring relations, and how far one moves a sum of vectors that are each clipped to C, in
units of C.
"""
ADVERSARIES = ("external", "client", "server")
"""Who sees the released models; one silo, against which the others' records of a user are
protected; the server.
"""

_CLOSE = 1e-4  # relative, of σ where it is searched for


@dataclass(frozen=True, kw_only=True)
class UserMechanism(UserPlan):
    """A method's releases about users and their noise, planned or made, as far as an ε depends on
    them.

    silos: S; releases: rounds, or of an asynchronous run the silos' single sums; multiplier: σ;
    group: k in numbers;
    fewest: planned or counted. exposed: why the users' coins hide nobody from outsiders, "" if they
    do. counted: of a finished run, the most releases that one user was drawn in; None before, when
    the plan bounds it. remade: releases (of single silos, or rounds) that a kill lost and that were
    made once more on the same coins; `releases` has both.
    """

    silos: int
    releases: int
    delta: float
    multiplier: float
    group: int = 1
    exposed: str = ""
    counted: int | None = None
    remade: int = 0

    def __post_init__(self) -> None:
        require_positive(self, "silos", "releases", "multiplier", "group", "steps")
        for name in ("sampling", "rate"):
            if not 0 < getattr(self, name) <= 1:
                raise SpecError(
                    f"privacy {name}: wanted a rate above 0 and at most 1, got "
                    f"{getattr(self, name)}"
                )
        if self.fewest is not None and not 1 <= self.fewest <= self.silos:
            raise SpecError(
                f"method.least_silos: wanted a number from 1 to {self.silos}, the silos, got "
                f"{self.fewest}"
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

    def change(self, adversary: str, relation: str) -> str:
        """Return the relation by whose numbers this adversary's are bounded.

        Without a user's records elsewhere a silo's own weight of it grows, up to 1 (or more of the
        silo's own records are among the user's k): what the others held goes and as much comes, as
        if all of it were replaced.
        """
        follows = self.kind == "group" or (self.kind == "sum" and self.weights == "records")
        return "replace" if adversary == "client" and follows else relation

    def moved(self, relation: str) -> float:
        """How far one user moves a release, in units of C: k records as far as k, a turned update
        through its ball.
        """
        if self.kind == "naive":
            return (
                2.0  # whatever the neighbours differ in, a silo's update lies anywhere in its ball
            )
        return float(RELATIONS[relation] * self.group)

    def noise_multiplier(self, adversary: str, relation: str) -> float:
        """Return the noise of one release over what one user moves of it, as this adversary sees
        both.

        Infinite for the only silo, to which nothing of other silos is released. Of "group" it is
        that of a step in which all of a user's records are drawn.
        """
        silos, base = self.silos, self.multiplier / self.moved(self.change(adversary, relation))
        if self.kind == "group":
            return base
        # a silo's sum alone: it moves by C/S, its noise is σC/√S, and everybody sees all of them
        if self.asynchronous:
            return base * math.sqrt(silos)
        if adversary == "client":
            if silos == 1:
                return math.inf
            # the others' share of the noise's variance; and of what a user moves, unless weights
            # follow the counts
            if self.weights == "records" and self.kind == "sum":
                # least where few take part; in a release of one a silo sees nothing of others, or
                # all of the noise
                fewest = max(self.fewest or silos, 2)
                return base * math.sqrt((fewest - 1) / fewest)
            # of A silos a user moves A / S at the most, so that no release shows more than one of
            # all
            return base / math.sqrt((silos - 1) / silos)
        if adversary == "server" and self.aggregation == "plain" and self.weights == "records":
            # all of a user's weight may lie in one silo, whose share of the noise is 1/S
            return base / math.sqrt(silos)
        return base

    @property
    def steps_of_group(self) -> dict[str, Any]:
        """What the accountant of DP-SGD in the silos reads."""
        steps = self.releases * self.steps
        return {
            "multiplier": self.multiplier,
            "group": self.group,
            "rate": self.rate,
            "steps": steps,
        }

    def shares_coins(self, adversary: str) -> bool:
        """Whether coins that hide a user, or its records, were drawn on for two releases."""
        hidden = self.amplified(adversary) or (self.kind == "group" and self.rate < 1)
        return self.remade > 0 and hidden

    def amplified(self, adversary: str) -> bool:
        """Whether a user's coins are hidden from this adversary, so that they add to its privacy.

        Private weights hide them from a silo's role, but the process that plays it holds their key,
        for the account.
        """
        return self.sampled and not self.exposed and adversary == "external"


def user_epsilon(
    mechanism: UserMechanism, adversary: str = "external", relation: str = "add_remove"
) -> float:
    """Return ε of one user against an adversary: releases as planned or made, participation as
    planned or counted.

    Where coins were drawn on for two releases each, these are charged as if they had none: two
    releases on one draw are not what two draws are, and anyone who knows the draw sees no less. The
    others have coins of their own, and half of δ goes to each part.
    """
    relation = mechanism.change(adversary, relation)
    if mechanism.shares_coins(adversary):
        single, twice, rest = _remade_parts(mechanism)
        bound = user_epsilon(single, adversary, relation)
        if rest is None:
            return bound
        return min(
            bound,
            user_epsilon(twice, adversary, relation) + user_epsilon(rest, adversary, relation),
        )
    delta = mechanism.delta
    if mechanism.kind == "group":
        return group_epsilon(**mechanism.steps_of_group, relation=relation, delta=delta)
    if mechanism.amplified(adversary):
        return poisson_epsilon(**_sampled(mechanism, adversary), relation=relation, delta=delta)
    return epsilon_of(user_mu(mechanism, adversary, relation), delta)


def user_guess(
    mechanism: UserMechanism, adversary: str = "external", relation: str = "add_remove"
) -> float:
    """Return how often this adversary is right at most about one user: (1 + TV)/2 of
    `user_epsilon`'s releases.

    Of two parts one after the other TV is at most 1 − (1 − TV₁)(1 − TV₂), whatever the second makes
    of the first.
    """
    relation = mechanism.change(adversary, relation)
    if mechanism.shares_coins(adversary):
        single, twice, rest = _remade_parts(mechanism)
        bound = user_guess(single, adversary, relation)
        if rest is None:
            return bound
        parts = [user_guess(part, adversary, relation) for part in (twice, rest)]
        return min(bound, 1 - 2 * math.prod(1 - part for part in parts))
    if mechanism.kind == "group":
        return group_guess(**mechanism.steps_of_group, relation=relation)
    if mechanism.amplified(adversary):
        return poisson_guess(**_sampled(mechanism, adversary), relation=relation)
    return guess_of(user_mu(mechanism, adversary, relation))


def _remade_parts(
    mechanism: UserMechanism,
) -> tuple[UserMechanism, UserMechanism, UserMechanism | None]:
    """Return all releases as if no coins hid anybody, those on coins drawn on twice, and the
    others, None if none.
    """
    both, half = min(2 * mechanism.remade, mechanism.releases), mechanism.delta / 2
    single = replace(mechanism, remade=0, sampling=1.0, rate=1.0, counted=None)
    twice = replace(single, releases=both, delta=half)
    if both == mechanism.releases:
        return single, twice, None
    return (
        single,
        twice,
        replace(mechanism, remade=0, releases=mechanism.releases - both, delta=half),
    )


def _sampled(mechanism: UserMechanism, adversary: str) -> dict[str, Any]:
    """What the accountant of Poisson sampling reads: what one user moves is in z, and the relation
    comes beside it.
    """
    z = mechanism.noise_multiplier(adversary, "add_remove")
    return {"noise_multiplier": z, "rate": mechanism.sampling, "releases": mechanism.releases}


def user_mu(
    mechanism: UserMechanism, adversary: str = "external", relation: str = "add_remove"
) -> float:
    """Return μ = √n / z of the releases that a user was drawn in, by anyone who knows which these
    are.
    """
    return math.sqrt(mechanism.participations) / mechanism.noise_multiplier(adversary, relation)


def user_epsilon_rdp(mechanism: UserMechanism, adversary: str = "external") -> float:
    """Return the Rényi accountant's ε (add_remove), which holds for the discrete noise as it is."""
    if mechanism.kind == "group":
        return group_epsilon_rdp(**mechanism.steps_of_group, delta=mechanism.delta)
    z = mechanism.noise_multiplier(adversary, "add_remove")
    if mechanism.amplified(adversary):
        return group_epsilon_rdp(
            multiplier=z,
            group=1,
            rate=mechanism.sampling,
            steps=mechanism.releases,
            delta=mechanism.delta,
        )
    return gaussian_epsilon_rdp(mechanism.participations, z, mechanism.delta)


@functools.lru_cache(maxsize=256)
def gaussian_epsilon_rdp(releases: int, multiplier: float, delta: float) -> float:
    """Return ε of Gaussian releases by Rényi divergence α n / (2 z²), at the best order."""
    if math.isinf(multiplier):
        return 0.0
    orders = 1 + np.geomspace(1e-4, 1e6, 4001)
    rho = releases / (2 * multiplier**2)
    return min(converted(rho * order, order, delta) for order in orders.tolist())


def least_multiplier(mechanism: UserMechanism, epsilon: float, against: str) -> float:
    """Return the least σ (to 0.01 %) with which ε against this adversary, add_remove, is no larger.

    Raises SpecError for an ε that is none, and for an adversary to which nothing is released.
    """
    mu = mu_of(epsilon, mechanism.delta)
    if not 0 < mu < math.inf:
        raise SpecError(f"privacy.epsilon: wanted a finite number above 0, got {epsilon}")
    one = replace(mechanism, multiplier=1.0)
    if mechanism.kind == "group":
        moved = mechanism.moved(mechanism.change(against, "add_remove"))
        plain, rate = math.sqrt(mechanism.releases * mechanism.steps) * moved, mechanism.rate
    else:
        plain = user_mu(one, against)
        rate = mechanism.sampling if mechanism.amplified(against) else 1.0
    if plain == 0:
        raise SpecError(
            f'privacy.against: "{against}" sees nothing of other silos where there is one alone; '
            'use "external"'
        )
    return plain / mu if rate == 1 else _least(one, epsilon, against, first=plain * rate / mu)


def _least(mechanism: UserMechanism, epsilon: float, against: str, *, first: float) -> float:
    """Return a σ within 0.01 % of the least that spends no more; first: where to begin.

    log μ is nearly a line in log σ, of slope −1 at the least: each trial is where that line, or the
    chord, meets the aim, and overshoots a little, so that both ends close in.
    """
    aim, trial = math.log(mu_of(epsilon, mechanism.delta)), math.log(first)
    # (log σ, log μ) of the last trial that spends too much, and of one that does not
    low = high = (math.nan, math.nan)
    while not high[0] <= low[0] + _CLOSE:
        spent = user_epsilon(replace(mechanism, multiplier=math.exp(trial)), against)
        excess = min(max(math.log(max(mu_of(spent, mechanism.delta), 1e-300)) - aim, -2.0), 2.0)
        low, high = (low, (trial, excess)) if excess <= 0 else ((trial, excess), high)
        chord = low[0] + (high[0] - low[0]) * low[1] / (low[1] - high[1])
        trial = trial + excess if math.isnan(chord) else chord
        trial += -_CLOSE / 3 if excess <= 0 else _CLOSE / 3
        if not math.isnan(chord) and not low[0] < trial < high[0]:
            trial = (low[0] + high[0]) / 2
    return math.exp(high[0])
