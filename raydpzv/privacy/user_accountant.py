"""Privacy of one user: ε of a setting against each adversary, σ for an ε, and the account of a run in progress.

Releases without coins, or whose coins an adversary knows, are Gaussian mechanisms: μ = √n / z in closed form, n those
that the user was drawn in. Hidden coins: Poisson-sampled Gaussian mechanisms, by privacy loss distributions. DP-SGD in
the silos: mixtures of Gaussians (`group_accountant`). Noise is discrete Gaussian, whose ε differs from the continuous
one's by 3e-14 at deviations of some 10^5 units; Rényi's divergence bounds it without that, and is the second opinion.
"""

# T releases, n of them that a user was drawn in, z noise over what a user moves

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from raydpzv.errors import SpecError
from raydpzv.privacy.gdp import epsilon_of, guess_of, mu_of
from raydpzv.privacy.group_accountant import converted, group_epsilon, group_epsilon_rdp, group_guess
from raydpzv.privacy.mean_accountant import poisson_epsilon, poisson_guess
from raydpzv.privacy.participations import Participations, Rows
from raydpzv.privacy.user_setting import ADVERSARIES, UserSetting

_CLOSE = 1e-4  # relative, of σ where it is searched for
_ROUNDING = 1 + 1e-9  # a run whose noise was solved for ends on its ε, not one release before
_EVERY = 32  # releases whose ε is worked out one by one; of more, 16 an e-fold


def user_epsilon(setting: UserSetting, adversary: str = "external", relation: str = "add_remove") -> float:
    """Return ε of one user against an adversary: releases as planned or made, participation as planned or counted."""
    relation = setting.change(adversary, relation)
    if setting.remade and (setting.amplified(adversary) or (setting.kind == "group" and setting.rate < 1)):
        return _remade_epsilon(setting, adversary, relation)
    if setting.kind == "group":
        return group_epsilon(
            multiplier=setting.multiplier,
            group=setting.group,
            rate=setting.rate,
            steps=setting.releases * setting.steps,
            delta=setting.delta,
            relation=relation,
        )
    if setting.amplified(adversary):
        # what one user moves is in z already; the relation says what becomes of its term
        return poisson_epsilon(
            noise_multiplier=setting.noise_multiplier(adversary, "add_remove"),
            rate=setting.sampling,
            releases=setting.releases,
            delta=setting.delta,
            relation=relation,
        )
    return epsilon_of(user_mu(setting, adversary, relation), setting.delta)


def _remade_epsilon(setting: UserSetting, adversary: str, relation: str) -> float:
    """Return ε where coins were drawn on for two releases each: as if these had none, beside what is left.

    Two releases on one draw are not what two draws are. Whoever knows the draw sees no less, so that they are charged
    as without sampling; the others have coins of their own, and half of δ goes to each part.
    """
    single, twice, rest = _remade_parts(setting)
    bound = user_epsilon(single, adversary, relation)
    if rest is None:
        return bound
    return min(bound, user_epsilon(twice, adversary, relation) + user_epsilon(rest, adversary, relation))


def _remade_parts(setting: UserSetting) -> tuple[UserSetting, UserSetting, UserSetting | None]:
    """Return all releases as if no coins hid anybody, those on coins drawn on twice, and the others, None if none."""
    both, half = min(2 * setting.remade, setting.releases), setting.delta / 2
    single = replace(setting, remade=0, sampling=1.0, rate=1.0, counted=None)
    twice = replace(single, releases=both, delta=half)
    if both == setting.releases:
        return single, twice, None
    return single, twice, replace(setting, remade=0, releases=setting.releases - both, delta=half)


