import numpy as np
import pytest

from raydpzv.data.table import Split, Table, View
from raydpzv.errors import DataError
from raydpzv.keys import Key
from tests.helpers.loading import flat, refusal

KEY = Key(7)


@pytest.mark.parametrize("kind", ["bool", "uint8", "int16", "float16", "float32"])
def test_features_that_float32_holds_are_float32_and_labels_int64(kind):
    table = Table("t", np.ones((2, 3), kind), np.array([0, 1], np.uint8), 2)
    assert table.x.dtype == np.float32
    assert table.y.dtype == np.int64
    assert table.rows == 2


@pytest.mark.parametrize("kind", ["int32", "int64", "uint32", "float64"])
def test_features_that_float32_rounds_stay_exact_until_they_are_scaled(kind):
    table = Table("t", np.full((2, 3), 2**24 + 1, kind), np.arange(2), 2)
    assert table.x.tolist() == [[2**24 + 1] * 3] * 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_a_value_that_is_not_finite_is_named_by_row_and_column(bad):
    x = np.zeros((5, 3))
    x[3, 1] = x[4, 0] = bad
    with refusal(DataError, "row 3 ", '"weight"', "drop the row"):
        Table("t", x, np.zeros(5, int), 2, ("age", "weight", "height"))
    with refusal(DataError, "row 3 ", "column 1"):
        Table("t", x, np.zeros(5, int), 2)


def test_a_wrong_value_of_a_party_is_named_by_its_place_in_the_partys_own_view():
    views = (View("bank", (2,)), View("camera", (2, 3)))
    for flat_place, words in (
        (1, "column 1 of the view of bank"),
        (6, r"feature \(1, 1\) of the view of camera"),
    ):
        x = np.zeros((2, 8))
        x[1, flat_place] = np.nan
        with refusal(DataError, "row 1 ", words):
            Table("t", x, np.zeros(2, int), 2, views=views)


@pytest.mark.parametrize("bad", [-2.0, np.nan, np.inf])
def test_a_survival_time_that_is_none_is_refused(bad):
    events = np.array([0, 1, 1, 0])
    Table("t", np.zeros((4, 1)), events, 2, times=np.array([0.0, 1, 2, 3]))
    with refusal(DataError, f"the time {bad:g} in row 2 ", "0 or more"):
        Table("t", np.zeros((4, 1)), events, 2, times=np.array([0.0, 1, bad, bad]))


def test_a_pixel_that_is_not_finite_is_named_by_its_place():
    x = np.zeros((2, 1, 4, 4))
    x[1, 0, 2, 3] = np.nan
    with refusal(DataError, "row 1 ", r"feature \(0, 2, 3\)"):
        Table("t", x, np.zeros(2, int), 2)


X, Y = np.zeros((4, 2)), np.array([0, 1, 1, 0])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((X, Y[:3], 2), ("4 rows", "3 labels")),
        ((X, Y * 2, 2), ("label 2 in row 1 ", r"0\.\.1")),
        ((X, np.array([0, 1, -1, 0]), 2), ("label -1 in row 2 ",)),
        ((X, Y - 1, 1), ("label -1 in row 0 ", r"0\.\.0")),
        ((X, Y * 0, 1), ("classes = 1", "at least 2")),
        ((X, Y.astype(float), 2), ("float64", "number the classes")),
        ((X[:0], Y[:0], 2), ("empty",)),
        ((np.zeros(4), Y, 2), ("one row of numbers",)),
        ((np.full((4, 2), "a"), Y, 2), ("one row of numbers",)),
        ((X, Y, 2, ("a", "b", "c")), ("names 3 features",)),
    ],
)
def test_tables_that_cannot_be(given, words):
    with refusal(DataError, *words):
        Table("t", *given)


def test_select_keeps_the_order_asked_for_and_checks_it():
    table = flat()
    chosen = table.select(np.array([5, 2, 5]))
    np.testing.assert_array_equal(chosen.x, table.x[[5, 2, 5]])
    np.testing.assert_array_equal(chosen.y, table.y[[5, 2, 5]])
    for outside in (-1, 60):
        with refusal(DataError, f"no row {outside}", r"0\.\.59"):
            table.select(np.array([0, outside]))


@pytest.mark.parametrize("other", [{"columns": 5}, {"classes": 2}])
def test_a_split_wants_the_same_shape_and_classes(other):
    with refusal(DataError, "same shape and classes"):
        Split(flat(), flat(**other))


@pytest.mark.parametrize("wrong", [-1.0, 1.5, 9.0])
def test_what_is_no_id_is_refused(wrong: float) -> None:
    x = np.ones((2000, 4))
    x[1500, 2] = wrong
    y = np.arange(2000) % 2
    Table("fine", x, y, 2)
    with pytest.raises(DataError, match=f"token id {wrong:g}, wanted"):
        Table("ids", x, y, 2, vocabulary=9)
