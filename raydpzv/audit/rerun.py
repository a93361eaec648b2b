"""Audits by runs like the recorded one: guesses from their final models, bounded from below.

They need no ledger and look into no method. They speak of an outsider, who has the final model and
both versions of each canary. Many runs with one canary: Clopper and Pearson. One run with many
canaries: Steinke, Nasr, Jagielski 2023, "Privacy auditing with one (1) training run".
"""

# n runs or records, m canaries, C classes

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch

from raydpzv.audit.canaries import ABSENT, Canary, neighbour
from raydpzv.audit.lower_bounds import CONFIDENCE, SURE, epsilon_of_guesses, epsilon_of_rates
from raydpzv.audit.recorded import RecordedRun
from raydpzv.errors import InputError, NotRecomputable, SpecError
from raydpzv.experiment.initial_model import bottom_module
from raydpzv.experiment.runner import run_local
from raydpzv.experiment.vertical import PreparedVertical
from raydpzv.keys import Key
from raydpzv.models.flat import FlatModel
from raydpzv.models.losses import Loss
from raydpzv.registry import LOSSES

FEWEST_RUNS = 8
"""Runs without which there is nothing to choose a threshold by, or nothing to count."""
FEWEST_CANARIES = 4
"""Canaries, of which half are guessed."""


def check_rerunnable(run: RecordedRun) -> None:
    """Raise InputError for a run whose like cannot be made: of real time, or with noise that a seed
    repeats.
    """
    path, spec = run.folder.path, run.spec
    if spec.clock.kind == "wall":
        raise InputError(
            f"{path}: a wall-clock run is made again in real time; audit one of the virtual clock"
        )
    if spec.privacy.noise == "seeded":
        raise NotRecomputable(
            f"{path}: its noise comes from the seed and would be the same in every run; use "
            'privacy.noise = "system"'
        )


def final_models(prepared: PreparedVertical) -> Mapping[str, np.ndarray]:
    """Run without a record; return the parameters that the run ends with, by party."""
    spec = prepared.spec
    often = {
        "evaluate": spec.evaluate.model_copy(update={"every": max(spec.budget.updates or 1, 1)})
    }
    quiet = {"record": spec.record.model_copy(update={"staleness": False})}
    return run_local(replace(prepared, spec=spec.model_copy(update=often | quiet))).models


