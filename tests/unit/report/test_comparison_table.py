import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raydpzv.report.comparison_lines import FAILURES, band, final_accuracy, lines
from raydpzv.report.comparison_table import CURVES, RUNS, ComparisonView
from tests.helpers.synthetic_comparison import view

Point = tuple[int, float, int, int, float]  # update, seconds, bytes up, bytes down, accuracy


def run(label: str, epsilon: float | None, seed: int, **other: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "label": label, "method": "dpzv", "control": False, "epsilon": epsilon, "seed": seed,
        "run": f"{label}-{seed}", "status": "done", "outcome": "ok", "reason": "", "accuracy": 0.5,
        "best_accuracy": math.nan, "peak_accuracy": 0.6, "roc_auc": math.nan, "pr_auc": math.nan,
        "loss": 1.0, "top_share": 0.3, "updates": 20, "bytes_up": 200, "bytes_down": 100,
        "simulated_seconds": 4.0, "seconds": 1.0, "staleness": 2.0, "private": epsilon is not None, "verdict": "",
    }  # fmt: skip
    assert set(other) <= set(row)
    return row | other


def curve(
    label: str, epsilon: float | None, seed: int, points: list[Point]
) -> list[dict[str, Any]]:
    names = ("update", "time", "bytes_up", "bytes_down", "accuracy")
    who = {"label": label, "epsilon": epsilon, "seed": seed, "loss": 1.0}
    return [who | dict(zip(names, point, strict=True)) for point in points]


def tables(runs: list[dict[str, Any]], *curves: list[dict[str, Any]]) -> tuple[pa.Table, pa.Table]:
    rows = [row for one in curves for row in one]
    return pa.Table.from_pylist(runs, schema=RUNS), pa.Table.from_pylist(rows, schema=CURVES)


def a(seed: int, late: float, final: float) -> list[dict[str, Any]]:
    """A curve of "a" that passes 0.5 at update 10, and 300 bytes in all."""
    points = [
        (0, 0.0, 0, 0, 0.1),
        (10, 2.0 + late, 100, 50, 0.5),
        (20, 4.0 + 2 * late, 200, 100, final),
    ]
    return curve("a", None, seed, points)


def three() -> tuple[pa.Table, pa.Table]:
    """Line "a" without noise over three seeds, "b" at ε = 1 twice as slow and with fewer bytes, and
    a control.
    """
    runs = [run("a", None, s, accuracy=x, peak_accuracy=x) for s, x in enumerate((0.8, 0.9, 0.6))]
    runs += [run("b", 1.0, s, accuracy=0.7, bytes_up=80, bytes_down=10, updates=40) for s in (0, 1)]
    runs.append(run("c", None, 0, control=True, accuracy=0.95, staleness=math.nan))
    b = [
        curve("b", 1.0, s, [(0, 0.0, 0, 0, 0.1), (20, 4.0, 40, 5, 0.4), (40, x, 80, 10, 0.7)])
        for s, x in enumerate((8.0, 10.0))
    ]
    c = curve("c", None, 0, [(0, 0.0, 0, 0, 0.1), (1, 1.0, 5000, 5000, 0.95)])
    return tables(runs, a(0, 0.0, 0.8), a(1, 0.5, 0.9), a(2, 1.0, 0.6), *b, c)


def by_line(found: ComparisonView) -> dict[tuple[str, float | None], dict[str, Any]]:
    return {(row["label"], row["epsilon"]): row for row in found.rows}


def test_medians_and_ranges_by_hand() -> None:
    row = by_line(view(*three(), [0.5]))["a", None]
    assert [row[f"accuracy_{w}"] for w in ("median", "min", "max")] == [0.8, 0.6, 0.9]
    assert (row["runs"], row["failures"], row["not_run"], row["why"]) == (3, 0, 0, "")
    assert (row["updates_median"], row["bytes_up_median"], row["bytes_down_median"]) == (
        20,
        200,
        100,
    )
    assert (row["seconds_median"], row["staleness_median"], row["private"]) == (4.0, 2.0, False)
    assert by_line(view(*three(), []))["b", 1.0]["private"]


