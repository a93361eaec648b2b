"""Directions for tensors that live on an accelerator: made there by Triton if it is installed, else
sent there.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import numpy as np

from raydpzv.lazy_import import torch
from raydpzv.zo import kernels
from raydpzv.zo.vectors import Vector

_COPY = 1 << 22
"""Elements made at a time on the CPU for parameters that live on another device: 16 MiB."""


def subtract(
    out: torch.Tensor,
    x: torch.Tensor,
    seeds: np.ndarray,
    coefficients: np.ndarray,
    start: int,
    law: str,
) -> None:
    """Write x - Σ_j coefficients[j] · z_j[start : start + n] to `out` (may be x), with the bits of
    the CPU.

    out, x: contiguous float32 [n]; seeds: uint64 [k]; coefficients: float32 [k]; law: "gaussian" or
    "rademacher".
    """
    if makes(x):
        triton().subtract(out, x, seeds, coefficients, start, law)
        return
    made_on_cpu(out, x, seeds, coefficients, start, law)


def makes(x: Vector) -> bool:
    """Return whether directions for x are made where it lives, which is not the CPU."""
    return not isinstance(x, np.ndarray) and x.is_cuda and has_triton()


def triton() -> Any:
    """Return the module of Triton's kernels."""
    return importlib.import_module("raydpzv.zo.triton_kernel")


@cache
def has_triton() -> bool:
    """Return whether Triton can be imported (it comes with torch's CUDA wheels)."""
    return importlib.util.find_spec("triton") is not None


def made_on_cpu(
    out: torch.Tensor,
    x: torch.Tensor,
    seeds: np.ndarray,
    coefficients: np.ndarray,
    start: int,
    law: str,
) -> None:
    """`subtract` with elements made on the CPU and sent piece by piece to where x lives."""
    add = kernels.add_direction if law == "gaussian" else kernels.add_signs
    if out is not x:
        out.copy_(x)
    for first in range(0, x.numel(), _COPY):
        piece = out[first : first + _COPY]
        for seed, coefficient in zip(seeds, coefficients, strict=True):
            z = np.zeros(piece.numel(), np.float32)
            add(z, z, seed, np.float32(1), start + first)
            piece.sub_(torch.from_numpy(z).to(x.device).mul_(float(coefficient)))


def subtract_products(
    x: torch.Tensor, rows: np.ndarray, columns: np.ndarray, scales: np.ndarray, start: int
) -> None:
    """`raydpzv.zo.numba_kernel.subtract_products` where x lives, with the same bits; products take
    16 MiB at most.
    """
    width = columns.shape[1]
    most = max(1, _COPY // width)
    b_kn = torch.from_numpy(columns).to(x.device)
    a_km = torch.from_numpy(scales[:, None] * rows).to(x.device)
    for top in range(start // width, rows.shape[1], most):
        first = top * width - start
        cut = max(0, -first)
        piece = x[first + cut : first + most * width]
        for a_m, b_n in zip(a_km[:, top : top + most], b_kn, strict=True):
            piece.sub_(torch.outer(a_m, b_n).view(-1)[cut : cut + piece.numel()])
