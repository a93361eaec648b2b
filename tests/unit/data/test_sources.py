from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raydpzv.data.builtin import Mixture
from raydpzv.errors import SpecError
from raydpzv.keys import Key
from raydpzv.registry import DATA_SOURCES
from tests.helpers.loading import get, refusal


@pytest.mark.parametrize(
    ("name", "shape", "classes", "rows"),
    [("digits", (1, 8, 8), 10, 1797), ("breast_cancer", (30,), 2, 569), ("wine", (13,), 3, 178)],
)
def test_built_in_sets(name, shape, classes, rows):
    split = get(name)
    assert split.train.x.shape[1:] == shape
    assert split.train.classes == classes
    assert split.train.rows + split.test.rows == rows
    assert split.test.rows == -(-rows // 4)
    assert len(split.train.features) == (shape[0] if len(shape) == 1 else 0)


def test_digits_are_in_0_to_1():
    x = get("digits").train.x
    assert (x.min(), x.max()) == (0, 1)


def test_synthetic_has_the_size_asked_for_and_follows_its_key():
    mixture = Mixture(rows=301, columns=5, classes=4, separation=3.0)
    split = get("synthetic", mixture=mixture)
    assert split.train.x.shape[1:] == (5,)
    assert split.train.rows + split.test.rows == 301
    counts = np.bincount(split.train.y) + np.bincount(split.test.y)
    assert counts.max() - counts.min() <= 1
    np.testing.assert_array_equal(split.train.x, get("synthetic", mixture=mixture).train.x)
    assert not np.array_equal(split.train.x, get("synthetic", mixture=mixture, key=Key(4)).train.x)


def test_synthetic_classes_are_gaussians_of_unit_covariance_about_their_centres():
    split = get("synthetic", mixture=Mixture(rows=8000, columns=3, classes=2, separation=3.0))
    points = [split.train.x[split.train.y == c] for c in range(2)]
    for cloud in points:
        np.testing.assert_allclose(np.cov(cloud.T), np.eye(3), atol=0.12)
    assert np.linalg.norm(points[0].mean(axis=0) - points[1].mean(axis=0)) > 1
    apart = get("synthetic", mixture=Mixture(rows=8000, columns=3, classes=2, separation=0.0)).train
    gap = apart.x[apart.y == 0].mean(axis=0) - apart.x[apart.y == 1].mean(axis=0)
    assert np.abs(gap).max() < 5 * np.sqrt(4 / 6000)


@pytest.mark.parametrize(
    "wrong", [{"classes": 1}, {"columns": 0}, {"rows": 5}, {"separation": -1.0}, {"separation": float("nan")}]
)
def test_a_mixture_that_makes_no_data_is_refused(wrong):
    with refusal(SpecError, "synthetic data", "choose"):
        Mixture(**wrong)


def test_every_source_says_what_it_is_and_where_it_comes_from():
    assert list(DATA_SOURCES) == [
        "digits", "breast_cancer", "wine", "mnist", "mnist5k", "fashion_mnist", "cifar10", "csv", "parquet",
        "multiview",
        "synthetic", "synthetic_clients", "mimic3", "synthetic_series", "amazon_polarity", "tokens",
        "synthetic_reviews", "survival", "synthetic_survival", "creditcard", "heart_disease", "tcga_brca",
    ]  # fmt: skip
    for source in DATA_SOURCES.values():
        assert source.about
        assert source.home
        assert "\n" not in source.about + source.home
        assert set(source.needs) <= {"folder", "file", "target", "time"}


def test_settings_that_lack_or_do_not_belong():
    with refusal(SpecError, 'mean "fashion_mnist"', "synthetic"):
        get("fashion-mnist")
    with refusal(SpecError, '"mnist" needs a folder', "LeCun"):
        get("mnist")
    with refusal(SpecError, '"csv" needs a target'):
        get("csv", file=Path("own.csv"))
    with refusal(SpecError, '"digits" takes no folder', "none of folder, file and target"):
        get("digits", Path("somewhere"))
    with refusal(SpecError, '"cifar10" takes no target', "it takes folder"):
        get("cifar10", Path("somewhere"), target="kind")
