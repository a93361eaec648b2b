import math

import pyarrow as pa

from raydpzv.report import comparison_text as rows_of
from raydpzv.report.comparison_privacy import compared_privacy, privacy_line
from raydpzv.report.comparison_table import Compared, ComparisonView
from raydpzv.report.comparison_text import (
    constant_text,
    failures_line,
    summary_grid,
    target_line,
)
from tests.helpers.synthetic_comparison import MECHANISM, Made, field, printed, view


def grid_of(made: Compared) -> list[dict[str, str]]:
    found = rows_of.page_grid(ComparisonView(made))
    return [dict(zip(found.heads, row, strict=True)) for row in found.rows]


def runs_of(made: Compared) -> list[str]:
    found = summary_grid(ComparisonView(made))
    return [row[found.heads.index("runs")] for row in found.rows]


def test_accuracy_rows_by_hand() -> None:
    rows = grid_of(field().tables)
    assert [(r["method"], r["ε aimed at"]) for r in rows] == [
        ("quick <b>bold</b>", "none"),
        ("quick <b>bold</b>", "1"),
        ("langsam λ [red]", "none"),
        ("langsam λ [red]", "10"),
        ("frozen (control)", "none"),
    ]
    assert rows[0]["accuracy"] == "80.00 % (70.00 to 90.00)"
    assert rows[1]["accuracy"] == "50.00 %"
    assert [(r["runs"], r["failed"]) for r in rows] == [
        ("3", "1 constant" if n == 3 else "") for n in range(5)
    ]
    # 40 updates of 100 bytes each way are 8000 bytes, in 40 s; the slow one is then before its
    # first evaluation
    assert rows[0]["at 7.81 KiB"] == "80.00 % (70.00 to 90.00)"
    assert rows[2]["at 7.81 KiB"] == "10.00 %"
    assert rows[2]["at 40 s"] == "28.75 %"  # update 10 at 30 s: 0.1 + 0.75 / 4
    assert (rows[2]["bytes up"], rows[2]["bytes down"]) == ("351.56 KiB", "351.56 KiB")
    assert (rows[2]["updates"], rows[2]["seconds"], rows[2]["staleness"]) == ("40", "120 s", "2")


def test_failures_of_several_kinds_are_counted_and_runs_not_made_are_said() -> None:
    made = (
        Made().run("a", None, 0, 0.5, outcome="diverged").run("a", None, 1, 0.5, outcome="diverged")
    )
    assert runs_of(made.tables) == ["2, 2 FAILED"]
    assert grid_of(made.tables)[0]["failed"] == "2 diverged"
    made.run("a", None, 2, 0.5, outcome="constant prediction").run(
        "a", None, 3, 0.5, outcome="not run"
    )
    assert runs_of(made.tables) == ["3, 3 FAILED, 1 not run"]
    assert grid_of(made.tables)[0]["failed"] == "2 diverged, 1 constant, 1 not run"


def test_where_no_time_passes_there_is_no_column_of_seconds() -> None:
    made = Made().run("a", None, 0, 0.9, pace=0.0)
    runs, curves, _ = made.tables
    assert list(grid_of(made.tables)[0]) == [
        "method", "ε aimed at", "runs", "failed", "accuracy", "at 7.81 KiB", "bytes up", "bytes down", "updates",
        "staleness",
    ]  # fmt: skip
    assert "seconds" not in rows_of.target_grid(view(runs, curves, [0.5]).rows, 0.5).heads


def test_what_validation_chose_has_a_column_where_something_was_chosen() -> None:
    made = Made().run("a", None, 0, 0.5).run("b", None, 0, 0.0, outcome="failed", status="failed")
    assert "best by validation" not in grid_of(made.tables)[0]
    made.run("a", None, 1, 0.7, best_accuracy=0.75, validation_accuracy=0.8)
    made.run("c", None, 0, 0.7, best_accuracy=0.75, validation_accuracy=0.8)
    assert [row["best by validation"] for row in grid_of(made.tables)] == ["–", "0.00 %", "75.00 %"]


def test_areas_have_columns_where_there_are_two_classes() -> None:
    made = Made().run("a", None, 0, 0.5)
    assert "ROC AUC" not in grid_of(made.tables)[0]
    made.run("b", None, 0, 0.7, roc_auc=0.75, pr_auc=0.8).run(
        "b", None, 1, 0.7, roc_auc=0.85, pr_auc=0.9
    )
    found = grid_of(made.tables)
    assert [(row["ROC AUC"], row["PR AUC"]) for row in found] == [
        ("–", "–"),
        ("0.8 (0.75 to 0.85)", "0.85 (0.8 to 0.9)"),
    ]


