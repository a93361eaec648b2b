"""`raydpzv.compare`: what is left out is the comparison file's, what is given takes its place."""

from __future__ import annotations

import pytest

import raydpzv

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
    found = raydpzv.compare(str(path), tmp_path / "other", seeds=[6], epsilons=["none"], targets=[0.6])
    assert {(r["epsilon"], r["seed"]) for r in found.runs.to_pylist()} == {(None, 6)}
    assert "reached_0.6" in (tmp_path / "other" / "table.csv").read_text()
