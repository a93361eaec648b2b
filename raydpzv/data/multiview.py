"""Reader for objects seen from several sides, such as ModelNet40's twelve views: one NumPy archive (.npz)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from raydpzv.data.files import one_line
from raydpzv.data.npz import count_classes, read_arrays
from raydpzv.data.table import Split, Table


def read_npz(file: Path) -> Table | Split:
    """Return the arrays x [D, V, ...] and y [D] (0..classes-1) of an archive.

    x_test and y_test are test rows if they are there. uint8 values are taken
    for pixels and divided by 255. Raises DataError.
    """
    arrays = read_arrays(file, range(3, 65), "views want [D, V, ...], one axis more than a flat table")
    name, classes = one_line(file.name), count_classes(arrays)
    train = Table(name, _unit_pixels(arrays["x"]), arrays["y"], classes)
    if "x_test" not in arrays:
        return train
    return Split(train, Table(name, _unit_pixels(arrays["x_test"]), arrays["y_test"], classes))


def _unit_pixels(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x