def test_target_rows_by_hand() -> None:
    runs, curves, _ = field().tables
    folded = view(runs, curves, [0.8, 0.99]).rows
    found = rows_of.target_grid(folded, 0.8)
    rows = [dict(zip(found.heads, row, strict=True)) for row in found.rows]
    # seeds end at 0.9, 0.8 and 0.7: the first two reach 0.8, at update 40 (0.9: 0.7 at 30, 0.9 at
    # 40)
    assert (rows[0]["reached"], rows[0]["updates"]) == ("2 of 3", "40")
    assert rows[0]["bytes up and down"] == "7.81 KiB\n7.81 KiB to never"
    assert (rows[0]["seconds"], rows[0]["time, × the quickest"]) == ("40 s\n40 s to never", "1 ×")
    assert (rows[2]["reached"], rows[2]["time, × the quickest"]) == ("3 of 3", "3 ×")
    assert (rows[1]["reached"], rows[1]["bytes up and down"], rows[1]["seconds"]) == (
        "0 of 3",
        "never",
        "never",
    )
    assert rows_of.target_grid(folded, 0.99).rows == ()


def test_a_control_that_predicts_one_class_is_no_failure_and_one_that_crashes_is() -> None:
    made = Made().run("a", None, 0, 0.5)
    for seed, outcome in enumerate(("constant prediction", "one class' share")):
        made.run(
            "frozen (control)", None, seed, 0.1, control=True, method="frozen", outcome=outcome
        )
    assert runs_of(made.tables)[1] == "2 (2 predict one class)"
    assert (
        rows_of.failures_line(made.tables[0])
        == "Failures: none of 3 runs; 2 of the control predict one class, as its clients never"
        " train"
    )
    assert rows_of.failure_lines(made.tables[0]) == []
    assert [r["failed"] for r in rows_of.run_rows(made.tables[0], {})] == [False] * 3
    for control, method, outcome in (
        (True, "frozen", "failed"),
        (True, "sgd", "constant prediction"),
    ):
        made.run(method, None, 2, 0.1, control=control, method=method, outcome=outcome)
        assert runs_of(made.tables)[-1] == "1, 1 FAILED"
        assert any(
            line.startswith(f"FAILED: {method}, seed 2")
            for line in rows_of.failure_lines(made.tables[0])
        )
        assert rows_of.run_rows(made.tables[0], {})[-1]["failed"]


def test_a_control_s_failures_are_counted_beside_those_that_predict_one_class() -> None:
    made = Made()
    for seed, outcome in enumerate(("diverged", "constant prediction", "not run")):
        made.run(
            "frozen (control)", None, seed, 0.1, control=True, method="frozen", outcome=outcome
        )
    assert runs_of(made.tables) == ["2, 1 FAILED (1 predicts one class), 1 not run"]
    assert grid_of(made.tables)[0]["failed"] == "1 diverged, 1 not run, control: 1 constant"


def test_failure_lines_name_folder_and_reason_in_the_table_s_order() -> None:
    made = (
        Made()
        .run("a", None, 0, 0.5)
        .run("b", 2.0, 0, 0.1, outcome="diverged", reason="loss is nan")
    )
    made.run("a", None, 1, 0.5, outcome="failed", reason="no disk").run(
        "b", 2.0, 1, 0.1, outcome="not run"
    )
    assert rows_of.failure_lines(made.tables[0]) == [
        "FAILED: a, seed 1 (runs/02-run): failed: no disk",
        "FAILED: b, calibrated to ε = 2, seed 0 (runs/01-run): diverged: loss is nan",
    ]
    assert (
        rows_of.failures_line(made.tables[0], first=False)
        == "FAILED: 2 of 4 runs; 1 not made to the end, left out of every number"
    )


def test_the_largest_epsilon_of_the_seeds_counts_and_is_proved_only_if_all_are() -> None:
    made = Made().run("a", 1.0, 0, 0.5).run("a", 1.0, 1, 0.5)
    made.claim("a", 1.0, 8.0).claim("a", 1.0, 9.5, seed=1, note="more").claim(
        "a", 1.0, 7.0, seed=2, holds=False
    )
    found = compared_privacy(made.tables[2], made.tables[0])
    (row,) = [dict(zip(found.grid.heads, cells, strict=True)) for cells in found.grid.rows]
    assert (row["ε"], row["standing"]) == ("9.5", "claimed, not proved")
    assert (row["mechanism"], row["relation"], row["accountant"]) == (
        MECHANISM,
        "replace",
        "closed form (GDP)",
    )
    assert (row["adversary"], row["δ"], row["calibrated to ε"]) == ("client", "0.001", "1")
    assert row["notes"] == "[1][2]"
    assert found.notes == ("more", "Scope: 2 releases; unit: one record.")


