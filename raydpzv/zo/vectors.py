"""Parameters as what computes with them has them: arrays under compiled kernels, tensors on any
device under torch.

Code that moves or reads parameters uses what arrays and tensors have in common, or what is here, so
that a process without tensors never loads torch.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from raydpzv.lazy_import import torch

Vector = Any
"""float32 [d], contiguous: `numpy.ndarray` or `torch.Tensor`."""


def as_array(x: Vector) -> np.ndarray:
    """Return the numbers as an array: the same memory where they are on the CPU, else a copy
    there.
    """
    return x if isinstance(x, np.ndarray) else cast(np.ndarray, x.numpy(force=True))


def is_vector(x: Vector) -> bool:
    """Return whether x is contiguous float32 [d]."""
    if isinstance(x, np.ndarray):
        return x.ndim == 1 and x.dtype == np.float32 and x.flags.c_contiguous
    return x.dim() == 1 and str(x.dtype) == "torch.float32" and bool(x.is_contiguous())


def on_cpu(x: Vector) -> bool:
    """Return whether the numbers are in this machine's memory."""
    return isinstance(x, np.ndarray) or x.device.type == "cpu"


def copied(x: Vector) -> Vector:
    """Return a copy of the same kind, on the same device."""
    return x.copy() if isinstance(x, np.ndarray) else x.clone()


def assign(x: Vector, values: np.ndarray) -> None:
    """Write values to x."""
    if isinstance(x, np.ndarray):
        x[:] = values
        return
    x.copy_(torch.tensor(values))
