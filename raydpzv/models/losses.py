"""Losses by name: what a head or a whole model is trained on."""

# B rows, K classes, P points in parameter space

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Loss:
    """One loss in the three forms that training needs.

    rows: (scores [B, K], labels [B]) to [B]; mean: to their mean, a number; at_points: (scores [..., B, K], labels [B])
    to float64 [..., B], for finite differences, which divide rounding noise by the smoothing radius.
    """

    rows: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    mean: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    at_points: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _rows(scores_BK: torch.Tensor, labels_B: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(scores_BK, labels_B, reduction="none")


def _mean(scores_BK: torch.Tensor, labels_B: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(scores_BK, labels_B)


def _at_points(scores_PBK: torch.Tensor, labels_B: torch.Tensor) -> torch.Tensor:
    log_PBK = scores_PBK.double().log_softmax(-1)
    return -log_PBK.gather(-1, labels_B.expand(scores_PBK.shape[:-1]).unsqueeze(-1)).squeeze(-1)


cross_entropy = Loss(_rows, _mean, _at_points)
"""The negative logarithm of the true class' softmax."""
