"""Ids, classes and categories are text in every reader, whatever they look like."""

import csv
import datetime
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydpzv.data.names import texts_of
from raydpzv.data.tabular import _numbers
from raydpzv.errors import DataError
from tests.helpers.loading import get, refusal

ROWS = 48
SPELT_APART = {
    "20 digits": [str(89490200001000000000 + k) for k in range(8)],
    "leading zeros": ["0" * k + "7" for k in range(8)],
    "exponents": ["1E2", "100", "1E02", "0100", "1e2", "+100", "100.0", "1_00"],
    "blanks": ["7", " 7", "7 ", " 7 ", "7\t", "\t7", "  7", "7  "],
    "other digits": ["7", "٧", "７", "७", "৭", "7\u00a0", "7\u200b", "Ⅶ"],
    "fractions": ["7", "7.0", "7.00", "07.0", "7.", "+7", "-7", "7e0"],
    "words": ["true", "True", "TRUE", "1", "yes", "inf", "Infinity", "0x7"],
    "huge": ["9" * k for k in (1, 20, 40, 310, 400, 4301, 5000, 6000)],
    "dates": ["2020-01-02", "2020-1-2", "02.01.2020", "2020-01-02 00:00", "1/2/20", "20200102", "2020", "0020"],
}  # fmt: skip
"""Eight names each that some reading would take for fewer."""


def table(names, role="who"):
    given = [names[row % len(names)] for row in range(ROWS)]
    return {
        "a": [row / 7 for row in range(ROWS)],
        role: given,
        "label": [row // 8 % 2 for row in range(ROWS)],
    }


def write(folder, form, columns):
    path = folder / f"own.{form}"
    if form == "csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(columns)
            lines.writerows(zip(*columns.values(), strict=True))
        return path
    whole = pa.table(columns)
    if form == "dictionary.parquet":
        names = [name for name in columns if pa.types.is_string(whole.schema.field(name).type)]
        for name in names:
            place = whole.column_names.index(name)
            whole = whole.set_column(place, name, whole.column(name).dictionary_encode())
    pq.write_table(whole, path)
    return path


FORMS = ["csv", "parquet", "dictionary.parquet"]


def source(form):
    return "csv" if form == "csv" else "parquet"


def whole(split, field):
    return np.concatenate([getattr(split.train, field), getattr(split.test, field)])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SPELT_APART)
def test_users_silos_and_groups_that_are_spelt_apart_stay_apart(tmp_path, form, kind):
    path = write(tmp_path, form, table(SPELT_APART[kind]))
    users = get(source(form), file=path, target="label", owners=("who", ""), split="plain")
    silos = get(source(form), file=path, target="label", owners=("", "who"), split="plain")
    assert len(set(whole(users, "users"))) == len(set(whole(silos, "silos"))) == 8
    groups = get(source(form), file=path, target="label", groups="who", split="plain")
    assert len(set(whole(groups, "groups"))) == 8
    assert groups.train.features == ("a",)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SPELT_APART)
def test_classes_and_categories_that_are_spelt_apart_stay_apart(tmp_path, form, kind):
    names = tuple(SPELT_APART[kind])
    path = write(tmp_path, form, {"b": list(range(ROWS)), **table(names)})
    for categories in (("who",), {"who": names}):
        split = get(source(form), file=path, target="label", categories=categories, split="plain")
        assert split.train.levels[split.train.features.index("who")] == 8
    for classes in (2, names):
        split = get(source(form), file=path, target="who", classes=classes, split="plain")
        assert split.train.classes == len(set(whole(split, "y"))) == 8


def test_classes_that_look_like_numbers_keep_the_order_of_numbers(tmp_path):
    path = write(tmp_path, "csv", table(["10", "9", "-3", "100"]))
    split = get("csv", file=path, target="who", split="plain")
    rows = np.concatenate([split.train.numbers, split.test.numbers]).tolist()
    both = dict(zip(rows, whole(split, "y").tolist(), strict=True))
    assert [both[row] for row in range(4)] == [2, 1, 0, 3]


