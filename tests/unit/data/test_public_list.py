"""Labels and categories by public lists: no record's value moves another's number, whatever reads
the file.
"""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from raydpzv.data.public_list import PublicList
from raydpzv.data.scaling import encoded
from raydpzv.data.table import Split, Table
from raydpzv.errors import DataError, SpecError
from tests.helpers.loading import get

ROWS = 40
LABELS = ["ill" if row % 3 else "well" for row in range(ROWS)]
CITY = [("Oslo", "Rome", "10")[row % 3] for row in range(ROWS)]


def file_of(folder, source, labels=LABELS, city=CITY):
    """Write a table of each kind; labels of archives are numbers."""
    path = folder / f"own.{'npz' if source in ('multiview', 'tokens') else source}"
    x = np.arange(2 * ROWS, dtype=np.float32).reshape(ROWS, 2)
    if path.suffix == ".npz":
        np.savez(
            path, x=x[:, :, None] if source == "multiview" else x.astype(int), y=np.array(labels)
        )
    elif source == "parquet":
        columns = {"a": x[:, 0].tolist(), "city": city, "label": labels}
        pyarrow.parquet.write_table(pa.table(columns), path)
    else:
        rows = zip(x[:, 0].tolist(), city, labels, strict=True)
        path.write_text("a,city,label\n" + "".join(f"{a},{c},{y}\n" for a, c, y in rows))
    return path


def read(path, source, **given):
    columns = {"target": "label"} if source in ("csv", "parquet") else {}
    return get(source, file=path, split="plain", **columns, **given)


def parts(split: Split) -> list[np.ndarray]:
    found = encoded(split)
    return [found.train.x, found.train.y, found.test.x, found.test.y]


def test_other_counts_only_in_a_list_that_has_it():
    cities = PublicList.of(("Oslo", "other"), "data.categories", "other")
    assert cities.places(["Rome", "Oslo"]) == [1, 0]
    classes = PublicList.of(("ill", "well"), "data.classes", "other")
    assert classes.places(["Rome", "ill"]) == [-1, 0]


@pytest.mark.parametrize("source", ["csv", "parquet"])
def test_labels_have_the_numbers_of_their_list(tmp_path, source):
    found = read(
        file_of(tmp_path, source),
        source,
        classes=("well", "dead", "ill"),
        categories={"city": ("Oslo", "Rome", "10")},
    )
    assert found.train.classes == 3
    wanted = np.array([{"well": 0, "ill": 2}[label] for label in LABELS])
    assert np.array_equal(found.train.y, wanted[found.train.numbers])


@pytest.mark.parametrize("source", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("column", "name"),
    [("label", "data.classes"), ("city", "data.categories.city")],
    ids=["label", "category"],
)
def test_a_value_outside_the_list_is_refused_with_row_and_cure(tmp_path, source, column, name):
    given = {"classes": ("ill", "well"), "categories": {"city": ("Oslo", "Rome", "10")}}
    changed = {
        "label": {"labels": [*LABELS[:7], "hiv", *LABELS[8:]]},
        "city": {"city": [*CITY[:7], "hiv", *CITY[8:]]},
    }
    path = file_of(tmp_path, source, **changed[column])
    said = (
        f'column "{column}" of "own.{source}" has "hiv" in row 7 .* public list {name} .*'
        " data.other"
    )
    with pytest.raises(DataError, match=said):
        read(path, source, **given)


@pytest.mark.parametrize("source", ["csv", "parquet"])
def test_whatever_a_value_outside_is_it_counts_as_the_other_one(tmp_path, source):
    given = {
        "classes": ("ill", "well", "other"),
        "categories": {"city": ("Oslo", "Rome", "other", "10")},
    }
    tables = []
    for value in ("hiv", "zzz"):
        path = file_of(
            tmp_path, source, [*LABELS[:7], value, *LABELS[8:]], [*CITY[:9], value, *CITY[10:]]
        )
        tables.append(read(path, source, **given, other="other"))
    assert all(np.array_equal(*pair) for pair in zip(*map(parts, tables), strict=True))
    row = {
        int(n): y
        for part in (tables[0].train, tables[0].test)
        for n, y in zip(part.numbers, part.y, strict=True)
    }
    assert row[7] == 2
    assert [row[0], row[1]] == [1, 0]
    fitted = [read(file_of(tmp_path, source, [*LABELS[:7], v, *LABELS[8:]], CITY), source, categories=("city",))
              for v in ("hiv", "zzz")]  # fmt: skip
    assert (fitted[0].train.y != fitted[1].train.y).sum() > 20, (
        "a control: labels by what occurs renumber others"
    )


