"""What may not pass as a result: runs of another scenario, other data, damaged folders, runs that
ended early.
"""

import math
import shutil
import threading

import pyarrow as pa
import pytest
from filelock import FileLock

from raydpzv.compare.file import ComparisonFile, MethodEntry, resolved
from raydpzv.compare.results import collect
from raydpzv.compare.run_comparison import RUNS_FOLDER, one_by_one, opened, run_planned, unfinished
from raydpzv.errors import SpecError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.report.comparison_page import About, write_comparison
from raydpzv.report.comparison_table import CURVES, RUNS, ComparisonView
from raydpzv.report.comparison_text import page_grid, warning_lines
from tests.helpers.small_comparisons import small_comparison
from tests.helpers.synthetic_comparison import view

METHODS = (MethodEntry(label="VAFL", scenario="vafl", private=("privacy.clip=0.1",)),)


def comparison(*overrides, **changes):
    return small_comparison(*overrides, **{"methods": METHODS, "seeds": (0,), **changes})


def make(plan, root, todo=None):
    found = {}
    with opened(root, plan):
        one_by_one(
            unfinished(root, plan) if todo is None else todo,
            root,
            progress=lambda standing: None,
            ended=lambda planned, reason: found.update({planned.folder: reason}),
            stop=threading.Event(),
        )
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("whole") / "made"
    make(comparison(), root)
    return root


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made, tmp_path / "copy")


def first(plan, root):
    return root / RUNS_FOLDER / next(plan.runs()).folder


def outcome(plan, root, reasons=None):
    row = collect(plan, root, reasons or {}).runs.to_pylist()[0]
    return row["outcome"], row["reason"]


def test_a_run_of_another_scenario_is_neither_kept_nor_believed(copy):
    longer = comparison("budget.updates=80")
    (copy / "comparison.toml").write_text(longer.as_toml())
    assert len(unfinished(copy, longer)) == 4
    reasons = make(longer, copy)
    assert all("not what the comparison plans" in why for why in reasons.values())
    assert outcome(longer, copy, reasons)[0] == "failed"
    assert outcome(comparison(), copy) == ("ok", "")


@pytest.mark.parametrize("name", ["evaluation", "message"])
def test_rows_that_are_missing_are_missed(copy, name):
    plan = comparison()
    shutil.rmtree(first(plan, copy) / "rows" / name)
    found = outcome(plan, copy)
    assert found[0] == "failed"
    assert "rows" in found[1]


def test_a_damaged_summary_fails_its_run_and_no_other(copy):
    plan = comparison()
    whole = [row["outcome"] for row in collect(plan, copy).runs.to_pylist()]
    (first(plan, copy) / "summary.json").write_text("{")
    reasons = make(plan, copy)
    assert list(reasons) == [first(plan, copy).name]
    rows = collect(plan, copy, reasons).runs.to_pylist()
    assert [row["outcome"] for row in rows] == ["failed", *whole[1:]]
    assert "damaged" in rows[0]["reason"]


def test_runs_on_other_data_are_not_compared(copy):
    plan = comparison()
    whole = [row["outcome"] for row in collect(plan, copy).runs.to_pylist()]
    folder = copy / RUNS_FOLDER / list(plan.runs())[1].folder
    path = folder / "environment.json"
    path.write_text(path.read_text().replace('"data_hmac_sha256": "', '"data_hmac_sha256": "0'))
    rows = collect(plan, copy).runs.to_pylist()
    assert rows[1]["outcome"] == "failed"
    assert "not those of the first run" in rows[1]["reason"]
    assert [row["outcome"] for row in rows] == [whole[0], "failed", *whole[2:]]


def test_a_run_that_another_process_writes_is_left_alone(copy):
    plan = comparison()
    folder = first(plan, copy)
    planned = next(plan.runs())
    (folder / "summary.json").unlink()
    before = sorted(path.name for path in folder.iterdir())
    with FileLock(folder / ".lock"):
        assert "another process" in run_planned(planned, folder)
    assert sorted(path.name for path in folder.iterdir() if path.name != ".lock") == [
        name for name in before if name != ".lock"
    ]


def test_what_begins_again_is_set_aside_and_said(tmp_path):
    plan = comparison("privacy.noise=system", epsilons=(1000.0,))
    planned = next(p for p in plan.runs() if p.line.epsilon)
    stop = threading.Event()
    stop.set()
    folder = tmp_path / RUNS_FOLDER / planned.folder
    make(plan, tmp_path, todo=[])
    run_planned(planned, folder, RunOptions(stop=stop))
    assert make(plan, tmp_path)[planned.folder] == ""
    is_query = folder.with_name(f"{folder.name}.set-aside-1")
    assert (is_query / "scenario.toml").is_file()
    row = next(r for r in collect(plan, tmp_path).runs.to_pylist() if r["run"] == planned.folder)
    assert row["status"] == "done"
    assert "restarted 1 time; what it drew before" in row["reason"]