def test_an_infinite_or_unstated_epsilon_proves_nothing() -> None:
    made = (
        Made()
        .run("a", 1.0, 0, 0.5)
        .claim("a", 1.0, math.inf)
        .claim("a", 1.0, math.nan, adversary="external")
    )
    rows = compared_privacy(made.tables[2], made.tables[0]).rows
    assert [(r.adversary, r.epsilon, r.standing) for r in rows] == [
        ("client, external", "∞", "nothing proved")
    ]


def test_equal_claims_stand_once_and_unequal_ones_apart() -> None:
    made = Made()
    for label, epsilon, claimed in (
        ("a", 10.0, 9.0),
        ("b", 10.0, 9.0),
        ("c", 10.0, 9.5),
        ("a", 1.0, 8.0),
    ):
        made.run(label, epsilon, 0, 0.5).claim(label, epsilon, claimed)
        made.claim(label, epsilon, claimed, adversary="external", note="other")
        made.claim(label, epsilon, claimed / 2, relation="add_remove")
        made.claim(
            label,
            epsilon,
            math.inf,
            adversary="server",
            mechanism="none",
            accountant="none",
            holds=False,
        )
    rows = compared_privacy(made.tables[2], made.tables[0]).grid.rows
    assert [r[:5] for r in rows] == [
        ("a; b", "10", "client, external", "replace", "9"),
        ("a; b", "10", "client", "add/remove", "4.5"),
        ("c", "10", "client, external", "replace", "9.5"),
        ("c", "10", "client", "add/remove", "4.75"),
        ("a", "1", "client, external", "replace", "8"),
        ("a", "1", "client", "add/remove", "4"),
        ("a\nb; c", "10, 1\n10", "server", "replace", "∞"),
    ]


def test_lines_without_noise_say_so() -> None:
    made = Made().run("a", None, 0, 0.5).run("b", None, 0, 0.5).run("b", 1.0, 0, 0.5)
    made.claim("a", None, math.inf, mechanism="none")  # type: ignore[arg-type]
    found = compared_privacy(made.tables[2], made.tables[0])
    assert found.rows == ()
    assert found.without == (
        "a; b: no noise, no ε.",
        "b, calibrated to ε = 1: no run has finished, no ε is stated.",
    )


def large():
    """Four methods without noise and at two values of ε, two controls, three seeds."""
    made = Made()
    for seed in (0, 1, 2):
        for label in ("dpzv of the papers", "vafl", "zoo_vfl", "czofo"):
            for epsilon in (None, 10.0, 1.0):
                made.run(label, epsilon, seed, 0.5 + seed / 7, private=False)
        for control in ("frozen clients (control)", "central SGD (control)"):
            made.run(control, None, seed, 0.9, control=True)
    for label in ("dpzv of the papers", "vafl", "zoo_vfl", "czofo"):
        for epsilon in (10.0, 1.0):
            made.claim(label, epsilon, 100 * epsilon)
    return made


def test_the_console_loses_no_column_and_reads_no_markup() -> None:
    said = printed(field().tables, [0.8, 0.99])
    assert max(map(len, said.splitlines())) <= 120
    head = next(line for line in said.splitlines() if "bytes up" in line)
    assert head.split()[-1] == "simulated"
    for part in ("<b>bold</b>", "[red]", "3, 1 FAILED", "70.00 to 90.00"):
        assert part in said


def test_a_common_comparison_fits_on_a_screen():
    lines = printed(large().tables, [0.8, 0.9]).splitlines()
    assert len(lines) <= 36  # four more say where the folder and the page are
    assert max(map(len, lines)) <= 120
    assert sum(line.count("KiB") == 2 for line in lines) == 14


def test_rows_have_one_line_each_and_columns_without_meaning_are_left_out():
    runs, curves, _ = field().tables
    found = summary_grid(view(runs, curves))
    rows = [dict(zip(found.heads, row, strict=True)) for row in found.rows]
    assert rows[0]["accuracy"] == "80.00 % (70.00 to 90.00)"
    assert [row["aim: ε"] for row in rows] == ["none", "1", "none", "10", "none"]
    assert rows[3]["runs"] == "3, 1 FAILED"
    assert not any("\n" in cell for row in found.rows for cell in row)
    runs, curves, _ = Made().run("a", None, 0, 0.9, pace=0.0).tables
    plain = summary_grid(view(runs, curves))
    assert plain.heads == ("method", "runs", "accuracy", "at 7.81 KiB", "bytes up", "bytes down")


