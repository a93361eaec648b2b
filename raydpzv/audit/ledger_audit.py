"""The ledger audit: a finished run's queries from the raw table and from neighbouring ones, its
releases given.

With the releases r_t forced, q_t are the run's queries and q'_t those of a neighbour. Anyone who
knows both tables tells them apart by d = √Σ((q_t - q'_t)/σ_t)², as N(0, 1) from N(d, 1): a lower
bound on what the run gives away, for this record and this transcript. Of the noise, r_t - q_t is
seen, and no σ is taken on trust. Nothing is certified.

Releases are rounded: to whole numbers in mode "proved", and to the 24 bits of a float32. Where σ is
not large beside that, r_t - q_t is not normal though its noise is; so each is put where its noise
may have been, at random by the law stated (`normal_residuals`).
"""

# n releases

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raydpzv.audit.canaries import NEW_LABEL, TYPE, Canary, classes_with, neighbour
from raydpzv.audit.forced_queries import Queries, forced_queries
from raydpzv.audit.lower_bounds import CONFIDENCE, SURE
from raydpzv.audit.recorded import RecordedRun, recorded_releases
from raydpzv.errors import InputError
from raydpzv.experiment.rebuild import check_models
from raydpzv.keys import Key
from raydpzv.privacy import claim_words
from raydpzv.privacy.gdp import epsilon_of

SMALLEST_P = 1 - SURE
"""Below this the noise is not what the run says it is."""
REFUSED, OTHER_CLASSES = "refused", "classes"
_ROUNDING = 1 + 1e-9
_FAR = 30.0


@dataclass(frozen=True)
class NoiseSeen:
    """The noise as recorded, in units of the deviation that the run states.

    releases: n; deviation_up: √(Σ (r/σ)² / χ²_{0.05, n}), above the true deviation in 95 of 100
    runs; deviation_most: the same in 999 of 1,000; p: of Kolmogorov and Smirnov's test that r/σ is
    standard normal; residuals: r/σ before the releases were rounded, as `normal_residuals` has
    them, [n].
    """

    releases: int
    deviation_up: float
    deviation_most: float
    p: float
    residuals: np.ndarray = dataclasses.field(repr=False)


@dataclass(frozen=True)
class CanarySeen:
    """The change of the queries by one canary.

    releases: whose batch it is in; others: whose batch it is not in; hidden: the largest |q_t -
    q'_t| over those, `hidden_count` of which differ at all; apart: d, by the deviations that the
    run states; epsilon, surely: ε of d with every deviation taken as large as `NoiseSeen` has it
    likely, and at most. outcome: why no queries were compared: the neighbour's table is "refused",
    as one that nobody may have, or has another number of "classes"; else "".
    """

    canary: Canary
    releases: int
    others: int
    hidden: float
    hidden_count: int
    apart: float
    epsilon: float
    surely: float
    outcome: str = ""


@dataclass(frozen=True)
class LedgerAudit:
    """The result of a ledger audit. claim: the run's row of its privacy table that it is held
    against.
    """

    claim: Mapping[str, Any]
    noise: NoiseSeen
    canaries: tuple[CanarySeen, ...]

    @property
    def worst(self) -> CanarySeen:
        """The canary that moves the queries most."""
        return max(self.canaries, key=lambda c: c.epsilon)

    @property
    def hidden(self) -> float:
        """The largest difference of a query without the record."""
        return max(c.hidden for c in self.canaries)

    @property
    def contradictions(self) -> tuple[str, ...]:
        """Facts that contradict the claim's proof, one clause each."""
        found = []
        if any(c.outcome == OTHER_CLASSES for c in self.canaries):
            found.append(
                "a label that no other record has moves the list of classes, and so the labels of "
                "all records"
            )
        if self.hidden > 0 and "whole mean" not in str(self.claim["accountant"]):
            found.append("a record moves releases whose batch it is not in")
        if self.noise.p < SMALLEST_P:
            found.append("the noise is not normal with the deviation that the run states")
        worst = max((c.apart for c in self.canaries if not c.outcome), default=0.0)
        if epsilon_of(worst, self.claim["delta"]) > claim_words.epsilon_of(self.claim) * _ROUNDING:
            found.append("a record moves its releases further than the clip permits")
        return tuple(found)


