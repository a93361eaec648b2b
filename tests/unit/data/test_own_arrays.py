from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy import sparse

from raydpzv.data.own_arrays import is_gap, items_of, numbers_of, objects_of
from raydpzv.errors import DataError

ONES = torch.ones(2, 3)
MASKED = np.ma.masked_array([[1, 9999], [3, 4]], mask=[[0, 1], [0, 0]])


@pytest.mark.parametrize(
    "given",
    [
        np.ones((2, 3), bool),
        np.ones((2, 3), np.uint8),
        np.ones((2, 3), np.longdouble),
        np.ones((2, 3), object),
        [[True, 1, 1.0], [np.int8(1), np.float16(1), Decimal(1)]],
        [np.ones(3), ONES[0]],
        ([torch.tensor(1)] * 3, [np.bool_(True), 1, 1]),
        ONES.bfloat16(),
        ONES.half(),
        ONES.to_sparse(),
        ONES.requires_grad_(),
        torch.complex(ONES, -ONES).conj().imag.detach(),
        torch.nn.Parameter(torch.ones(2, 3)),
        sparse.csr_matrix(np.ones((2, 3))),
        pa.table({"a": [1, 1], "b": [True, True], "c": [1.0, 1.0]}),
        pa.record_batch({"a": [1, 1], "b": [True, True], "c": [1.0, 1.0]}),
        np.ma.masked_array(np.ones((2, 3))),
    ],
)
def test_an_array_of_any_form_is_its_numbers(given):
    found = numbers_of(given, "x")
    assert found.dtype in (np.float32, np.float64)
    assert found.tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize(
    "given",
    [
        MASKED,
        [MASKED[0], MASKED[1]],
        [[MASKED[0, 0], MASKED[0, 1]], [3, 4]],
        [[1, None], [3, 4]],
        [[1.0, float("nan")], [3, 4]],
        pa.table({"a": [1, 3], "b": [None, 4]}),
        np.array([[1, None], [3, 4]], object),
    ],
)
def test_a_gap_of_any_form_is_nan_and_hides_nothing(given):
    np.testing.assert_array_equal(numbers_of(given, "x"), [[1, np.nan], [3, 4]])


def test_whole_numbers_of_up_to_53_bits_are_exact():
    for kind in (list, np.array, torch.tensor):
        found = numbers_of(kind([[2**53, 2**24 + 1]]), "x")
        assert found.tolist() == [[2**53, 2**24 + 1]]


@pytest.mark.parametrize(
    "given",
    [
        [[0, 2**53 + 1]],
        [[0.5, 2**53 + 1]],
        [[0, -(10**400)]],
        np.array([[0, 2**53 + 1]]),
        np.array([[0, 2**63]], np.uint64),
        torch.tensor([[0, 2**53 + 1]]),
        pa.table({"a": [0], "b": [2**53 + 1]}),
        [[0, Decimal(2**53 + 1)]],
        [[0, Fraction(2**60)]],
    ],
)
def test_a_whole_number_that_floats_round_is_refused(given):
    said = r"data: .*holds a whole number beyond 2\^53 in row 0 \(counted from 0\)"
    with pytest.raises(DataError, match=said):
        numbers_of(given, "x")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            [[1, 2], [3, "4"]],
            r'x holds "4" in row 1 \(counted from 0\), column 1, which is no number',
        ),
        (np.array([[1, "b"]]), 'x holds "1" in row 0'),
        (np.array([[1, "b"]], object), r'x holds "b" in row 0 \(counted from 0\), column 1'),
        (
            [np.ones(2), np.array([1, b"c"], object)],
            r"x holds .* in row 1 \(counted from 0\), column 1",
        ),
        (pa.table({"a": [1], "city": ["Oslo"]}), 'column "city" of x holds "Oslo" in row 0'),
        ([[1j]], "which is no number"),
        ([[1, Fraction(10**400, 3)]], "a number beyond all floats in row 0"),
        (np.array([[1j]]), "x is complex128 of shape"),
        (torch.ones(2, 2, dtype=torch.complex64), "x is complex64 of shape"),
        (np.array([["2020-01-01"]], "datetime64[D]"), "x is datetime64"),
        (np.zeros(2, [("a", int)]), "wanted numbers"),
        ([[1, 2], [3]], "x is no array .*wanted rows of the same shape"),
        ([np.ones(2), np.ones(3)], "x is no array .*wanted rows of the same shape"),
        (torch.ones(2, 2, device="meta"), "x is no array .*meta tensor"),
        ("text", 'x holds "text"'),
    ],
)
def test_what_is_no_number_is_refused_by_its_place(given, said):
    with pytest.raises(DataError, match=f"^data: [^\n]*{said}[^\n]*$"):
        numbers_of(given, "x")


@pytest.mark.parametrize(
    "given",
    [
        [True, 2, "c", None],
        np.array([True, 2, "c", None], object),
        [torch.tensor(True), np.int64(2), np.str_("c"), None],
    ],
)
def test_labels_stay_the_objects_that_they_are(given):
    found = objects_of(given, "y")
    assert found.tolist() == [True, 2, "c", None]
    assert found[0] is True or found.dtype == object
    assert items_of(given, "y") == [True, 2, "c", None]


@pytest.mark.parametrize(
    "given", [pa.array([1, None]), pa.chunked_array([[1], [None]]), pa.table({"y": [1, None]})]
)
def test_arrow_labels_beside_a_gap_stay_whole_numbers(given):
    assert objects_of(given, "y").tolist() == [1, None]


def test_gaps_are_told_from_values():
    gaps = (
        None,
        float("nan"),
        np.float32("nan"),
        np.datetime64("NaT"),
        np.ma.masked,
        Decimal("NaN"),
    )
    assert all(map(is_gap, gaps))
    assert not any(map(is_gap, (0, "", False, "nan", 1j, (), np.ones(2), b"")))


def test_frames_of_pandas_are_read_by_column():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "whole": pd.array([1, 2], "Int64"),
            "true": [True, False],
            "kind": pd.Categorical([3, 4]),
            "mixed": np.array([True, 0.5], object),
        }
    )
    assert numbers_of(frame, "x").tolist() == [[1, 1, 3, 1], [2, 0, 4, 0.5]]
    frame["whole"] = pd.array([1, None], "Int64")
    assert np.isnan(numbers_of(frame, "x")[1, 0])
    frame["late"] = pd.to_datetime(["2020-01-01", "2020-01-02"])
    with pytest.raises(DataError, match='column "late" of x is datetime64'):
        numbers_of(frame, "x")
    assert is_gap(pd.NA)
    assert is_gap(pd.NaT)
    for labels in (pd.Series(["a", None]), pd.Series(pd.array([1, None], "Int64"))):
        assert [is_gap(label) for label in objects_of(labels, "y")] == [False, True]
    assert objects_of(pd.DataFrame({"y": ["a", "b"]}), "y").tolist() == ["a", "b"]