def user_guess(setting: UserSetting, adversary: str = "external", relation: str = "add_remove") -> float:
    """Return how often this adversary is right at most about one user: (1 + TV)/2 of `user_epsilon`'s releases.

    Of two parts one after the other TV is at most 1 − (1 − TV₁)(1 − TV₂), whatever the second makes of the first.
    """
    relation = setting.change(adversary, relation)
    if setting.remade and (setting.amplified(adversary) or (setting.kind == "group" and setting.rate < 1)):
        single, twice, rest = _remade_parts(setting)
        bound = user_guess(single, adversary, relation)
        if rest is None:
            return bound
        parts = [user_guess(part, adversary, relation) for part in (twice, rest)]
        return min(bound, 1 - 2 * math.prod(1 - part for part in parts))
    if setting.kind == "group":
        return group_guess(
            multiplier=setting.multiplier,
            group=setting.group,
            rate=setting.rate,
            steps=setting.releases * setting.steps,
            relation=relation,
        )
    if setting.amplified(adversary):
        return poisson_guess(
            noise_multiplier=setting.noise_multiplier(adversary, "add_remove"),
            rate=setting.sampling,
            releases=setting.releases,
            relation=relation,
        )
    return guess_of(user_mu(setting, adversary, relation))


def user_mu(setting: UserSetting, adversary: str = "external", relation: str = "add_remove") -> float:
    """Return μ = √n / z of the releases that a user was drawn in, by whoever knows which these are."""
    return math.sqrt(setting.participations) / setting.noise_multiplier(adversary, relation)


def user_epsilon_rdp(setting: UserSetting, adversary: str = "external") -> float:
    """Return the Rényi accountant's ε (add_remove), which holds for the discrete noise as it is."""
    if setting.kind == "group":
        return group_epsilon_rdp(
            multiplier=setting.multiplier,
            group=setting.group,
            rate=setting.rate,
            steps=setting.releases * setting.steps,
            delta=setting.delta,
        )
    z = setting.noise_multiplier(adversary, "add_remove")
    if setting.amplified(adversary):
        return group_epsilon_rdp(
            multiplier=z, group=1, rate=setting.sampling, steps=setting.releases, delta=setting.delta
        )
    return gaussian_epsilon_rdp(setting.participations, z, setting.delta)


def gaussian_epsilon_rdp(releases: int, multiplier: float, delta: float) -> float:
    """Return ε of Gaussian releases by Rényi divergence α n / (2 z²), at the best order."""
    if math.isinf(multiplier):
        return 0.0
    orders = 1 + np.geomspace(1e-4, 1e6, 4001)
    rho = releases / (2 * multiplier**2)
    return min(converted(rho * order, order, delta) for order in orders.tolist())


def calibrated(setting: UserSetting, epsilon: float) -> UserSetting:
    """Return the setting with the least σ (to 0.01 %) whose ε against `setting.against`, add_remove, is this.

    Raises SpecError for an ε that is none, and for an adversary to which nothing is released.
    """
    if not 0 < mu_of(epsilon, setting.delta) < math.inf:
        raise SpecError(f"privacy.epsilon: wanted a finite number above 0, got {epsilon}")

    mu = mu_of(epsilon, setting.delta)
    one = replace(setting, multiplier=1.0)
    if setting.kind == "group":
        moved = setting.moved(setting.change(setting.against, "add_remove"))
        plain, rate = math.sqrt(setting.releases * setting.steps) * moved, setting.rate
    else:
        hidden = setting.amplified(setting.against)
        plain, rate = user_mu(one, setting.against), setting.sampling if hidden else 1.0
    if plain == 0:
        raise SpecError(
            f'privacy.against: "{setting.against}" sees nothing of other silos where there is one alone; use '
            '"external"'
        )
    multiplier = plain / mu if rate == 1 else _least(one, epsilon, first=plain * rate / mu)
    return replace(setting, multiplier=multiplier, target=epsilon)