@pytest.mark.parametrize(
    ("types", "said"),
    [
        (pa.int64(), 8),
        (pa.uint64(), 8),
        (pa.float64(), 8),
        (pa.float32(), 8),
        (pa.decimal128(20, 0), 8),
        (pa.large_string(), 8),
        (pa.binary(), 8),
        (pa.large_binary(), 8),
    ],
)
def test_ids_of_other_types_are_the_text_of_their_digits(tmp_path, types, said):
    names = pa.array([str(row % 8) for row in range(ROWS)])
    ids = names.cast(types) if types != pa.decimal128(20, 0) else names.cast(pa.int64()).cast(types)
    columns = table(["x"]) | {"who": ids}
    pq.write_table(pa.table(columns), tmp_path / "own.parquet")
    split = get("parquet", file=tmp_path / "own.parquet", target="label", owners=("who", ""))
    assert len(set(whole(split, "users"))) == said
    texts = table(["x"]) | {"who": names}
    pq.write_table(pa.table(texts), tmp_path / "texts.parquet")
    other = get("parquet", file=tmp_path / "texts.parquet", target="label", owners=("who", ""))
    assert np.array_equal(whole(split, "users"), whole(other, "users"))


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (pa.array([7.5] + [1.0] * (ROWS - 1)), ("7.5 in row 0", "write them as text")),
        (pa.array([1.0] * (ROWS - 1) + [2.0**53]), (f"in row {ROWS - 1}", "two may be one")),
        (pa.array([1.0] * 4 + [2.0**24 + 2] * 44, pa.float32()), ("in row 4", "16777216")),
        (pa.array([1.0] * 3 + [float("inf")] * 45), ("in row 3", "wanted texts")),
        (pa.array([1.0] * 3 + [float("nan")] * 45), ("names no user in row 3",)),
        (pa.array([[1]] * ROWS), ("the type list", "no text")),
        (pa.array([1, None] * 24), ("names no user in row 1",)),
    ],
)
def test_ids_that_may_have_become_one_are_refused(tmp_path, ids, words):
    pq.write_table(pa.table(table(["x"]) | {"who": ids}), tmp_path / "own.parquet")
    with refusal(DataError, 'column "who" of "own.parquet"', *words):
        get("parquet", file=tmp_path / "own.parquet", target="label", owners=("who", ""))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["yes", "no", "yes "], ('"yes " in row 2', '"yes" in row 0')),
        (["Oslo", "Rome", "OSLO"], ('"OSLO" in row 2', '"Oslo" in row 0')),
        (["7", "8", "\uff17"], ('"\\\\uff17" in row 2', '"7" in row 0')),
        (["a b", "c", "a  b", "A B"], ('"a  b" in row 2', '"a b" in row 0')),
        (["yes", "no"], ()),
    ],
)
def test_names_that_differ_by_blanks_or_case_are_named_once(tmp_path, form, names, said):
    path = write(tmp_path, form, table(names))
    given = {"file": path, "split": "plain"}
    found = [
        get(source(form), **given, target="who").train.remarks,
        get(source(form), **given, target="label", owners=("who", "")).train.remarks,
        get(source(form), **given, target="label", groups="who").train.remarks,
        get(source(form), **given, target="label", categories=("who",)).train.remarks,
    ]
    for remarks in found:
        assert len(remarks) == bool(said)
        assert all(words.replace("\\\\", "\\") in remarks[0] for words in said)


def test_a_value_that_is_nearly_one_of_the_list_is_named(tmp_path):
    path = write(tmp_path, "csv", table(["no", "yes "]))
    given = {"file": path, "target": "who", "split": "plain"}
    with refusal(DataError, '"yes " in row 1 ', 'but for how it is written: it has "yes"'):
        get("csv", **given, classes=("no", "yes"))
    found = get("csv", **given, classes=("no", "yes"), other="no").train.remarks
    assert found == (
        'column "who" of "own.csv" has "yes ", which counts as "no" (data.other) and is "yes" of '
        "data.classes but for how it is written",
    )
    with refusal(DataError, '"007" in row 0 ', 'but for how it is written: it has "7"'):
        get("csv", file=write(tmp_path, "csv", table(["007", "8"])), target="who", classes=(7, 8))


def names_of(tmp_path, column):
    """Return the places in a public list that a category's first row has, and the others."""
    pq.write_table(
        pa.table({"c": column} | {"label": table(["x"])["label"]}), tmp_path / "own.parquet"
    )
    lists = {"c": ("1.5", "2", "10000000000000002", "other")}
    split = get("parquet", file=tmp_path / "own.parquet", target="label", split="plain",
                categories=lists, other="other", missing={"c": "other"})  # fmt: skip
    place, rows = split.train.features.index("c"), whole(split, "x")
    numbers = np.concatenate([split.train.numbers, split.test.numbers])
    found = rows[np.argsort(numbers), place]
    return found[0], found[1:].tolist()


