import pytest

import raydpzv
from raydpzv.config.public_lists import fitted, read_off, stated_lists
from raydpzv.config.toml import as_toml, load
from raydpzv.errors import SpecError
from raydpzv.settings.sections_data import DataSection
from tests.helpers.commands import call, stdout_of

CLASSES = ("ill", "well")


@pytest.mark.parametrize(
    ("given", "missing", "said"),
    [
        ({"source": "digits"}, [], ["classes: public, the data set's own"]),
        ({"source": "csv", "classes": CLASSES}, [], ["classes: public, from data.classes"]),
        (
            {"source": "csv"},
            ["data.classes"],
            ["NOT public: classes are numbered by the labels that occur; data.classes"],
        ),
        (
            {"source": "csv", "classes": CLASSES, "categories": {"city": ("a", "b")}},
            [],
            [
                "classes: public, from data.classes",
                "categories of city: public, from data.categories",
            ],
        ),
        (
            {"source": "parquet", "classes": CLASSES, "categories": ("my city",)},
            ["data.categories"],
            [
                "classes: public",
                "NOT public: categories are read off the training rows; data.categories: give a "
                "table",
            ],
        ),
        ({"source": "survival"}, [], ["classes: public, the data set's own"]),
    ],
)
def test_each_list_is_public_or_its_setting_is_named(given, missing, said):
    data = DataSection(**given)
    assert [found.setting for found in read_off(data)] == missing
    assert [
        line.startswith(start) for line, start in zip(stated_lists(data), said, strict=True)
    ] == [True] * len(said)


@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        ({}, None),
        ({"scale": "standard"}, "data.scale"),
        ({"scale": "unit"}, "data.scale"),
        ({"missing": "mean"}, "data.missing"),
        ({"split": "stratified"}, "data.split"),
        ({"groups": "patient"}, "data.groups"),
        ({"classes": None}, "data.classes"),
        ({"categories": ("city",)}, "data.categories"),
    ],
)
def test_each_setting_by_which_one_record_moves_others_is_named(changed, setting):
    public = {"source": "csv", "classes": CLASSES, "scale": "none", "split": "plain"}
    given = {name: value for name, value in (public | changed).items() if value is not None}
    named = [each.setting for each in fitted(DataSection(**given))]
    assert named == ([] if setting is None else [setting])


def test_privacy_says_whose_list_the_classes_are():
    said = stdout_of(call("privacy", "digits_private")).splitlines()
    assert "classes: public, the data set's own" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["data.other=other"], r"data\.other: wanted a value that data\.classes"),
        (['data.classes=["ill", "well"]', "data.other=1"], r"data\.other: wanted a value that"),
        (["data.classes=[0, 1]", "data.other=true"], r"data\.other: wanted a value that"),
        (['data.classes=["ill", 1]'], r"data\.classes: wanted a list of two or more labels"),
        (['data.classes=["ill", "ill"]'], r"data\.classes: wanted a list of two or more labels"),
        (["data.classes=1"], r"data\.classes: wanted a whole number from 2, or a list"),
        (
            ['data.categories={city = ["a"]}'],
            r"data\.categories: wanted a list of two or more labels",
        ),
        (["data.categories=3"], r"data\.categories: wanted a list of columns"),
    ],
)
def test_lists_that_cannot_be_are_refused_with_the_setting(changes, said):
    table = ["data.source=csv", "data.file=own.csv", "data.target=y"]
    with pytest.raises(SpecError, match=said):
        raydpzv.load("vafl", [*table, *changes])


def test_lists_survive_a_file_and_go_with_their_data_set(tmp_path):
    table = ["data.source=csv", f"data.file={tmp_path / 'own.csv'}", "data.target=y"]
    lists = [
        'data.classes=["b", "a"]',
        'data.categories={"my city" = ["x", "y"], n = [1, 2]}',
        "data.other=a",
    ]
    spec = raydpzv.load("vafl", [*table, *lists])
    (tmp_path / "kept.toml").write_text(as_toml(spec))
    kept = load(tmp_path / "kept.toml")
    assert kept.data == spec.data
    assert kept.data.categories == {"my city": ("x", "y"), "n": (1, 2)}
    assert load(tmp_path / "kept.toml", ["data.source=digits"]).data.classes == 2
