import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydpzv.data.table_files import CsvForm, csv_columns
from raydpzv.errors import DataError, SpecError
from tests.helpers.loading import get, refusal

DAYS = [datetime.date(2001, 2, 3)] * 24


def columns(rows: int = 24) -> dict[str, list]:
    return {
        "age": list(range(rows)),
        "weight": [i / 4 for i in range(rows)],
        "smokes": [i % 2 == 0 for i in range(rows)],
        "kind": [("pear", "apple", "fig")[i % 3] for i in range(rows)],
    }


def write_csv(path: Path, data: dict[str, list]) -> Path:
    lines = [
        ",".join(data),
        *(
            ",".join("" if v is None else str(v) for v in row)
            for row in zip(*data.values(), strict=True)
        ),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_parquet(path: Path, data: dict[str, list] | pa.Table) -> Path:
    pq.write_table(data if isinstance(data, pa.Table) else pa.table(data), path)
    return path


WRITERS = {"csv": write_csv, "parquet": write_parquet}


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_table_gives_named_features_and_sorted_classes(tmp_path, form):
    split = get(form, file=WRITERS[form](tmp_path / "own", columns()), target="kind")
    assert split.train.features == ("age", "weight", "smokes")
    assert split.train.classes == 3
    assert split.test.rows == 6
    for part in (split.train, split.test):
        age = part.x[:, 0].astype(int)
        np.testing.assert_array_equal(part.x[:, 1], age / 4)
        np.testing.assert_array_equal(part.x[:, 2], age % 2 == 0)
        np.testing.assert_array_equal(part.y, np.array([2, 0, 1])[age % 3])  # apple, fig, pear


@pytest.mark.parametrize(
    "labels",
    [
        pa.array([7, -3] * 8, pa.int16()),
        pa.array([True, False] * 8),
        pa.array(["b", "a"] * 8, pa.large_string()),
        pa.array(["b", "a"] * 8).dictionary_encode(),
    ],
)
def test_targets_of_several_types(tmp_path, labels):
    table = pa.table({"x": pa.array(range(16), pa.uint8()), "t": labels})
    split = get("parquet", file=write_parquet(tmp_path / "t", table), target="t")
    np.testing.assert_array_equal(split.train.y, 1 - split.train.x[:, 0].astype(int) % 2)


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.decimal128(30, 2), pa.int64()])
def test_features_of_several_types(tmp_path, kind):
    table = pa.table({"x": pa.array(range(16)).cast(kind), "t": [0, 1] * 8})
    split = get("parquet", file=write_parquet(tmp_path / "t", table), target="t")
    np.testing.assert_array_equal(split.train.x[:, 0] % 2, split.train.y)


def test_whole_numbers_that_a_double_rounds_are_refused(tmp_path):
    for form, writer in WRITERS.items():
        file = writer(tmp_path / form, {"x": [2**53 + 1] * 8 + [0] * 8, "t": [0, 1] * 8})
        with refusal(DataError, 'column "x"', "beyond 2.53"):
            get(form, file=file, target="t")


