import re
import tomllib

import pytest

import raydpzv
from raydpzv.data.column_facts import column_facts
from raydpzv.data.table_files import CsvForm
from raydpzv.errors import SpecError
from scenarios.commands.new import even_parties, given_parties
from tests.helpers.commands import call, complaint
from tests.helpers.own_table import PARTIES, write_own_table

CONSTANTS = ("confirmed", "classes", "categories", "centre", "spread")


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_own_table(tmp_path / "own.csv")


def test_parties_are_read_from_one_line():
    assert given_parties(" bank=income,age  shop=visits ") == {
        "bank": ("income", "age"),
        "shop": ("visits",),
    }
    assert given_parties("the bank = yearly income, age; shop=visits;") == {
        "the bank": ("yearly income", "age"),
        "shop": ("visits",),
    }


@pytest.mark.parametrize("text", ["bank", "bank=", "bank=income age", "bank=income bank=age"])
def test_a_line_that_names_no_parties_is_refused(text):
    with pytest.raises(SpecError, match="--parties: wanted"):
        given_parties(text)


def test_left_out_parties_share_the_usable_columns(own):
    assert even_parties(column_facts(own, CsvForm()), "label") == {
        "first": ("income", "age", "visits"),
        "second": ("city", "gaps"),
    }


def test_what_needs_public_constants_is_written_as_comments(own):
    assert call("new", "own", "--data", own, "--parties", PARTIES, "--private").exit_code == 0
    text = (own.parent / "own.toml").read_text()
    assert not set(CONSTANTS) & set(tomllib.loads(text)["data"])
    marked = [line for line in text.splitlines() if line.endswith("# PUBLIC?")]
    assert [line.split()[:2] for line in marked] == [["#", name] for name in CONSTANTS]
    assert "READ FROM THE DATA (own.csv)" in text
    refused = complaint(call("run", "own.toml"))
    assert "data.classes" in refused
    uncommented = "\n".join(
        line.removeprefix("# ") if line in marked else line for line in text.splitlines()
    )
    call(
        "new",
        "own",
        "--data",
        own,
        "--parties",
        PARTIES,
        "--private",
        "--public-from-data",
        "--force",
    )
    assert tomllib.loads(uncommented) == tomllib.loads((own.parent / "own.toml").read_text())


@pytest.mark.parametrize(
    "options", [(), ("--private", "--public-from-data")], ids=["open", "private"]
)
def test_each_setting_of_the_file_has_a_comment(own, options):
    assert call("new", "own", "--data", own, "--parties", PARTIES, *options).exit_code == 0
    lines = (own.parent / "own.toml").read_text().splitlines()
    settings = [
        line for line in lines if " = " in line and not line.startswith(("#", "bank", "shop"))
    ]
    assert len(settings) > 15
    assert [line for line in settings if "  # " not in line] == []
    read = [line for line in settings if line.startswith(("classes", "categories"))]
    assert all(line.endswith(("# read from the data", "# PUBLIC?")) for line in read)


def test_a_file_is_replaced_only_by_force(own):
    assert call("new", "own", "--data", own).exit_code == 0
    before = (own.parent / "own.toml").read_bytes()
    assert "--force" in complaint(call("new", "own.toml", "--data", own, "--target", "city"))
    assert (own.parent / "own.toml").read_bytes() == before
    assert call("new", "own.toml", "--data", own, "--target", "city", "--force").exit_code == 0
    assert tomllib.loads((own.parent / "own.toml").read_text())["data"]["target"] == "city"


def test_a_table_elsewhere_has_its_whole_path(own):
    (own.parent / "scenarios").mkdir()
    assert call("new", "scenarios/own", "--data", "own.csv").exit_code == 0
    assert tomllib.loads((own.parent / "scenarios/own.toml").read_text())["data"]["file"] == str(
        own
    )


