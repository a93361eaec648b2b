"""From the scores of held-out rows to measures of a model: those of the loss, and those of the
user.
"""

# N rows, K scores, T numbers for labels

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from raydpzv.engine.ranking import areas, balanced_accuracy, concordance
from raydpzv.engine.split_model import Metrics
from raydpzv.errors import InputError, SpecError
from raydpzv.foreign import resolve
from raydpzv.lazy_import import torch
from raydpzv.models.losses import Loss

OwnMetrics = Callable[[np.ndarray, np.ndarray], dict[str, float]]
"""A user's measures: (scores float32 [N, K], labels int64 [N] or float64 [N, T]) to a number by its
name.
"""
OF_NUMBERS = ("rmse", "r2")
"""Measures of a loss of numbers: root of the mean squared error, and the share of the variance that
is explained.
"""
RESERVED = frozenset(
    (
        "accountant",
        "accuracy",
        "adversary",
        "balanced_accuracy",
        "best",
        "best_accuracy",
        "bytes",
        "bytes_down",
        "bytes_up",
        "concordance",
        "control",
        "control_accuracy",
        "delta",
        "digest",
        "donors",
        "down",
        "epsilon",
        "equal_bytes",
        "equal_seconds",
        "failures",
        "label",
        "labels",
        "largest_class_share",
        "late",
        "loss",
        "method",
        "methods",
        "multiplier",
        "name",
        "not_run",
        "outcome",
        "pace",
        "part",
        "peak_accuracy",
        "pr_auc",
        "private",
        "r2",
        "rate_asked",
        "reason",
        "restarts",
        "rmse",
        "roc_auc",
        "round",
        "run",
        "runs",
        "seconds",
        "seed",
        "sigma",
        "simulated_seconds",
        "staleness",
        "status",
        "throughput",
        "time",
        "top_share",
        "trial",
        "up",
        "update",
        "updates",
        "uploads",
        "validation_accuracy",
        "value",
        "vector_length",
        "verdict",
        "warnings",
        "why",
    )
)
"""Names of columns in rows, comparisons and searches, which no own measure may have."""


def measured(scores_NK: torch.Tensor, y: torch.Tensor, loss: Loss, mean: float) -> Metrics:
    """Return the measures that go with a loss. y: labels on the CPU; mean: the mean loss of these
    rows.
    """
    scores_NK = scores_NK.cpu()
    if loss.labels == "times":
        times_N, events_N = y.numpy().T
        found = concordance(scores_NK[:, 0].double().numpy(), times_N, events_N)
        return Metrics(math.nan, mean, math.nan, concordance=found)
    if loss.values:
        return Metrics(float(((scores_NK > 0) == (y > 0)).double().mean()), mean, math.nan)
    if y.is_floating_point():
        of_numbers = loss.score == OF_NUMBERS[0]
        return Metrics(math.nan, mean, math.nan, measures=fit(scores_NK, y) if of_numbers else {})
    predicted_N = scores_NK.argmax(1) if scores_NK.shape[1] > 1 else (scores_NK[:, 0] > 0).long()
    return Metrics(
        float((predicted_N == y).double().mean()),
        mean,
        float(torch.bincount(predicted_N).max()) / len(y),
        *ranked(scores_NK, y),
    )


def fit(scores_NT: torch.Tensor, y_NT: torch.Tensor) -> dict[str, float]:
    """Return rmse over all numbers, and the mean over the T of r2 = 1 - Σ(s - y)² / Σ(y - ȳ)², NaN
    for one constant.
    """
    squares_T = ((scores_NT.double() - y_NT) ** 2).sum(0)
    spread_T = ((y_NT - y_NT.mean(0)) ** 2).sum(0)
    explained_T = torch.where(spread_T > 0, 1 - squares_T / spread_T, math.nan)
    return dict(
        zip(
            OF_NUMBERS,
            (math.sqrt(squares_T.sum() / y_NT.numel()), float(explained_T.mean())),
            strict=True,
        )
    )


def ranked(
    scores_NK: torch.Tensor, labels_N: torch.Tensor
) -> tuple[float | None, float | None, float | None]:
    """Return the areas and the balanced accuracy that `Metrics` wants: of one score or two a row,
    None of more.
    """
    if scores_NK.shape[1] > 2:
        return None, None, None
    scores, labels = scores_NK.cpu().double().numpy(), labels_N.cpu().numpy()
    margins = scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores[:, 0]
    return *areas(margins, labels), balanced_accuracy(margins, labels)


def with_own(found: Metrics, own: str, scores_NK: Any, y: Any) -> Metrics:
    """Return the same with the measures of the user's metrics; own: their name, "" for none."""
    if not own:
        return found
    more = own_metrics(own)(np.asarray(scores_NK), np.asarray(y))
    return replace(found, measures={**found.measures, **more})


def own_metrics(name: str) -> OwnMetrics:
    """Return a user's metrics, whose names and values are checked at each call. Raises SpecError,
    InputError.
    """
    found = resolve(name, "evaluate.metrics")
    if not callable(found):
        raise SpecError(
            f'evaluate.metrics: wanted a function of scores and labels, "{name}" is none'
        )
    return partial(_called, found)


def _called(metrics: Callable[..., Any], scores_NK: np.ndarray, y: np.ndarray) -> dict[str, float]:
    try:
        found = metrics(scores_NK.copy(), y.copy())
    except (Exception, SystemExit) as error:  # whatever the user's code raises is said in one line
        shapes = f"scores {list(scores_NK.shape)} and labels {list(y.shape)} of {y.dtype}"
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"evaluate.metrics: your metrics fail on {shapes} ({text})") from error
    if not isinstance(found, Mapping) or not found:
        raise InputError(f"evaluate.metrics: wanted a table of floats by name, got {found!r:.60}")
    return {_named(name): _number(name, value) for name, value in found.items()}


def _named(name: Any) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name):
        raise InputError(
            f"evaluate.metrics: wanted names of letters, digits and underscores, got {name!r:.60}"
        )
    if name in RESERVED or name.startswith("validation_"):
        raise InputError(
            f'evaluate.metrics: "{name}" is a column of the program\'s own; give the metric '
            "another name"
        )
    return name


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
        got = f"{type(value).__name__} {value!r:.60}"
        raise InputError(
            f"evaluate.metrics: wanted a float for {name}, got {got}; convert it with float()"
        )
    return float(value)
