"""Losses by name: what a head or a whole model is trained on, what labels it takes, and how many
scores it wants.

Nothing is computed when the module is imported: what only looks at a loss (`raydpzv privacy`) does
without torch.
"""

# B rows, K scores, T numbers for labels, P points in parameter space; t times, E events, s scores

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from raydpzv.errors import InputError, SpecError
from raydpzv.foreign import resolve
from raydpzv.lazy_import import torch

Rows = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""(scores [..., B, K], labels [B] or [B, T]) to one value a record, [..., B], in the scores'
precision.
"""
_CHECKED, MOST_CHECKED = 8, 256
"""Fewest and most records on which a user's loss is checked."""


@dataclass(frozen=True)
class Loss:
    """One loss in the three forms that training needs, and what there is to know of it.

    rows: (scores [B, K], labels) to [B]; mean: to their mean, a number; at_points: (scores [..., B,
    K], labels) to float64 [..., B], for finite differences, which divide rounding noise by the
    smoothing radius. outputs: scores of a
    record, None: one per class or number. by_record: a record's term is a function of its own score
    and label alone.
    labels: classes int64 [B], numbers float64 [B, T], or times and events float64 [B, 2]; "any":
    classes or numbers.
    values: the numbers that labels may be, (): any. score: the measure that stands for the quality
    of a model.
    """

    rows: Rows
    mean: Rows
    at_points: Rows
    outputs: int | None = None
    by_record: bool = True
    labels: Literal["classes", "numbers", "times", "any"] = "classes"
    values: tuple[int, ...] = ()
    score: str = "accuracy"

    def accepts(self, kind: str) -> bool:
        """Return whether labels of this kind are what the loss is for."""
        return kind == self.labels or (self.labels == "any" and kind != "times")


def _of_rows(rows: Rows, **facts: Any) -> Loss:
    """Return the loss of a function of each record."""
    return Loss(
        rows,
        lambda scores, labels: rows(scores, labels).mean(),
        lambda scores, labels: rows(scores.double(), labels),
        **facts,
    )


