"""A comparison on one screen."""

from __future__ import annotations

import math

from raydpzv.report.comparison_privacy import privacy_line
from raydpzv.report.comparison_table import equal_bytes, equal_seconds, table
from raydpzv.report.comparison_text import failures_line, summary_grid, summary_report, target_line
from tests.helpers.synthetic_comparison import Made, field, printed


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


def test_a_common_comparison_fits_on_a_screen():
    lines = printed(large().tables, [0.8, 0.9], report=summary_report).splitlines()
    assert len(lines) <= 36  # four more say where the folder and the page are
    assert max(map(len, lines)) <= 120
    assert sum(line.count("KiB") == 2 for line in lines) == 14


def test_rows_have_one_line_each_and_columns_without_meaning_are_left_out():
    runs, curves, _ = field().tables
    found = summary_grid(table(runs, curves, []), equal_bytes(curves, runs), equal_seconds(curves, runs))
    rows = [dict(zip(found.heads, row, strict=True)) for row in found.rows]
    assert rows[0]["accuracy"] == "80.00 % (70.00 to 90.00)"
    assert [row["aim: ε"] for row in rows] == ["none", "1", "none", "10", "none"]
    assert rows[3]["runs"] == "3, 1 FAILED"
    assert not any("\n" in cell for row in found.rows for cell in row)
    runs, curves, _ = Made().run("a", None, 0, 0.9, pace=0.0).tables
    plain = summary_grid(table(runs, curves, []), equal_bytes(curves, runs), equal_seconds(curves, runs))
    assert plain.heads == ("method", "runs", "accuracy", "at 7.81 KiB", "bytes up", "bytes down")


def test_failures_targets_and_privacy_are_a_line_each():
    said = printed(field().tables, [0.8, 0.99], report=summary_report)
    assert (
        "FAILED: 1 of 15 runs; first langsam λ [red], calibrated to ε = 10, seed 1 (runs/08-run): constant"
        in said
    )
    assert "No run reached test accuracy 99 %." in said
    assert "Failures: none of 1 runs" in printed(
        Made().run("a", None, 0, 0.5).tables, [], report=summary_report
    )


def test_a_failure_is_shown_in_words_of_today_and_unmade_runs_are_said():
    made = Made().run("a", None, 0, 0.5, outcome="one class' share", reason="why")
    made.run("a", None, 1, 0.5, outcome="not run")
    line = failures_line(made.tables[0])
    assert line == (
        "FAILED: 1 of 2 runs; 1 not made to the end, left out of every number; first a, seed 0 (runs/00-run): "
        "single-class accuracy: why"
    )


def test_a_target_says_who_reached_it_cheapest():
    runs, curves, _ = field().tables
    line = target_line(table(runs, curves, [0.8]), 0.8)
    assert line.startswith("Reached test accuracy 80 %: 2 of 5 lines; fewest updates quick <b>bold</b> (40)")
    assert "fewest bytes quick <b>bold</b> (7.81 KiB)" in line
    assert line.endswith("least simulated time quick <b>bold</b> (40 s)")
    some = Made()
    for seed, final in ((0, 0.9), (1, 0.1), (2, 0.1)):
        some.run("a", None, seed, final)
    runs, curves, _ = some.tables
    assert target_line(table(runs, curves, [0.8]), 0.8).endswith(
        "1 of 1 lines; none of them with half of its runs"
    )


def test_the_line_on_privacy_counts_and_names_the_useful_epsilons():
    runs, _, claims = field().tables
    assert privacy_line(claims, runs) == (
        "Privacy: 1 of 2 lines with noise are private; the others are NOT PRIVATE. quick <b>bold</b>, calibrated to "
        "ε = 1: PRIVATE. ε = 8 (δ = 0.001, replace one record) is proved against all clients together."
    )
    made = Made().run("a", 1.0, 0, 0.5, private=False).claim("a", 1.0, math.inf)
    runs, _, claims = made.tables
    assert privacy_line(claims, runs) == (
        "Privacy: NOT PRIVATE, no useful ε is proved for any of the 1 lines with noise."
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
    said = printed(made.tables, [], report=summary_report)
    assert said.count("warning: entrant") == 3
    assert "2 more warnings: --explain" in said