def test_a_run_whose_clients_wake_no_more_is_no_equal(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("client,time\n" + "".join(f"{m},{t}\n" for m in range(4) for t in range(1, 6)))
    plan = comparison("arrivals.kind=trace", f"arrivals.file={trace}", epsilons=("none",))
    make(plan, tmp_path / "out")
    found = collect(plan, tmp_path / "out")
    rows = found.runs.to_pylist()
    assert {row["outcome"] for row in rows} == {"ended early"}
    assert "no client wakes" in rows[0]["reason"]
    lines = ComparisonView(found, (0.5,)).rows
    assert [line["failures"] for line in lines] == [line["runs"] for line in lines]
    assert lines[0]["accuracy_median"] == rows[0]["accuracy"]


def test_noise_on_embeddings_is_not_calibrated_for_a_trace(tmp_path):
    (tmp_path / "trace.csv").write_text("client,time\n0,1\n")
    with pytest.raises(SpecError, match="no share of the updates is planned"):
        comparison("arrivals.kind=trace", f"arrivals.file={tmp_path / 'trace.csv'}")


def test_a_run_that_was_stopped_shows_no_curve_and_claims_nothing(tmp_path):
    plan, stop = comparison("budget.updates=400", "evaluate.every=50"), threading.Event()
    planned = next(p for p in plan.runs() if p.line.epsilon)

    def halfway(status, metrics):
        if status.updates >= 50:
            stop.set()

    folder = tmp_path / RUNS_FOLDER / planned.folder
    assert (
        run_planned(planned, folder, RunOptions(stop=stop, evaluated=halfway))
        == "stopped before its end"
    )
    found = collect(plan, tmp_path)
    row = next(r for r in found.runs.to_pylist() if r["run"] == planned.folder)
    assert (row["outcome"], row["status"]) == ("not run", "stopped")
    assert found.curves.num_rows == found.claims.num_rows == 0


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
    return warning_lines(view(pa.Table.from_pylist(list(rows), schema=RUNS), NO_CURVES))


def test_each_line_of_the_table_is_warned_of_once_with_its_seeds():
    rows = [run("a", 0, 0.4), run("b", 0, 0.9), run("a", 1, 0.6), run("a", 2, 0.5, epsilon=None)]
    assert warned(*rows) == [
        "warning: a: not above frozen clients (control) (2 of 3 runs: seed 0, 2)"
    ]


def test_collapsed_and_fallen_runs_are_named():
    assert warned(run("a", 3, 0.6, top_share=0.97, epsilon=1.0)) == [
        "warning: a, calibrated to ε = 1: collapsed: nearly all held-out rows are predicted as one "
        "class (1 of 1 runs: seed 3)"
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
            MethodEntry(
                label="still", scenario="vafl", set=("method.lr=1e-9", "method.server_lr=1e-3")
            ),
        ),
    )
    plan = resolved(file, ["budget.updates=40", "evaluate.every=20", "data.test_rows=200"])
    make(plan, tmp_path / "out")
    found = collect(plan, tmp_path / "out")
    by = {(r["method"], r["seed"]): r for r in found.runs.to_pylist()}
    for seed in (0, 1):
        assert by["vafl", seed]["control_accuracy"] == by["frozen", seed]["accuracy"]
        assert by["vafl", seed]["accuracy"] <= by["frozen", seed]["accuracy"]
        assert math.isnan(by["frozen", seed]["control_accuracy"])
    assert [by["vafl", seed]["outcome"] for seed in (0, 1)] == ["ok", "constant prediction"]
    said = warning_lines(ComparisonView(found))[0]
    assert said == "warning: still: not above frozen clients (control) (1 of 2 runs: seed 0)"
    lines = {row["label"]: row for row in ComparisonView(found, (0.5,)).rows}
    assert lines["still"]["warnings"].startswith(said.removeprefix("warning: still: "))
    assert lines["still"]["failures"] == 1
    page = write_comparison(tmp_path / "page", found, About("t", "p", (0.5,)))
    assert said in page.read_text(encoding="utf-8")


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize(
    ("server_lr", "outcome", "cell"),
    [(5.0, "constant prediction", "control: 1 constant"), (50.0, "diverged", "1 diverged")],
)
def test_a_control_whose_loss_blew_up_has_failed(server_lr, outcome, cell, tmp_path):
    still = MethodEntry(
        label="still", scenario="vafl", set=("method.lr=1e-9", "method.server_lr=1e-3")
    )
    file = ComparisonFile(
        name="small", scenario="frozen", seeds=(0,), methods=(still,),
        frozen=(f"method.server_lr={server_lr}",), heads="the control's is too quick",
    )  # fmt: skip
    plan = resolved(file, ["budget.updates=40", "evaluate.every=20", "data.test_rows=200"])
    make(plan, tmp_path / "out", [p for p in plan.runs() if p.spec.method.name == "frozen"])
    view = ComparisonView(collect(plan, tmp_path / "out"))
    (run,) = [row for row in view.compared.runs.to_pylist() if row["method"] == "frozen"]
    assert run["outcome"] == outcome
    assert "predicted as one class" in run["reason"]
    found = page_grid(view)
    cells = [dict(zip(found.heads, row, strict=True)) for row in found.rows]
    assert [row["failed"] for row in cells if row["method"].startswith("frozen")] == [cell]
