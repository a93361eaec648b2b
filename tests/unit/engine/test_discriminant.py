"""The head in closed form: against scikit-learn's without noise, and with the noise's covariance
taken off.
"""

# N rows, F features, K classes

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from raydpzv.engine.discriminant import discriminant
from raydpzv.keys import Key

N, F, K = 60_000, 5, 3
GENERATOR = (Key(3) / "discriminant").generator()
SPREAD = np.diag([2.0, 1.0, 0.7, 1.0, 1.5]) @ np.linalg.qr(GENERATOR.standard_normal((F, F)))[0]
MEANS = GENERATOR.standard_normal((K, F)) + 4
CLASSES = GENERATOR.choice(K, N, p=[0.5, 0.3, 0.2])
ROWS = MEANS[CLASSES] + GENERATOR.standard_normal((N, F)) @ SPREAD


def exact_scores(rows_NF: np.ndarray) -> np.ndarray:
    """Log-posteriors up to what classes share, by the law the rows were drawn from."""
    precision = np.linalg.inv(SPREAD.T @ SPREAD)
    away_NKF = rows_NF[:, None] - MEANS
    return np.log([0.5, 0.3, 0.2]) - np.einsum("nkf,fg,nkg->nk", away_NKF, precision, away_NKF) / 2


def scores(found: tuple[np.ndarray, np.ndarray] | None, rows_NF: np.ndarray) -> np.ndarray:
    return rows_NF @ found[0].T + found[1]


def off(found: np.ndarray, wanted: np.ndarray) -> float:
    """Root mean square of what differs between classes' scores."""
    centred = [s - s.mean(1, keepdims=True) for s in (found, wanted)]
    return float(np.sqrt(np.mean((centred[0] - centred[1]) ** 2)))


def test_without_noise_it_is_the_discriminant_that_others_know() -> None:
    found = discriminant(ROWS.astype(np.float32), CLASSES, K, 0.0)
    known = LinearDiscriminantAnalysis().fit(ROWS, CLASSES)
    assert off(scores(found, ROWS[:500]), known.decision_function(ROWS[:500])) < 0.01
    assert np.mean(scores(found, ROWS).argmax(1) == known.predict(ROWS)) > 0.999


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_the_noises_covariance_is_taken_off(sigma: float) -> None:
    noised = (ROWS + sigma * GENERATOR.standard_normal(ROWS.shape)).astype(np.float32)
    wanted = exact_scores(ROWS[:500])
    found = off(scores(discriminant(noised, CLASSES, K, sigma**2), ROWS[:500]), wanted)
    left_in = off(scores(discriminant(noised, CLASSES, K, 0.0), ROWS[:500]), wanted)
    assert found < 0.25 * left_in, "control: the covariance left in"


def test_few_rows_with_much_noise_are_scored_better_than_by_plain_estimates() -> None:
    """75 rows a class would be plenty without noise; estimates are drawn to what can be told."""
    generator = (Key(4) / "few").generator()
    means = generator.standard_normal((4, 60)) * 0.2
    shrunk, plain = [], []
    for _ in range(10):
        classes, asked = generator.integers(0, 4, 300), generator.integers(0, 4, 1000)
        noised = means[classes] + 2 * generator.standard_normal((300, 60))
        clean = means[asked] + 0.3 * generator.standard_normal((1000, 60))
        found = discriminant(noised.astype(np.float32), classes, 4, 4.0)
        shrunk.append(np.mean(scores(found, clean).argmax(1) == asked))
        plain.append(
            np.mean(LinearDiscriminantAnalysis().fit(noised, classes).predict(clean) == asked)
        )
    assert np.mean(shrunk) > np.mean(plain) + 0.05


def test_a_class_without_rows_is_not_chosen_where_others_have_many() -> None:
    found = discriminant(ROWS.astype(np.float32), CLASSES, K + 1, 0.0)
    assert set(scores(found, ROWS).argmax(1)) == {0, 1, 2}


@pytest.mark.parametrize(
    "rows",
    [np.zeros((0, F)), np.ones((K, F)), np.ones((50, F))],
    ids=["none", "as many as classes", "all the same"],
)
def test_where_nothing_can_be_told_there_is_no_head(rows: np.ndarray) -> None:
    classes = np.arange(len(rows)) % K
    assert discriminant(rows.astype(np.float32), classes, K, 0.0) is None


def test_rows_in_fewer_dimensions_than_they_have_are_scored() -> None:
    flat = np.concatenate([ROWS, ROWS @ GENERATOR.standard_normal((F, F))], axis=1).astype(
        np.float32
    )
    found = scores(discriminant(flat, CLASSES, K, 0.0), flat)
    assert np.isfinite(found).all()
    assert (
        np.mean(
            found.argmax(1)
            == scores(discriminant(ROWS.astype(np.float32), CLASSES, K, 0.0), ROWS).argmax(1)
        )
        > 0.95
    )
