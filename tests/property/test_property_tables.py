"""Tables of which a few cells are odd, against a reader that takes a cell at a time."""

import datetime
import math
import random
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydpzv.errors import DataError
from tests.helpers.loading import get

ROWS = 24
LIST = ("Oslo", "Rome", "NA", "other")
CONSTANTS = {"age": 40.5, "city": "other", "joined": "2020-01-31"}
GIVEN = {
    "target": "label",
    "split": "plain",
    "missing": CONSTANTS,
    "dates": {"joined": "2020-01-01"},
    "categories": {"city": LIST},
    "classes": ("no", "yes"),
}
GAPS = ("", "NA", "null", "NaN", "N/A")
FITTING = [
    ["7", " 7.25", "7 ", "-3", "+4", "1e2", "007", "", "NA"],
    ["Rome", "other", "NA", "", "null"],
    ["2020-02-29", "29.2.2020", "2020-01-01 12:00", "9999-12-31", "1970-01-01", "", "null"],
    ["yes", "no"],
]
"""By column: what other rows may have too."""
ODD = [
    "7", "1e400", "0x1F", "1_000", "١", "1,5", "inf", "true", " ", "Oslo ", "oslo", "Yes", "no ", "2021-02-29",
    "2/3/2020", "20200101", "\ufeff7", "e\u0301", "x" * 300, '"NA"', "2020-02-29", "N/A", "",
]  # fmt: skip
DAY = datetime.timedelta(1)
NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def plain(row):
    """Return a row's cells as they are written."""
    day = datetime.date(2019, 12, 30) + datetime.timedelta(row)
    return [f"{20.5 + row}", ("Oslo", "Rome")[row % 2], str(day), ("no", "yes")[row % 3 == 0]]


def slowly(cells, gaps):
    """Return a row's features and label; None where a cell is none of what its column may have."""
    age, city, joined, label = cells
    try:
        number = 40.5 if age in gaps else float(NUMBER.fullmatch(age.strip())[0])
        place = LIST.index("other" if city in gaps and city != "NA" else city)
        day = 30 if joined in gaps else days(joined.strip())
        return number, place, day, ("no", "yes").index(label)
    except (ValueError, TypeError):
        return None


def days(text):
    turned = re.sub(r"^(\d)\.", r"0\1.", text)
    if found := re.fullmatch(r"(\d\d)\.(\d)\.(\d{4})", turned):
        text = f"{found[3]}-0{found[2]}-{found[1]}"
    if not re.match(r"\d{4}-\d\d-\d\d", text):
        raise ValueError(text)
    return (datetime.datetime.fromisoformat(text) - datetime.datetime(2020, 1, 1)) / DAY


def write(path, rows, form):
    heading = ["age", "city", "joined", "label"]
    if form == "csv":
        path.write_text(
            "\n".join(",".join(row) for row in [heading, *rows]) + "\n", encoding="utf-8"
        )
        return
    columns = dict(zip(heading, map(list, zip(*rows, strict=True)), strict=True))
    columns = {
        name: [None if cell == "" else cell for cell in cells] for name, cells in columns.items()
    }
    if all(cell is None or NUMBER.fullmatch(cell.strip()) for cell in columns["age"]):
        columns["age"] = [None if cell is None else float(cell) for cell in columns["age"]]
    pq.write_table(pa.table(columns), path)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_table_is_read_as_cell_by_cell_or_refused(tmp_path, form):
    refused = []
    for seed in range(200):
        draw, rows = random.Random(seed), [plain(row) for row in range(ROWS)]
        places = [(draw.randrange(ROWS), draw.randrange(4)) for _ in range(draw.choice((1, 1, 3)))]
        for row, column in places:
            rows[row][column] = draw.choice(draw.choice((FITTING[column], FITTING[column], ODD)))
        write(tmp_path / "own", rows, form)
        gaps = GAPS if form == "csv" else ("",)
        said = [[cell.strip('"') if form == "csv" else cell for cell in row] for row in rows]
        expected = [slowly(row, gaps) for row in said]
        try:
            split = get(form, file=tmp_path / "own", **GIVEN)
        except DataError as error:
            refused.append((seed, str(error), [row for row, _ in places], expected))
            continue
        for part in (split.train, split.test):
            for x, y, row in zip(part.x.tolist(), part.y.tolist(), part.numbers, strict=True):
                assert (*x, y) == pytest.approx(expected[row]), (seed, rows[row])
    assert 10 < len(refused) < 160
    for seed, said, places, expected in refused:
        odd = any(row is None or math.isinf(row[0]) for row in expected)
        named = any(f"row {row} " in said for row in places)
        assert (odd and named) or "Expected 4 columns" in said, (seed, said, places)
