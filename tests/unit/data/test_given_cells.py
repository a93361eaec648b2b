"""Gaps and dates become numbers by what the scenario says, each cell alone."""

import datetime
import math
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raydpzv
from raydpzv.config.toml import parse
from raydpzv.config.tree import read_toml
from raydpzv.data.given_cells import days_since
from raydpzv.errors import DataError, InputError, SpecError
from raydpzv.experiment.prepare import prepare
from tests.helpers.loading import get, refusal

ROWS = 24
CONSTANTS = {"age": 40, "city": "other", "joined": "2020-01-31"}
GIVEN = {
    "target": "label",
    "split": "plain",
    "dates": {"joined": "2020-01-01"},
    "categories": {"city": ("Oslo", "Rome", "other")},
}


def cells():
    """Columns with gaps: every fifth age, every seventh city and every sixth day."""
    first = datetime.date(2019, 12, 30)
    return {
        "age": [None if row % 5 == 4 else 20.5 + row for row in range(ROWS)],
        "city": [None if row % 7 == 3 else ("Oslo", "Rome")[row % 2] for row in range(ROWS)],
        "joined": [
            None if row % 6 == 1 else first + datetime.timedelta(row) for row in range(ROWS)
        ],
        "label": [("no", "yes")[row % 3 == 0] for row in range(ROWS)],
    }


def slowly(columns):
    """Return the features row by row, as the scenario's words say."""
    codes = {"Oslo": 0, "Rome": 1, None: 2}
    return [
        [
            40 if age is None else age,
            codes[city],
            30 if day is None else (day - datetime.date(2020, 1, 1)).days,
        ]
        for age, city, day, _ in zip(*columns.values(), strict=True)
    ]


def text(cell, day_first=False, comma=False):
    if cell is None:
        return ""
    if isinstance(cell, datetime.date) and day_first:
        return f"{cell.day}.{cell.month:02}.{cell.year}"
    return str(cell).replace(".", ",") if comma else str(cell)


def write(path, columns, form):
    """Write columns; return the source, and what a scenario says of the file."""
    if form == "parquet":
        pq.write_table(pa.table(columns), path)
        return "parquet", {}
    european = form == "European csv"
    rows = [columns, *zip(*columns.values(), strict=True)]
    lines = [(";" if european else ",").join(
        cell if cell in columns else text(cell, european, european and not isinstance(cell, datetime.date))
        for cell in row) for row in rows]  # fmt: skip
    path.write_text("\n".join(lines) + "\n")
    return "csv", {"separator": ";", "decimal": ","} if european else {}


FORMS = ["csv", "European csv", "parquet"]


def read(path, form, columns, **given):
    source, written = write(path, columns, form)
    return get(source, file=path, **{**GIVEN, **written, **given})


def rows_of(split):
    """Return the features in the file's order."""
    parts = (split.train, split.test)
    x, numbers = (np.concatenate([getattr(part, of) for part in parts]) for of in ("x", "numbers"))
    return x[np.argsort(numbers)].tolist()


@pytest.mark.parametrize("form", FORMS)
def test_gaps_and_dates_are_what_the_scenario_says_in_every_form(tmp_path, form):
    split = read(tmp_path / "own", form, cells(), missing=CONSTANTS)
    assert rows_of(split) == slowly(cells())
    assert split.train.features == ("age", "city", "joined")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("column", "cell"),
    [("age", None), ("age", 7), ("city", None), ("joined", None), ("joined", datetime.date(1970, 1, 1))],
)  # fmt: skip
def test_a_cell_moves_its_own_row_alone(tmp_path, form, column, cell):
    other = cells()
    assert other[column][8] != cell
    other[column][8] = cell
    first, moved = (
        rows_of(read(tmp_path / "own", form, columns, missing=CONSTANTS))
        for columns in (cells(), other)
    )
    assert [row for row in range(ROWS) if first[row] != moved[row]] == [8]


def test_all_columns_with_gaps_are_named_with_the_line_to_paste(tmp_path):
    with refusal(
        DataError,
        r'"age" in 4 of 24 rows .first in row 4',
        '"city" in 3 of 24',
        '"joined" in 4 of 24',
        r"under \[data\]",
        'missing = {age = 0, city = "other", joined = "2020-01-01"}',
        'also: missing = "mean"',
    ):
        read(tmp_path / "own", "csv", cells())
    near = {"scale": "public", "centre": {"age": 50.0}, "spread": {"age": 1.0}, "other": "Rome"}
    with refusal(DataError, 'missing = {joined = 0, age = 50.0, city = "Rome"'):
        read(tmp_path / "own", "csv", cells(), **near, missing={"joined": 0})
    known = {"categories": {"city": ("Oslo", "Rome")}}  # of which no gap is one
    with refusal(DataError, 'city = "none"'):
        read(tmp_path / "own", "csv", cells() | {"city": ["Oslo", None] * 12}, **known)


@pytest.mark.parametrize(
    ("written", "days"),
    [
        ("2020-03-01", 60),
        ("1.3.2020", 60),
        (" 2019-12-31 ", -1),
        ("2020-01-01T06:00", 0.25),
        ("2020-01-01 01:00:00+01:00", 0),
        (None, math.nan),
    ],
)
def test_a_date_counts_as_days_since_a_public_day(written, days):
    found = days_since("2020-01-01", pa.chunked_array([[written, "2020-01-02"]]), "")
    np.testing.assert_array_equal(found, [days, 1])


