"""Against scikit-learn's encoder and imputer, fitted on the training rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from raydpzv.data.held_out import with_validation
from raydpzv.data.scaling import encoded
from raydpzv.data.table import Split
from raydpzv.errors import DataError
from raydpzv.keys import Key
from tests.helpers.loading import get

ROWS = 60
CITY = [("Rom", "Oslo", "", "Paris", "10")[i % 5] for i in range(ROWS - 1)] + ["Kiel"]
AGE = ["" if i % 7 == 3 else str(i * i % 31) for i in range(ROWS)]


@pytest.fixture
def split(tmp_path):
    lines = ["age,city,old,label", *(f"{AGE[i]},{CITY[i]},{i},{i % 2}" for i in range(ROWS))]
    (tmp_path / "own.csv").write_text("\n".join(lines) + "\n")
    own = {"file": tmp_path / "own.csv", "target": "label", "categories": ("city",), "missing": "mean"}
    found = get("csv", test_fraction=0.3, key=Key(4), **own)
    return with_validation(found, 0.2, Key(5))


def test_numbers_are_filled_and_categories_one_hot_by_the_training_rows(split):
    found = encoded(split)
    rows = {part: getattr(split, part).x[:, 2].astype(int) for part in ("train", "validation", "test")}
    city = {part: np.array([[CITY[i] or None] for i in ids], object) for part, ids in rows.items()}
    age = {part: np.array([[float(AGE[i] or math.nan)] for i in ids]) for part, ids in rows.items()}
    there = sorted({c for c in city["train"].ravel() if c})
    one_hot = OneHotEncoder(categories=[there], handle_unknown="ignore", sparse_output=False).fit(
        city["train"]
    )
    mean = SimpleImputer().fit(age["train"])
    for part, ids in rows.items():
        wanted = np.hstack([mean.transform(age[part]), one_hot.transform(city[part]), ids[:, None]])
        assert getattr(found, part).x == pytest.approx(wanted, rel=1e-6)
        assert getattr(found, part).features == ("age", *["city"] * len(there), "old")
    assert found.train.levels is None


def test_a_level_of_no_training_row_is_nothing_there_and_does_not_move_them(split):
    """The control: a level that test rows alone have makes no column."""
    train, test = split.train, split.test
    alone = int(train.levels[1])  # a code that nobody has
    x = test.x.copy()
    x[:, 1] = alone
    found = encoded(Split(train, type(test)(test.name, x, test.y, 2, test.features, levels=test.levels)))
    width = found.test.shape[0] - 2
    assert not found.test.x[:, 1 : 1 + width].any()
    np.testing.assert_array_equal(found.train.x, encoded(Split(train, test)).train.x)


def test_a_column_without_a_value_in_training_rows_is_refused(split):
    train = split.train
    x = train.x.copy()
    x[:, 0] = math.nan
    empty = type(train)(train.name, x, train.y, 2, train.features, levels=train.levels)
    with pytest.raises(DataError, match=r'column "age" of "own.csv" has no value in any training row'):
        encoded(Split(empty, split.test))


def test_a_table_of_numbers_stays_as_it_is():
    split = get("wine")
    assert encoded(split) is split