def test_lines_come_in_order_of_first_appearance_and_an_epsilon_makes_a_line() -> None:
    runs, curves = tables(
        [run("z", 1.0, 0), run("a", None, 0), run("z", 10.0, 0), run("z", 1.0, 1)]
    )
    found = view(runs, curves, []).table
    assert list(zip(found["label"].to_pylist(), found["epsilon"].to_pylist(), strict=True)) == [
        ("z", 1.0),
        ("a", None),
        ("z", 10.0),
    ]
    assert found["runs"].to_pylist() == [2, 1, 1]


def test_the_equal_budget_is_what_every_run_covers() -> None:
    runs, curves = three()
    assert view(runs, curves).bytes_at == 90  # all of b: 80 up, 10 down
    assert view(runs, curves).seconds_at == 1.0  # the control's
    rows = by_line(view(runs, curves, []))
    for line, column, value in (
        (("a", None), "equal_bytes_median", 0.1),  # before update 10, which needs 150 bytes
        (("b", 1.0), "equal_bytes_median", 0.7),
        (("c", None), "equal_bytes_max", 0.1),
        (("c", None), "equal_seconds_median", 0.95),  # exactly at the budget counts
        (("a", None), "equal_seconds_median", 0.1),
    ):
        assert rows[line][column] == value


def test_runs_in_which_nothing_moves_limit_no_budget() -> None:
    still = curve("still", None, 0, [(0, 0.0, 0, 0, 0.2), (5, 0.0, 0, 0, 0.3)])
    runs, curves = tables([run("a", None, 0), run("still", None, 0)], a(0, 0.0, 0.5), still)
    assert view(runs, curves).bytes_at == 300
    assert view(runs, curves).seconds_at == 4.0
    assert by_line(view(runs, curves, []))["still", None]["equal_bytes_median"] == 0.3
    runs, curves = tables([run("still", None, 0)], still)
    assert view(runs, curves).bytes_at == 0
    assert math.isnan(view(runs, curves).seconds_at)
    row = view(runs, curves, []).rows[0]
    assert math.isnan(row["equal_bytes_median"])
    assert math.isnan(row["equal_seconds_max"])


def test_a_run_that_was_evaluated_only_before_its_first_update_limits_no_budget() -> None:
    runs, curves = tables(
        [run("a", None, 0), run("x", None, 0)],
        a(0, 0.0, 0.5),
        curve("x", None, 0, [(0, 1.0, 1, 0, 0.1)]),
    )
    assert view(runs, curves).bytes_at == 300
    assert view(runs, curves).seconds_at == 4.0


def test_the_cost_of_a_target_by_hand() -> None:
    rows = by_line(view(*three(), [0.5, 0.85, 0.99]))
    one = rows["a", None]
    assert (one["reached_0.5"], one["updates_0.5_median"]) == (3, 10)
    assert [one[f"seconds_0.5_{w}"] for w in ("median", "min", "max")] == [2.5, 2.0, 3.0]
    assert (one["bytes_up_0.5_median"], one["bytes_down_0.5_median"], one["bytes_0.5_median"]) == (
        100,
        50,
        150,
    )
    other = rows["b", 1.0]
    assert other["seconds_0.5_median"] == 9.0  # the median of 8 and 10
    assert one["slower_0.5"] == 1.0
    assert other["slower_0.5"] == pytest.approx(9.0 / 2.5)
    assert rows["c", None]["slower_0.5"] == pytest.approx(
        1.0 / 2.5
    )  # a control is quicker, and sets no pace
    assert (one["reached_0.85"], one["seconds_0.85_min"], one["updates_0.85_median"]) == (
        1,
        5.0,
        math.inf,
    )
    assert one["bytes_0.85_max"] == math.inf
    assert [row["reached_0.99"] for row in rows.values()] == [0, 0, 0]
    assert all(math.isnan(row["slower_0.99"]) for row in rows.values())


def test_a_target_is_reached_when_it_is_met_exactly_and_repeated_targets_are_one() -> None:
    found = view(*three(), [0.5, 0.5])
    assert found.table.schema.names.count("reached_0.5") == 1
    assert by_line(found)["a", None]["bytes_0.5_min"] == 150


def test_where_no_time_passes_nothing_is_slower() -> None:
    points: list[Point] = [(0, 0.0, 0, 0, 0.1), (5, 0.0, 10, 10, 0.9)]
    runs, curves = tables([run("a", None, 0)], curve("a", None, 0, points))
    row = view(runs, curves, [0.5]).rows[0]
    assert row["seconds_0.5_median"] == 0.0
    assert math.isnan(row["slower_0.5"])


