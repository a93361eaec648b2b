import numpy as np
import pyarrow as pa
import pytest
import torch

from raydpzv.data.own_data import own_data, side_by_side
from raydpzv.data.own_rows import by_ids, numbered_owners
from raydpzv.data.table import View
from raydpzv.errors import DataError

X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([0, 1, 1, 0])


class Frame:
    """A table in the way of pandas."""

    columns = ("a", "b", "c")

    def __len__(self) -> int:
        return len(X)

    def to_numpy(self) -> np.ndarray:
        return X


FORMS = {
    "arrays": (X, Y),
    "tensors": (torch.tensor(X), torch.tensor(Y)),
    "lists": (X.tolist(), Y.tolist()),
    "one column of labels": (X, Y[:, None]),
    "names": {"x": X, "y": Y},
    "pairs": list(zip(X, Y, strict=True)),
    "data set": torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y)),
    "frame": (Frame(), Y),
    "Arrow": (pa.table({name: X[:, n] for n, name in enumerate("abc")}), pa.array(Y)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data_gives_the_same_rows(form):
    found = own_data(FORMS[form])
    np.testing.assert_array_equal(found.x, X)
    np.testing.assert_array_equal(found.y, Y)
    assert found.features == (("a", "b", "c") if form in ("frame", "Arrow") else ())


def test_test_rows_and_owners_come_with_the_data():
    found = own_data(
        {"x": X, "y": Y, "x_test": X[:2], "y_test": Y[:2], "clients": ["b", "a", "b", "c"]}
    )
    np.testing.assert_array_equal(found.x_test, X[:2])
    np.testing.assert_array_equal(found.owners, [0, 1, 0, 2])


def test_data_without_rows_are_refused():
    for numbers in (False, True, None):
        with pytest.raises(DataError, match="data: y has no rows; give at least one record"):
            own_data((X[:0], Y[:0]), numbers=numbers)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (3, "wanted .x, y., .* got int"),
        ((X,), "got a tuple"),
        ({"x": X}, "wanted x and y, .* got x"),
        ({"x": X, "y": Y, "x_test": X}, "both or none of x_test and y_test"),
        ({"x": X, "y": Y, "z": X}, 'got the name "z"'),
        ((X, Y.astype(float)), r"y is float64 of shape \(4,\): wanted one class a row"),
        ((X, Y[:0]), "y has no rows"),
        (
            (X, Y.astype(np.uint64) + np.uint64(2**63)),
            "y has whole numbers above .*number the classes from 0",
        ),
        ((np.array(["a", "b"]), Y), 'x holds "a" in row 0 .* is no number: wanted numbers'),
        ({"x": X, "y": Y, "clients": [0, 1]}, "clients: wanted one owner a row, 4, got 2"),
        ({"x": X, "y": Y, "users": [0, 1]}, "users: wanted one owner a row, 4, got 2"),
    ],
)
def test_data_that_cannot_be_used_are_refused(given, complaint):
    with pytest.raises(DataError, match=complaint):
        own_data(given)


def test_views_of_different_shapes_lie_side_by_side():
    pictures, ids = np.ones((4, 1, 2, 2)), np.array([[5, 6]] * 4)
    flat, views = side_by_side({"pictures": pictures, "words": ids})
    assert flat.shape == (4, 6)
    assert flat[0].tolist() == [1, 1, 1, 1, 5, 6]
    assert views == (View("pictures", (1, 2, 2)), View("words", (2,)))


@pytest.mark.parametrize(
    ("views", "complaint"),
    [
        ({"a": X, "b": X[:2]}, r"4 \(a\), 2 \(b\) rows: wanted the same records"),
        ({"a": X, "b": Y}, "the view of b has the shape"),
        ({"a": X, "b": [["c"]] * 4}, 'the view of b holds "c" in row 0'),
    ],
)
def test_views_that_do_not_belong_together_are_refused(views, complaint):
    with pytest.raises(DataError, match=complaint):
        side_by_side(views)


@pytest.mark.parametrize("owners", [[[1]] * 3, None, 1.5, np.ones((3, 2))])
def test_owners_that_cannot_be_told_apart_are_refused(owners):
    with pytest.raises(
        DataError, match="clients: wanted how many there are, or the owner of each row"
    ):
        numbered_owners(owners, 3)


class Failing:
    def __len__(self):
        return 2

    def __getitem__(self, row):
        raise RuntimeError("disk\ngone")


@pytest.mark.parametrize("data", [Failing(), ([[1, 2], [3]], [0, 1])])
def test_rows_that_cannot_be_read_are_refused_in_one_line(data):
    with pytest.raises(DataError, match=r"^data: [^\n]*$"):
        own_data(data)


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


def test_users_are_numbered_beside_the_clients_that_hold_them():
    found = own_data(
        {"x": X, "y": Y, "clients": ["b", "a", "b", "c"], "users": ["u", "v", "w", "u"]}
    )
    assert found.owners.tolist() == [0, 1, 0, 2]
    assert found.users.tolist() == [0, 1, 2, 0]