def _least(setting: UserSetting, epsilon: float, *, first: float) -> float:
    """Return a σ within 0.01 % of the least that spends no more; first: where to begin.

    log μ is nearly a line in log σ, of slope −1 at the least: each trial is where that line, or the chord, meets the
    aim, and overshoots a little, so that both ends close in.
    """
    aim, trial = math.log(mu_of(epsilon, setting.delta)), math.log(first)
    low = high = (
        math.nan,
        math.nan,
    )  # (log σ, log μ) of the last trial that spends too much, and of one that does not
    while not high[0] <= low[0] + _CLOSE:
        spent = user_epsilon(replace(setting, multiplier=math.exp(trial)), setting.against)
        excess = min(max(math.log(max(mu_of(spent, setting.delta), 1e-300)) - aim, -2.0), 2.0)
        low, high = (low, (trial, excess)) if excess <= 0 else ((trial, excess), high)
        chord = low[0] + (high[0] - low[0]) * low[1] / (low[1] - high[1])
        trial = trial + excess if math.isnan(chord) else chord
        trial += -_CLOSE / 3 if excess <= 0 else _CLOSE / 3
        if not math.isnan(chord) and not low[0] < trial < high[0]:
            trial = (low[0] + high[0]) / 2
    return math.exp(high[0])


class UserSpending:
    """Counts releases, and of sampled users how often each was drawn; plain data, a fold over releases."""

    def __init__(self, setting: UserSetting, state: Mapping[str, Any] | None = None) -> None:
        self._setting = setting
        self._drawn = Participations(setting.users) if setting.sampled else None
        self.releases = self.remade = 0
        if state:
            self.releases, self.remade = int(state["releases"]), int(state.get("remade", 0))
            if self._drawn:
                self._drawn.restore(np.array(state["drawn"], np.int64))

    def state(self) -> dict[str, Any]:
        """Return what another account goes on from: releases, and how often each user was drawn."""
        drawn = {"drawn": self._drawn.counts.tolist()} if self._drawn else {}
        remade = {"remade": self.remade} if self.remade else {}
        return {"releases": self.releases, **remade, **drawn}

    @property
    def participations(self) -> int:
        """The most releases that one user was drawn in."""
        return self._drawn.most if self._drawn else self.releases

    def add(self, users: Rows) -> None:
        """Count a release for which these users were drawn (int [n]; not looked at where there are no coins)."""
        if self._drawn:
            self._drawn.add(users, 1)
        self.releases += 1

    def add_lost(self, users: Rows) -> None:
        """Count a release of which no record tells, and which is made once more for the users that its coins drew."""
        self.add(users)
        self.remade += 1

    def epsilon(self, adversary: str) -> float:
        """Return ε (add_remove) so far; of hidden coins rounded up to a number of releases that was worked out."""
        return self._epsilon(adversary, self.releases, self.participations)

    def mus(self) -> tuple[float, float, float]:
        """Return μ so far against each of `ADVERSARIES`; of hidden coins, the one that gives their ε."""
        external, client, server = (
            mu_of(self.epsilon(adversary), self._setting.delta) for adversary in ADVERSARIES
        )
        return external, client, server

    def would_exceed(self, users: Rows, budget: float, adversary: str) -> bool:
        """Tell before a release whether it would take ε above the budget."""
        drawn = self._drawn.after(users, 1) if self._drawn else self.releases + 1
        most, releases = budget * _ROUNDING, self.releases + 1
        return self._epsilon(adversary, releases, drawn) > most < self._exact(adversary, releases, drawn)

    def _epsilon(self, adversary: str, releases: int, drawn: int) -> float:
        setting = self._setting
        if setting.kind == "group" or setting.amplified(adversary):
            releases = _rung(releases)
        return self._exact(adversary, releases, drawn)

    def _exact(self, adversary: str, releases: int, drawn: int) -> float:
        if releases == 0:
            return 0.0
        made = replace(self._setting, releases=releases, counted=drawn, remade=self.remade)
        return user_epsilon(made, adversary)


def _rung(releases: int) -> int:
    """Return the first number of releases from here on whose ε is worked out."""
    if releases <= _EVERY:
        return releases
    step = math.ceil(16 * math.log(releases / _EVERY))
    return max(releases, math.ceil(_EVERY * math.exp(step / 16)))
