import numpy as np
import pyarrow as pa
import pytest
import torch

from raydpzv.data.arrays import numbered_labels
from raydpzv.data.own_data import _tables, own_data, side_by_side
from raydpzv.data.sources import Request
from raydpzv.data.table import View
from raydpzv.errors import DataError
from raydpzv.keys import Key
from raydpzv.settings.sections_data import DataSection

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


class Failing:
    def __len__(self):
        return 2

    def __getitem__(self, row):
        raise RuntimeError("disk\ngone")


@pytest.mark.parametrize("data", [Failing(), ([[1, 2], [3]], [0, 1])])
def test_rows_that_cannot_be_read_are_refused_in_one_line(data):
    with pytest.raises(DataError, match=r"^data: [^\n]*$"):
        own_data(data)


def test_users_are_numbered_beside_the_clients_that_hold_them():
    found = own_data(
        {"x": X, "y": Y, "clients": ["b", "a", "b", "c"], "users": ["u", "v", "w", "u"]}
    )
    assert found.owners.tolist() == [0, 1, 0, 2]
    assert found.users.tolist() == [0, 1, 2, 0]
    assert own_data({"x": X, "y": Y, "clients": ["b", "a", "b", "c"]}).users is None


@pytest.mark.parametrize("y", [Y, Y / 2])
def test_owners_belong_to_training_rows_alone(y):
    parts = {"x": X, "y": y, "x_test": X, "y_test": y, "clients": list("baca"), "users": [3] * 4}
    section = DataSection.model_construct(source="own", split="plain")
    found = _tables(own_data(parts, numbers=None), "own", Request(section, Key(0)))
    assert found.train.silos.tolist() == [0, 1, 2, 1]
    assert found.train.users.tolist() == [0] * 4
    assert found.test.silos is None
    assert found.test.users is None


SMALL = np.zeros((4, 2))


def labels_of(y, classes=None, **given):
    """Return the numbers of labels as a scenario has them."""
    data = {"source": "own", "split": "plain"} | ({"classes": classes} if classes else {})
    request = Request(DataSection.model_construct(**data), Key(0), **given)
    return _tables(own_data((SMALL, y)), "own", request).y.tolist()


BOOLEANS, WHOLE, TEXTS = (False, True), (0, 1, 7), ("0", "1", "ill")


@pytest.mark.parametrize(
    ("y", "classes", "numbers"),
    [
        ([True, False, np.bool_(True), False], BOOLEANS, [1, 0, 1, 0]),
        (np.array([True, False, True, False]), BOOLEANS, [1, 0, 1, 0]),
        (torch.tensor([True, False, True, False]), BOOLEANS, [1, 0, 1, 0]),
        (pa.array([True, False, True, False]), BOOLEANS, [1, 0, 1, 0]),
        ([1, 0, "True", "false"], BOOLEANS, [1, 0, 1, 0]),
        ([True, False, 1, 7], WHOLE, [1, 0, 1, 2]),
        (["1", "0", 1, "7"], WHOLE, [1, 0, 1, 2]),
        (np.array([True, False, "True", "7"]), WHOLE, [1, 0, 1, 2]),
        (["ill", 1, "0", np.int64(1)], TEXTS, [2, 1, 0, 1]),
        (np.array(["ill", 1, "0", 1]), TEXTS, [2, 1, 0, 1]),
        ([True, False, True, 2], None, [1, 0, 1, 2]),
        (np.array([True, False, True, False]), None, [1, 0, 1, 0]),
    ],
)
def test_labels_are_numbered_each_by_itself(y, classes, numbers):
    assert labels_of(y, classes) == numbers


ODD = ["ill", 7, True, 1, "9", "True"]


@pytest.mark.parametrize("form", [list, np.array, lambda y: np.array(y, object)])
@pytest.mark.parametrize(
    ("base", "classes"),
    [
        *(([True, False, True], listed) for listed in (BOOLEANS, WHOLE)),
        *(
            (form, listed)
            for form in ([1, 0, 1], ["1", "0", "1"])
            for listed in (BOOLEANS, WHOLE, TEXTS)
        ),
    ],
)
def test_no_label_moves_the_others(classes, form, base):
    """An array takes one type for all; then a label has to mean what it means alone."""
    for odd in ODD:
        assert _numbered(form([*base, odd]), classes)[:3] == [1, 0, 1], odd


