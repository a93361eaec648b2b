from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from raydpzv.data.table import Split, Table, limit, scale, standardise, stratified_split, with_validation
from raydpzv.errors import DataError, SpecError
from raydpzv.keys import Key
from tests.helpers.loading import get, refusal

KEY = Key(7)


def flat(rows: int = 60, columns: int = 4, classes: int = 3, name: str = "here") -> Table:
    generator = (KEY / "flat" / rows).generator()
    x = generator.normal(5, 3, (rows, columns)) * 10.0 ** -np.arange(columns)
    return Table(name, x, np.arange(rows) % classes, classes)


def images(rows: int, *shape: int) -> Table:
    x = (KEY / "images" / rows).generator().normal(2, 5, (rows, *shape))
    return Table("images", x, np.arange(rows) % 2, 2)


def test_types_are_brought_to_float32_and_int64():
    table = Table("t", np.ones((2, 3), np.float64), np.array([0, 1], np.uint8), 2)
    assert table.x.dtype == np.float32
    assert table.y.dtype == np.int64
    assert table.rows == 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_a_value_that_is_not_finite_is_named_by_row_and_column(bad):
    x = np.zeros((5, 3))
    x[3, 1] = x[4, 0] = bad
    with refusal(DataError, "row 3 ", '"weight"', "drop the row"):
        Table("t", x, np.zeros(5, int), 2, ("age", "weight", "height"))
    with refusal(DataError, "row 3 ", "column 1"):
        Table("t", x, np.zeros(5, int), 2)


def test_a_pixel_that_is_not_finite_is_named_by_its_place():
    x = np.zeros((2, 1, 4, 4))
    x[1, 0, 2, 3] = np.nan
    with refusal(DataError, "row 1 ", r"feature \(0, 2, 3\)"):
        Table("t", x, np.zeros(2, int), 2)


def test_tables_that_cannot_be():
    x, y = np.zeros((4, 2)), np.array([0, 1, 1, 0])
    with refusal(DataError, "4 rows", "3 labels"):
        Table("t", x, y[:3], 2)
    with refusal(DataError, "label 2 in row 1 ", r"0\.\.1"):
        Table("t", x, y * 2, 2)
    with refusal(DataError, "label -1 in row 2 "):
        Table("t", x, np.array([0, 1, -1, 0]), 2)
    with refusal(DataError, "classes = 1", "at least 2"):
        Table("t", x, y * 0, 1)
    with refusal(DataError, "float64", "number the classes"):
        Table("t", x, y.astype(float), 2)
    with refusal(DataError, "empty"):
        Table("t", x[:0], y[:0], 2)
    with refusal(DataError, "one row of numbers"):
        Table("t", np.zeros(4), y, 2)
    with refusal(DataError, "one row of numbers"):
        Table("t", np.full((4, 2), "a"), y, 2)
    with refusal(DataError, "names 3 features"):
        Table("t", x, y, 2, ("a", "b", "c"))


def test_select_keeps_the_order_asked_for_and_checks_it():
    table = flat()
    chosen = table.select(np.array([5, 2, 5]))
    np.testing.assert_array_equal(chosen.x, table.x[[5, 2, 5]])
    np.testing.assert_array_equal(chosen.y, table.y[[5, 2, 5]])
    for outside in (-1, 60):
        with refusal(DataError, f"no row {outside}", r"0\.\.59"):
            table.select(np.array([0, outside]))


def test_a_split_wants_the_same_shape_and_classes():
    with refusal(DataError, "same shape and classes"):
        Split(flat(), flat(columns=5))
    with refusal(DataError, "same shape and classes"):
        Split(flat(), flat(classes=2))


def numbered(counts: list[int]) -> Table:
    """Row i holds the number i, so that rows can be followed."""
    y = np.repeat(np.arange(len(counts)), counts)
    return Table("numbered", np.arange(len(y), dtype=np.float32)[:, None], y, len(counts))


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(12, 80), min_size=2, max_size=5),
    fraction=st.floats(0.2, 0.8),
    seed=st.integers(0, 2**63),
)
def test_a_stratified_split_loses_no_row_and_keeps_proportions(counts, fraction, seed):
    table = numbered(counts)
    split = stratified_split(table, fraction, Key(seed))
    rows = np.concatenate([split.train.x[:, 0], split.test.x[:, 0]])
    np.testing.assert_array_equal(np.sort(rows), np.arange(table.rows))
    np.testing.assert_array_equal(split.test.y, table.y[split.test.x[:, 0].astype(int)])
    tested = np.bincount(split.test.y, minlength=len(counts))
    assert np.abs(tested - fraction * np.array(counts)).max() <= 2


