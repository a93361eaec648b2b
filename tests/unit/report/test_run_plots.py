import dataclasses
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

import scenarios
from raydpzv.records import metrics
from raydpzv.records.schema import RELEASE, SCHEMAS
from raydpzv.report import client_plots, measure_plots, plots, run_plots, run_summary, run_tables
from raydpzv.report.page import DRAWINGS, write_report
from raydpzv.report.run_tables import RunView
from tests.helpers.changed_settings import scenario
from tests.helpers.report_views import Page, figure, legend_text, view, without_pixels
from tests.helpers.synthetic_horizontal import prepared
from tests.helpers.synthetic_run import MECHANISM

VERTICAL = [
    d
    for d in DRAWINGS
    if d
    not in (
        run_plots.lag_histogram,
        client_plots.records_per_user,
        measure_plots.measures_over_updates,
    )
]


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return view(tmp_path_factory.mktemp("runs"), "noised")


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return view(
        tmp_path_factory.mktemp("runs"),
        "plain",
        private=False,
        method="vafl",
        rounds=120,
        clients=2,
    )


def with_claims(run: RunView, claims: list[dict[str, Any]]) -> RunView:
    return replace(run, summary=run.summary | {"epsilon": claims})


def releases(run: RunView, paper: list[float], client: list[float]) -> RunView:
    rows = [
        dict.fromkeys((f.name for f in RELEASE), 0)
        | {"round": i + 1, "mechanism": "", "source": "", "epsilon_paper": p, "epsilon_client": c}
        for i, (p, c) in enumerate(zip(paper, client, strict=True))
    ]
    return replace(run, rows=run.rows | {"release": pa.Table.from_pylist(rows, schema=RELEASE)})


def test_accuracy_curves_are_the_folds(private: RunView, exposed: RunView) -> None:
    for draw, field in (
        (run_plots.accuracy_over_updates, "round"),
        (run_plots.accuracy_over_seconds, "time"),
        (run_plots.accuracy_over_bytes, "bytes"),
    ):
        drawn = figure(draw([private, exposed])).axes[0].get_lines()
        for run, line in zip((private, exposed), drawn, strict=True):
            series = metrics.accuracy_series(run.rows["evaluation"], run.rows["message"])
            scale = 2.0**20 if field == "bytes" else 1.0
            np.testing.assert_allclose(line.get_xdata(), getattr(series, field) / scale)
            np.testing.assert_allclose(line.get_ydata(), series.accuracy)
    assert "MiB" in figure(run_plots.accuracy_over_bytes([private])).axes[0].get_xlabel()


def margin(shown: Figure) -> dict[str, tuple[float, float]]:
    """Words in the margin, with their height and the data's height that each stands for."""
    rings = [c.get_offsets()[0] for c in shown.axes[0].collections if isinstance(c, PathCollection)]
    return {
        t.get_text(): (t.xy[1], float(r[1]))
        for t, r in zip(shown.axes[0].texts, rings, strict=True)
    }


def test_the_final_accuracy_is_ringed_and_written(private: RunView, exposed: RunView) -> None:
    for draw in (
        run_plots.accuracy_over_updates,
        run_plots.accuracy_over_seconds,
        run_plots.accuracy_over_bytes,
    ):
        final = [r.summary["accuracy"] for r in (private, exposed)]
        noted = margin(figure(draw([private, exposed])))
        assert list(noted) == [f"{100 * a:.2f} %" for a in final]
        assert [ringed for _, ringed in noted.values()] == final


def test_words_in_the_margin_keep_apart_and_their_order() -> None:
    assert plots.spread([0.9, 0.1, 0.91, 0.9], 0.05) == pytest.approx([0.9, 0.1, 1.0, 0.95])
    assert plots.spread([], 0.05) == []
    assert plots.spread([0.98, 0.97, 0.2], 0.05) == pytest.approx([1.0, 0.95, 0.2])
    assert plots.spread([1.1, 1.0], 0.05) == pytest.approx([1.1, 1.0])


def test_equal_curves_of_two_runs_are_both_seen(private: RunView) -> None:
    twin = replace(private, label="twin")
    for draw in (run_plots.accuracy_over_updates, run_plots.loss_over_updates):
        first, second = figure(draw([private, twin])).axes[0].get_lines()
        assert (first.get_linestyle(), second.get_linestyle()) == ("-", "--")
    outlines = figure(client_plots.staleness_by_client([private, twin])).axes[0].patches
    assert outlines[0].get_linestyle() != outlines[1].get_linestyle()
    shown = figure(run_plots.epsilon_over_updates([private, twin]))
    assert len(shown.axes[0].get_lines()) == 2
    assert f"noised; twin: {run_plots.CLIENT}" in legend_text(shown)


