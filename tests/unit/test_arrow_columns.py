"""Columns made and read without pandas are those that Arrow's own functions make and read."""

import csv
import io
import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from raydpzv.arrow_columns import array, as_csv, equal, numbers, strings
from tests.helpers.programs import python_said

VALUES = {
    "float64": np.array([0.5, np.nan, -np.inf]),
    "int64": np.array([1, -(2**62), 3]),
    "int32": np.array([1, -2, 3], np.int32),
    "uint64": np.array([2**64 - 1, 0], np.uint64),
    "bool": np.arange(19) % 3 == 0,
    "every second": np.arange(10.0)[::2],
    "none": np.empty(0),
    "no truths": np.empty(0, np.bool_),
}


@pytest.mark.parametrize("name", VALUES)
def test_numbers_are_arrows_own_array_and_come_back(name: str) -> None:
    made = numbers(VALUES[name])
    made.validate(full=True)
    assert made.type == pa.array(VALUES[name]).type
    again = array(made)
    assert again.dtype == VALUES[name].dtype
    assert again.tobytes() == VALUES[name].tobytes() == array(pa.array(VALUES[name])).tobytes()


def test_slices_and_chunks_come_back_in_order() -> None:
    for kind in (np.float64, np.int32, np.bool_):
        values = (np.arange(40) % 7).astype(kind)
        column = pa.chunked_array([pa.array(values).slice(3, 9), pa.array(values).slice(20)])
        assert np.array_equal(array(column), np.concatenate((values[3:12], values[20:])))
        assert np.array_equal(array(column.chunk(0)), values[3:12])
        assert len(array(column.slice(0, 0))) == 0


def test_strings_are_arrows_own_array() -> None:
    for words in ([], [""], ["client 0", "naïve", "", "ε"]):
        made = strings(words)
        made.validate(full=True)
        assert made.equals(pa.array(words, pa.string()))
    with pytest.raises(TypeError):
        strings([3])  # type: ignore[list-item]


def test_equal_tells_which_strings_are_the_word() -> None:
    column = pa.chunked_array([["up", "down"], ["up"]])
    assert equal(column, "up").equals(pc.equal(column, "up"))


def test_pandas_is_not_imported() -> None:
    code = (
        "import sys, numpy as np; from raydpzv.arrow_columns import *\narray(numbers(np.arange(3) "
        "> 1)); equal(strings(['a']), 'a'); print('pandas' in sys.modules)\nimport pyarrow; "
        "pyarrow.array([1]); print('pandas' in sys.modules)"
    )
    pytest.importorskip("pandas")
    assert python_said("-c", code).split() == ["False", "True"]  # the second is the control


def test_no_text_of_a_csv_is_a_formula():
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "plain", "a=b", "", None]
    table = pa.table({"=name": texts, "number": [-1.5, math.inf, math.nan, *[0.0] * 5, None]})
    found = list(csv.reader(io.StringIO(as_csv(table).decode())))
    wanted = ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\t=1", "plain", "a=b", "", ""]
    assert found[0] == ["'=name", "number"]
    assert [row[0] for row in found[1:]] == wanted
    assert [row[1] for row in found[1:4]] == ["-1.5", "inf", "nan"]
    assert as_csv(table.slice(0, 0)).decode().splitlines() == ['"\'=name","number"']
