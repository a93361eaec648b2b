"""Scaling and splits that look at no record: equal tables where one record is another, with
controls that are not.
"""

from dataclasses import replace

import numpy as np
import pytest

import raydpzv
from raydpzv.data import builtin
from raydpzv.data.held_out import Limits, check_both_classes, hold_out, with_validation
from raydpzv.data.scaling import scale_by
from raydpzv.data.sources import Request
from raydpzv.data.table import Split, Table
from raydpzv.errors import DataError, SpecError
from raydpzv.experiment.prepare import load_data
from raydpzv.keys import Key
from raydpzv.settings.sections_data import DataSection
from tests.helpers.loading import request
from tests.helpers.public_data import PUBLIC

KEY = Key(3)
RECORD = 700


def flat(rows: int = 40, columns: int = 3) -> Table:
    generator = (KEY / "table").generator()
    return Table("t", generator.standard_normal((rows, columns)), np.arange(rows) % 3, 3)


def images() -> Table:
    x = (KEY / "images").generator().standard_normal((10, 2, 4, 4))
    return Table("t", x, np.arange(10) % 2, 2)


def neighbours(monkeypatch: pytest.MonkeyPatch, *changes: str) -> tuple[np.ndarray, np.ndarray]:
    """Training rows of digits as they are, and with one record's label changed and its features 50
    times larger.
    """
    data, found, plain = (
        raydpzv.load("digits_dpzv", changes).data,
        [],
        builtin.digits(request("digits")),
    )
    x, y = plain.x.copy(), plain.y.copy()
    x[RECORD], y[RECORD] = -50 * x[RECORD], (y[RECORD] + 1) % 10
    for table in (plain, replace(plain, x=x, y=y)):
        monkeypatch.setattr(builtin, "digits", lambda _, table=table: table)
        found.append(load_data(Request(data, KEY)).train.x)
    return found[0], found[1]


def moved(pair: tuple[np.ndarray, np.ndarray]) -> int:
    """How many rows differ."""
    return int((pair[0] != pair[1]).reshape(len(pair[0]), -1).any(1).sum())


@pytest.mark.parametrize(
    "rows", ["data.test_rows=10", "data.train_rows=900", "data.validation_fraction=0.2"]
)
def test_one_record_moves_no_other_where_scaling_and_split_are_public(monkeypatch, rows):
    assert moved(neighbours(monkeypatch, *PUBLIC, rows)) <= 1
    assert moved(neighbours(monkeypatch, "data.scale=none", "data.split=plain", rows)) <= 1


@pytest.mark.parametrize(
    "control", ["data.split=stratified", "data.scale=standard", "data.scale=unit"]
)
def test_it_moves_hundreds_of_others_where_either_looks_at_records(monkeypatch, control):
    changes = [*PUBLIC, control] if "split" in control else [control, "data.split=plain"]
    assert moved(neighbours(monkeypatch, *changes)) > 200


def test_constants_are_taken_as_they_are():
    table = flat()
    done = scale_by(Split(table, table), (1.0, 2.0, 3.0), 4.0)
    np.testing.assert_array_equal(
        done.train.x, ((table.x - np.array([1.0, 2, 3])) / 4).astype(np.float32)
    )
    np.testing.assert_array_equal(done.test.x, done.train.x)
    pixels = images()
    done = scale_by(Split(pixels, pixels), 0.5, (2.0, 4.0))
    np.testing.assert_array_equal(
        done.train.x[:, 1], ((pixels.x[:, 1] - 0.5) / 4).astype(np.float32)
    )
    ids = Table("ids", np.arange(8).reshape(4, 2), np.arange(4) % 2, 2, vocabulary=9)
    assert scale_by(Split(ids, ids), 1.0, 2.0).train is ids