@pytest.mark.parametrize(
    "broken",
    [
        {"outcome": "failed", "status": "missing", "accuracy": math.nan},
        {"outcome": "failed", "status": "failed", "accuracy": 0.9},
        {"outcome": "failed", "status": "stopped", "accuracy": 0.9},
        {"outcome": "diverged", "status": "failed", "accuracy": 0.9},
        {"outcome": "diverged", "status": "done", "accuracy": math.nan},
    ],
)
def test_a_run_without_a_model_counts_with_accuracy_0_and_has_reached_nothing(
    broken: dict[str, Any],
) -> None:
    runs = [run("a", None, 0, accuracy=0.8), run("a", None, 1, peak_accuracy=0.9, **broken)]
    row = view(*tables(runs, a(0, 0.0, 0.8), a(1, 0.0, 0.9)), [0.5]).rows[0]
    assert [row[f"accuracy_{w}"] for w in ("median", "min", "max")] == [0.4, 0.0, 0.8]
    assert math.isnan(row["best_min"])  # nothing chose a best model of the other run
    chosen = [runs[0] | {"best_accuracy": 0.75}, runs[1]]
    row = view(*tables(chosen, a(0, 0.0, 0.8), a(1, 0.0, 0.9)), [0.5]).rows[0]
    assert [row[f"best_{w}"] for w in ("min", "max")] == [0.0, 0.75]
    assert (row["equal_bytes_min"], row["equal_seconds_min"]) == (0.0, 0.0)
    assert (row["runs"], row["failures"], row["why"]) == (2, 1, f"1 {broken['outcome']}")
    assert (row["reached_0.5"], row["seconds_0.5_median"], row["seconds_0.5_min"]) == (
        1,
        math.inf,
        2.0,
    )


@pytest.mark.parametrize("outcome", ["constant prediction", "one class' share", "diverged"])
def test_a_failed_run_with_a_model_counts_with_its_accuracy_but_reaches_nothing(
    outcome: str,
) -> None:
    runs = [run("a", None, 0, outcome=outcome, accuracy=0.9)]
    row = view(*tables(runs, a(0, 0.0, 0.9)), [0.5]).rows[0]
    assert outcome in FAILURES
    assert (row["accuracy_median"], row["equal_bytes_median"]) == (0.9, 0.9)
    assert (row["failures"], row["reached_0.5"]) == (1, 0)


def test_a_run_that_broke_off_does_not_shrink_the_equal_budget() -> None:
    early: list[Point] = [(0, 0.0, 0, 0, 0.1), (1, 0.1, 3, 0, 0.1)]
    runs, curves = tables(
        [run("a", None, 0), run("a", None, 1, outcome="diverged", status="failed")],
        a(0, 0.0, 0.5),
        curve("a", None, 1, early),
    )
    assert view(runs, curves).bytes_at == 300
    assert view(runs, curves).seconds_at == 4.0


def test_costs_of_runs_without_a_summary_do_not_pull_medians_to_0() -> None:
    gone = run(
        "a",
        None,
        1,
        outcome="failed",
        status="missing",
        updates=0,
        bytes_up=0,
        simulated_seconds=math.nan,
    )
    row = view(*tables([run("a", None, 0), gone], a(0, 0.0, 0.5)), []).rows[0]
    assert (row["updates_median"], row["bytes_up_median"], row["seconds_median"]) == (20, 200, 4.0)


def test_runs_that_were_not_made_are_in_no_number() -> None:
    begun = run(
        "a", None, 1, outcome="not run", status="stopped", accuracy=0.1, reason="not started"
    )
    absent = run("b", 1.0, 0, outcome="not run", status="missing", accuracy=math.nan)
    short = curve("a", None, 1, [(0, 0.0, 0, 0, 0.1), (1, 0.1, 3, 0, 0.1)])
    runs, curves = tables([run("a", None, 0, accuracy=0.8), begun, absent], a(0, 0.0, 0.8), short)
    first, second = view(runs, curves, [0.5]).rows
    assert (first["runs"], first["not_run"], first["failures"], first["accuracy_min"]) == (
        1,
        1,
        0,
        0.8,
    )
    assert (second["runs"], second["not_run"], second["reached_0.5"], second["private"]) == (
        0,
        1,
        0,
        False,
    )
    assert all(
        math.isnan(second[n]) for n in ("accuracy_median", "updates_median", "seconds_0.5_median")
    )
    assert view(runs, curves).bytes_at == 300