def test_no_cell_moves_how_others_of_its_column_are_read(tmp_path):
    """Read as numbers, "1.50" and "01" would be 1.5 and 1 until one cell is a text."""
    city = ["01" if row % 2 else "1.50" for row in range(ROWS)]
    given = {"classes": ("ill", "well"), "categories": {"city": ("01", "1.50", "x")}}
    one = read(file_of(tmp_path, "csv", city=city), "csv", **given)
    two = read(file_of(tmp_path, "csv", city=[*city[:5], "x", *city[6:]]), "csv", **given)
    before, after = (np.concatenate([s.train.x, s.test.x])[:, 1] for s in (one, two))
    assert (before != after).sum() == 1
    assert sorted(set(before)) == [0, 1]


@pytest.mark.parametrize(("values", "other"), [((0, 1), 0), ((True, False), False)])
def test_an_other_that_counts_as_nothing_in_python_is_an_other(values, other):
    known = PublicList.of(values, "data.classes", other)
    assert known.places(["7", "no"]) == [values.index(other)] * 2


def test_levels_of_a_public_list_have_a_column_each_without_a_look_at_rows():
    x = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 2.0]])
    table = Table("t", x, np.array([0, 1, 0]), 2, ("a", "c"), levels=(0, 4), public_levels=True)
    found = encoded(Split(table, table))
    assert found.train.features == ("a", "c", "c", "c", "c")
    assert found.train.x[:, 1:].tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0]]
    pair = dataclasses.replace(table.select(np.array([0, 1])), levels=(0, 2))
    assert encoded(Split(pair, pair)).train.x[:, 1:].tolist() == [[1, 0], [1, 0]]
    fitted = dataclasses.replace(table, public_levels=False)
    assert encoded(Split(fitted, fitted)).train.shape == (3,), "a control: those that occur"


@pytest.mark.parametrize("source", ["multiview", "tokens"])
def test_labels_of_archives_are_numbered_by_their_list_too(tmp_path, source):
    labels = [row % 2 for row in range(ROWS)]
    path = file_of(tmp_path, source, labels)
    assert read(path, source).train.classes == 2
    found = read(path, source, classes=(2, 1, 0))
    assert found.train.classes == 3
    assert set(found.train.y) == {1, 2}
    path = file_of(tmp_path, source, [*labels[:7], 9, *labels[8:]])
    assert read(path, source).train.classes == 10, (
        "a control: one label moves the number of outputs"
    )
    with pytest.raises(DataError, match=r'array y of "own\.npz" has "9" in row 7'):
        read(path, source, classes=(0, 1, 2))
    assert read(path, source, classes=(0, 1, 2), other=2).train.classes == 3


@pytest.mark.parametrize("source", ["csv", "parquet", "multiview"])
def test_a_stranger_is_a_label_that_no_other_row_has(tmp_path, source):
    labels = LABELS if source in ("csv", "parquet") else [row % 2 for row in range(ROWS)]
    path = file_of(tmp_path, source, labels)
    given = {"categories": ("city",)} if source != "multiview" else {}
    before, after = (read(path, source, strangers=rows, **given) for rows in ((), (7,)))
    assert (before.train.classes, after.train.classes) == (2, 3)
    known = ("ill", "well") if source != "multiview" else (0, 1)
    with pytest.raises(DataError, match=r"public list data\.classes"):
        read(path, source, strangers=(7,), classes=known, **given)


def test_data_sets_with_labels_of_their_own_take_no_list():
    with pytest.raises(SpecError, match="takes no classes"):
        get("digits", classes=(0, 1))
    with pytest.raises(SpecError, match="no record can have another"):
        get("digits", strangers=(3,))


@pytest.mark.parametrize(
    ("values", "texts", "places"),
    [
        (("a", "b"), ["b", "c", "a ", ""], [1, -1, -1, -1]),
        ((0, 10), ["10", " 10", "010", "+10", "1.0", "ten", "-0"], [1, 1, -1, -1, -1, -1, -1]),
        ((False, True), ["true", "FALSE", "1", "yes"], [1, 0, -1, -1]),
    ],
)
def test_texts_are_read_as_values_of_the_lists_kind(values, texts, places):
    assert PublicList(values, "data.classes").places(texts) == places
    other = PublicList(values, "data.classes", values[1]).places(texts)
    assert other == [1 if place < 0 else place for place in places]
