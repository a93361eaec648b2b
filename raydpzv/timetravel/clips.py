"""How many records a clip cut in each upload, counted while a server serves the recorded order once
more.
"""

# B batch, P directions

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from raydpzv.engine.split_model import Top, TwoPointService
from raydpzv.privacy.integer_release import IntegerRelease
from raydpzv.wire.messages import PerturbedEmbeddings

Cut = Callable[[np.ndarray], np.ndarray]
"""Which records, bool [B], a clip cuts, given their slopes, float64 [P, B]."""


def cut_by(clip: float, integers: IntegerRelease | None) -> Cut:
    """Return whom a clip cuts: who has a slope beyond C, or a vector of slopes beyond C√P; what is
    not finite is 0.
    """

    def cut(slopes_PB: np.ndarray) -> np.ndarray:
        if integers is not None and integers.over == "vector":
            return np.asarray(np.sqrt((slopes_PB * slopes_PB).sum(0)) > integers.limit)
        return np.asarray((np.abs(slopes_PB) > clip).any(0))

    return cut


class CountedTop:
    """A top model that remembers the slopes of the upload that is served."""

    def __init__(self, top: Top, cut: Cut) -> None:
        self._top, self._cut = top, cut
        self._slopes: list[np.ndarray] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._top, name)

    def two_point(
        self, client: int, body: PerturbedEmbeddings, round: int, *, smoothing: float, clip: float
    ) -> TwoPointService:
        """Serve as the model does, after its slopes have been asked for: the service changes head
        and cache.
        """
        for plus_BE, minus_BE in zip(body.plus, body.minus, strict=True):
            self.row_slopes(client, body.ids, plus_BE, minus_BE, smoothing)
        return self._top.two_point(client, body, round, smoothing=smoothing, clip=clip)

    def row_slopes(self, *query: Any) -> np.ndarray:
        """Return the slopes, float32 [B]."""
        found = self._top.row_slopes(*query)
        self._slopes.append(found)
        return found

    def taken(self) -> int:
        """Return how many records were cut since the last call."""
        slopes, self._slopes = self._slopes, []
        if not slopes or not len(slopes[0]):
            return 0
        slopes_PB = np.stack(slopes).astype(np.float64)
        finite_B = np.isfinite(slopes_PB).all(0)
        return int(self._cut(np.where(finite_B, slopes_PB, 0.0)).sum())
