import math

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.colors import to_hex

from raydpzv.report import comparison_plots as plots
from raydpzv.report.comparison_lines import lines
from raydpzv.report.plots import PALETTE
from tests.helpers.synthetic_comparison import Made, field, view


def test_panels_are_the_values_of_epsilon_none_first_then_decreasing() -> None:
    found = lines(*field().tables[:2])
    assert plots.spent(found) == [None, 10.0, 1.0]
    picture = plots.accuracy_over_updates(found)
    shown = picture.figure.axes
    assert [ax.get_title("left") for ax in shown] == [
        "no noise", "calibrated to ε = 10", "calibrated to ε = 1",
    ]  # fmt: skip
    assert len({ax.get_ylim() for ax in shown}) == 1
    look = plots.looks(found)
    colours = [[to_hex(line.get_color()).upper() for line in ax.get_lines()] for ax in shown]
    quick, slow, control = (to_hex(look[n]["color"]).upper() for n in look)
    assert [quick, slow, control] == [PALETTE[0], PALETTE[1], "#000000"]
    # one cross, of a failed run
    assert colours == [[quick, slow, control], [slow, slow, control], [quick, control]]


def test_curves_are_medians_in_bands_and_a_failed_run_is_crossed_out() -> None:
    picture = plots.accuracy_over_updates(lines(*field().tables[:2]))
    first, second, _ = picture.figure.axes
    assert first.get_lines()[0].get_ydata() == pytest.approx([0.1, 0.275, 0.45, 0.625, 0.8])
    band = first.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((0.1, 0.9))
    cross = next(line for line in second.get_lines() if line.get_marker() == "x")
    assert (cross.get_xdata()[0], cross.get_ydata()[0]) == (40, 0.4)
    assert plots.DISCLAIMER in picture.caption
    assert "FAILED, marked ×" in picture.caption
    assert "langsam λ [red], calibrated to ε = 10 (1 constant prediction)" in picture.caption


def test_bytes_are_logarithmic_where_they_span_much() -> None:
    spans = plots.accuracy_over_bytes(lines(*field().tables[:2]))
    close = plots.accuracy_over_bytes(
        lines(*Made().run("a", None, 0, 0.9).run("b", None, 0, 0.8).tables[:2])
    )
    assert {ax.get_xscale() for ax in spans.figure.axes} == {"log"}
    assert {ax.get_xscale() for ax in close.figure.axes} == {"linear"}
    assert plots.DISCLAIMER not in close.caption  # there is no ε in it


def test_what_has_nothing_to_draw_is_none_and_a_still_line_is_named() -> None:
    made = Made().run("still", None, 0, 0.9, rate=0, pace=0.0)
    found = lines(*made.tables[:2])
    assert plots.accuracy_over_bytes(found) is None
    assert plots.accuracy_over_seconds(found) is None
    assert plots.accuracy_over_epsilon(found) is None
    both = plots.accuracy_over_seconds(lines(*made.run("moves", None, 0, 0.5).tables[:2]))
    assert "Left out: still" in both.caption


def test_final_accuracies_over_epsilon_with_controls_as_levels() -> None:
    picture = plots.accuracy_over_epsilon(lines(*field().tables[:2]))
    (ax,) = picture.figure.axes
    assert [t.get_text() for t in ax.get_xticklabels()] == ["none", "10", "1"]
    heights = {
        round(float(y), 6) for line in ax.get_lines() for y in np.atleast_1d(line.get_ydata())
    }
    assert {0.8, 0.5, 0.85, 0.4, 0.6} <= heights
    bars = ax.containers[0].lines[2][0].get_segments()
    assert bars[0][:, 1].tolist() == pytest.approx([0.7, 0.9])
    assert plots.DISCLAIMER in picture.caption


def test_bars_to_a_target_are_medians_and_name_what_was_not_reached() -> None:
    runs, curves, _ = field().tables
    picture = plots.seconds_to_target(view(runs, curves, [0.8, 0.99]))
    (ax,) = picture.figure.axes
    assert [bar.get_width() for bar in ax.patches] == [40.0, 120.0]
    words = [t.get_text() for t in ax.texts]
    assert words == ["40 s (2 of 3)", "not reached", "120 s", "not reached", "not reached"]
    assert [t.get_text() for t in ax.get_yticklabels()][:2] == [
        "quick <b>bold</b>",
        "quick <b>bold</b>, ε 1",
    ]
    assert "No run reached 99 %." in picture.caption
    assert plots.DISCLAIMER in picture.caption
    assert plots.bytes_to_target(view(runs, curves, [0.99])) is None


def test_labels_are_drawn_as_they_are() -> None:
    assert plots.plain("a$b$") == r"a\$b\$"
    assert plots.plain("_x") == " _x"
    assert len(plots.plain("y" * 200)) == 44


def test_no_two_of_the_first_methods_and_controls_look_the_same() -> None:
    made = Made()
    for i in range(14):
        made.run(f"e{i}", None, 0, 0.5)
    for i in range(2):
        made.run(f"c{i}", None, 0, 0.5, control=True)
    found = plots.looks(lines(*made.tables[:2]))
    assert len({(str(x["color"]), str(x["linestyle"])) for x in found.values()}) == 16
    assert all(found[f"e{i}"]["color"] != "#000000" for i in range(14))


def test_runs_without_accuracies_are_drawn_by_what_they_are_judged_by() -> None:
    made = Made().run("a", None, 0, math.nan).run("a", None, 1, math.nan).run("b", 1.0, 0, math.nan)
    made.run("b", 1.0, 1, math.nan, outcome="failed", status="failed")
    runs, curves, _ = made.tables
    rmse = pa.array([0.1 * i for i in range(len(curves))])
    runs = runs.append_column("rmse", pa.array([0.4, 0.9, 1.4, math.nan]))
    found = lines(runs, curves.append_column("rmse", rmse))
    picture = plots.accuracy_over_updates(found)
    assert picture.caption.startswith("Test rmse against")
    first, second = picture.figure.axes
    assert first.get_ylabel() == "test rmse"
    assert first.get_lines()[0].get_ydata() == pytest.approx([0.25, 0.35, 0.45, 0.55, 0.65])
    # without the failed run
    assert second.get_lines()[0].get_ydata() == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.4])
    final = plots.accuracy_over_epsilon(found)
    assert final.caption.startswith("Final test rmse: median")
    by_loss = plots.accuracy_over_bytes(lines(*made.tables[:2]))
    assert by_loss.caption.startswith("Test loss against")
