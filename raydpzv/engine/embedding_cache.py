"""The server's table of the newest embedding of every row by every client: stale by nature."""

# M clients, D rows, B batch, E embedding width

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from raydpzv.engine.split_model import AGE_BINS, COUNTED, Ages, older_rows


class EmbeddingCache:
    """Newest uploaded embeddings [D, M, E]; rows never uploaded are zero."""

    def __init__(
        self, rows: int, clients: int, width: int, device: torch.device | str = "cpu"
    ) -> None:
        self._values_DME = torch.zeros(rows, clients, width, device=device)
        # server round of the last refresh, 0 = never
        self._refreshed_DM = np.zeros((rows, clients), np.int64)

    def put(self, client: int, ids: np.ndarray, values_BE: torch.Tensor, round: int) -> None:
        """Store what the client uploaded in this server round (counted from 1)."""
        self._values_DME[torch.from_numpy(ids).long(), client] = values_BE
        self._refreshed_DM[ids, client] = round

    def complete(self) -> np.ndarray:
        """Return the rows that every client has uploaded."""
        return np.flatnonzero(self._refreshed_DM.all(1))

    def get(self, ids: np.ndarray) -> torch.Tensor:
        """Return a copy of the newest embeddings of these rows, [B, M, E]."""
        return self._values_DME[torch.from_numpy(ids).long()]

    def state(self) -> dict[str, Any]:
        """Return copies of the embeddings, float32 [D, M, E], and of when each was refreshed, int64
        [D, M].
        """
        return {
            "embeddings": self._values_DME.cpu().numpy().copy(),
            "refreshed": self._refreshed_DM.copy(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over another cache's state."""
        self._values_DME.copy_(torch.tensor(state["embeddings"]))
        self._refreshed_DM[:] = state["refreshed"]

    def older(self, ids: np.ndarray, round: int, limit: int, serving: int) -> dict[int, np.ndarray]:
        """Return, for each other client with any, the rows among these that are older than `limit`
        rounds.
        """
        return older_rows(self._refreshed_DM, ids, round, limit, serving)

    def ages(self, ids: np.ndarray, round: int, serving: int) -> Ages:
        """Return how old the other clients' entries for these rows are, in server rounds."""
        refreshed_BM = self._refreshed_DM[ids]
        known_BM = refreshed_BM > 0
        ages_BM = np.where(known_BM, round - refreshed_BM, 0)
        clients = refreshed_BM.shape[1]
        # frexp's exponent is the bin: 0 for age 0, k for ages 2^(k-1) .. 2^k - 1
        bins_BM = np.minimum(np.frexp(ages_BM)[1], AGE_BINS - 1) + AGE_BINS * np.arange(clients)
        counts = np.bincount(bins_BM[known_BM], minlength=AGE_BINS * clients).reshape(
            clients, AGE_BINS
        )
        found = np.empty((clients, COUNTED + AGE_BINS), np.int64)
        found[:, :3] = round, 0, len(ids)
        found[:, 1], found[:, 3] = np.arange(clients), len(ids) - known_BM.sum(0)
        found[:, 4], found[:, 5] = ages_BM.sum(0), ages_BM.max(0, initial=0)
        found[:, COUNTED:] = counts
        return np.delete(found, serving, 0)