def test_failures_targets_and_privacy_are_a_line_each():
    said = printed(field().tables, [0.8, 0.99])
    assert (
        "FAILED: 1 of 15 runs; first langsam λ [red], calibrated to ε = 10, seed 1 (runs/08-run): "
        "constant" in said
    )
    assert "No run reached test accuracy 99 %." in said
    assert "Failures: none of 1 runs" in printed(Made().run("a", None, 0, 0.5).tables, [])


def test_a_failure_is_shown_in_words_of_today_and_unmade_runs_are_said():
    made = Made().run("a", None, 0, 0.5, outcome="one class' share", reason="why")
    made.run("a", None, 1, 0.5, outcome="not run")
    line = failures_line(made.tables[0])
    assert (
        line
        == "FAILED: 1 of 2 runs; 1 not made to the end, left out of every number; first a, seed 0 "
        "(runs/00-run): single-class accuracy: why"
    )


def test_a_target_says_who_reached_it_cheapest():
    runs, curves, _ = field().tables
    line = target_line(view(runs, curves, [0.8]).rows, 0.8)
    assert line.startswith(
        "Reached test accuracy 80 %: 2 of 5 lines; fewest updates quick <b>bold</b> (40)"
    )
    assert "fewest bytes quick <b>bold</b> (7.81 KiB)" in line
    assert line.endswith("least simulated time quick <b>bold</b> (40 s)")
    some = Made()
    for seed, final in ((0, 0.9), (1, 0.1), (2, 0.1)):
        some.run("a", None, seed, final)
    runs, curves, _ = some.tables
    assert target_line(view(runs, curves, [0.8]).rows, 0.8).endswith(
        "1 of 1 lines; none of them with half of its runs"
    )


def test_the_line_on_privacy_counts_and_names_the_useful_epsilons():
    runs, _, claims = field().tables
    assert (
        privacy_line(claims, runs)
        == "Privacy: 1 of 2 lines with noise is private; the others are NOT PRIVATE. quick "
        "<b>bold</b>, calibrated to ε = 1: PRIVATE. ε = 8 (δ = 0.001, replace one record) is "
        "proved against all clients together."
    )
    made = Made().run("a", 1.0, 0, 0.5, private=False).claim("a", 1.0, math.inf)
    runs, _, claims = made.tables
    assert (
        privacy_line(claims, runs)
        == "Privacy: NOT PRIVATE, no useful ε is proved for the only line with noise."
    )
    made.run("b", 1.0, 0, 0.5, private=False).claim("b", 1.0, math.inf)
    runs, _, claims = made.tables
    assert (
        privacy_line(claims, runs)
        == "Privacy: NOT PRIVATE, no useful ε is proved for any of the 2 lines with noise."
    )
    runs, _, claims = Made().run("a", 1.0, 0, 0.5).claim("a", 1.0, 8.0).tables
    assert privacy_line(claims, runs).startswith(
        "Privacy: the only line with noise is private. a, calibrated"
    )
    runs, _, claims = Made().run("a", None, 0, 0.5).tables
    assert privacy_line(claims, runs).startswith("Privacy: no line adds noise")
    # a claim that is proved for one seed alone proves nothing of the line
    made = Made().run("a", 1.0, 0, 0.5, private=False).run("a", 1.0, 1, 0.5, private=False)
    made.claim("a", 1.0, 8.0).claim("a", 1.0, 8.0, seed=1, holds=False)
    runs, _, claims = made.tables
    assert "no useful ε is proved" in privacy_line(claims, runs)


def test_warnings_are_few_on_the_screen():
    made = Made()
    for place in range(5):
        made.run(f"entrant {place}", None, 0, 0.5, peak_accuracy=0.9)
    said = printed(made.tables, [])
    assert said.count("warning: entrant") == 3
    assert "2 more warnings: on the page" in said


def test_a_constant_prediction_is_said_once_or_with_its_range() -> None:
    def said(*shares: float | None) -> str:
        runs = pa.table({"largest_class_share": pa.array(shares, pa.float64())})
        return constant_text(runs, "; {}")

    assert said(0.6, 0.6) == "; a constant prediction reaches 60.00 %"
    assert said(0.6, 0.1, None) == "; a constant prediction reaches 10.00 % to 60.00 %"
    assert said(None, math.nan) == ""
