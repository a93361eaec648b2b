from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydpzv.data.held_out import grouped_rows, hold_out, limit, with_validation
from raydpzv.data.scaling import standardise
from raydpzv.data.table import Split, Table
from raydpzv.errors import DataError, SpecError
from raydpzv.keys import Key
from tests.helpers.loading import flat, refusal

KEY = Key(7)


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
    split = Split(*hold_out(table, fraction, Key(seed)))
    rows = np.concatenate([split.train.x[:, 0], split.test.x[:, 0]])
    np.testing.assert_array_equal(np.sort(rows), np.arange(table.rows))
    np.testing.assert_array_equal(split.test.y, table.y[split.test.x[:, 0].astype(int)])
    tested = np.bincount(split.test.y, minlength=len(counts))
    assert np.abs(tested - fraction * np.array(counts)).max() <= 2


@pytest.mark.parametrize("groups", [None, np.arange(120) // 3])
def test_validation_rows_are_held_out_of_the_training_rows(groups):
    table = replace(numbered([60, 60]), groups=groups)
    split = Split(*hold_out(table, 0.2, KEY))
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
    split = Split(*hold_out(numbered([60, 60]), 0.2, KEY))
    for fraction in (0.01, 0.999):
        with refusal(
            DataError, f"training and validation rows with validation_fraction {fraction}"
        ):
            with_validation(split, fraction, KEY)


def test_a_plain_split_keeps_groups_whole_and_looks_at_no_label():
    groups = 3 + 7 * (np.arange(55) % 10)
    table = replace(numbered([30, 25]), groups=groups)
    parts = [part.x[:, 0].astype(int) for part in hold_out(table, 0.25, KEY, "plain")]
    assert sorted(np.concatenate(parts)) == list(range(55))
    train, test = (set(groups[part]) for part in parts)
    assert not train & test
    assert len(test) == 3, "a quarter of ten groups, rounded up"
    relabelled = replace(table, y=table.y[::-1])
    np.testing.assert_array_equal(hold_out(relabelled, 0.25, KEY, "plain")[1].x[:, 0], parts[1])
    with refusal(DataError, '"numbered" has 10 groups, and test_fraction 0.95 leaves none'):
        hold_out(table, 0.95, KEY, "plain")


def test_a_split_follows_its_key_alone():
    table = flat()
    once, again, other = (Split(*hold_out(table, 0.3, key)) for key in (KEY, Key(7), Key(8)))
    np.testing.assert_array_equal(once.test.x, again.test.x)
    assert not np.array_equal(once.test.x, other.test.x)


@pytest.mark.parametrize(
    ("counts", "fraction"),
    [([50, 1], 0.2), ([500, 2], 0.01), ([100, 3], 0.99), ([3, 3, 3, 3], 0.1)],
)
def test_a_class_too_small_for_both_sides_is_named(counts, fraction):
    with refusal(DataError, "class", f"test_fraction {fraction}", "add rows"):
        Split(*hold_out(numbered(counts), fraction, KEY))


@pytest.mark.parametrize("fraction", [0, 1, -0.1, float("nan")])
def test_a_test_fraction_outside_0_and_1_is_refused(fraction):
    with refusal(SpecError, "between 0 and 1"):
        Split(*hold_out(flat(), fraction, KEY))


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


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), min_size=1), st.integers(0, 2**32 - 1)
)
def test_every_row_is_on_one_side_with_all_of_its_group_and_every_class_on_both(rows, seed):
    groups, labels = np.array(rows).T
    found = grouped_rows(labels, groups, 0.3, seed)
    if found is None:
        return
    train, test = found
    assert sorted([*train, *test]) == list(range(len(rows)))
    assert not set(groups[train]) & set(groups[test])
    assert set(labels[train]) == set(labels[test]) == set(labels)


def test_groups_of_one_class_are_drawn_by_class():
    labels, groups = np.repeat([0, 1], [36, 84]), np.repeat(np.arange(40), 3)
    train, test = grouped_rows(labels, groups, 0.25, 5)
    assert np.bincount(labels[test]).tolist() == [9, 21]
    assert len(train) == 90
    assert not np.array_equal(test, grouped_rows(labels, groups, 0.25, 6)[1])


def test_a_table_without_groups_divides_them():
    """The control: rows drawn one by one leave hardly a group whole."""
    table = Table(
        "t", np.zeros((120, 1)), np.repeat([0, 1], 60), 2, groups=np.repeat(np.arange(40), 3)
    )
    by_group = Split(*hold_out(table, 0.25, Key(1)))
    assert not set(by_group.train.groups) & set(by_group.test.groups)
    drawn = Split(*hold_out(Table("t", np.arange(120)[:, None], table.y, 2), 0.25, Key(1)))
    assert (
        len({int(i) // 3 for i in drawn.train.x[:, 0]} & {int(i) // 3 for i in drawn.test.x[:, 0]})
        > 10
    )


def test_too_few_groups_of_a_class_are_said():
    table = Table(
        "t", np.zeros((6, 1)), np.array([0, 0, 0, 0, 1, 1]), 2, groups=np.array([0, 1, 2, 3, 4, 4])
    )
    with pytest.raises(DataError, match=r"class 1 of .* has 1 of 5 groups .*too few"):
        Split(*hold_out(table, 0.4, Key(1)))
