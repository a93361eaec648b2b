import datetime
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydpzv.data.column_facts import MOST_VALUES, column_facts, round_range
from raydpzv.data.table_files import CsvForm, likely_form
from raydpzv.errors import DataError

ROWS = MOST_VALUES + 1
TABLE = {
    "age": [18 + i for i in range(ROWS)],
    "weight": [None, math.nan, *(i / 4 for i in range(2, ROWS))],
    "smokes": [i % 2 == 0 for i in range(ROWS)],
    "city": [None if i == 3 else ("Rome", "Oslo")[i % 2] for i in range(ROWS)],
    "name": [f"person {i}" for i in range(ROWS)],
    "country": ["Norway"] * ROWS,
    "noon": [datetime.time(12)] * ROWS,
    "empty": pa.nulls(ROWS),
}


@pytest.fixture
def facts(tmp_path):
    pq.write_table(pa.table(TABLE), tmp_path / "own.parquet")
    return column_facts(tmp_path / "own.parquet", CsvForm())


def test_numbers_have_the_range_of_their_finite_values(facts):
    assert [(c.low, c.high) for c in facts.values() if c.numeric] == [(18, 68), (0.5, 12.5), (0, 1)]
    assert (facts["weight"].missing, facts["weight"].values) == (1, None)
    assert facts["age"].values is None, "one more than the most values that are listed"
    assert facts["smokes"].values == (False, True)


def test_texts_have_their_values_in_order(facts):
    assert (facts["city"].values, facts["city"].missing, facts["city"].numeric) == (
        ("Oslo", "Rome"),
        1,
        False,
    )


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ("name", "they name rows"),
        ("country", "one value"),
        ("noon", "write them as numbers"),
        ("empty", "empty"),
    ],
)
def test_a_column_that_no_model_can_use_says_why(facts, column, why):
    assert why in facts[column].unusable
    assert not any(facts[name].unusable for name in ("age", "weight", "smokes", "city"))


def test_a_csv_file_has_the_same_facts_as_far_as_it_can(tmp_path):
    lines = ["age,city,smokes", "18,Oslo,true", "30,Rome,false", ",Oslo,true"]
    (tmp_path / "own.csv").write_text("\n".join(lines) + "\n")
    found = column_facts(tmp_path / "own.csv", CsvForm())
    assert [(c.name, c.numeric, c.missing, c.values) for c in found.values()] == [
        ("age", True, 1, (18, 30)),
        ("city", False, 0, ("Oslo", "Rome")),
        ("smokes", True, 0, (False, True)),
    ]
    with pytest.raises(DataError, match="there is no file"):
        column_facts(tmp_path / "none.csv", CsvForm())


@pytest.mark.parametrize(
    ("low", "high", "ends"),
    [
        (18, 89, (10, 90)),
        (3_512, 98_764, (0, 100_000)),
        (-0.034, 0.021, (-0.04, 0.03)),
        (0, 1, (0, 1)),
        (7, 7, (6, 8)),
    ],
)
def test_a_proposed_range_has_round_ends(low, high, ends):
    assert round_range(low, high) == ends


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_a_proposed_range_holds_the_values_and_is_not_much_wider(low, width):
    high = low + width
    below, above = round_range(low, high)
    slack = 1e-9 * max(1, abs(low), abs(high))
    assert below - slack <= low
    assert high <= above + slack
    assert above - below <= 3 * (high - low) + slack + 2 * (low == high)


def test_numbers_that_are_written_as_names_have_texts_for_values(tmp_path):
    lines = ["code,ward,plain,region", "01, 1,1,EU", "1, 2,2,NA", "10, 1,1,AS", "1, 2,,EU"]
    (tmp_path / "own.csv").write_text("\n".join(lines) + "\n")
    found = column_facts(tmp_path / "own.csv", CsvForm())
    assert found["code"].values == ("01", "1", "10")
    assert (found["ward"].values, found["plain"].values) == ((1, 2), (1, 2)), "controls"
    assert found["region"].gaps == '1 cell without a value, such as "NA"'
    assert (found["plain"].gaps, found["ward"].gaps) == ("1 cell without a value", "")


@pytest.mark.parametrize("heading", ["", "Unnamed: 0"])
def test_a_column_without_a_name_is_unusable(tmp_path, heading):
    (tmp_path / "own.csv").write_text(f"{heading},age\n0,3\n1,4\n")
    found = column_facts(tmp_path / "own.csv", CsvForm())
    assert [bool(column.unusable) for column in found.values()] == [True, False]


def test_dates_are_days_and_ids_are_no_numbers(tmp_path):
    """However they are written; a column of years is one of numbers."""
    lines = [
        "born,seen,year,id",
        f"31.12.1999,2000-01-02 12:00,1999,{2**53 + 2}",
        ",2000-01-01,7,1",
    ]
    (tmp_path / "own.csv").write_text("\n".join(lines) + "\n")
    found = column_facts(tmp_path / "own.csv", CsvForm())
    assert [(c.dates, c.low, c.high, c.missing) for c in found.values()][:3] == [
        (True, -1, -1, 1),
        (True, 0, 1.5, 0),
        (False, 7, 1999, 0),
    ]
    assert "as ids are" in found["id"].unusable


def test_how_a_file_is_written_is_found_out(tmp_path):
    files = {
        "a;b\n61;x\n78,4;y\n": CsvForm(";", ","),
        "a;b\n61;x\n78.4;y\n": CsvForm(";"),
        'a,b\n"61",x\n"78,4",y\n': CsvForm(decimal=","),
        "a,b\n61,x\n78.4,y\n": CsvForm(),
        "a\tb\n61,0\tx\nnone\ty\n": CsvForm("\t"),
    }
    for number, (text, form) in enumerate(files.items()):
        (tmp_path / f"{number}.csv").write_text(text)
        assert likely_form(tmp_path / f"{number}.csv") == form


def test_what_a_column_lacks_to_be_dates_is_named(tmp_path):
    days = [f"{1 + row % 28}.{1 + row % 12}.20{row:02}" for row in range(ROWS + 9)]
    (tmp_path / "own.csv").write_text(
        "\n".join(["joined,a", *(f"{day},1" for day in days), "soon,2"])
    )
    assert column_facts(tmp_path / "own.csv", CsvForm())["joined"].unusable == (
        'most cells are dates, but not "soon"'
    )
    (tmp_path / "own.csv").write_text("joined,a\n")
    with pytest.raises(DataError, match="a heading and no rows"):
        column_facts(tmp_path / "own.csv", CsvForm())
