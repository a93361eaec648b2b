import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

from raydpzv.data.held_out import limit, with_validation
from raydpzv.data.scaling import encoded, scale, scale_by, standardise
from raydpzv.data.table import Split, Table
from raydpzv.errors import DataError, SpecError
from raydpzv.keys import Key
from tests.helpers.loading import flat, get, refusal

KEY = Key(7)


def images(rows: int, *shape: int) -> Table:
    x = (KEY / "images" / rows).generator().normal(2, 5, (rows, *shape))
    return Table("images", x, np.arange(rows) % 2, 2)


def test_standardise_agrees_with_scikit_learn_and_fits_on_train_only():
    split = Split(flat(3000), flat(50))
    scaler = StandardScaler().fit(split.train.x)
    done = standardise(split)
    np.testing.assert_allclose(done.train.x, scaler.transform(split.train.x), atol=2e-6)
    np.testing.assert_allclose(done.test.x, scaler.transform(split.test.x), atol=2e-6)
    assert done.train.x.dtype == np.float32


def test_unit_agrees_with_scikit_learn():
    split = Split(flat(60), flat(50))
    scaler = MinMaxScaler().fit(split.train.x)
    done = scale(split, "unit")
    np.testing.assert_allclose(done.test.x, scaler.transform(split.test.x), atol=2e-6)
    assert (done.train.x.min(), done.train.x.max()) == (0, 1)


@pytest.mark.parametrize("shape", [(3, 4, 5), (6, 3, 4, 5)])
def test_images_are_standardised_by_channel(shape):
    split = Split(images(30, *shape), images(10, *shape))
    channel = -3
    for c in range(shape[channel]):
        fitted = split.train.x.take(c, axis=channel).astype(np.float64)
        wanted = (split.test.x.take(c, axis=channel) - fitted.mean()) / fitted.std()
        np.testing.assert_allclose(
            standardise(split).test.x.take(c, axis=channel), wanted, atol=1e-5
        )


