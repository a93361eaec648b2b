"""`raydpzv.compare`: what is left out is the comparison file's, what is given takes its place."""

import math
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from torch import nn

import raydpzv
from raydpzv.compare.file import asked, resolved
from raydpzv.config import catalog
from raydpzv.errors import InputError, SpecError
from raydpzv.keys import Key
from raydpzv.privacy.gdp import epsilon_of
from raydpzv.records.run_folder import RunFolder
from raydpzv.report.comparison_lines import lines
from raydpzv.report.comparison_plots import accuracy_over_updates
from raydpzv.report.comparison_privacy import compared_privacy, privacy_line

FILE = """
scenario = "digits_dpzv"
set = ["budget.updates=4", "evaluate.every=4"]
seeds = [5]
epsilons = [2.0]
targets = [0.7]
"""


@pytest.mark.usefixtures("unrendered")
def test_a_files_own_seeds_epsilons_and_targets_are_taken_unless_others_are_given(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    found = raydpzv.compare(str(path), tmp_path / "own").runs.to_pylist()
    assert [(r["method"], r["epsilon"], r["seed"]) for r in found] == [
        ("dpzv", 2.0, 5), ("frozen", None, 5), ("sgd", None, 5),
    ]  # fmt: skip
    assert "reached_0.7" in (tmp_path / "own" / "table.csv").read_text()
    found = raydpzv.compare(
        str(path), tmp_path / "other", seeds=[6], epsilons=["none"], targets=[0.6]
    )
    assert {(r["epsilon"], r["seed"]) for r in found.runs.to_pylist()} == {(None, 6)}
    assert "reached_0.6" in (tmp_path / "other" / "table.csv").read_text()


X = (Key(0) / "compared").generator().normal(size=(60, 8)).astype("float32")
Y = np.arange(60) % 3


class Net(nn.Sequential):
    def __init__(self, outputs: int) -> None:
        super().__init__(nn.Linear(8, outputs))


def own(**settings):
    return raydpzv.horizontal(Net, (X, Y), clients=Y, updates=4, every=4, **settings)


@pytest.mark.usefixtures("unrendered")
def test_scenario_objects_are_compared_with_the_bits_of_their_runs(tmp_path):
    slow, fast = own(lr=0.01), own(lr=0.3, title="fast")
    found = raydpzv.compare([slow, fast], tmp_path / "two", methods=["fedavg"], seeds=[0])
    assert found.runs["label"].to_pylist() == ["decomfl", "fast", "fedavg"]
    for spec, row in zip((slow, fast), found.runs.to_pylist(), strict=False):
        summary = RunFolder.open(tmp_path / "two" / "runs" / row["run"]).summary()
        assert summary["digest"] == raydpzv.run(spec).summary["digest"]
    assert (
        raydpzv.compare([slow, fast], tmp_path / "two", methods=["fedavg"], seeds=2).runs.num_rows
        == 6
    )


def test_scenarios_without_a_name_are_numbered_and_one_is_named_once():
    slow, fast = own(lr=0.01), own(lr=0.3)
    names = [catalog.name_of(spec) for spec in (slow, fast)]
    assert [line.label for line in resolved(asked(names)).lines] == ["decomfl 1", "decomfl 2"]
    with pytest.raises(SpecError, match="is there twice"):
        asked([names[0], catalog.name_of(own(lr=0.01))])


@pytest.mark.parametrize("among", [False, True])
def test_an_object_that_is_no_scenario_is_refused_with_the_way_out(tmp_path, among):
    with pytest.raises(
        InputError, match=r"wanted a scenario's name, its TOML file, or what .* got Net"
    ):
        raydpzv.compare(["vafl", Net(3)] if among else Net(3), tmp_path / "two")
    assert not (tmp_path / "two").exists()


def test_a_scenario_of_a_module_is_loaded_by_its_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "films", SimpleNamespace(mild=own(lr=0.01), wild=3))
    assert catalog.load("films:mild", ["method.lr=0.5"]).method.lr == 0.5
    with pytest.raises(SpecError, match="films:wild: wanted a scenario's name"):
        catalog.load("films:wild")


BY_MULTIPLIER = """
scenario = "digits_users"
set = ["budget.updates=2", "evaluate.every=2", "users.count=30", "data.train_rows=300"]
seeds = [0]
multiplier = 5.0

[[methods]]
label = "AVG"
private = ["method.server_lr=0.5"]

[[methods]]
label = "FedAvg"
set = ["method.name=fedavg", "method.cohort=5"]
"""


