from pathlib import Path

import pytest

import scenarios
from raydpzv.config.paths import check_moved, located, locations, unlocated
from raydpzv.config.toml import as_tree, load, overridden, override, scenario_sha256
from raydpzv.errors import SpecError

CSV = '[data]\nsource = "csv"\nfile = "{file}"\ntarget = "y"\n[budget]\nupdates = 5\n'


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A scenario file in a folder that is not the working folder."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    path = tmp_path / "mine" / "s.toml"
    path.write_text(CSV.format(file="rows.csv"))
    return path


def test_a_path_in_a_file_counts_from_the_file_and_one_of_set_from_the_working_folder(
    mine, tmp_path
):
    assert load(mine).data.file == str(tmp_path / "mine" / "rows.csv")
    assert load(Path("../mine/s.toml")).data.file == str(tmp_path / "work" / "../mine/rows.csv")
    assert load(mine, ["data.file=other.csv"]).data.file == str(tmp_path / "work" / "other.csv")
    trace = ["arrivals.kind=trace", "arrivals.file=t.csv"]
    assert override(load(mine), trace).arrivals.file == str(tmp_path / "work" / "t.csv")
    mine.write_text(CSV.format(file="/data/rows.csv"))
    assert load(mine).data.file == "/data/rows.csv"


def test_a_scenario_of_the_program_finds_its_data_in_the_working_folder(mine, tmp_path):
    assert scenarios.load("mnist_dpzv").data.folder == str(tmp_path / "work" / "data" / "mnist")


@pytest.mark.parametrize(
    "tree", [{"data": 3}, {"data": {"file": 3}}, {"data": {"file": ""}}, {}, {"arrivals": {}}]
)
def test_what_is_no_path_is_left_for_validation(tree, tmp_path):
    assert located(tree, tmp_path) == tree


def test_a_digest_of_a_scenario_is_the_same_wherever_its_data_lie(mine):
    here, there = load(mine), load(mine, ["data.file=/elsewhere/x.csv"])
    assert here != there
    assert scenario_sha256(here) == scenario_sha256(there)
    assert scenario_sha256(here) != scenario_sha256(load(mine, ["data.target=z"]))
    assert unlocated(as_tree(here)) == unlocated(as_tree(there))
    assert here.data.file not in str(unlocated(as_tree(here)))


@pytest.mark.parametrize("name", ['a "b" \\ c.csv', "1.csv", "true", "ü.csv"])
def test_locations_are_overrides_that_give_the_same_paths(mine, tmp_path, name):
    tree = {"data": {"file": str(tmp_path / name)}, "arrivals": {"file": name}}
    assert overridden({}, locations(tree)) == tree
    assert locations(as_tree(scenarios.load("frozen"))) == []


def test_only_the_place_of_data_counts_as_moved():
    given = ("data.folder=x", " data.file =y", "arrivals.file=z")
    assert check_moved(given) == given
    for wrong in ("data.source=csv", "data", "data={file=3}", "method.lr=1"):
        with pytest.raises(SpecError, match="start a new run"):
            check_moved([wrong])