def test_names_that_toml_quotes_survive(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    heading, *rows = write_own_table(tmp_path / "own.csv").read_text().splitlines()
    heading = (
        heading.replace("income", "yearly income")
        .replace("city", 'the "city"')
        .replace("age", "Größe")
    )
    (tmp_path / "own.csv").write_text(
        "\n".join([heading.replace('the "city"', '"the ""city"""'), *rows]) + "\n"
    )
    parties = 'the bank=yearly income,Größe; shop=the "city"'
    done = call(
        "new", "own", "--data", "own.csv", "--parties", parties, "--private", "--public-from-data"
    )
    assert done.exit_code == 0, done.output
    tree = tomllib.loads((tmp_path / "own.toml").read_text())
    assert tree["split"]["parties"] == {
        "the bank": ["yearly income", "Größe"],
        "shop": ['the "city"'],
    }
    assert list(tree["data"]["centre"]) == ["yearly income", "Größe"]


def test_control_characters_of_cells_and_headings_break_no_comment(own):
    heading, first, *rows = own.read_text().splitlines()
    heading = heading.replace("city", "ci\x1bty")
    first = re.sub("Basel|Bern|Chur", "Z\x07ug", first)
    own.write_text("\n".join([heading, first, *rows]) + "\n")
    done = call("new", "own", "--data", own, "--private")
    assert done.exit_code == 0, done.output
    text = (own.parent / "own.toml").read_text()
    assert '# rare: "Z\\x07ug" of column "ci\\x1bty" is in fewer than' in text
    assert "ci\x1bty" in [
        c for part in tomllib.loads(text)["split"]["parties"].values() for c in part
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--parties", "bank=incme shop=age"],
            'wanted columns of "own.csv" for "bank", got "incme". Did you mean "income"',
        ),
        (
            ["--parties", "bank=income shop=name"],
            'column "name" of "own.csv" cannot be a feature of "shop"',
        ),
        (["--parties", "bank=income shop=label"], 'for "shop", got "label"'),
        (["--parties", "bank=income"], "split.parties: wanted at least 2 parties"),
        (
            ["--parties", "bank=income shop=income"],
            "split.parties: wanted each column in one party",
        ),
        (
            ["--target", "lable"],
            'column of "own.csv" to predict, got "lable". Did you mean "label"',
        ),
        (["--target", "name"], "--target: wanted a column of numbers, or of 2 to 50 classes"),
        (["--public-from-data"], "--public-from-data: goes with --private"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(own, options, said):
    assert said in complaint(call("new", "own", "--data", own, *options))
    assert not (own.parent / "own.toml").exists()


def test_a_name_in_no_folder_is_refused(own):
    assert "wanted a NAME in a folder that exists" in complaint(
        call("new", "nowhere/own", "--data", own)
    )


def test_empty_cells_are_filled_where_nothing_is_claimed(own):
    assert call("new", "own", "--data", own, "--parties", "bank=income shop=gaps").exit_code == 0
    assert tomllib.loads((own.parent / "own.toml").read_text())["data"]["missing"] == "mean"


def test_a_value_of_few_rows_is_named_before_it_is_listed_as_public(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{i},{'well' if i % 2 else 'ill'}" for i in range(60)] + ["3,hiv"]
    few = (f"{7 if i else 16},{'ab'[i % 2]}" for i in range(len(rows)))
    (tmp_path / "more.csv").write_text(
        "\n".join(
            [
                "age,year,ward,label",
                *(r.replace(",", f",{two},") for r, two in zip(rows, few, strict=True)),
            ]
        )
        + "\n"
    )
    rare = 'rare: "hiv" of column "label" is in fewer than 5 rows; is it public knowledge?'
    for more in ((), ("--public-from-data",)):
        said = call("new", "own", "--data", tmp_path / "more.csv", "--private", "--force", *more)
        assert rare in said.output
        assert said.output.count("rare: ") == 1, "of a column of numbers no value is listed"
        assert f"# {rare}" in (tmp_path / "own.toml").read_text()
    assert "rare" not in call("new", "own", "--data", tmp_path / "more.csv", "--force").output


def test_a_refusal_names_every_public_constant_that_is_missing(own):
    assert call("new", "own", "--data", own, "--parties", PARTIES, "--private").exit_code == 0
    said = complaint(call("run", "own.toml"))
    assert (
        "; missing as well: data.centre, data.spread (from own.toml); own.toml has such lines, "
        "marked" in said
    )
    file = own.parent / "own.toml"
    text = file.read_text()
    file.write_text(re.sub(r"^# (?=\w+ = .*PUBLIC\?$)", "", text, flags=re.MULTILINE))
    assert raydpzv.load("own.toml").data.classes
    file.write_text(re.sub(r".*PUBLIC\?\n", "", text))
    assert "PUBLIC" not in complaint(call("run", "own.toml")), "no such line is left"


def test_column_names_with_blanks_stay_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = (f"{i}.5, {i * 7 % 13}, {i % 2}" for i in range(40))
    (tmp_path / "own.csv").write_text("\n".join(["age, income, label", *rows]) + "\n")
    words = (
        "new",
        "s 1",
        "--data",
        "own.csv",
        "--target",
        " label",
        "--private",
        "--public-from-data",
    )
    said = call(*words)
    assert said.exit_code == 0, said.output
    assert "not used" not in said.output
    assert "raydpzv run 's 1.toml'" in said.output
    assert tomllib.loads((tmp_path / "s 1.toml").read_text())["split"]["parties"] == {
        "first": ["age"],
        "second": [" income"],
    }


def priced(path):
    """Write rows whose price follows from three columns."""
    rows = [(i % 7, i % 5, i % 3) for i in range(120)]
    lines = [f"{a},{b},{c},{10_000.5 + 900 * a - 700 * b + 400 * c}" for a, b, c in rows]
    path.write_text("\n".join(["rooms,age,floor,price", *lines]) + "\n")
    return path


def test_a_number_is_predicted_with_steps_in_its_own_units(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call("new", "own", "--data", priced(tmp_path / "own.csv"), "--target", "price")
    assert done.exit_code == 0, done.output
    tree = tomllib.loads((tmp_path / "own.toml").read_text())
    assert (tree["model"]["loss"], tree["model"]["embedding"]) == ("squared_error", 1)
    assert "classes" not in tree["data"]
    assert tree["method"]["smoothing"] == 5.0  # prices lie between 7,000 and 17,000
    measures = raydpzv.run(raydpzv.load("own.toml")).measures
    assert measures["r2"] > 0.95
    other = raydpzv.run(raydpzv.load("own.toml", ["method.smoothing=1e-6"])).measures  # control
    assert other["r2"] < measures["r2"] - 0.1


def test_what_a_private_number_needs_is_marked_as_public(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("new", "own", "--data", priced(tmp_path / "own.csv"), "--target", "price", "--private")
    assert "5 lines of it, marked PUBLIC?" in call(*words).output
    text = (tmp_path / "own.toml").read_text()
    marked = [line.split()[:2] for line in text.splitlines() if line.endswith("# PUBLIC?")]
    constants = ("centre", "spread", "smoothing", "clip")
    assert marked == [["#", name] for name in ("confirmed", *constants)]
    assert "privacy.clip: wanted a number above 0" in complaint(call("run", "own.toml"))
    assert call(*words, "--public-from-data", "--force").exit_code == 0
    run = raydpzv.run(raydpzv.load("own.toml", ["budget.updates=4"]))
    assert run.epsilon["epsilon"] == pytest.approx(1)
    assert raydpzv.load("own.toml").data.confirmed == constants
    said = "data.centre, data.spread, method.smoothing and privacy.clip (read off the data)"
    assert f"You state that these are public: {said}." in run.summary["privacy_verdict"]


def test_values_that_differ_by_blanks_are_named_before_they_are_classes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = (f"{i}.5,{i * 7 % 13},{('yes', 'no', 'yes ')[i % 3]}" for i in range(60))
    (tmp_path / "own.csv").write_text("\n".join(["weight,age,label", *rows]) + "\n")
    done = call("new", "own", "--data", "own.csv")
    assert done.exit_code == 0, done.output
    assert 'look at it: column "label" of "own.csv" has "yes " in row 2 and "yes" in row 0' in (
        " ".join(done.output.split())
    )
