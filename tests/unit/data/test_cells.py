import numpy as np
import pytest

from raydpzv.data.cells import read_cells
from raydpzv.errors import DataError
from tests.helpers.loading import request


def cells(path, text, columns=("a", "b"), **options):
    (path / "t.csv").write_text(text)
    return read_cells(request("creditcard", path), "t.csv", columns, **options)


def test_numbers_and_codes_with_gaps_and_blanks(tmp_path):
    found = cells(tmp_path, 'a,"b",c\n1, 2.5 ,x\n-3e1,?,"y"\n')
    np.testing.assert_array_equal(found.numbers(("a", "b"), gap="?"), [[1, 2.5], [-30, np.nan]])
    assert found.codes("c", {"y": 0, "x": 7}).tolist() == [7, 0]
    assert cells(tmp_path, "5,6\n", headed=False).numbers(["b"]).tolist() == [[6]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n1,two\n", '"two"'),
        ("a,b\n1,2\n3,\n", '""'),
        ("a,b\n1,2\n3,inf\n", '"inf"'),
        ("a,b\n1,2\n3,nan\n", '"nan"'),
    ],
)
def test_what_is_no_number_is_named_by_line_and_column(tmp_path, text, said):
    with pytest.raises(
        DataError, match=rf't\.csv", line 3, column "b": wanted .*number, got {said}.*Kaggle'
    ):
        cells(tmp_path, text).numbers(("a", "b"))


def test_a_code_that_is_none_other_columns_torn_lines_and_no_file(tmp_path):
    with pytest.raises(DataError, match='line 2, column "b": wanted one of 0, 1, got "2"'):
        cells(tmp_path, "a,b\n1,2\n").codes("b", {"0": 0, "1": 1})
    with pytest.raises(DataError, match=r"no column b; its columns: a, c: .*Kaggle"):
        cells(tmp_path, "a,c\n1,2\n")
    with pytest.raises(DataError, match=r"cannot be read: .*Kaggle"):
        cells(tmp_path, "a,b\n1,2\n1,2,3\n")
    with pytest.raises(DataError, match=r'data set "creditcard" wants u\.csv .*from Kaggle'):
        read_cells(request("creditcard", tmp_path), "u.csv", ("a",))
