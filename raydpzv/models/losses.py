"""Losses by name: what a head or a whole model is trained on."""

# B rows, K classes, P points in parameter space; t times, E events, s scores

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raydpzv.lazy_import import torch


@dataclass(frozen=True)
class Loss:
    """One loss in the three forms that training needs.

    rows: (scores [B, K], labels [B]) to [B]; mean: to their mean, a number; at_points: (scores [..., B, K], labels [B])
    to float64 [..., B], for finite differences, which divide rounding noise by the smoothing radius. outputs: scores of
    a record, None: one per class. by_record: a record's term is a function of its own score and label alone.
    """

    rows: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    mean: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    at_points: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    outputs: int | None = None
    by_record: bool = True


def _rows(scores_BK: torch.Tensor, labels_B: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(scores_BK, labels_B, reduction="none")


def _mean(scores_BK: torch.Tensor, labels_B: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(scores_BK, labels_B)


def _at_points(scores_PBK: torch.Tensor, labels_B: torch.Tensor) -> torch.Tensor:
    log_PBK = scores_PBK.double().log_softmax(-1)
    return -log_PBK.gather(-1, labels_B.expand(scores_PBK.shape[:-1]).unsqueeze(-1)).squeeze(-1)


cross_entropy = Loss(_rows, _mean, _at_points)
"""The negative logarithm of the true class' softmax."""


def _risks(scores_PB1: torch.Tensor, targets_B2: torch.Tensor) -> torch.Tensor:
    """E_i (log Σ_{j: t_j >= t_i} exp(s_j - s_i)) of every record, float64 [..., B]; ties share their risk set."""
    times_B, events_B = targets_B2.double().unbind(-1)
    order_B = torch.argsort(times_B, descending=True, stable=True)
    falling_B = times_B[order_B]
    scores_PB = scores_PB1.squeeze(-1).double()[..., order_B]
    # where times fall, the last record of a tie has seen its whole risk set
    last_B = torch.searchsorted(-falling_B, -falling_B, right=True) - 1
    terms_PB = events_B[order_B] * (torch.logcumsumexp(scores_PB, -1)[..., last_B] - scores_PB)
    return terms_PB[..., torch.argsort(order_B)]


cox = Loss(_risks, lambda scores, targets: _risks(scores, targets).mean(), _risks, outputs=1, by_record=False)
"""The negative logarithm of Cox's partial likelihood over a batch's records, of which the censored ones count too.

Labels are times and events (1: one, 0: censored), float64 [B, 2]; one score a record, a higher one for an earlier
event. A batch without an event has the loss 0. Source: Cox, "Regression models and life-tables" (1972); ties by Breslow
(1974).
"""