def test_an_image_may_have_a_constant_for_each_of_its_pixels():
    pixels = images()
    row = pixels.x[0]
    template = tuple(np.linspace(0, 1, row.size))
    done = scale_by(Split(pixels, pixels), template, 2.0)
    expected = (pixels.x - np.reshape(template, row.shape)) / 2
    np.testing.assert_allclose(done.train.x, expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(SpecError, match=rf"or {row.size}, one per pixel, got 7"):
        scale_by(Split(pixels, pixels), (0.5,) * 7, 1.0)


def test_constants_by_name_leave_other_columns_as_they_are():
    table = replace(flat(), features=("age", "city", "city"))
    done = scale_by(Split(table, table), {"age": 50.0}, {"age": 4.0}).train.x
    np.testing.assert_allclose(done[:, 0], (table.x[:, 0] - 50) / 4, rtol=1e-6)
    np.testing.assert_array_equal(done[:, 1:], table.x[:, 1:].astype(np.float32))
    with pytest.raises(
        SpecError, match=r'data\.centre: wanted names of features, got "aeg"\. Did you mean "age"\?'
    ):
        scale_by(Split(table, table), {"aeg": 50.0}, 1.0)
    with pytest.raises(SpecError, match=r"data\.spread: .* The data have no column with a name"):
        scale_by(Split(images(), images()), 1.0, {"age": 4.0})


@pytest.mark.parametrize(
    ("centre", "spread", "said"), [((1.0, 2.0), 1.0, "centre"), (1.0, (1.0,) * 4, "spread")]
)
def test_another_count_of_constants_says_how_many_are_wanted(centre, spread, said):
    table = flat()
    with pytest.raises(SpecError, match=rf"data\.{said}: wanted one number or 3, one per column"):
        scale_by(Split(table, table), centre, spread)
    narrow = flat(columns=1)
    with pytest.raises(SpecError, match=r"wanted one number, got \d"):
        scale_by(Split(narrow, narrow), centre, spread)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            ["data.scale=public"],
            r'data.centre: wanted with data.scale = "public"; give one number, or one per column',
        ),
        (["data.scale=public", "data.centre=1"], r"data.spread: wanted with"),
        (["data.spread=2"], r'data.spread: goes with data.scale = "public", not "standard"'),
        ([*PUBLIC, "data.spread=0"], r"data.spread: .*wanted one number above 0 .*one per column"),
        (
            [*PUBLIC, "data.spread=[1, -2]"],
            r"data.spread: .*wanted one number above 0 .*one per column",
        ),
    ],
)
def test_what_contradicts_itself_says_what_is_wanted(changes, said):
    for scenario in ("digits_dpzv", "digits_decomfl"):
        with pytest.raises(SpecError, match=said):
            raydpzv.load(scenario, changes)


def test_a_plain_split_is_a_permutation_that_labels_do_not_move():
    table = flat()
    split, other = (
        Split(*hold_out(replace(table, y=y), 0.24, KEY, "plain"))
        for y in (table.y, np.zeros(40, int))
    )
    assert (split.train.rows, split.test.rows) == (30, 10)
    both = np.concatenate([split.train.x, split.test.x])
    np.testing.assert_array_equal(both[np.lexsort(both.T)], table.x[np.lexsort(table.x.T)])
    np.testing.assert_array_equal(split.train.x, other.train.x)
    assert not np.array_equal(split.test.x, Split(*hold_out(table, 0.24, Key(4), "plain")).test.x)
    with pytest.raises(DataError, match="leaves none to train on"):
        Split(*hold_out(flat(3), 0.9, KEY, "plain"))


def test_a_plain_split_keeps_groups_whole_and_looks_at_no_label():
    table = replace(flat(), groups=np.arange(40) // 4)
    found = []
    for y in (table.y, np.zeros(40, int)):
        split = Split(*hold_out(replace(table, y=y), 0.25, KEY, "plain"))
        split = with_validation(split, 0.3, KEY / "validation", "plain")
        found.append([set(part.groups) for part in (split.train, split.test, split.validation)])
    assert found[0] == found[1]
    assert [len(groups) for groups in found[0]] == [4, 3, 3]
    assert set.union(*found[0]) == set(range(10))
    two = table.select(np.arange(8))
    with pytest.raises(
        DataError, match=r"2 groups, and validation_fraction 0\.9 leaves none to train on"
    ):
        with_validation(Split(two, two), 0.9, KEY, "plain")


def test_validation_rows_of_one_class_are_refused_as_test_rows_are():
    two = Table("t", flat().x, np.arange(40) % 2, 2)
    lonely = two.select(np.arange(0, 40, 2))
    with pytest.raises(
        DataError, match=r"20 validation rows .* class 0 alone .*data\.validation_fraction"
    ):
        check_both_classes(Split(two, two, lonely))
    with pytest.raises(DataError, match=r"20 test rows .* class 0 alone .*data\.test_rows"):
        check_both_classes(Split(two, lonely, two))


def test_plain_limits_do_not_look_at_labels_either():
    labels = flat().y
    plain = [Limits(6, None, KEY, "plain").train(y, 3, "t") for y in (labels, np.sort(labels))]
    np.testing.assert_array_equal(*plain)
    assert len(set(plain[0])) == 6
    by_class = [Limits(6, None, KEY).train(y, 3, "t") for y in (labels, np.sort(labels))]
    assert not np.array_equal(*by_class), "control"


@pytest.mark.parametrize("split", ["plain", "stratified"])
def test_rows_say_where_they_were_in_the_table_as_it_was_read(split):
    """Also after rows were left out: a table whose features are its rows' numbers comes back as
    these.
    """

    def numbered(table):
        places = np.arange(table.rows, dtype=np.float32)
        return replace(table, x=np.broadcast_to(places[:, None], table.x.shape))

    data = DataSection(
        source="wine", scale="none", split=split, train_rows=60, validation_fraction=0.2
    )
    found = load_data(Request(data, KEY), numbered)
    for part in (found.train, found.test, found.validation):
        assert part.numbers.tolist() == part.x[:, 0].tolist()