def _rows(scores_BK: torch.Tensor, labels_B: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(scores_BK, labels_B, reduction="none")


def _mean(scores_BK: torch.Tensor, labels_B: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(scores_BK, labels_B)


def _at_points(scores_PBK: torch.Tensor, labels_B: torch.Tensor) -> torch.Tensor:
    log_PBK = scores_PBK.double().log_softmax(-1)
    return -log_PBK.gather(-1, labels_B.expand(scores_PBK.shape[:-1]).unsqueeze(-1)).squeeze(-1)


cross_entropy = Loss(_rows, _mean, _at_points)
"""The negative logarithm of the true class' softmax."""


def _logistic(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """-y log σ(s) - (1 - y) log σ(-s) = softplus(s) - y s, which overflows nowhere."""
    return torch.nn.functional.softplus(scores) - labels.to(scores.dtype) * scores


binary = _of_rows(lambda scores, labels: _logistic(scores[..., 0], labels), outputs=1)
"""The same of two classes with one score, the log-odds of class 1."""

multi_label = _of_rows(
    lambda scores, labels: _logistic(scores, labels).mean(-1), labels="numbers", values=(0, 1)
)
"""The mean over a record's labels, each 0 or 1 with a score of its own, of what `binary` is of
one.
"""

squared_error = _of_rows(
    lambda scores, labels: ((scores - labels.to(scores.dtype)) ** 2).mean(-1),
    labels="numbers",
    score="rmse",
)
"""The mean over a record's numbers of (s - y)²."""


def _risks(scores_PB1: torch.Tensor, targets_B2: torch.Tensor) -> torch.Tensor:
    """E_i (log Σ_{j: t_j >= t_i} exp(s_j - s_i)) of every record, float64 [..., B]; ties share
    their risk set.
    """
    times_B, events_B = targets_B2.double().unbind(-1)
    order_B = torch.argsort(times_B, descending=True, stable=True)
    falling_B = times_B[order_B]
    scores_PB = scores_PB1.squeeze(-1).double()[..., order_B]
    # where times fall, the last record of a tie has seen its whole risk set
    last_B = torch.searchsorted(-falling_B, -falling_B, right=True) - 1
    terms_PB = events_B[order_B] * (torch.logcumsumexp(scores_PB, -1)[..., last_B] - scores_PB)
    return terms_PB[..., torch.argsort(order_B)]


cox = Loss(
    _risks,
    lambda scores, targets: _risks(scores, targets).mean(),
    _risks,
    outputs=1,
    by_record=False,
    labels="times",
    score="concordance",
)
"""The negative logarithm of Cox's partial likelihood over a batch's records, of which the censored
ones count too.

Labels are times and events (1: one, 0: censored), float64 [B, 2]; one score a record, a higher one
for an earlier event. A batch without an event has the loss 0. Source: Cox, "Regression models and
life-tables" (1972); ties by Breslow (1974).
"""


def own_loss(name: str) -> Loss:
    """Return a user's function of scores [B, K] and labels as a loss. Raises SpecError for an
    object that is none.

    Classes reach it as int64 [B], numbers [B, T] in the scores' precision.
    """
    found = resolve(name, "model.loss")
    if not callable(found):
        raise SpecError(f'model.loss: wanted a function of scores and labels, "{name}" is none')

    def rows(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        given = labels.to(scores.dtype) if labels.is_floating_point() else labels
        if scores.dim() > 2:
            return torch.stack([_valued(found, point, given) for point in scores])
        return _valued(found, scores, given)

    return _of_rows(rows, labels="any", score="loss")


def _valued(
    loss: Callable[..., Any], scores_BK: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Return a user's loss of each record. Raises InputError."""
    try:
        values = loss(scores_BK, labels)
    except (Exception, SystemExit) as error:  # whatever the user's loss raises is said in one line
        shapes = f"scores {list(scores_BK.shape)} and labels {list(labels.shape)} of {labels.dtype}"
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"model.loss: your loss fails on {shapes} ({text})") from error
    got = list(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
    if got != [len(scores_BK)]:
        mean = (
            "; it seems to return their mean, leave the reduction out"
            if got in ([], "float")
            else ""
        )
        raise InputError(
            f"model.loss: wanted one value a record, [{len(scores_BK)}], got {got}{mean}"
        )
    if torch.is_grad_enabled() and scores_BK.requires_grad and not values.requires_grad:
        raise InputError(
            "model.loss: your loss has no gradient by the scores, which this method takes; compute "
            "it with torch, or use a zeroth-order method"
        )
    return values.to(scores_BK.dtype)


def records_checked(batch: object) -> int:
    """Return on how many records a loss is checked: twice a batch, within bounds; the most for no
    number ("all").
    """
    return min(max(_CHECKED, 2 * batch), MOST_CHECKED) if isinstance(batch, int) else MOST_CHECKED


def check_loss(loss: Loss, labels: torch.Tensor, outputs: int, records: int = _CHECKED) -> None:
    """Refuse a user's loss that mixes records of one made-up batch. Raises InputError, which says
    what to change.

    labels: of some records, as the loss gets them; outputs: K; records: B. A loss that mixes others
    passes.
    """
    labels = labels[torch.arange(records) % len(labels)]
    scores_BK = torch.randn(records, outputs, generator=torch.Generator().manual_seed(0))
    before = scores_BK.clone(), labels.clone()
    values_B = loss.rows(scores_BK, labels)
    if not (torch.equal(scores_BK, before[0]) and torch.equal(labels, before[1])):
        raise InputError(
            "model.loss: your loss changes the scores or labels it is given; work on a copy"
        )
    if not _same(values_B, loss.rows(scores_BK, labels)):
        raise InputError(
            "model.loss: two calls on the same scores differ; leave out what is random"
        )
    others_BK, numbers = scores_BK.roll(1, 0) + 1, torch.arange(records)
    for bit in range((records - 1).bit_length()):
        for value in (0, 1):  # of any two records each changes once while the other stays
            stays = (numbers >> bit & 1) == value
            mixed = torch.where(stays[:, None], scores_BK, others_BK)
            given = labels[torch.where(stays, numbers, numbers.roll(1))]
            if not _same(loss.rows(mixed, given)[stays], values_B[stays]):
                raise InputError(
                    "model.loss: a record's value depends on the other records of its batch; "
                    "compute it from its own scores and label, without statistics over the batch"
                )


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare but for the last bits, which vectorised sums may move with a record's place."""
    return torch.allclose(one, other, rtol=1e-5, atol=1e-7, equal_nan=True)