NO_PROOF = 'without privacy.mode = "proved" also: '
SPOILT = {
    "no target": (
        {},
        {"target": "kinds"},
        'data.target: .*no column "kinds"',
        'mean "kind"',
        "age, weight, smokes, kind",
    ),
    "another target": (
        {},
        {"target": "age", "classes": ("pear", "fig")},
        'data.target: column "age" of "own" holds none of data.classes;.* age, weight, smokes, '
        "kind",
    ),
    "a target of fractions": (
        {},
        {"target": "weight"},
        'column "weight"',
        "double",
        "whole numbers",
    ),
    "no features": (dict.fromkeys(("age", "weight", "smokes")), {}, "no features"),
    "one class": ({"kind": ["fig"] * 24}, {}, 'the one value "fig"'),
    "a text": (
        {},
        {"target": "age"},
        'column "kind"',
        'such as "pear" in row 0 ',
        "its values in data.categories",
    ),
    "a text among numbers": (
        {"age": [*map(str, range(17)), "unknown", *map(str, range(6))]},
        {},
        'column "age"',
        'such as "unknown" in row 17 ',
        NO_PROOF,
    ),
    "no number": (
        {"age": [*range(9), None, *range(14)]},
        {},
        '"age" in 1 of 24 rows .first in row 9, counted from 0.',
        "missing = {age = 0}",
        NO_PROOF,
    ),
    "not a number": (
        {"age": [1.5] * 7 + [float("nan")] * 17, "weight": [None, *range(23)]},
        {},
        '"age" in 17 of 24 rows .first in row 7, .*, "weight" in 1 of 24',
        "missing = {age = 0, weight = 0}",
    ),
    "no label": ({"kind": ["a", "b"] * 5 + [None] + ["a"] * 13}, {}, "no label in row 10 "),
    "an empty column": ({"age": [None] * 24}, {}, 'column "age" of "own" is empty'),
    "dates": (
        {"born": DAYS},
        {},
        "holds dates",
        'such as "2001-02-03"',
        'data.dates, such as {born = "2020-01-01"}',
    ),
    "no group": ({"who": [1, 1, 2, 2, None, *range(19)]}, {"groups": "who"}, "no group in row 4 "),
    "the target as group": ({}, {"groups": "kind"}, "the column to predict"),
    "no column of groups": ({}, {"groups": "whom"}, 'no column "whom" of groups'),
    "one group": (
        {"who": ["one"] * 24},
        {"groups": "who"},
        'column "who"',
        "one group, which leaves no test group",
    ),
    "the target as category": ({}, {"categories": ("kind",)}, 'no column "kind" of categories'),
    "no such category": ({}, {"categories": ("nobody",)}, 'no column "nobody" of categories'),
}


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_spoilt_table_is_refused_with_column_and_row(tmp_path, form, spoilt):
    changes, options, *words = SPOILT[spoilt]
    data = {name: column for name, column in (columns() | changes).items() if column is not None}
    with refusal(DataError, '"own"', *words):
        get(form, file=WRITERS[form](tmp_path / "own", data), **{"target": "kind", **options})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read: Empty CSV file"),
        ("a,kind\n", "a heading and no rows"),
        ("a,kind\n1,x\n2,y,3\n", "cannot be read: .*Expected 2 columns"),
        ("a,a,kind\n1,1,x\n2,2,y\n", "the columns a more than once"),
        ("a,kind\n1,x\n2,x\n3,y\n", 'class 1 of "own" has 1 of 3 rows'),
    ],
)
def test_csv_files_that_are_no_table(tmp_path, text, words):
    (tmp_path / "own").write_text(text)
    with refusal(DataError, words):
        get("csv", file=tmp_path / "own", target="kind")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_column_of_groups_is_no_feature_and_keeps_its_rows_together(tmp_path, form):
    file = WRITERS[form](tmp_path / "own", {**columns(), "who": [f"p{i // 3}" for i in range(24)]})
    split = get(form, file=file, target="kind", groups="who")
    assert split.train.features == ("age", "weight", "smokes")
    who = [set(part.x[:, 0].astype(int) // 3) for part in (split.train, split.test)]
    assert not who[0] & who[1]
    assert who[0] | who[1] == set(range(8))
    with refusal(SpecError, 'data set "wine" takes no groups, "who" was given'):
        get("wine", groups="who")


def test_lines_above_the_heading_are_skipped_where_that_is_asked_for(tmp_path):
    write_csv(tmp_path / "own", columns())
    (tmp_path / "own").write_text("of,,persons,\n" + (tmp_path / "own").read_text())
    assert get("csv", file=tmp_path / "own", target="kind", skip_lines=1).train.features[0] == "age"
    with refusal(DataError, 'no column "kind"', "does not name them, set data.skip_lines"):
        get("csv", file=tmp_path / "own", target="kind")
    with refusal(SpecError, "takes no skip_lines"):
        get("parquet", file=tmp_path / "own", target="kind", skip_lines=1)


def test_files_that_are_absent_or_of_another_kind(tmp_path):
    (tmp_path / "other.csv").write_bytes(b"a,kind\n1,2\n")
    for form in ("csv", "parquet", "multiview"):
        options = {"target": "kind"} if form != "multiview" else {}
        with refusal(DataError, 'no file "own"', "it holds other.csv"):
            get(form, file=tmp_path / "own", **options)
    with refusal(DataError, "other.csv", "cannot be read"):
        get("parquet", file=tmp_path / "other.csv", target="kind")
    with refusal(DataError, "other.csv", "not an .npz archive"):
        get("multiview", file=tmp_path / "other.csv")
    with refusal(DataError, 'no file "'):
        get("csv", file=tmp_path, target="kind")


def test_a_file_name_of_two_lines_stays_on_one(tmp_path):
    folder = tmp_path / "my\ndata"
    folder.mkdir()
    (folder / "two\nlines").write_text("a,kind\n")
    with refusal(DataError, "two lines", "no rows"):
        get("csv", file=folder / "two\nlines", target="kind")
    for form, options in (("csv", {"target": "kind"}), ("multiview", {})):
        with refusal(DataError, "my data", "it holds two lines"):
            get(form, file=folder / "other", **options)
    with refusal(DataError, "my data.two lines", "cannot be read"):
        get("parquet", file=folder / "two\nlines", target="kind")
    with refusal(DataError, "my data.two lines", "archive"):
        get("multiview", file=folder / "two\nlines")
    with refusal(DataError, "my data", "it holds two lines"):
        get("mnist", folder)


def survival(rows: int = 24) -> dict[str, list]:
    given = columns(rows)
    numbers = {"age": given["age"], "weight": given["weight"]}
    return numbers | {
        "days": [i * 7 % 11 for i in range(rows)],
        "died": [i % 3 > 0 for i in range(rows)],
    }


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_survival_times_go_with_their_rows_into_both_parts(tmp_path, form):
    data = survival() | {"centre": ["north", "south"] * 12}
    file = tmp_path / f"a.{form}"
    if form == "csv":
        write_csv(file, data)
    else:
        pq.write_table(pa.table(data), file)
    split = get("survival", file=file, target="died", time="days", owners=("", "centre"))
    for table in (split.train, split.test):
        assert table.features == ("age", "weight")
        rows = table.x[:, 0].astype(int)
        assert table.times.tolist() == [data["days"][i] for i in rows]
        assert table.targets.tolist() == [[data["days"][i], float(data["died"][i])] for i in rows]
        assert table.silos.tolist() == [i % 2 for i in rows]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"days": ["soon", *range(23)]}, ("days", "soon", "row 0")),
        ({"days": [*range(23), ""]}, ("days", "no value", "row 23")),
        (
            {"days": [*range(20), -3, 1, -4, 2]},
            ('column "days" of "a.csv"', "time -3 in row 20 ", "0 or more"),
        ),
        ({"died": [2] * 24}, ("died", "1 or 0", "censored")),
        ({"died": ["yes"] * 24}, ("died", "1 or 0", "censored")),
    ],
)
def test_survival_times_and_events_that_are_none_are_refused(tmp_path, change, words):
    file = write_csv(tmp_path / "a.csv", survival() | change)
    with refusal(DataError, *words):
        get("survival", file=file, target="died", time="days")


@pytest.mark.parametrize(
    ("source", "given", "kind", "words"),
    [
        ("survival", {}, SpecError, ("survival", "needs a time")),
        ("survival", {"time": "died"}, DataError, ('data.time: "died"', "predict")),
        ("survival", {"time": "months"}, DataError, ('no column "months" of times',)),
        ("csv", {"time": "days"}, SpecError, ("csv", "takes no time")),
    ],
)
def test_survival_tables_want_both_columns_and_others_take_no_time(
    tmp_path, source, given, kind, words
):
    with refusal(kind, *words):
        get(source, file=write_csv(tmp_path / "a.csv", survival()), target="died", **given)


def test_a_word_is_a_value_in_the_columns_alone_whose_list_has_it(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("a,b,c\nNA,NA,NA\nnull,null,null\nx,y,z\n")
    lists = {"a": {"NA"}, "b": {"NA", "null"}, "c": {"z"}}
    found = csv_columns(
        file, CsvForm(), {column: frozenset(words) for column, words in lists.items()}
    )
    assert found.to_pydict() == {
        "a": ["NA", None, "x"],
        "b": ["NA", "null", "y"],
        "c": [None, None, "z"],
    }
