from pathlib import Path

import pytest

from raydpzv.errors import SpecError
from raydpzv.registry import DATA_SOURCES
from tests.helpers.loading import get, refusal


@pytest.mark.parametrize(
    ("name", "shape", "classes", "rows"),
    [("digits", (1, 8, 8), 10, 1797), ("breast_cancer", (30,), 2, 569), ("wine", (13,), 3, 178)],
)
def test_built_in_sets(name, shape, classes, rows):
    split = get(name)
    assert split.train.x.shape[1:] == shape
    assert split.train.classes == classes
    assert split.train.rows + split.test.rows == rows
    assert split.test.rows == -(-rows // 4)
    assert len(split.train.features) == (shape[0] if len(shape) == 1 else 0)


def test_digits_are_in_0_to_1():
    x = get("digits").train.x
    assert (x.min(), x.max()) == (0, 1)


def test_every_source_says_what_it_is_and_where_it_comes_from():
    for source in DATA_SOURCES.values():
        assert source.about
        assert source.home
        assert "\n" not in source.about + source.home
        assert set(source.needs) <= {"folder", "file", "target", "time"}


SOMEWHERE = {"folder": Path("somewhere")}


@pytest.mark.parametrize(
    ("source", "given", "words"),
    [
        ("mnist", {}, ('"mnist" needs a folder', "LeCun")),
        ("csv", {"file": Path("own.csv")}, ('"csv" needs a target',)),
        ("digits", SOMEWHERE, ('"digits" takes no folder', "none of folder, file and target")),
        ("cifar10", SOMEWHERE | {"target": "kind"}, ('"cifar10" takes no target', "takes folder")),
    ],
)
def test_settings_that_lack_or_do_not_belong(source, given, words):
    with refusal(SpecError, *words):
        get(source, **given)
