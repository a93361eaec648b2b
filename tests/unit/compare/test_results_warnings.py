"""What a comparison warns of in runs that did not fail, first of all: not above frozen clients with the same seed."""

from __future__ import annotations

import math
import threading

import pyarrow as pa
import pytest

from raydpzv.compare.file import ComparisonFile, MethodEntry, resolved
from raydpzv.compare.folder import opened, unfinished
from raydpzv.compare.results import collect
from raydpzv.compare.run_comparison import one_by_one
from raydpzv.report.comparison_page import About, write_comparison
from raydpzv.report.comparison_table import CURVES, RUNS, table
from raydpzv.report.comparison_text import warning_lines

NO_CURVES = CURVES.empty_table()


def run(label, seed, accuracy, **other):
    row = {"label": label, "epsilon": None, "seed": seed, "method": "dpzv", "control": False, "run": "r",
           "status": "done", "outcome": "ok", "reason": "", "accuracy": accuracy,
           "best_accuracy": math.nan, "peak_accuracy": accuracy, "roc_auc": math.nan, "pr_auc": math.nan,
           "loss": 0.5, "top_share": 0.3, "largest_class_share": 0.3, "control_accuracy": 0.5, "updates": 1,
           "bytes_up": 1, "bytes_down": 1, "simulated_seconds": 1.0, "seconds": 1.0, "staleness": 1.0,
           "private": False, "verdict": ""}  # fmt: skip
    return row | other


def warned(*rows):
    return warning_lines(pa.Table.from_pylist(list(rows), schema=RUNS), NO_CURVES)


def test_each_line_of_the_table_is_warned_of_once_with_its_seeds():
    rows = [run("a", 0, 0.4), run("b", 0, 0.9), run("a", 1, 0.6), run("a", 2, 0.5, epsilon=None)]
    assert warned(*rows) == ["warning: a: not above frozen clients (control) (2 of 3 runs: seed 0, 2)"]


def test_collapsed_and_fallen_runs_are_named():
    assert warned(run("a", 3, 0.6, top_share=0.97, epsilon=1.0)) == [
        "warning: a, calibrated to ε = 1: collapsed: nearly all held-out rows are predicted as one class "
        "(1 of 1 runs: seed 3)"
    ]
    assert "fallen far below its own peak" in warned(run("a", 0, 0.6, peak_accuracy=0.9))[0]


def test_failed_runs_are_told_as_failures_alone():
    assert warned(run("a", 0, 0.1, outcome="diverged")) == []


def test_tables_of_older_versions_have_no_control_to_compare_with():
    assert warned(run("a", 0, 0.4, control_accuracy=None, largest_class_share=None)) == []


@pytest.mark.usefixtures("unrendered")
def test_a_run_below_its_control_is_warned_of_in_table_and_page(tmp_path):
    file = ComparisonFile(
        name="small",
        scenario="frozen",
        seeds=(0, 1),
        targets=(0.5,),
        heads="the method's is slow, so that the control is above it",
        methods=(
            MethodEntry(label="still", scenario="vafl", set=("method.lr=1e-9", "method.server_lr=1e-3")),
        ),
    )
    comparison = resolved(file, ["budget.updates=40", "evaluate.every=20", "data.test_rows=200"])
    with opened(tmp_path / "out", comparison):
        one_by_one(
            unfinished(tmp_path / "out", comparison),
            tmp_path / "out",
            progress=lambda standing: None,
            ended=lambda planned, reason: None,
            stop=threading.Event(),
        )
    found = collect(comparison, tmp_path / "out")
    by = {(r["method"], r["seed"]): r for r in found.runs.to_pylist()}
    for seed in (0, 1):
        assert by["vafl", seed]["control_accuracy"] == by["frozen", seed]["accuracy"]
        assert by["vafl", seed]["accuracy"] <= by["frozen", seed]["accuracy"]
        assert math.isnan(by["frozen", seed]["control_accuracy"])
    assert [by["vafl", seed]["outcome"] for seed in (0, 1)] == ["ok", "constant prediction"]
    said = warning_lines(found.runs, found.curves)[0]
    assert said == "warning: still: not above frozen clients (control) (1 of 2 runs: seed 0)"
    lines = {row["label"]: row for row in table(found.runs, found.curves, (0.5,)).to_pylist()}
    assert lines["still"]["warnings"].startswith(said.removeprefix("warning: still: "))
    assert lines["still"]["failures"] == 1
    page = write_comparison(tmp_path / "page", found, About("t", "p", (0.5,)))
    assert said in page.read_text(encoding="utf-8")