def test_loss_is_a_running_mean(private: RunView) -> None:
    lines = figure(run_plots.loss_over_updates([private])).axes[0].get_lines()
    rounds, loss = metrics.loss_series(private.rows["service"])
    assert list(lines[0].get_xdata()) == list(rounds)
    window = len(loss) // 40
    expected = [loss[i - window + 1 : i + 1].mean() for i in range(window - 1, len(loss))]
    np.testing.assert_allclose(np.asarray(lines[1].get_ydata(), dtype=float), expected)


def test_epsilon_names_both_curves_with_all_their_terms(private: RunView) -> None:
    shown = figure(run_plots.epsilon_over_updates([private]))
    words = legend_text(shown).replace("\n", " ")
    assert f"noised: {run_plots.PAPER}" in words
    assert f"noised: {run_plots.CLIENT}" in words
    for term in (
        "δ = 1e-05",
        f"mechanism {MECHANISM}",
        "relation replace one record",
        "sensitivity 0.3125",
    ):
        assert words.count(term) == 2
    assert (
        words.count("accountant closed form (GDP)")
        == words.count("accountant paper's closed form (GDP)")
        == 1
    )
    assert "adversary client" in words
    assert "adversary paper" not in words, "a paper is no adversary"
    solid, dashed = shown.axes[0].get_lines()
    assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
    assert np.asarray(solid.get_ydata())[-1] == pytest.approx(8.25)
    assert np.asarray(dashed.get_ydata())[-1] == pytest.approx(1.0)
    assert shown.axes[0].get_yscale() == "log"
    assert list(margin(shown)) == ["ε = 8.25", "ε = 1"]


def test_releases_of_a_run_that_claims_epsilon_of_users_alone_are_no_curve(
    private: RunView,
) -> None:
    claims = [claim | {"scope": "all; unit: one user"} for claim in private.summary["epsilon"]]
    assert run_plots.epsilon_over_updates([with_claims(private, claims)]) is None
    both = figure(run_plots.epsilon_over_updates([with_claims(private, claims), private]))
    assert len(both.axes[0].get_lines()) == 2


def test_a_wide_span_of_epsilon_reads_in_plain_numbers(private: RunView) -> None:
    shown = figure(
        run_plots.epsilon_over_updates([releases(private, [0.0, 157_480.0], [1.0, 2.0])])
    )
    write = shown.axes[0].yaxis.get_major_formatter()
    assert [write(v) for v in (0.01, 1.0, 1000.0, 100_000.0)] == ["0.01", "1", "1,000", "100,000"]
    heights = {words: height for words, (height, _) in margin(shown).items()}
    assert heights["ε = 157,480"] > 0.9
    nothing = figure(run_plots.epsilon_over_updates([releases(private, [0.0, 0.0], [0.01, 9.0])]))
    assert list(margin(nothing)) == ["ε = 9"]


def test_a_proved_epsilon_is_drawn_while_it_is_useful(private: RunView) -> None:
    picture = run_plots.epsilon_over_updates(
        [releases(private, [20.0, 30.0], [10.0 * (1 + 5e-7), 10.1])]
    )
    solid, dashed = figure(picture).axes[0].get_lines()
    assert list(solid.get_ydata()) == [10.0 * (1 + 5e-7)]
    assert list(dashed.get_ydata()) == [20.0, 30.0], (
        "what a paper claims is called not proved already"
    )
    assert f"{run_plots.CLIENT}: ε is above 10, no useful ε, at 1 of 2 rounds" in picture.caption
    assert "no useful ε" not in legend_text(figure(picture))


def test_epsilon_is_linear_when_it_spans_little(private: RunView) -> None:
    shown = figure(run_plots.epsilon_over_updates([releases(private, [1.0, 2.0], [8.0, 9.0])]))
    assert shown.axes[0].get_yscale() == "linear"
    assert shown.axes[0].get_ylim()[0] == 0