NO_DATES = ["2020-02-30", "31.4.2020", "03/04/2020", "20200101", "soon"]
NO_DATES += ["9999-12-31T23:59:59-05:00", "0001-01-01T00:00+14:00"]


@pytest.mark.parametrize("written", NO_DATES)
def test_what_is_no_date_is_refused_with_its_row(written):
    with refusal(DataError, f'"{re.escape(written)}" in row 1 ', "no date"):
        days_since("2020-01-01", pa.chunked_array([["2020-01-02", written]]), "joined")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"missing": {"aeg": 1}}, 'no column "aeg" of features. Did you mean "age"'),
        ({"missing": {"label": "no"}}, 'no column "label" of features'),
        ({"missing": CONSTANTS | {"age": "old"}}, 'wanted a number for "age"'),
        ({"missing": CONSTANTS | {"age": True}}, 'wanted a number for "age"'),
        (
            {"missing": CONSTANTS | {"joined": "soon"}},
            "wanted a date, or days, for .joined., got 'soon'",
        ),
        ({"dates": {"day": "2020-01-01"}}, 'no column "day" of dates'),
    ],
)
def test_what_does_not_fit_the_table_is_refused(tmp_path, given, words):
    with refusal(InputError, words):
        read(tmp_path / "own", "csv", cells(), **given)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('missing = {city = "Bern"}', "wanted a value of data.categories.city, got 'Bern'"),
        ("missing = {age = inf}", "wanted a number, a text"),
        ("missing = {}", "a table of public constants by column"),
        ('missing = "median"', "a table of public constants by column"),
        ('dates = {city = "2020-01-01"}', '"city" is in data.categories too'),
        ('dates = {joined = "January"}', "wanted a day for each column"),
        ('separator = ";;"', "wanted one character"),
        ('decimal = ";"', "wanted '.' or ','"),
        ('categories = {city = ["a", "a"]}', "each once"),
    ],
)
def test_settings_that_contradict_are_refused_before_anything_is_read(line, words):
    own = 'source = "csv"\nfile = "nowhere.csv"\ntarget = "label"\n'
    own += "" if "categories" in line else 'categories = {city = ["Oslo", "Rome"]}\n'
    with refusal(SpecError, words):
        parse(read_toml(f"[data]\n{own}{line}\n[budget]\nupdates = 1\n"), "own.toml")


@pytest.mark.parametrize("form", ["separator", "comma"])
def test_how_a_file_is_written_is_guessed_in_words(tmp_path, form):
    write(tmp_path / "own.csv", cells(), "European csv")
    given = {} if form == "separator" else {"separator": ";", "missing": CONSTANTS}
    words = 'set data.separator = ";"' if form == "separator" else 'set data.decimal = ","'
    with refusal(DataError, words):
        get("csv", file=tmp_path / "own.csv", **GIVEN, **given)
    write(tmp_path / "plain.csv", cells(), "csv")
    with refusal(DataError, 'set data.separator = ","'):
        get("csv", file=tmp_path / "plain.csv", **GIVEN, separator=";")


@pytest.mark.parametrize("cell", ['""', "", "NA", '"NA"'])
def test_a_gap_is_one_with_and_without_quotation_marks(tmp_path, cell):
    lines = ["age,label", *(f'"{row}","{row % 2}"' for row in range(23)), f"{cell},1"]
    (tmp_path / "own.csv").write_text("\n".join(lines))
    split = get(
        "csv", file=tmp_path / "own.csv", target="label", split="plain", missing={"age": 40}
    )
    assert sorted(row[0] for row in rows_of(split))[-1] == 40


def test_a_column_of_gaps_alone_has_its_constant_too(tmp_path):
    columns = cells() | {"age": [None] * ROWS}
    for form in FORMS:
        found = rows_of(read(tmp_path / "own", form, columns, missing=CONSTANTS))
        assert {row[0] for row in found} == {40}


def test_a_text_among_numbers_is_named_and_not_a_number_before_it(tmp_path):
    for odd, hint in (("1_000", "correct it"), ("٣", "correct it"), ("31.12.1960", "data.dates")):
        lines = ["age,label", *(f"{row},{row % 2}" for row in range(23)), f"{odd},1"]
        (tmp_path / "own.csv").write_text("\n".join(lines))
        with refusal(DataError, f'"{odd}" in row 23', hint):
            get("csv", file=tmp_path / "own.csv", target="label")


def frame(**changes):
    return pd.DataFrame({"age": [1.5, None] * 12, "weight": range(24), **changes})


def own_rows(entry, **settings):
    """Return all ages of a run on frames."""
    labels, given = [0, 1] * 12, {"updates": 1, "batch": 8, "scale": "none", **settings}
    if entry == "horizontal":
        held = prepare(raydpzv.horizontal("logistic", (frame(), labels), clients=2, **given))
        return set(held.split.train.x[:, 0].tolist())
    other = pd.DataFrame({"height": range(24)})
    held = prepare(raydpzv.vertical("linear", [frame(), other], labels, **given))
    return set(held.clients[0].x_train[:, 0].tolist())


ENTRIES = ["horizontal", "vertical"]


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_frames_gaps_are_what_the_scenario_says(entry):
    assert own_rows(entry, missing={"age": 40}) == {1.5, 40}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "nan"),
        ({"missing": "mean"}, "wanted a table of constants by column for your own data"),
        ({"missing": {"agee": 1}}, 'no column "agee". Did you mean "age"'),
    ],
)
def test_a_frames_gaps_without_a_constant_are_refused(entry, given, words):
    with refusal(InputError, words):
        own_rows(entry, **given)
