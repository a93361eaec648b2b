"""The audit of many runs: one canary in or out, guessed from the final model, bounded by Clopper and Pearson.

It needs no ledger and looks into no method. It speaks of an outsider, who has the final model and the two tables.
"""

# n runs

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from raydpzv.audit.canaries import Canary, neighbour
from raydpzv.audit.final_model import evidence
from raydpzv.audit.lower_bounds import CONFIDENCE, SURE, epsilon_of_rates
from raydpzv.audit.recorded import RecordedRun
from raydpzv.audit.rerun import check_rerunnable, final_models
from raydpzv.errors import SpecError

FEWEST = 8
"""Runs without which there is nothing to choose a threshold by, or nothing to count."""


@dataclass(frozen=True)
class RunsAudit:
    """Guesses of one canary over runs: `hits` of `inside` runs as read, `alarms` of `outside` runs with it changed.

    The threshold was chosen by as many other runs. epsilon, surely: what these rates show at δ, at 95 and at 99.9 %.
    """

    canary: Canary
    hits: int
    inside: int
    alarms: int
    outside: int
    epsilon: float
    surely: float
    delta: float


def audit_runs(
    run: RecordedRun, canary: Canary, count: int, progress: Callable[[int, int], None] = lambda done, of: None
) -> RunsAudit:
    """Make `count` runs like this one, every other with the canary, and guess which. Raises InputError."""
    check_rerunnable(run)
    if count < FEWEST:
        raise SpecError(
            f"--runs: wanted at least {FEWEST}, half of them to choose a threshold by, got {count}"
        )
    changed = neighbour(run.prepared, [canary])
    found = []
    for n in range(count):
        models = final_models(changed if n % 2 else run.prepared)
        found.append(float(evidence(run.prepared, changed, [canary], models)[0]))
        progress(n + 1, count)
    scores, half = np.array(found), count // 4 * 2
    delta = run.delta("external")
    threshold = _threshold(scores[:half:2], scores[1:half:2], delta)
    inside, outside = scores[half::2] > threshold, scores[half + 1 :: 2] > threshold
    counts = (int(inside.sum()), len(inside), int(outside.sum()), len(outside))
    shown, surely = (epsilon_of_rates(*counts, delta, level) for level in (CONFIDENCE, SURE))
    return RunsAudit(canary, *counts, shown, surely, delta)


def _threshold(inside: np.ndarray, outside: np.ndarray, delta: float) -> float:
    """Return the score above which "as read" is guessed that shows most on these runs."""
    marks = np.sort(np.concatenate([inside, outside]))
    middles = [-np.inf, *((marks[1:] + marks[:-1]) / 2).tolist()]

    def shown(mark: float) -> float:
        counts = (int((inside > mark).sum()), len(inside), int((outside > mark).sum()), len(outside))
        return epsilon_of_rates(*counts, delta) + 1e-6 * (
            counts[0] - counts[2]
        )  # shares decide where nothing shows

    return float(max(middles, key=shown))
