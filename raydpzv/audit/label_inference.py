"""Label inference by honest-but-curious clients, as a check: how often they guess a label right,
over ε.

All clients together know the features, every label but one, which rows were in which batch, and the
releases. Of the one label they know two candidates and guess the likelier one: Σ (q_t - q'_t)(2 r_t
- q_t - q'_t) / 2σ² > 0, with q_t and q'_t the queries under either label. If the releases are
  μ-GDP, nobody is right more often than Φ(μ/2).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from raydpzv.audit.canaries import KINDS, LABEL, Canary
from raydpzv.audit.forced_queries import Queries, forced_queries
from raydpzv.audit.lower_bounds import CONFIDENCE, SURE, share_bounds
from raydpzv.audit.recorded import RecordedRun
from raydpzv.audit.rerun import check_rerunnable
from raydpzv.config.scenario import VerticalScenario
from raydpzv.errors import InputError, SpecError
from raydpzv.experiment.release_ledger import released
from raydpzv.experiment.runner import run_local
from raydpzv.experiment.vertical import PreparedVertical, prepare_vertical
from raydpzv.privacy.gdp import mu_of


@dataclass(frozen=True)
class LabelGuesses:
    """Guesses in one run: `right` of `count` labels, against a proved ε and the bound on their
    share.

    expected: the share that the clients must expect of runs like this one, the mean of Φ(d/2) over
    the records; low,
    high: the interval of the share seen, for all ε together at 95 %; surely: its lower end at 99.9
    %.
    """

    epsilon: float
    delta: float
    right: int
    count: int
    low: float
    high: float
    surely: float
    expected: float

    @property
    def broken(self) -> bool:
        """Whether labels are guessed, or must be, more often than the bound permits."""
        return max(self.surely, self.expected) > self.bound * (1 + 1e-9)

    @property
    def bound(self) -> float:
        """Φ(μ/2)."""
        from scipy.special import ndtr

        return float(ndtr(mu_of(self.epsilon, self.delta) / 2))


def infer_labels(
    run: RecordedRun,
    canaries: Sequence[Canary],
    epsilons: Sequence[float],
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> list[LabelGuesses]:
    """Make a run like this one for every ε, and guess the canaries' labels from its releases.

    Raises InputError for a run whose clients' ε is not proved, SpecError for canaries of another
    kind than "label".
    """
    check_rerunnable(run)
    _check(run, canaries, epsilons)
    total, steps = len(epsilons) * (len(canaries) + 2), itertools.count(1)
    return [
        _guessed(run, canaries, epsilon, len(epsilons), lambda: progress(next(steps), total))
        for epsilon in epsilons
    ]


def _check(run: RecordedRun, canaries: Sequence[Canary], epsilons: Sequence[float]) -> None:
    claim = run.claim("client")
    if run.prepared.plan() is None or claim is None or not claim["holds"]:
        raise InputError(
            f"{run.folder.path}: proves no ε against the clients, so that no bound holds against "
            "their guesses; audit a run that does (docs/privacy.md)"
        )
    if LABEL not in KINDS[run.relation]:
        raise InputError(
            f'{run.folder.path}: its ε is for privacy.relation = "{run.relation}", under which a '
            "record with another label is no neighbour, so that it bounds no guesses at labels; "
            'audit a run with "replace" or "labels"'
        )
    if any(canary.kind != LABEL for canary in canaries):
        raise SpecError("--kind: wanted label, which is what is guessed here; leave it out")
    if not epsilons or not all(0 < epsilon < math.inf for epsilon in epsilons):
        raise SpecError("--epsilons: wanted numbers above 0, comma between them")


def _guessed(
    run: RecordedRun,
    canaries: Sequence[Canary],
    epsilon: float,
    tests: int,
    step: Callable[[], None],
) -> LabelGuesses:
    from scipy.special import ndtr

    prepared = prepare_vertical(_at(run, epsilon), run.prepared.secret)
    result = run_local(prepared)
    step()
    (claim,) = (
        c
        for c in result.summary["epsilon"]
        if c["adversary"] == "client" and c["relation"] == run.relation
    )
    rows, updates = result.tables, int(result.summary["updates"])
    releases = released(rows, None)
    queries = forced_queries(prepared, rows, updates, releases)
    step()
    seen = np.array([releases[address] for address in queries.addresses])
    right, chances = 0, []
    for canary in canaries:
        other = forced_queries(_with_label(prepared, canary), rows, updates, releases)
        apart, likelier = label_evidence(queries, other, seen)
        right += likelier > 0
        chances.append(float(ndtr(apart / 2)))
        step()
    count = len(canaries)
    low, high = share_bounds(right, count, 1 - (1 - CONFIDENCE) / tests)
    surely, _ = share_bounds(right, count, 1 - (1 - SURE) / tests)
    return LabelGuesses(
        claim["epsilon"], claim["delta"], right, count, low, high, surely, float(np.mean(chances))
    )


def _at(run: RecordedRun, epsilon: float) -> VerticalScenario:
    asked = {"epsilon": epsilon, "sigma": None, "noise_multiplier": None}
    return run.spec.model_copy(update={"privacy": run.spec.privacy.model_copy(update=asked)})


def _with_label(prepared: PreparedVertical, canary: Canary) -> PreparedVertical:
    labels = prepared.server.y_train.copy()
    labels[canary.row] = canary.label(labels[canary.row], prepared.server.classes)
    return replace(prepared, server=replace(prepared.server, y_train=labels))


def label_evidence(queries: Queries, other: Queries, seen: np.ndarray) -> tuple[float, float]:
    """Return how many deviations both labels are apart, and how much likelier the true one is
    (log).
    """
    apart, middle = queries.values - other.values, (queries.values + other.values) / 2
    squared = np.square(queries.sigmas)
    return math.sqrt(float((apart * apart / squared).sum())), float(
        (apart * (seen - middle) / squared).sum()
    )