def audit_ledger(
    run: RecordedRun,
    canaries: Sequence[Canary],
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> LedgerAudit:
    """Recompute a run's queries with and without each canary, and hold what they show against what
    the run claims.

    progress: called with how many of the recomputations are done. Raises InputError for a run
    without a ledger, ReplayMismatch if the record is not what the scenario and the data give.
    """
    rows, releases = recorded_releases(run)
    claim = run.claim("client")
    assert claim is not None  # every table has the client's row
    total = len(canaries) + 1
    queries = forced_queries(run.prepared, rows, run.updates, releases)
    check_models(rows, queries.models, run.updates)
    progress(1, total)
    noise = noise_seen(queries, np.array([releases[address] for address in queries.addresses]))
    seen = []
    for done, canary in enumerate(canaries, 2):
        if outcome := _refused(run, canary):
            apart = math.inf if outcome == OTHER_CLASSES else 0.0
            seen.append(CanarySeen(canary, 0, 0, 0.0, 0, apart, apart, apart, outcome))
            progress(done, total)
            continue
        changed = neighbour(run.prepared, [canary])
        other = forced_queries(changed, rows, run.updates, releases)
        with_it = queries.about(canary.row)
        for row in np.flatnonzero(changed.numbers == canary.number).tolist():
            with_it = with_it | other.about(row)
        seen.append(_moved(canary, queries, other, with_it, noise, float(claim["delta"])))
        progress(done, total)
    return LedgerAudit(claim, noise, tuple(seen))


def noise_seen(queries: Queries, released: np.ndarray) -> NoiseSeen:
    """Return what the differences of releases [n] from their queries say of the noise."""
    from scipy import stats

    residuals, count = normal_residuals(queries, released), len(released)
    squares, levels = float(np.square(residuals).sum()), (1 - CONFIDENCE, 1 - SURE)
    likely, most = (math.sqrt(squares / stats.chi2.ppf(level, count)) for level in levels)
    return NoiseSeen(count, likely, most, float(stats.kstest(residuals, "norm").pvalue), residuals)


def normal_residuals(queries: Queries, released: np.ndarray) -> np.ndarray:
    """Return what was added to the queries before the releases [n] were rounded, over σ: standard
    normal, float64 [n].

    A release reveals only the interval (a, b) in which its noise lay. With V uniform from a fixed
    key, Φ(a/σ) + V (Φ(b/σ) - Φ(a/σ)) is uniform if the noise is N(0, σ²), whatever is rounded and
    however coarsely (randomised probability integral transform; Brockwell 2007), and its Φ⁻¹ is
    returned.
    """
    from scipy.special import ndtr, ndtri

    plain = (released - queries.values) / queries.sigmas
    low, high = (
        (end - queries.values) / queries.sigmas for end in rounded_from(released, queries.whole)
    )
    # by the tail that it is in, where Φ keeps its digits
    side = np.where(plain > 0, -1.0, 1.0)
    tails = np.sort([ndtr(side * low), ndtr(side * high)], axis=0)
    share = (Key(0) / "audit" / "residuals").generator().random(len(released))
    placed = side * ndtri(tails[0] + share * (tails[1] - tails[0]))
    # no normal draw is that far out: it is no matter where in its interval it was
    return np.where(np.abs(plain) < _FAR, placed, plain)


def rounded_from(released: np.ndarray, whole: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return between which numbers lies what is rounded to these releases [n], float64 [n] each.

    whole: it is rounded to whole numbers first, and then to float32; halves go to the even.
    """
    kept = released.astype(np.float32)
    low, high = (
        (kept.astype(np.float64) + np.nextafter(kept, np.float32(to)).astype(np.float64)) / 2
        for to in (-np.inf, np.inf)
    )
    if not whole:
        return low, high
    even = kept.view(np.int32) % 2 == 0
    least = np.where(even, np.ceil(low), np.floor(low) + 1)
    most = np.where(even, np.floor(high), np.ceil(high) - 1)
    return least - 0.5, most + 0.5


def _refused(run: RecordedRun, canary: Canary) -> str:
    """Return what becomes of a table with a new label, or another type, where no query can be
    compared; "" where they can.
    """
    if canary.kind not in (NEW_LABEL, TYPE):
        return ""
    public = canary.kind == TYPE or run.spec.data.labels is not None
    try:
        same = classes_with(run.prepared, canary) == run.prepared.server.classes
    except InputError:
        return REFUSED if public else OTHER_CLASSES
    return "" if same else OTHER_CLASSES


def _moved(
    canary: Canary,
    queries: Queries,
    other: Queries,
    with_it: np.ndarray,
    noise: NoiseSeen,
    delta: float,
) -> CanarySeen:
    """Compare the queries of a run with those of its neighbour; a difference that is no number is
    infinite.
    """
    differences = np.abs(queries.values - other.values)
    differences = np.where(np.isnan(differences), np.inf, differences)
    hidden = differences[~with_it]
    apart = float(np.sqrt(np.square(differences / queries.sigmas).sum()))
    return CanarySeen(
        canary,
        int(with_it.sum()),
        len(hidden),
        float(hidden.max(initial=0.0)),
        int((hidden > 0).sum()),
        apart,
        epsilon_of(apart / noise.deviation_up, delta),
        epsilon_of(apart / noise.deviation_most, delta),
    )