def test_flat_features_of_views_are_standardised_by_view_and_column():
    done = standardise(Split(images(30, 3, 4), images(10, 3, 4)))
    np.testing.assert_allclose(done.train.x.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(done.train.x.std(axis=0), 1, atol=1e-5)


@pytest.mark.parametrize("how", ["standard", "unit"])
def test_what_is_constant_in_training_becomes_exactly_0(how):
    table = flat()
    table.x[:, 2] = np.float32(0.1)
    test = flat(20)
    done = scale(Split(table, test), how)
    assert (done.train.x[:, 2] == 0).all()
    assert (done.test.x[:, 2] == 0).all()
    assert (done.train.x[:, 1] != 0).any()


@settings(max_examples=60, deadline=None)
@given(
    x=hnp.arrays(np.float32, (7, 3), elements=st.floats(-(2.0**60), 2.0**60, width=32)),
    how=st.sampled_from(["standard", "unit"]),
)
def test_scaling_any_training_rows_gives_bounded_numbers(x, how):
    table = Table("any", x, np.arange(7) % 2, 2)
    bound = np.sqrt(7) if how == "standard" else 1
    assert np.abs(scale(Split(table, table), how).train.x).max() <= bound + 1e-5


def test_scale_names_its_choices():
    split = Split(flat(), flat(50))
    assert scale(split, "none").train.x.dtype == np.float32
    narrow = scale(split, "none")
    assert scale(narrow, "none") is narrow
    np.testing.assert_array_equal(scale(split, "standard").test.x, standardise(split).test.x)
    with refusal(SpecError, 'mean "standard"', "unit, none"):
        scale(split, "standart")


def test_no_scaling_touches_ids_and_rows_keep_their_vocabulary() -> None:
    largest = 2**24 - 1
    split = get("synthetic_reviews", rows=80, classes=2, tokens=6, vocabulary=largest + 1)
    for how in ("standard", "unit", "none"):
        assert scale(split, how) is split
    with pytest.raises(SpecError, match="unknown"):
        scale(split, "log")
    fewer = limit(split, 10, 10, KEY)
    assert fewer.train.vocabulary == largest + 1
    top = Table("top", np.full((2, 1), largest), np.array([0, 1]), 2, vocabulary=largest + 1)
    assert top.x.astype(np.int64).tolist() == [[largest], [largest]], "exact in float32"


# Against scikit-learn's encoder and imputer, fitted on the training rows.

ROWS = 60
CITY = [("Rom", "Oslo", "", "Paris", "10")[i % 5] for i in range(ROWS - 1)] + ["Kiel"]
AGE = ["" if i % 7 == 3 else str(i * i % 31) for i in range(ROWS)]


@pytest.fixture
def split(tmp_path):
    lines = ["age,city,old,label", *(f"{AGE[i]},{CITY[i]},{i},{i % 2}" for i in range(ROWS))]
    (tmp_path / "own.csv").write_text("\n".join(lines) + "\n")
    own = {
        "file": tmp_path / "own.csv",
        "target": "label",
        "categories": ("city",),
        "missing": "mean",
    }
    found = get("csv", test_fraction=0.3, key=Key(4), **own)
    return with_validation(found, 0.2, Key(5))


def test_numbers_are_filled_and_categories_one_hot_by_the_training_rows(split):
    found = encoded(split)
    rows = {
        part: getattr(split, part).x[:, 2].astype(int) for part in ("train", "validation", "test")
    }
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
    found = encoded(
        Split(train, type(test)(test.name, x, test.y, 2, test.features, levels=test.levels))
    )
    width = found.test.shape[0] - 2
    assert not found.test.x[:, 1 : 1 + width].any()
    np.testing.assert_array_equal(found.train.x, encoded(Split(train, test)).train.x)


def test_a_column_without_a_value_in_training_rows_is_refused(split):
    train = split.train
    x = train.x.copy()
    x[:, 0] = math.nan
    empty = type(train)(train.name, x, train.y, 2, train.features, levels=train.levels)
    with pytest.raises(
        DataError, match=r'column "age" of "own.csv" has no value in any training row'
    ):
        encoded(Split(empty, split.test))


def test_a_table_of_numbers_stays_as_it_is():
    split = get("wine")
    assert encoded(split) is split


def column(values, name="t"):
    return Table(name, np.asarray(values, np.float64)[:, None], np.arange(len(values)) % 2, 2)


SECONDS = 1_700_000_000 + np.arange(100)


@pytest.mark.parametrize(
    "values", [SECONDS, 20_000_000 + np.arange(100) % 2, 1 + np.arange(100) / 1e8]
)
def test_columns_are_exact_until_they_are_scaled(values):
    split = Split(column(values), column(values))
    exact = (values - values.mean()) / values.std()
    np.testing.assert_allclose(standardise(split).train.x[:, 0], exact, rtol=1e-6)
    moved = scale_by(split, float(values[0]), float(values.std())).train.x[:, 0]
    np.testing.assert_allclose(moved, (values - values[0]) / values.std(), rtol=1e-6)
    unit = (values - values.min()) / np.ptp(values)
    np.testing.assert_allclose(scale(split, "unit").test.x[:, 0], unit, rtol=1e-6)


@pytest.mark.parametrize(
    "values", [SECONDS, 20_000_000 + np.arange(100) % 2, 1 + np.arange(100) / 1e8]
)
def test_values_that_float32_cannot_tell_apart_are_refused_unscaled(values):
    split = Split(column(values), column(values))
    said = r'column 0 of "t" has values near .* differ by less than float32 holds.*data.scale'
    with pytest.raises(DataError, match=said):
        scale(split, "none")
    with pytest.raises(DataError, match=said):
        scale_by(split, 5.0, 2.0)


@pytest.mark.parametrize(
    "values",
    [
        1_700_000_000 + 86_400 * np.arange(100),
        np.full(100, 1_700_000_001),
        0.1 + np.arange(100) * 1e-17,
        np.arange(100) * 0.1,
        np.concatenate((np.arange(99) * 0.1, [1e30])),
    ],
)
def test_what_float32_holds_well_enough_is_taken_as_it_is(values):
    found = scale(Split(column(values), column(values)), "none").train.x
    assert found[:, 0].tolist() == values.astype(np.float32).tolist()


def test_sums_that_are_equal_but_for_rounding_are_constant():
    parts = (KEY / "parts").generator().dirichlet(np.ones(7), 500)
    values = parts.sum(1)
    assert len(set(values.tolist())) > 1
    split = Split(column(values), column(values))
    assert not standardise(split).train.x.any()
    assert not standardise(Split(column(np.full(500, 0.1)), column(values))).train.x.any()


def test_a_value_that_is_too_large_for_float32_is_refused_wherever_it_shows():
    with refusal(DataError, "inf as float32 in row 2"):
        column([1.0, 2.0, 1e39])
    split = Split(column([1.0, 2.0, 1e38]), column([1.0, 2.0]))
    with refusal(DataError, "inf as float32 in row 2"):
        scale_by(split, 0.0, 1e-3)


def test_refused_rows_are_those_of_the_file():
    table = column([1.0, 2.0, 1e38, 3.0]).select(np.array([3, 2]))
    with refusal(DataError, "inf as float32 in row 2"):
        scale_by(Split(table, table), 0.0, 1e-3)
