"""What every vertical method has: batches, and a head that learns."""

from __future__ import annotations

from typing import Literal

from raydpzv.settings.fields import Count, Momentum, Positive, Section


class Batched(Section):
    """Settings that all vertical methods share."""

    batch: Count = 64
    """Rows per upload, B."""
    batches: Literal["shuffle", "uniform", "poisson"] = "shuffle"
    """Permuted epochs, without replacement within a batch, or one coin per row with probability B/D."""
    server_lr: Positive = 0.02
    """Step size of the head; its own two-point step (server = "zo") wants a tenth of this."""
    server_momentum: Momentum = 0.9
    """Momentum of the head."""
