"""Accountants: Poisson sampling by privacy loss distributions, counted participation, the whole-mean bound.

D rows, B batch (also the mean's constant divisor), C clip, T releases, n_i releases record i takes part in,
σ standard deviation of the noise on the mean, z = σB/C its ratio to the add/remove sensitivity C/B.

Sensitivity of the clipped mean: 2C/B when a record is replaced (its label too), C/B when its term is added
or set to zero. Both need a two-sided clip and a constant divisor.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from raydpzv.errors import InputError, suggest
from raydpzv.privacy.calibration import paper_mu
from raydpzv.privacy.gdp import epsilon_of, guess_of, mu_of
from raydpzv.privacy.participations import Participations, Rows

RELATIONS = ("replace", "add_remove")
BUDGETED = ("paper", "client", "external")
"""Whose ε a budget can bound; the server is trusted and knows everything."""

_MOST = 1 << 22  # no run has more batches; beyond, one evaluation takes ten seconds
_WIDEST = 1 << 28  # points of a loss distribution that take some seconds
_ROUNDING = 1 + 1e-9  # a run calibrated to its budget ends on it, not one release before


def participation_epsilon(*, participations: int, sensitivity: float, sigma: float, delta: float) -> float:
    """Return ε of n plain Gaussian releases, μ = √n·s/σ, if they depend on data and earlier releases only."""
    if participations == 0:
        return 0.0
    return epsilon_of(math.sqrt(participations) * sensitivity / sigma if sigma > 0 else math.inf, delta)


def whole_mean_epsilon(*, releases: int, clip: float, sigma: float, delta: float, load: float = 1.0) -> float:
    """Return all that is proved when hidden, un-noised state lets one record move every later slope.

    The mean of clipped slopes lies in [−C, C], so one release is (2C/σ)-GDP whatever happened before it and
    μ = √T·2C/σ, which is D times the paper's μ. `load` is the largest batch over the constant divisor, above
    1 only with Poisson batches. The bound is the same for every neighbouring relation.
    """
    return participation_epsilon(
        participations=releases, sensitivity=2 * clip * load, sigma=sigma, delta=delta
    )


def poisson_epsilon(
    *, noise_multiplier: float, rate: float, releases: int, delta: float, relation: str = "replace"
) -> float:
    """Return an upper bound on ε of Gaussian releases on secret Poisson batches (dp-accounting, PLD).

    Each record enters each batch by its own coin of this rate; the adversary sees no ids and no batch sizes.
    `noise_multiplier` is z for both relations. P releases on one batch are one release with z/√P: reduce
    before the call, and count batches as releases. Never above the same releases without sampling, and equal to it
    where the loss distribution would take gigabytes or minutes.
    """
    _require_sampling(noise_multiplier, rate, releases, relation)
    if releases == 0 or rate == 0:
        return 0.0
    unsampled = epsilon_of(_unsampled_mu(noise_multiplier, releases, relation), delta)
    if _not_sampled(noise_multiplier, rate, releases):
        return unsampled
    return min(unsampled, _sampled_epsilon(noise_multiplier, rate, releases, delta, relation))


def poisson_guess(*, noise_multiplier: float, rate: float, releases: int, relation: str = "replace") -> float:
    """Return an upper bound on how often an attacker tells neighbours apart: (1 + δ(0))/2 of the same PLD."""
    _require_sampling(noise_multiplier, rate, releases, relation)
    if releases == 0 or rate == 0:
        return 0.5
    unsampled = guess_of(_unsampled_mu(noise_multiplier, releases, relation))
    if _not_sampled(noise_multiplier, rate, releases):
        return unsampled
    return min(unsampled, _sampled_guess(noise_multiplier, rate, releases, relation))


def poisson_epsilon_rdp(*, noise_multiplier: float, rate: float, releases: int, delta: float) -> float:
    """Return the Rényi accountant's ε under add/remove: a second opinion, looser than the PLD.

    For add/remove only: dp-accounting's RdpAccountant omits a factor of 2 for replace-one (its issue 378).
    """
    _require_sampling(noise_multiplier, rate, releases, "add_remove")
    import dp_accounting
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(_sampled_event(noise_multiplier, rate, releases))
    return float(accountant.get_epsilon(delta))


@functools.lru_cache(maxsize=256)
def poisson_releases(
    *, noise_multiplier: float, rate: float, delta: float, budget: float, relation: str = "replace"
) -> int:
    """Return the most Poisson batches that stay within the ε budget, to 0.1 % and never above it.

    At most 2^22 are looked for: a run that draws more batches is stopped there.
    """
    aim, low, high = mu_of(budget, delta), 0, _MOST + 1
    trial = _central_limit_releases(noise_multiplier, rate, aim, relation)
    while high - low > max(1, low // 1000):
        spent = poisson_epsilon(
            noise_multiplier=noise_multiplier, rate=rate, releases=trial, delta=delta, relation=relation
        )
        within = spent <= budget * _ROUNDING
        low, high = (trial, high) if within else (low, trial)
        # μ grows as √T nearly: scale to the aim and overshoot a little, so that both ends close in
        scaled = trial * (aim / mu_of(spent, delta)) ** 2 * (1.0004 if within else 0.9996)
        trial = int(min(max(scaled, low + 1, low * 1.0002), high - 1, max(low + 1, high * 0.9998)))
    return low


def discretisation(noise_multiplier: float, rate: float) -> float:
    """Return the PLD's grid step clip(0.1 q/z, 1e-6, 1e-3), coarser below z = 0.1, where memory runs out.

    Every step gives an upper bound on ε; 1e-4 throughout overstates a small ε up to twofold.
    """
    fine = min(max(0.1 * rate / noise_multiplier, 1e-6), 1e-3)
    return max(fine, 1e-5 / noise_multiplier**2) if noise_multiplier < 0.1 else fine


class Spending:
    """Privacy spent so far: a fold over releases that counts how often each record took part.

    Args (keywords): `rows` D; `batch` B, the mean's constant divisor; `clip` C; `sigma`, given as 0 when
    nothing is proved (no noise, seeded noise, BatchNorm), so that every ε is infinite; `delta`;
    `hidden_state` (does the server keep state that was trained without noise?); `batches` as in
    `calibrate.BATCHES`; `relation`.

    Against the clients ε is the counted participation's, over all clients' releases: a lone client sees the
    others' releases through the cached embeddings. With hidden state it is the whole-mean bound's. The object
    is plain data (pickles whole) and its state depends only on the releases added.
    """

    def __init__(
        self,
        *,
        rows: int,
        batch: int,
        clip: float,
        sigma: float,
        delta: float,
        hidden_state: bool,
        batches: str = "shuffle",
        relation: str = "replace",
    ) -> None:
        _require_relation(relation)
        self.releases = 0
        self._records = Participations(rows)
        self._rows, self._batch, self._clip, self._sigma, self._delta = rows, batch, clip, sigma, delta
        self._hidden, self._batches, self._relation = hidden_state, batches, relation
        # squared: how far one record moves one release, with hidden state all that the clip lets through
        self._reach = (2 * clip) ** 2 if hidden_state else self._sensitivity() ** 2
        self._events, self._widest, self._whole = 0, 1, 0.0  # batches, most releases on one, Σ (n_t/B)²

    @property
    def participations(self) -> int:
        """The most releases that one record took part in."""
        return self._records.most

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Releases that each record took part in, int64 [D]."""
        return self._records.counts

    def add(self, ids: Rows, releases: int = 1) -> None:
        """Count one batch: `ids` [n] distinct row numbers, `releases` all the releases made on this batch.

        Raises InputError for a row twice in one batch (its sensitivity would double) or outside 0..D−1.
        """
        self._records.add(ids, releases)
        self.releases += releases
        self._events += 1
        if releases > self._widest:
            self._widest = releases
        self._whole += releases * (ids.size / self._batch) ** 2

    def state(self) -> dict[str, Any]:
        """Return what another account of the same setting goes on from."""
        counts = (self.releases, self._events, self._widest, self._whole)
        return {"counts": counts, "records": self._records.counts.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of another account."""
        self.releases, self._events, self._widest, self._whole = state["counts"]
        self._records.restore(state["records"])

    def mu(self) -> float:
        """Return μ of what is proved so far against the clients; infinity if nothing is."""
        return math.sqrt(self._squared_mu(self._records.most, self._whole))

    def paper_mu(self) -> float:
        """Return μ of what the paper claims is spent so far."""
        return paper_mu(self.releases, sigma=self._sigma, clip=self._clip, rows=self._rows)

    def epsilon(self) -> float:
        """Return what is proved so far against the clients; infinity if nothing is."""
        return epsilon_of(self.mu(), self._delta)

    def paper_epsilon(self) -> float:
        """Return what the paper claims is spent so far."""
        return epsilon_of(self.paper_mu(), self._delta)

    def would_exceed(self, ids: Rows, budget: float, adversary: str, releases: int = 1) -> bool:
        """Tell before a batch is released whether it would take ε above the budget for this adversary.

        External with hidden state is always exceeded: the final model holds state that was never noised.
        """
        participations = self._records.after(ids, releases)
        if adversary not in BUDGETED:
            hint = suggest(adversary, BUDGETED)
            raise InputError(f'no budget bounds adversary "{adversary}": {hint}Known: {", ".join(BUDGETED)}')
        if adversary == "external" and (self._hidden or self._sigma <= 0):
            return True
        if adversary == "external" and self._batches == "poisson":
            return self._events + 1 > self._poisson_ceiling(budget, releases)
        if adversary == "paper":
            after = paper_mu(self.releases + releases, sigma=self._sigma, clip=self._clip, rows=self._rows)
            return after > _ceiling(budget, self._delta)
        whole = self._whole + releases * (ids.size / self._batch) ** 2
        squared = self._squared_mu(participations, whole)
        return math.sqrt(squared) > _ceiling(budget, self._delta)

    def _squared_mu(self, participations: int, whole: float) -> float:
        reach = (whole if self._hidden else participations) * self._reach
        if reach == 0:
            return 0.0
        return reach / self._sigma**2 if self._sigma > 0 else math.inf

    def _sensitivity(self) -> float:
        return (2 if self._relation == "replace" else 1) * self._clip / self._batch

    def _poisson_ceiling(self, budget: float, releases: int) -> int:
        """Batches allowed to all, each charged as the one with most releases."""
        return poisson_releases(
            noise_multiplier=self._sigma * self._batch / self._clip / math.sqrt(max(self._widest, releases)),
            rate=min(self._batch / self._rows, 1.0),
            delta=self._delta,
            budget=budget,
            relation=self._relation,
        )


@functools.lru_cache(maxsize=64)
def _ceiling(budget: float, delta: float) -> float:
    """The μ that the budget allows."""
    return mu_of(budget, delta) * _ROUNDING


def _too_wide(noise_multiplier: float, rate: float, releases: int) -> bool:
    """Tell whether the loss distribution has too many points, or is composed too often, to be worked out.

    A bound on its mean, in grid steps: the points have ε in the hundreds where the grid is finest, else in thousands.
    """
    points = 2 * releases * rate / noise_multiplier**2 / discretisation(noise_multiplier, rate)
    return releases > _MOST or points > _WIDEST


def _unsampled_mu(noise_multiplier: float, releases: int, relation: str) -> float:
    return math.sqrt(releases) * (2.0 if relation == "replace" else 1.0) / noise_multiplier


def _not_sampled(noise_multiplier: float, rate: float, releases: int) -> bool:
    """Tell whether sampling hides nothing, or is not worked out."""
    return rate == 1 or noise_multiplier < 0.01 or _too_wide(noise_multiplier, rate, releases)


@functools.lru_cache(maxsize=256)
def _sampled_epsilon(
    noise_multiplier: float, rate: float, releases: int, delta: float, relation: str
) -> float:
    return float(_sampled(noise_multiplier, rate, releases, relation).get_epsilon(delta))


@functools.lru_cache(maxsize=256)
def _sampled_guess(noise_multiplier: float, rate: float, releases: int, relation: str) -> float:
    return (1 + float(_sampled(noise_multiplier, rate, releases, relation).get_delta(0.0))) / 2


def _sampled(noise_multiplier: float, rate: float, releases: int, relation: str) -> Any:
    """Return dp-accounting's accountant of all releases; it may hold gigabytes, so nobody keeps it."""
    import dp_accounting
    from dp_accounting import pld

    neighbours = dp_accounting.NeighboringRelation
    accountant = pld.PLDAccountant(
        neighbours.REPLACE_ONE if relation == "replace" else neighbours.ADD_OR_REMOVE_ONE,
        value_discretization_interval=discretisation(noise_multiplier, rate),
    )
    accountant.compose(_sampled_event(noise_multiplier, rate, releases))
    return accountant


def _central_limit_releases(z: float, rate: float, mu: float, relation: str) -> int:
    """Where to begin the search: the large-T limit, in which a release has μ² = 4q² sinh(1/z²) (replace)."""
    exponent = min(1 / z**2, 700.0)
    squared = rate**2 * (4 * math.sinh(exponent) if relation == "replace" else math.expm1(exponent))
    return int(min(max(mu**2 / max(squared, 1e-300), 1), _MOST))


def _sampled_event(noise_multiplier: float, rate: float, releases: int) -> Any:
    import dp_accounting

    sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise_multiplier))
    return dp_accounting.SelfComposedDpEvent(sampled, releases)


def _require_sampling(noise_multiplier: float, rate: float, releases: int, relation: str) -> None:
    _require_relation(relation)
    if not (noise_multiplier > 0 and 0 <= rate <= 1 and releases >= 0):
        raise InputError(
            "Poisson accounting needs noise_multiplier > 0, rate in 0..1 and releases >= 0, "
            f"not {noise_multiplier}, {rate}, {releases}"
        )


def _require_relation(relation: str) -> None:
    if relation not in RELATIONS:
        hint = suggest(relation, RELATIONS)
        raise InputError(f'relation "{relation}": {hint}Known: {", ".join(RELATIONS)}')