def test_what_cannot_be_drawn_is_named(private: RunView, exposed: RunView) -> None:
    picture = run_plots.epsilon_over_updates([private, exposed])
    assert len(figure(picture).axes[0].get_lines()) == 2
    assert f"plain, {run_plots.CLIENT}: ε is infinite at 120 of 120 rounds" in picture.caption
    assert f"plain, {run_plots.PAPER}: no ε is stated at 120 of 120 rounds" in picture.caption
    alone = run_plots.epsilon_over_updates([exposed])
    assert alone.figure is None


def test_a_partly_infinite_curve_is_drawn_where_it_is_finite(private: RunView) -> None:
    picture = run_plots.epsilon_over_updates([releases(private, [0.5, 0.6], [2.0, math.inf])])
    solid = figure(picture).axes[0].get_lines()[0]
    assert list(solid.get_ydata()) == [2.0]
    assert "ε is infinite at 1 of 2 rounds" in picture.caption


def test_epsilon_without_terms_is_not_drawn(private: RunView) -> None:
    picture = run_plots.epsilon_over_updates([with_claims(private, [])])
    assert picture.figure is None
    assert picture.caption.count("does not state its terms") == 2


def test_a_paper_claim_that_holds_is_not_called_unproved(private: RunView) -> None:
    claims = [c | {"holds": True} for c in private.summary["epsilon"]]
    picture = run_plots.epsilon_over_updates([with_claims(private, claims)])
    words = legend_text(figure(picture))
    assert run_plots.PAPER_TRUE in words
    assert run_plots.PAPER not in words


def test_staleness_histograms_are_shares_of_used_rows(private: RunView) -> None:
    axes = figure(client_plots.staleness_by_client([private])).axes
    assert [ax.get_title("left") for ax in axes] == [f"client {m}" for m in range(4)]
    ages = metrics.staleness(private.rows["staleness"])
    for ax, client in zip(axes, ages, strict=True):
        heights = ax.patches[0].get_data().values
        np.testing.assert_allclose(heights, client.bins[: len(heights)] / client.bins.sum())
        assert ax.get_title("right") == f"mean {client.mean:.3g}, max {client.max}"


def test_pictures_of_clients_name_their_parties(private: RunView) -> None:
    names = ["bank", "shop", "post", "rail"]
    run = replace(private, summary=private.summary | {"parties": names})
    panels = figure(client_plots.staleness_by_client([run])).axes
    assert [ax.get_title("left") for ax in panels] == names
    trips = figure(client_plots.timeline([run])).axes[0]
    assert [tick.get_text() for tick in trips.get_yticklabels()] == names
    mixed = figure(client_plots.staleness_by_client([run, private])).axes
    assert mixed[0].get_title("left") == "client 0", (
        "runs that name their clients otherwise share the panel"
    )


def test_ticks_are_the_lowest_age_of_a_bin(private: RunView) -> None:
    ax = figure(client_plots.staleness_by_client([private])).axes[0]
    labels = {
        int(t): label.get_text()
        for t, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)
    }
    assert labels[1] == "1"
    assert labels[5] == "16"


def test_timeline_bars_end_where_the_reply_was_applied(private: RunView) -> None:
    ax = figure(client_plots.timeline([private])).axes[0]
    end = ax.get_xlim()[1]
    bars = sorted(
        (p.vertices[:, 0].min(), p.vertices[:, 0].max())
        for c in ax.collections[:2]
        for p in c.get_paths()
    )
    first = metrics.activity(private.rows["service"])[0]
    seen = first.woke < end
    np.testing.assert_allclose(bars, np.column_stack([first.woke, first.applied])[seen])
    late = ax.collections[1].get_paths()
    assert len(late) == (first.late & seen).sum() > 0
    assert (
        8
        <= np.median([(t.woke < end).sum() for t in metrics.activity(private.rows["service"])])
        <= 13
    )


def test_round_trips_of_no_length_are_strokes(private: RunView) -> None:
    served = private.rows["service"]
    instant = served.column("woke")
    for name in ("served", "applied"):
        served = served.set_column(served.schema.get_field_index(name), name, instant)
    picture = client_plots.timeline([replace(private, rows=private.rows | {"service": served})])
    first = metrics.activity(served)[0]
    ax = figure(picture).axes[0]
    strokes = [path.vertices[0, 0] for path in ax.collections[2].get_paths()]
    assert strokes == list(first.woke[first.woke < ax.get_xlim()[1]])
    assert "too short for a bar" in picture.caption
    plain = client_plots.timeline([private])
    assert "too short" not in plain.caption


