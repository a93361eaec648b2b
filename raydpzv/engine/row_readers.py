"""Sources of an objective's batches: rows in memory, or rows that are generated on request.

torch's objective reads tensors, compiled kernels arrays, and a process in which nobody reads
tensors loads no torch.
"""

# N rows, B rows of a batch

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from raydpzv.data.generated import GeneratedTable
from raydpzv.errors import InputError
from raydpzv.lazy_import import torch
from raydpzv.zo.vectors import as_array


class RowReader(Protocol):
    """Rows of all clients, for any thread."""

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a record."""
        ...

    def read(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features, float32 [B, ...], and labels, int64 [B] or float64 [B, 2], of rows
        (whole numbers [B]).
        """
        ...

    def located(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return features [N, ...] and labels [N] that have these rows among theirs, and where,
        int32 [B].
        """
        ...


class KeptRows:
    """Rows in memory, shared, not copied, if on `device`.

    x: float32 [N, ...]; y: int64 [N] or float64 [N, 2]; arrays, which may be read-only, or tensors.
    """

    def __init__(self, x: Any, y: Any, device: torch.device | str = "cpu") -> None:
        if len(x) != len(y):
            raise InputError(
                f"the objective has {len(x)} rows of features and {len(y)} labels: pair them"
            )
        self._x, self._y, self._device = x, y, device

    @cached_property
    def device(self) -> torch.device:
        return torch.device(self._device)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._x.shape[1:])

    def read(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        own = np.array(rows, np.int64)  # torch warns of read-only views
        ids = torch.from_numpy(own).to(self.device)
        x, y = self._tensors
        return x.index_select(0, ids), y.index_select(0, ids)

    def located(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return all rows, and these rows' numbers."""
        return as_array(self._x), as_array(self._y), np.array(rows, np.int32)

    @cached_property
    def _tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        return shared_tensor(self._x).to(self.device), shared_tensor(self._y).to(self.device)


class GeneratedRows:
    """Rows that are made at every reading."""

    def __init__(self, table: GeneratedTable, device: torch.device | str = "cpu") -> None:
        self._table, self.shape, self._device = table, table.shape, device

    @cached_property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return torch.device(self._device)

    def read(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features and labels of some rows."""
        x_BF, y_B = self._table.rows_at(rows)
        return torch.from_numpy(x_BF).to(self.device), torch.from_numpy(y_B).to(self.device)

    def located(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return these rows alone."""
        return *self._table.rows_at(rows), np.arange(len(rows), dtype=np.int32)


def shared_tensor(rows: Any) -> torch.Tensor:
    """Return a tensor of the same memory, which may belong to others and be read-only: data is
    never written to.
    """
    if isinstance(rows, torch.Tensor):
        return rows
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(rows)