@pytest.mark.parametrize(
    ("cells", "odd"),
    [
        ([Decimal("1.5"), Decimal("2")], Decimal("1.25")),
        ([Decimal("1.5"), Decimal("2.00")], Decimal("12345678901234567890.1")),
        ([2, 3], None),
        ([2.0, 1.5], -0.0),
    ],
)
def test_the_text_of_a_number_follows_from_the_number_alone(tmp_path, cells, odd):
    """A decimal's scale, and whether a column has whole numbers, is decided by all of its cells."""
    column = cells * (ROWS // 2)
    first, others = names_of(tmp_path, pa.array(column))
    changed = pa.array([odd, *column[1:]])
    if odd is None:  # as pandas writes a column that has a gap
        changed = pa.array([math.nan, *map(float, column[1:])], from_pandas=True)
    assert names_of(tmp_path, changed) == (3, others)
    assert first != 3
    assert {0, 1} & set(others), "control: listed values are found"


def test_zero_is_one_name_whatever_its_sign():
    assert texts_of(pa.chunked_array([[0.0, -0.0]]), "c").dictionary.to_pylist() == ["0"]


def test_whole_numbers_that_a_gap_has_made_floats_are_refused_beyond_2_53(tmp_path):
    ids = [10**16 + 2] * ROWS
    assert names_of(tmp_path, pa.array(ids)) == (2, [2] * (ROWS - 1))
    with refusal(DataError, "the floating-point number 1.0000000000000002e.16 in row 1"):
        names_of(tmp_path, pa.array([math.nan, *map(float, ids[1:])], from_pandas=True))
    with refusal(DataError, "which is no text"):
        names_of(tmp_path, pa.array([datetime.datetime(2020, 1, 1)] * ROWS))


def test_a_decimals_number_does_not_hang_on_the_decimals_beside_it(tmp_path):
    cells = [Decimal("0.1"), Decimal("0.3"), *[Decimal("0.7")] * (ROWS - 2)]
    read = [
        _numbers(pa.chunked_array([pa.array(column)]), "own", "x").tolist()
        for column in (cells, [Decimal("1234567.0000000000000001"), *cells[1:]])
    ]
    assert read[0][1:] == read[1][1:] == list(map(float, cells[1:]))


NULLS = ["NA", "null", "nan", "N/A"]


@pytest.mark.parametrize("word", NULLS)
def test_a_word_for_a_gap_is_a_value_where_the_public_list_has_it(tmp_path, word):
    columns = table(["EU", word, "AS"], "region") | {"b": [word] + ["1"] * (ROWS - 1)}
    columns |= {"kind": [word if row % 3 else "x" for row in range(ROWS)]}
    path = write(tmp_path, "csv", columns)
    given = {"file": path, "target": "label", "split": "plain", "missing": "mean"}
    lists = {"region": ("EU", word, "AS"), "kind": ("x", "y")}
    split = get("csv", **given, categories=lists)
    place = split.train.features.index("region")
    assert set(split.train.x[:, place]) == {0, 1, 2}
    gaps = np.isnan(whole(split, "x"))
    assert gaps.sum(0)[split.train.features.index("b")] == 1, "in a column of numbers it is a gap"
    assert gaps.sum(0)[split.train.features.index("kind")] == 32, "so it is where no list has it"
    labels = get("csv", **given | {"target": "region"}, classes=("EU", word, "AS"),
                 categories={"kind": ("x", word)})  # fmt: skip
    assert labels.train.classes == 3
    with refusal(DataError, '"region" in ', "without a value", "list them in data.categories"):
        get("csv", **given | {"missing": None}, categories=("region", "kind"))


HEADINGS = ["", " ", "Unnamed: 0"]


@pytest.mark.parametrize("heading", HEADINGS)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_frames_row_numbers_are_no_feature(tmp_path, form, heading):
    columns = {heading: list(range(ROWS)), **table(["x", "y"], "label")}
    path = write(tmp_path, form, columns)
    given = {"file": path, "target": "label", "split": "plain"}
    with refusal(DataError, 'of "own', "has no name", r"to_csv\(index=False\)", "split.parties"):
        get(form, **given)
    held = get(form, **given, holders={"a": "party first"})
    assert held.train.features == ("a",), "columns that nobody holds are left out"


def test_the_index_that_parquet_keeps_is_no_feature(tmp_path):
    pq.write_table(pa.table(table(["x"]) | {"__index_level_0__": range(ROWS)}), tmp_path / "t")
    with refusal(DataError, "__index_level_0__", "row numbers"):
        get("parquet", file=tmp_path / "t", target="label", categories=("who",))
