"""Privacy spent by releases of rows: a fold over uploads, by client and record."""

# M clients, D rows, n_i releases of record i's rows, R rows released, S clip

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from raydpzv.privacy.calibration import largest_count
from raydpzv.privacy.gdp import epsilon_of
from raydpzv.privacy.participations import Participations, Rows
from raydpzv.privacy.row_setting import RowSetting


class RowSpending:
    """Counts how often each record's rows were released, and how many rows in all.

    On "embedding" every client has an account of its own (what is protected is one record's features at one client);
    on "gradient" there is one for all, since the others' answers reach a client through the cached embeddings.
    private: is anything proved at all? Else every μ and ε is infinite.
    """

    def __init__(self, setting: RowSetting, *, private: bool) -> None:
        self._setting, self.private = setting, private
        self._own = setting.on == "embedding"
        groups, marks = len(setting.shares) if self._own else 1, np.zeros(setting.rows, np.int64)
        self._records = [Participations(setting.rows, marks) for _ in range(groups)]
        self._rows, self._uploads = [0] * groups, [0] * groups
        self.rows = self.uploads = 0  # rows, and batches (once or several times), of the account with most
        self.releases = self.participations = 0
        self._ceilings: dict[tuple[str, float], int] = {}

    def add(self, client: int, ids: Rows, releases: int) -> None:
        """Count so many releases of these rows. Raises InputError for a row twice or outside 0..D-1."""
        group = client if self._own else 0
        records = self._records[group]
        records.add(ids, releases)
        self._rows[group] += releases * len(ids)
        self._uploads[group] += 1
        self.rows, self.uploads = max(self.rows, self._rows[group]), max(self.uploads, self._uploads[group])
        self.releases += releases
        self.participations = max(self.participations, records.most)

    def state(self) -> dict[str, Any]:
        """Return what another account of the same setting goes on from."""
        counts = (self.rows, self.uploads, self.releases, self.participations)
        return {
            "counts": counts,
            "accounts": list(zip(self._rows, self._uploads, strict=True)),
            "records": [records.counts.copy() for records in self._records],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of another account."""
        # those of before have a batch's size after these, on which no bound hangs
        self.rows, self.uploads, self.releases, self.participations = state["counts"][:4]
        self._rows = [rows for rows, _ in state["accounts"]]
        self._uploads = [uploads for _, uploads in state["accounts"]]
        for records, counts in zip(self._records, state["records"], strict=True):
            records.restore(counts)

    def mu(self) -> float:
        """Return μ of what is proved so far against the adversary the noise is meant for; infinity if nothing is."""
        if not self.private:
            return math.inf if self.participations else 0.0
        return proved_mu(self._setting, self.participations, self.rows)

    def paper_mu(self) -> float:
        """Return μ of what the calibration's argument claims so far; infinity if nothing is proved."""
        return claimed_mu(self._setting, self.participations, self.uploads) if self.private else math.inf

    def epsilon(self) -> float:
        """Return what is proved so far against the adversary the noise is meant for; infinity if nothing is."""
        mu = self.mu()
        return epsilon_of(mu, self._setting.delta) if self.private else mu

    def would_exceed(self, client: int, ids: Rows, releases: int, budget: float, adversary: str) -> bool:
        """Tell before rows are released whether ε would pass the budget; always, for one the noise is not meant for."""
        group = client if self._own else 0
        n = max(self.participations, self._records[group].after(ids, releases))
        if adversary == "paper" and self.private:
            uploads = max(self.uploads, self._uploads[group] + 1)
            count = n if self._setting.calibration == "counted" else uploads
            return count > self._ceiling(adversary, budget)
        if adversary != self._setting.adversary:
            return True
        if not self.private:
            return n > 0
        rows = max(self.rows, self._rows[group] + releases * len(ids))
        return (rows if self._setting.hidden else n) > self._ceiling(adversary, budget)

    def _ceiling(self, adversary: str, budget: float) -> int:
        """The largest count that the budget allows: solved for once, so that each upload is one comparison."""
        if (adversary, budget) not in self._ceilings:
            of = claimed_mu if adversary == "paper" else proved_mu
            self._ceilings[adversary, budget] = largest_count(
                lambda count: (
                    epsilon_of(of(self._setting, count, count), self._setting.delta) <= budget * (1 + 1e-9)
                )
            )
        return self._ceilings[adversary, budget]


def claimed_mu(setting: RowSetting, participations: int, uploads: int) -> float:
    """Return μ by the calibration's own argument: 2S√n/σ, or 2S (B/D) √K/σ with K releases of batches."""
    if setting.calibration == "counted":
        return setting.sensitivity * math.sqrt(participations) / setting.sigma
    rate = setting.batch / setting.rows
    return setting.sensitivity * rate * math.sqrt(uploads * setting.per_upload) / setting.sigma


def proved_mu(setting: RowSetting, participations: int, rows: int) -> float:
    """Return μ that is proved: 2S√n/σ, or with hidden state 2S√R/σ, since then every row may move by 2S.

    Infinity for hidden state behind noised embeddings: those of held-out rows show it to the server without noise.
    """
    if setting.hidden and setting.on == "embedding":
        return math.inf
    return setting.sensitivity * math.sqrt(rows if setting.hidden else participations) / setting.sigma
