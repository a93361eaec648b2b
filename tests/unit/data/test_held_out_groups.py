from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydpzv.data.held_out import grouped_rows, hold_out
from raydpzv.data.table import Split, Table
from raydpzv.errors import DataError
from raydpzv.keys import Key


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), min_size=1), st.integers(0, 2**32 - 1))
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
    table = Table("t", np.zeros((120, 1)), np.repeat([0, 1], 60), 2, groups=np.repeat(np.arange(40), 3))
    by_group = Split(*hold_out(table, 0.25, Key(1)))
    assert not set(by_group.train.groups) & set(by_group.test.groups)
    drawn = Split(*hold_out(Table("t", np.arange(120)[:, None], table.y, 2), 0.25, Key(1)))
    assert len({int(i) // 3 for i in drawn.train.x[:, 0]} & {int(i) // 3 for i in drawn.test.x[:, 0]}) > 10


def test_too_few_groups_of_a_class_are_said():
    table = Table("t", np.zeros((6, 1)), np.array([0, 0, 0, 0, 1, 1]), 2, groups=np.array([0, 1, 2, 3, 4, 4]))
    with pytest.raises(DataError, match=r"class 1 of .* has 1 of 5 groups .*too few"):
        Split(*hold_out(table, 0.4, Key(1)))