def test_many_clients_are_cut_and_said_so(tmp_path: Path) -> None:
    crowd = view(tmp_path, "crowd", clients=23, rounds=300)
    histogram, bars = client_plots.staleness_by_client([crowd]), client_plots.timeline([crowd])
    assert len(figure(histogram).axes) == 20
    assert "Of 23 clients, the 20" in histogram.caption
    took_part = len(set(crowd.rows["service"].column("client").to_pylist()))
    assert f"The first 20 of {took_part} clients that took part" in bars.caption
    assert len(figure(bars).axes[0].get_yticks()) == 20


@pytest.mark.parametrize("draw", DRAWINGS)
def test_a_run_without_rows_has_no_pictures(draw: Any) -> None:
    empty = RunView("empty", {}, {name: schema.empty_table() for name, schema in SCHEMAS.items()})
    assert draw([empty]) is None
    assert draw([]) is None


@pytest.mark.parametrize("draw", VERTICAL)
def test_one_run_without_rows_does_not_hide_the_other(draw: Any, private: RunView) -> None:
    empty = RunView("empty", {}, {name: schema.empty_table() for name, schema in SCHEMAS.items()})
    assert plots.image(figure(draw([empty, private]))).startswith(b"\x89PNG")


def test_a_single_round_draws(tmp_path: Path) -> None:
    one = view(tmp_path, "one", clients=1, rounds=1)
    for draw in DRAWINGS:
        picture = draw([one])
        if picture and picture.figure:
            assert plots.image(picture.figure)


def test_equal_figures_give_equal_bytes_and_pyplot_stays_out(private: RunView) -> None:
    assert plots.image(figure(client_plots.timeline([private]))) == plots.image(
        figure(client_plots.timeline([private]))
    )
    assert "matplotlib.pyplot" not in sys.modules


def test_long_series_are_thinned_and_keep_their_ends() -> None:
    x, y = plots.thin(np.arange(100_000), -np.arange(100_000))
    assert (x[0], x[-1]) == (0, 99_999)
    assert len(x) <= 4000
    np.testing.assert_array_equal(x, -y)


def test_no_two_of_21_runs_look_the_same() -> None:
    looks = {(plots.line(i)["color"], str(plots.line(i)["linestyle"])) for i in range(21)}
    assert len(looks) == 21


GIVEN = ("budget.updates=3", "method.aggregation=masked", "method.dropout=0.3", "split.clients=4")


def test_a_report_shows_who_has_what_and_what_each_phase_took(tmp_path, monkeypatch) -> None:
    without_pixels(monkeypatch)
    spec = scenario("horizontal", "uldp_sgd", GIVEN)
    run = scenarios.run(spec, tmp_path / "run")
    view = RunView("a", run.summary, run.tables)
    counts_SU = client_plots.counts_of(view.rows["pair"])
    assert counts_SU.sum() == 60
    assert (counts_SU > 0).sum() == view.rows["pair"].num_rows == run.summary["user_level"]["pairs"]

    shown = figure(client_plots.records_per_user([view, dataclasses.replace(view, label="b")]))
    (ax,) = shown.axes
    tops = [patch.get_data().values for patch in ax.patches]
    assert np.array_equal(tops[-1], np.sort(counts_SU.sum(0))[::-1])
    assert [text.get_text() for text in shown.legends[0].get_texts()] == [
        f"silo {s}" for s in range(4)
    ]

    rows = {row[0]: row[1:] for row in run_tables.phase_grid(view.rows).rows}
    assert list(rows) == ["key agreement", "end of the set-up", "failed silos", "rounds"]
    assert rows["key agreement"][:2] == ("12", "128 B")
    assert all(float(row[-2]) >= 0 for row in rows.values())
    assert float(rows["rounds"][-2]) > 0

    page = Page(write_report([tmp_path / "run"]).read_text())
    for words in (
        "CPU seconds, silos",
        "key agreement",
        "8 users in 4 silos",
        "Records of each user",
    ):
        assert words in page.words
    summary = dict(run_summary.summary_rows(run.summary))
    assert summary["aggregation"] == "masked, records weights"
    assert summary["sensitivity"].startswith("0.1 (one user")
    assert "of 4 on average" in summary["silos that took part"]


def test_runs_without_users_have_neither() -> None:
    view = prepared()
    assert client_plots.records_per_user([view]) is None
    assert run_tables.phase_grid(view.rows).rows == ()
    assert "users" not in dict(run_summary.summary_rows(view.summary))