def test_outcomes_are_counted_the_most_frequent_first() -> None:
    outcomes = ("diverged", "constant prediction", "ok", "constant prediction")
    runs = [run("a", None, s, outcome=o) for s, o in enumerate(outcomes)]
    row = view(*tables(runs), []).rows[0]
    assert (row["failures"], row["why"]) == (3, "2 constant prediction, 1 diverged")


def test_an_unknown_accuracy_at_the_budget_leaves_the_range_unknown() -> None:
    late: list[Point] = [(10, 5.0, 900, 100, 0.4)]  # its first evaluation is beyond 300 bytes
    runs, curves = tables(
        [run("a", None, 0), run("late", None, 0), run("late", None, 1)],
        a(0, 0.0, 0.5),
        curve("late", None, 0, late),
        curve("late", None, 1, [(0, 0.0, 0, 0, 0.1), *late]),
    )
    row = by_line(view(runs, curves, []))["late", None]
    assert math.isnan(row["equal_bytes_median"])
    assert math.isnan(row["equal_bytes_max"])


def test_tables_without_rows_make_a_table_without_rows() -> None:
    found = view(RUNS.empty_table(), CURVES.empty_table(), [0.9]).table
    assert found.num_rows == 0
    assert "slower_0.9" in found.schema.names


def test_evaluations_may_come_in_any_order() -> None:
    runs, curves = three()
    shuffled = curves.take(np.arange(curves.num_rows)[::-1])
    assert (
        view(runs, shuffled, [0.5, 0.85]).rows.__repr__()
        == view(runs, curves, [0.5, 0.85]).rows.__repr__()
    )


def test_a_band_is_the_median_and_range_at_common_updates() -> None:
    line = lines(*three())[0]
    found = band(line.curves, "time")
    assert found.x.tolist() == [0.0, 2.5, 5.0]
    assert found.median.tolist() == [0.1, 0.5, 0.8]
    assert found.low.tolist() == [0.1, 0.5, 0.6]
    assert found.high.tolist() == [0.1, 0.5, 0.9]
    assert band(line.curves, "bytes").x.tolist() == [0.0, 150.0, 300.0]


def test_in_a_band_a_finished_run_keeps_its_accuracy_and_a_broken_one_falls_to_0() -> None:
    short: list[Point] = [(0, 0.0, 0, 0, 0.1), (10, 1.0, 10, 0, 0.3)]
    done, failed = run("a", None, 1), run("a", None, 1, outcome="diverged", status="failed")
    for other, low, x in ((done, 0.3, 2.5), (failed, 0.0, 4.0)):
        line = lines(
            *tables([run("a", None, 0), other], a(0, 0.0, 0.8), curve("a", None, 1, short))
        )[0]
        found = band(line.curves, "time")
        assert found.low.tolist() == [0.1, 0.3, low]
        assert found.x.tolist() == [0.0, 1.5, x]


def test_the_x_of_a_band_never_steps_back_where_a_run_breaks_off() -> None:
    slow: list[Point] = [(0, 0.0, 0, 0, 0.1), (10, 10.0, 10, 0, 0.3)]
    runs = [run("a", None, 0), run("a", None, 1, outcome="diverged", status="failed")]
    found = band(lines(*tables(runs, a(0, 0.0, 0.8), curve("a", None, 1, slow)))[0].curves, "time")
    assert found.x.tolist() == [0.0, 6.0, 6.0]  # (2 + 10) / 2, then 4 of the first run alone


def test_a_run_that_never_began_pulls_its_band_to_0() -> None:
    runs = [
        run("a", None, 0),
        run("a", None, 1, outcome="failed", status="missing", accuracy=math.nan),
    ]
    found = band(lines(*tables(runs, a(0, 0.0, 0.8)))[0].curves, "update")
    assert found.low.tolist() == [0.0, 0.0, 0.0]
    assert found.median.tolist() == [0.05, 0.25, 0.4]
    assert len(band([], "update").x) == 0


def test_the_end_of_a_band_is_the_final_accuracy_of_the_table() -> None:
    runs, curves = three()
    row = by_line(view(runs, curves, []))["a", None]
    line = lines(runs, curves)[0]
    assert band(line.curves, "update").median[-1] == row["accuracy_median"]
    assert [final_accuracy(r) for r in line.runs] == [0.8, 0.9, 0.6]
