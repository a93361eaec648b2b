"""Where an objective gets a batch: from tensors on its device, or from rows that are made when they are asked for."""

# N rows, B rows of a batch

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from raydpzv.data.generated import GeneratedTable
from raydpzv.errors import InputError


class RowReader(Protocol):
    """Gives rows of all clients, by any thread."""

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a record."""
        ...

    def read(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features, float32 [B, ...], and labels, int64 [B] or float64 [B, 2], of rows (whole numbers [B])."""
        ...

    def located(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
        """Return features [N, ...] and labels [N] that have these rows among theirs, and where, int32 [B]."""
        ...


class KeptRows:
    """Rows in memory, shared, not copied, if on `device`. x: float32 [N, ...]; y: int64 [N] or float64 [N, 2]."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, device: torch.device | str = "cpu") -> None:
        if len(x) != len(y):
            raise InputError(f"the objective has {len(x)} rows of features and {len(y)} labels: pair them")
        self._x, self._y = x.to(device), y.to(device)

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self._x.device

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a record."""
        return tuple(self._x.shape[1:])

    def read(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features and labels of some rows."""
        own = np.array(rows, np.int64)  # torch warns of read-only views
        ids = torch.from_numpy(own).to(self.device)
        return self._x.index_select(0, ids), self._y.index_select(0, ids)

    def located(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
        """Return all rows, and these rows' numbers."""
        return self._x, self._y, np.array(rows, np.int32)


class GeneratedRows:
    """Rows that are made at every reading."""

    def __init__(self, table: GeneratedTable, device: torch.device | str = "cpu") -> None:
        self._table, self.shape, self.device = table, table.shape, torch.device(device)

    def read(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features and labels of some rows."""
        x_BF, y_B = self._table.take(rows)
        return torch.from_numpy(x_BF).to(self.device), torch.from_numpy(y_B).to(self.device)

    def located(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
        """Return these rows alone."""
        return *self.read(rows), np.arange(len(rows), dtype=np.int32)