@pytest.mark.usefixtures("unrendered")
def test_a_multiplier_stands_with_its_lines_whose_epsilon_follows(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(BY_MULTIPLIER)
    found = raydpzv.compare(str(path), tmp_path / "own")
    noisy, plain = found.runs.to_pylist()
    assert (noisy["label"], noisy["epsilon"], noisy["multiplier"]) == ("AVG, σ = 5", None, 5.0)
    assert (plain["label"], plain["epsilon"], plain["multiplier"]) == ("FedAvg", None, None)
    stated = {
        (c["adversary"], c["relation"]): c["claimed"]
        for c in found.claims.to_pylist()
        if c["holds"]
    }
    assert stated["external", "add_remove"] == pytest.approx(epsilon_of(math.sqrt(2) / 5, 1e-5))
    privacy = compared_privacy(found.claims, found.runs)
    assert privacy.without == ("FedAvg: no noise, no ε.",)
    assert {place for row in privacy.rows for place in row.who} == {("AVG, σ = 5", None)}
    lost = found.runs.set_column(
        found.runs.schema.get_field_index("outcome"), "outcome", pa.array(["failed", "ok"])
    )
    nothing = found.claims.slice(0, 0)
    assert compared_privacy(nothing, lost).without[1] == (
        "AVG, σ = 5: no run has finished, no ε is stated."
    )
    assert "of the lines with noise no run has a result" in privacy_line(nothing, lost)
    titles = {
        ax.get_title() for ax in accuracy_over_updates(lines(found.runs, found.curves)).figure.axes
    }
    assert "no noise" not in titles


def test_values_of_epsilon_take_the_place_of_a_multiplier_and_both_are_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(BY_MULTIPLIER)
    spec = resolved(asked([str(path)], (), {"epsilons": ("none",)})).lines[0].spec
    assert spec.privacy.mode == "none"
    assert spec.method.server_lr == 6.0, "private is for noise"
    assert resolved(asked([str(path)])).lines[0].spec.method.server_lr == 0.5
    path.write_text("epsilons = [3.0]\n" + BY_MULTIPLIER)
    with pytest.raises(
        SpecError, match=r"multiplier: wanted either .* got 5 and epsilons = \[3.0\]"
    ):
        resolved(asked([str(path)]))
    path.write_text('scenario = "digits_decomfl"\nmultiplier = 5.0')
    with pytest.raises(
        SpecError, match="multiplier: goes with methods that protect users, and digits_decomfl"
    ):
        resolved(asked([str(path)]))


BY_SIGMA = """
scenario = "digits_dpzv"
set = ["budget.updates=4", "evaluate.every=4"]
seeds = [0]

[[methods]]
label = "VAFL, noise N(0, 0.01)"
scenario = "vafl"
set = ["privacy.sigma=0.1"]
"""


@pytest.mark.usefixtures("unrendered")
def test_noise_of_a_fixed_deviation_is_noise_in_tables_and_pictures(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(BY_SIGMA)
    found = raydpzv.compare(str(path), tmp_path / "own")
    noisy = found.runs.to_pylist()[0]
    assert (noisy["sigma"], noisy["epsilon"], noisy["private"]) == (0.1, None, False)
    assert privacy_line(found.claims, found.runs) == (
        "Privacy: NOT PRIVATE, no useful ε is proved for the only line with noise."
    )
    (without,) = compared_privacy(found.claims, found.runs).without
    assert "VAFL" not in without
    titles = {
        ax.get_title() for ax in accuracy_over_updates(lines(found.runs, found.curves)).figure.axes
    }
    assert "no noise" not in titles


@pytest.mark.parametrize("other", [{"updates": 8}, {"every": 2}, {"model__hidden": [3]}])
def test_scenario_objects_that_differ_in_more_than_their_method_are_refused(tmp_path, other):
    given = {"clients": Y, "updates": 4, "every": 4, "lr": 0.1}
    one, two = (raydpzv.horizontal("mlp", (X, Y), **given | more) for more in ({}, other))
    with pytest.raises(
        SpecError, match=r"decomfl: has another \[\w+\] than decomfl; scenarios that are compared"
    ):
        raydpzv.compare([one, two], tmp_path / "none")
    assert not (tmp_path / "none").exists()
