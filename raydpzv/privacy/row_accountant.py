"""Privacy spent by releases of rows: a fold over uploads, by client and record."""

# M clients, D rows, n_i releases of record i's rows, R rows released, S clip

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from raydpzv.errors import InputError
from raydpzv.privacy.gdp import epsilon_of
from raydpzv.privacy.row_setting import RowSetting


class RowSpending:
    """Counts how often each record's rows were released, and how many rows in all.

    On "embedding" every client has an account of its own (what is protected is one record's features at one client);
    on "gradient" there is one for all, since the others' answers reach a client through the cached embeddings.
    """

    def __init__(self, setting: RowSetting, *, private: bool) -> None:
        self._setting, self._private = setting, private
        self._own = setting.on == "embedding"
        groups = len(setting.shares) if self._own else 1
        self._counts: npt.NDArray[np.int64] = np.zeros((groups, setting.rows), np.int64)
        self._rows, self._uploads = [0] * groups, [0] * groups
        self.releases = self.participations = 0
        self.largest_batch = 0

    @property
    def rows(self) -> int:
        """Rows released, of the account with most."""
        return max(self._rows)

    @property
    def uploads(self) -> int:
        """Batches released (once or several times), of the account with most."""
        return max(self._uploads)

    def add(self, client: int, ids: npt.NDArray[np.int64], releases: int) -> None:
        """Count so many releases of these rows. Raises InputError for a row twice or outside 0..D-1."""
        if ids.size and (ids.min() < 0 or ids.max() >= self._setting.rows or len(np.unique(ids)) < len(ids)):
            raise InputError(
                f"released rows must be distinct and lie in 0..{self._setting.rows - 1}: draw distinct rows"
            )
        group = client if self._own else 0
        counts = self._counts[group]
        counts[ids] += releases
        self._rows[group] += releases * len(ids)
        self._uploads[group] += 1
        self.releases += releases
        self.participations = max(self.participations, int(counts[ids].max(initial=0)))
        self.largest_batch = max(self.largest_batch, len(ids))

    def epsilon(self) -> float:
        """Return what is proved so far against the adversary the noise is meant for; infinity if nothing is."""
        return self._proved(self.participations, self.rows)

    def claimed(self) -> float:
        """Return what the calibration's argument claims so far."""
        if not self._private:
            return math.inf
        mu = claimed_mu(self._setting, self.participations, self.uploads)
        return epsilon_of(mu, self._setting.delta)

    def would_exceed(
        self, client: int, ids: npt.NDArray[np.int64], releases: int, budget: float, adversary: str
    ) -> bool:
        """Tell before rows are released whether ε would pass the budget; always, for one the noise is not meant for."""
        group = client if self._own else 0
        count = int(self._counts[group][ids].max(initial=0)) + releases
        n, rows = max(self.participations, count), max(self.rows, self._rows[group] + releases * len(ids))
        if adversary == "paper" and self._private:
            mu = claimed_mu(self._setting, n, max(self.uploads, self._uploads[group] + 1))
            return epsilon_of(mu, self._setting.delta) > budget * (1 + 1e-9)
        return adversary != self._setting.adversary or self._proved(n, rows) > budget * (1 + 1e-9)

    def _proved(self, participations: int, rows: int) -> float:
        if not self._private:
            return math.inf if participations else 0.0
        return epsilon_of(proved_mu(self._setting, participations, rows), self._setting.delta)


def claimed_mu(setting: RowSetting, participations: int, uploads: int) -> float:
    """Return μ by the calibration's own argument: 2S√n/σ, or 2S (B/D) √K/σ with K releases of batches."""
    if setting.calibration == "counted":
        return setting.sensitivity * math.sqrt(participations) / setting.sigma
    rate = setting.batch / setting.rows
    return setting.sensitivity * rate * math.sqrt(uploads * setting.per_upload) / setting.sigma


def proved_mu(setting: RowSetting, participations: int, rows: int) -> float:
    """Return μ that is proved: 2S√n/σ, or with hidden state 2S√R/σ, since then every row may move by 2S."""
    return setting.sensitivity * math.sqrt(rows if setting.hidden else participations) / setting.sigma