def _numbered(y, classes):
    """Number labels, -1 for one outside the list."""
    data = DataSection.model_construct(source="own", classes=classes, other=classes[0])
    found = own_data((SMALL, y))
    return numbered_labels({"y": found.y}, Request(data, Key(0)), "own")[0]["y"].tolist()


def test_a_boolean_is_no_text_of_a_list():
    with pytest.raises(DataError, match=r'has "True" in row 0 .* not in the public list'):
        labels_of([True, False, True, False], TEXTS)


@pytest.mark.parametrize(
    ("y", "said"),
    [
        ([1, 0, 2.5, 1], r'the label "2.5" in row 2 \(counted from 0\), float'),
        ([1, 0, (1,), 1], "y is no array"),
        ([1, 0, b"a", 1], 'the label "b.a." in row 2'),
        ([1, 0, None, 1], r"y has no label in row 2 \(counted from 0\), and in 1 of 4 rows"),
        (np.array([1, 0, np.nan, 1]), "y has no label in row 2"),
        (np.ma.masked_array([1, 0, 1, 1], mask=[0, 0, 1, 0]), "y has no label in row 2"),
        ([1, 0, 10**30, 1], "y has whole numbers above"),
    ],
)
def test_what_can_be_no_class_is_refused_by_its_row(y, said):
    with pytest.raises(DataError, match=f"data: .*{said}"):
        own_data((SMALL, y))


def test_labels_that_are_numbers_are_read_each_by_itself():
    found = own_data((SMALL, [True, 2, 3.5, np.float32(4)]), numbers=True)
    assert found.y.tolist() == [[1.0], [2.0], [3.5], [4.0]]
    with pytest.raises(DataError, match=r'y holds "3" in row 2'):
        own_data((SMALL, [1, 2, "3", 4]), numbers=True)
    assert own_data((SMALL, [1, 2, 3.5, 4]), numbers=None).y.dtype == np.float64
    assert own_data((SMALL, [1, 2, 3, 4]), numbers=None).y.dtype == np.int64


NAMED = [{"input": row, "label": int(label)} for row, label in zip(X, Y, strict=True)]


@pytest.mark.parametrize("label", ["label", "labels", "target", "y"])
def test_rows_may_be_tables_of_named_values(label):
    rows = [{"pixels": torch.tensor(row["input"]), label: row["label"]} for row in NAMED]
    found = own_data(rows)
    np.testing.assert_array_equal(found.x, X)
    assert (found.y.tolist(), found.features) == (Y.tolist(), ())
    flat = [{"b": row["input"][1], label: row["label"], "a": 7} for row in NAMED]
    found = own_data(flat)
    np.testing.assert_array_equal(found.x, np.stack([X[:, 1], np.full(4, 7)], axis=1))
    assert found.features == ("b", "a")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [*NAMED[:2], {"input": X[2]}],
            r"row 2 \(counted from 0\) has other names than row 0, input, label",
        ),
        ([*NAMED[:2], (X[2], 1)], "row 2 .* has other names"),
        ([{"input": X[0], "kind": 1}] * 2, "the names input, kind: wanted one of label, labels"),
        ([{"label": 1, "y": 1, "x": 3}] * 2, "the names label, y, x: wanted one of"),
        ([{"label": 1}] * 2, "the names label: wanted one of"),
        (
            [{"ids": X[0], "mask": X[0], "label": 1}] * 2,
            'of which "ids" is an array: .*keep it and label',
        ),
        (
            [{"text": "good", "label": 1}] * 2,
            r'"text" holds "good" in row 0 \(counted from 0\), which is no number',
        ),
    ],
)
def test_named_values_that_are_no_records_are_refused(rows, said):
    with pytest.raises(DataError, match=f"^data: [^\n]*{said}[^\n]*$"):
        own_data(rows)
