"""Orthonormal weights, by the same bits on every machine."""

# E outputs, F inputs

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def orthonormal(weights_EF: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return weights with orthonormal rows, or columns where there are more rows than columns,
    float32 [E, F].

    Gram-Schmidt on the weights given; sums are rounded once (`math.fsum`), as no linear algebra
    library promises.
    """
    wide = weights_EF.shape[0] <= weights_EF.shape[1]
    rest = (weights_EF if wide else weights_EF.T).astype(np.float64)
    for n, row in enumerate(rest):
        row /= math.sqrt(math.fsum(row * row))
        for later in rest[n + 1 :]:
            later -= math.fsum(row * later) * row
    return (rest if wide else rest.T).astype(np.float32)