@pytest.mark.parametrize("groups", [None, np.arange(120) // 3])
def test_validation_rows_are_held_out_of_the_training_rows(groups):
    table = replace(numbered([60, 60]), groups=groups)
    split = stratified_split(table, 0.2, KEY)
    held = with_validation(split, 0.25, KEY / "validation")
    parts = [part.x[:, 0].astype(int) for part in (held.train, held.validation, held.test)]
    assert sorted(np.concatenate(parts)) == list(range(120))
    assert [len(part) for part in parts] == [72, 24, 24]
    assert [np.bincount(table.y[part]).tolist() for part in parts] == [[36, 36], [12, 12], [12, 12]]
    np.testing.assert_array_equal(held.test.x, split.test.x)
    if groups is not None:
        a, b, c = (set(groups[part]) for part in parts)
        assert not a & b | a & c | b & c
    scaled = standardise(held)
    assert abs(scaled.train.x.mean()) < 1e-6 < abs(scaled.validation.x.mean())
    np.testing.assert_array_equal(held.held_out[1], [*held.test.y, *held.validation.y])
    assert with_validation(split, 0, KEY) is split


def test_a_validation_fraction_that_leaves_no_rows_of_a_class_is_refused():
    split = stratified_split(numbered([60, 60]), 0.2, KEY)
    for fraction in (0.01, 0.999):
        with refusal(DataError, f"training and validation rows with validation_fraction {fraction}"):
            with_validation(split, fraction, KEY)


def test_a_split_follows_its_key_alone():
    table = flat()
    once, again, other = (stratified_split(table, 0.3, key) for key in (KEY, Key(7), Key(8)))
    np.testing.assert_array_equal(once.test.x, again.test.x)
    assert not np.array_equal(once.test.x, other.test.x)


@pytest.mark.parametrize(
    ("counts", "fraction"),
    [([50, 1], 0.2), ([500, 2], 0.01), ([100, 3], 0.99), ([3, 3, 3, 3], 0.1)],
)
def test_a_class_too_small_for_both_sides_is_named(counts, fraction):
    with refusal(DataError, "class", f"test_fraction {fraction}", "add rows"):
        stratified_split(numbered(counts), fraction, KEY)


@pytest.mark.parametrize("fraction", [0, 1, -0.1, float("nan")])
def test_a_test_fraction_outside_0_and_1_is_refused(fraction):
    with refusal(SpecError, "between 0 and 1"):
        stratified_split(flat(), fraction, KEY)


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
        np.testing.assert_allclose(standardise(split).test.x.take(c, axis=channel), wanted, atol=1e-5)


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
    assert scale(split, "none") is split
    np.testing.assert_array_equal(scale(split, "standard").test.x, standardise(split).test.x)
    with refusal(SpecError, 'mean "standard"', "unit, none"):
        scale(split, "standart")


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 60), min_size=2, max_size=5),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**63),
)
def test_limit_draws_distinct_rows_in_proportion(counts, share, seed):
    table = numbered(counts)
    rows = max(len(counts), int(share * table.rows))
    kept = limit(Split(table, table), rows, None, Key(seed)).train
    assert kept.rows == rows
    assert (np.diff(kept.x[:, 0]) > 0).all()
    np.testing.assert_array_equal(kept.y, table.y[kept.x[:, 0].astype(int)])
    here = np.bincount(kept.y, minlength=len(counts))
    assert np.abs(here - np.array(counts) * rows / table.rows).max() < 1 + 1e-9


def test_limit_gives_every_row_the_same_chance():
    table = numbered([30, 11])
    seen = sum(np.bincount(_kept(table, seed), minlength=41) for seed in range(2000))
    expected, deviation = 2000 * 10 / 41, np.sqrt(2000 * 10 / 41 * 31 / 41)
    assert np.abs(seen - expected).max() < 5 * deviation
    head = np.bincount(np.arange(10), minlength=41) * 2000  # the control: always the first ten rows
    assert np.abs(head - expected).max() > 5 * deviation


def _kept(table: Table, seed: int) -> np.ndarray:
    return limit(Split(table, table), 10, None, Key(seed)).train.x[:, 0].astype(int)


def test_limit_on_both_sides():
    split = Split(numbered([40, 40]), numbered([40, 40]))
    assert limit(split, None, None, KEY).train is split.train
    assert limit(split, 1000, 80, KEY).test is split.test
    small = limit(split, 10, 10, KEY)
    assert (small.train.rows, small.test.rows) == (10, 10)
    assert not np.array_equal(small.train.x, small.test.x), "the two draws share a stream"
    with refusal(SpecError, "test_rows is 1", "2 classes"):
        limit(split, None, 1, KEY)


@pytest.mark.parametrize("wrong", [-1.0, 1.5, 9.0])
def test_what_is_no_id_is_refused(wrong: float) -> None:
    x = np.ones((2000, 4))
    x[1500, 2] = wrong
    y = np.arange(2000) % 2
    Table("fine", x, y, 2)
    with pytest.raises(DataError, match=f"token id {wrong:g}, wanted"):
        Table("ids", x, y, 2, vocabulary=9)


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