@dataclass(frozen=True)
class RunsAudit:
    """Guesses of one canary over runs: `hits` of `inside` runs as read, `alarms` of `outside` runs
    with it changed.

    The threshold was chosen by as many other runs. epsilon, surely: what these rates show at δ, at
    95 and at 99.9 %.
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
    run: RecordedRun,
    canary: Canary,
    count: int,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> RunsAudit:
    """Make `count` runs like this one, every other with the canary, and guess which. Raises
    InputError.
    """
    check_rerunnable(run)
    if count < FEWEST_RUNS:
        raise SpecError(
            f"--runs: wanted at least {FEWEST_RUNS}, half of them to choose a threshold by, got "
            f"{count}"
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
        counts = (
            int((inside > mark).sum()),
            len(inside),
            int((outside > mark).sum()),
            len(outside),
        )
        # shares decide where nothing shows
        return epsilon_of_rates(*counts, delta) + 1e-6 * (counts[0] - counts[2])

    return float(max(middles, key=shown))


@dataclass(frozen=True)
class GuessesAudit:
    """`right` of `guesses` about `canaries` coins; epsilon, surely: what they rule out at δ, at 95
    and 99.9 %.
    """

    canaries: int
    guesses: int
    right: int
    epsilon: float
    surely: float
    delta: float


def audit_guesses(
    run: RecordedRun,
    canaries: Sequence[Canary],
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> GuessesAudit:
    """Make one run like this one in which every canary is changed by a coin of its own, and guess
    the coins.

    The quarter with most evidence of being as read is guessed so, that with least to be changed;
    how many is fixed beforehand. Raises InputError.
    """
    check_rerunnable(run)
    if len(canaries) < FEWEST_CANARIES or len({canary.number for canary in canaries}) < len(
        canaries
    ):
        raise SpecError(
            f"--canaries: wanted at least {FEWEST_CANARIES} different records, got {len(canaries)}"
        )
    coins = (Key(0) / "audit" / "coins").generator().integers(2, size=len(canaries)).astype(bool)
    mixed = neighbour(
        run.prepared, [canary for canary, coin in zip(canaries, coins, strict=True) if coin]
    )
    all_changed = neighbour(run.prepared, canaries)
    models = final_models(mixed)
    progress(1, 1)
    order, each = (
        np.argsort(evidence(run.prepared, all_changed, canaries, models)),
        len(canaries) // 4,
    )
    right = int(coins[order[:each]].sum() + (~coins[order[-each:]]).sum())
    delta = run.delta("external")
    shown, surely = (
        epsilon_of_guesses(len(canaries), 2 * each, right, delta, level)
        for level in (CONFIDENCE, SURE)
    )
    return GuessesAudit(len(canaries), 2 * each, right, shown, surely, delta)


def evidence(
    as_read: PreparedVertical,
    changed: PreparedVertical,
    canaries: Sequence[Canary],
    models: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Return, for each canary, log p of the record as read less log p of the changed one, float64
    [n].

    as_read, changed: the run's data without and with all canaries; models: parameters by party that
    a run ended with. An absent record has no log p. A changed record that is no training row any
    more keeps the features as read.
    """
    rows = np.array([canary.row for canary in canaries])
    places = {int(number): row for row, number in enumerate(changed.numbers)}
    other_rows = [places.get(canary.number) for canary in canaries]
    known, count = as_read.server.y_train[rows], as_read.server.classes
    found = _log_likelihoods(as_read, models, [c.x_train[rows] for c in as_read.clients], known)
    features, labels = [c.x_train[rows].copy() for c in as_read.clients], known.copy()
    for n, (canary, row) in enumerate(zip(canaries, other_rows, strict=True)):
        labels[n] = canary.label(known[n], count)
        if row is not None and canary.kind != ABSENT:
            for x, client in zip(features, changed.clients, strict=True):
                x[n] = client.x_train[row]
    other = _log_likelihoods(as_read, models, features, labels)
    return found - np.where([canary.kind == ABSENT for canary in canaries], 0.0, other)


def _log_likelihoods(
    prepared: PreparedVertical,
    models: Mapping[str, np.ndarray],
    features: Sequence[np.ndarray],
    labels: np.ndarray,
) -> np.ndarray:
    """Return log p(label | features) under the composed model, float64 [n]: less the loss, but for
    a constant.

    features: each client's, [n, ...].
    """
    loss: Loss = LOSSES[prepared.spec.loss]
    return -loss.at_points(composed(prepared, models, features), torch.tensor(labels)).numpy()


def composed(
    prepared: PreparedVertical, models: Mapping[str, np.ndarray], features: Sequence[np.ndarray]
) -> torch.Tensor:
    """Return the composed model's scores, float32 [n, K]."""
    spec = prepared.spec

    def bottom(client: int, shape: tuple[int, ...]) -> Callable[[], torch.nn.Module]:
        return lambda: bottom_module(spec, client, shape)

    with torch.no_grad():
        embedded = [
            _with(bottom(m, x.shape[1:]), models[f"client {m}"])(torch.tensor(x))
            for m, x in enumerate(features)
        ]
        return cast(
            torch.Tensor,
            _with(prepared.server.head, models["server"])(torch.cat(embedded, dim=1)),
        )


def _with(make: Callable[[], torch.nn.Module], flat: np.ndarray) -> torch.nn.Module:
    """Return a module in evaluation with these parameters, float32 [d] in the order of its
    names.
    """
    model = FlatModel(make, Key(0))
    with torch.no_grad():
        model.flat.copy_(torch.tensor(flat))
    return model.module.eval()
