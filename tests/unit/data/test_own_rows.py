import warnings

import numpy as np
import pyarrow as pa
import pytest
import torch

from raydpzv.data.own_rows import by_ids, in_one_order, numbered_owners
from raydpzv.errors import DataError


@pytest.mark.parametrize("owners", [[[1]] * 3, None, 1.5, np.ones((3, 2))])
def test_owners_that_cannot_be_told_apart_are_refused(owners):
    with pytest.raises(
        DataError, match="clients: wanted how many there are, or the owner of each row"
    ):
        numbered_owners(owners, 3)
    with pytest.raises(DataError, match="ids: wanted one for each of the 2 records of 0, got 0"):
        by_ids([np.ones((2, 1))] * 2, [0, 1], [np.array(1)] * 2)


GAPS = [
    [1, None, 2],
    [1, float("nan"), 2],
    ["a", " ", "b"],
    np.array([1, np.nan, 2]),
    np.ma.masked_array([1, 5, 2], mask=[0, 1, 0]),
    [1, np.ma.masked, 2],
    torch.tensor([1, float("nan"), 2]),
    pa.array([1, None, 2]),
    pa.chunked_array([["a", None, "b"]]),
]


@pytest.mark.parametrize("owners", GAPS)
def test_rows_without_an_owner_are_refused(owners):
    said = r"clients: row 1 \(counted from 0\) and 1 of 3 rows have no owner"
    with pytest.raises(DataError, match=said):
        numbered_owners(owners, 3)
    with pytest.raises(DataError, match="ids: 1 of the 3 records of 0 have none"):
        by_ids([np.ones((3, 1))], [0, 1, 0], [owners])


@pytest.mark.parametrize(
    "owners",
    [
        ["b", "a", "b"],
        [torch.tensor(5), np.int64(3), 5],
        np.array([5, 3, 5]),
        pa.chunked_array([[5], [3, 5]]),
        np.ma.masked_array([5, 3, 5]),
    ],
)
def test_owners_of_any_form_are_numbered_as_they_appear(owners):
    assert numbered_owners(owners, 3).tolist() == [0, 1, 0]


@pytest.mark.parametrize("odd", ["x", 2.5, True, "7"])
@pytest.mark.parametrize("form", [list, np.array])
def test_an_owner_of_another_type_moves_no_other(odd, form):
    assert numbered_owners(form([8, 9, 8, odd]), 4).tolist()[:3] == [0, 1, 0]


LEFT, RIGHT = np.arange(8.0).reshape(4, 2), np.arange(3.0).reshape(3, 1)


@pytest.mark.parametrize("named", [True, False])
def test_views_of_other_orders_are_joined_by_ids(named):
    views, ids = (
        {"a": LEFT, "b": RIGHT},
        {"a": ["p", "q", "r", "s"], "b": np.array(["s", "q", "x"])},
    )
    y = np.array([10, 11, 12, 13])
    if not named:
        views, ids = list(views.values()), list(ids.values())
    with pytest.warns(UserWarning, match="3 records are not in every view"):
        found, joined = by_ids(views, y, ids)
    left, right = found.values() if named else found
    np.testing.assert_array_equal(left, LEFT[[1, 3]])
    np.testing.assert_array_equal(right, RIGHT[[1, 0]])
    np.testing.assert_array_equal(joined, y[[1, 3]])


@pytest.mark.parametrize("named", [True, False])
def test_labels_have_ids_of_their_own(named):
    ids = {"a": [1, 2, 3, 4], "labels": [4, 3, 2, 1]} if named else [[1, 2, 3, 4], [4, 3, 2, 1]]
    found, joined = by_ids({"a": LEFT} if named else [LEFT], [10, 11, 12, 13], ids)
    np.testing.assert_array_equal(found["a"] if named else found[0], LEFT)
    np.testing.assert_array_equal(joined, [13, 12, 11, 10])


@pytest.mark.parametrize(
    ("ids", "complaint"),
    [
        ({"a": [1, 2, 3, 3], "b": [1, 2, 3]}, "1 of the 4 records of a repeat an id"),
        ({"a": [1, None, float("nan"), 4], "b": [1, 2, 3]}, "2 of the 4 records of a have none"),
        ({"a": [1, 2, 3], "b": [1, 2, 3]}, "wanted one for each of the 4 records of a, got 3"),
        ({"a": [1, 2, 3, 4], "b": ["1", "2", "3"]}, "no record is in every view"),
        (
            {"a": [1, 2, 3, 4], "b": [[1], [2], [3]]},
            "wanted a number or a text for each record of b",
        ),
        ({"a": [1, 2, 3, 4], "c": [1, 2, 3]}, "each view, a, b, in the form of views, got a, c"),
        ({"a": [1, 2, 3, 4]}, "each view, a, b, in the form of views, got a;"),
        (3, "wanted a list or a table"),
    ],
)
def test_ids_that_join_nothing_are_refused(ids, complaint):
    with pytest.raises(DataError, match=complaint):
        by_ids({"a": LEFT, "b": RIGHT}, np.arange(4), ids)


def test_frames_of_one_index_are_joined_by_it():
    pd = pytest.importorskip("pandas")
    order = [2, 0, 3, 1]
    first = pd.DataFrame({"a": [0.0, 1, 2, 3]}, index=["p", "q", "r", "s"]).iloc[order]
    y = pd.Series([0, 1, 2, 3], index=["p", "q", "r", "s"])
    with pytest.warns(UserWarning, match="y has the index of x in another order: rows are joined"):
        found = in_one_order({"x": first, "clients": [7, 8, 9, 9], "y": y})
    assert found["y"].tolist() == order
    assert found["x"] is first
    assert found["clients"] == [7, 8, 9, 9]


def test_frames_of_other_rows_are_paired_by_place_with_a_warning():
    pd = pytest.importorskip("pandas")
    x = pd.DataFrame({"a": [0.0, 1, 2]}, index=[5, 6, 7])
    for index in ([5, 6, 9], [5, 5, 6], ["5", "6", "7"], [5, 6, 7, 8]):
        y = pd.Series(range(len(index)), index=index)
        with pytest.warns(
            UserWarning, match="y has another index than x: rows are paired by place"
        ):
            assert in_one_order({"x": x, "y": y})["y"] is y


def test_frames_of_equal_or_no_index_are_paired_in_silence():
    pd = pytest.importorskip("pandas")
    x = pd.DataFrame({"a": [0.0, 1, 2]}, index=[5, 6, 7])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for y in (
            pd.Series([1, 2, 3], index=[5, 6, 7]),
            pd.Series([1, 2, 3]),
            pd.Series([1, 2, 3]).to_numpy(),
            [1, 2, 3],
        ):
            assert in_one_order({"x": x, "y": y})["y"] is y
