from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from raydpzv.keys import Key
from raydpzv.records import metrics
from raydpzv.records.schema import SCHEMAS
from raydpzv.report import client_plots, plots, run_plots
from raydpzv.report.page import DRAWINGS
from raydpzv.report.plots import ReportFigure
from raydpzv.report.run_tables import RunView
from tests.helpers.cpu import cpu_seconds, row_loop_seconds
from tests.helpers.report_views import figure, legend_text, view
from tests.helpers.synthetic_horizontal import prepared


@pytest.fixture(scope="module")
def rounds() -> RunView:
    return prepared()


@pytest.fixture(scope="module")
def alone() -> RunView:
    return prepared("asynchronous", updates=300, clients=12, lag=8, pause=0.1)


@pytest.fixture(scope="module")
def weighty() -> RunView:
    return prepared("weights", method="fedavg", updates=40, weights=40_000)


@pytest.fixture(scope="module")
def vertical(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return view(tmp_path_factory.mktemp("runs"), "vertical", rounds=100)


def words(shown: Figure) -> str:
    return shown.axes[-1].get_xlabel()


def test_updates_are_named_by_the_kind_of_run(rounds: RunView, vertical: RunView) -> None:
    for draw in (run_plots.accuracy_over_updates, run_plots.loss_over_updates):
        assert words(figure(draw([rounds]))) == "updates of the model"
        assert words(figure(draw([vertical]))) == "updates (server rounds)"
        assert words(figure(draw([rounds, vertical]))) == "updates"
    captions = [
        p.caption for r in (rounds, vertical) if (p := run_plots.accuracy_over_updates([r]))
    ]
    assert "a round of several uploads is one" in captions[0]
    assert "uploads the server has served" in captions[1]
    assert "round of several" not in captions[1]


def test_a_clock_that_stands_still_is_no_axis(rounds: RunView, alone: RunView) -> None:
    assert run_plots.accuracy_over_seconds([rounds]) is None
    assert client_plots.timeline([rounds]) is None
    both = run_plots.accuracy_over_seconds([rounds, alone])
    assert [line.get_label() for line in figure(both).axes[0].get_lines()] == ["asynchronous"]
    assert "Left out: rounds (no delay is simulated" in both.caption


def test_a_method_without_a_network_has_no_accuracy_over_bytes(rounds: RunView) -> None:
    message = rounds.rows["message"]
    free = message.set_column(
        message.schema.get_field_index("bytes"),
        "bytes",
        pa.array([0] * message.num_rows, pa.int64()),
    )
    agent = RunView("agent", rounds.summary | {"method": "mezo"}, rounds.rows | {"message": free})
    assert run_plots.accuracy_over_bytes([agent]) is None
    both = run_plots.accuracy_over_bytes([agent, rounds])
    assert "Left out: agent (nothing travels)" in both.caption


def test_accuracy_over_bytes_is_logarithmic_where_runs_are_far_apart(
    rounds: RunView, weighty: RunView
) -> None:
    assert figure(run_plots.accuracy_over_bytes([rounds])).axes[0].get_xscale() == "linear"
    apart = figure(run_plots.accuracy_over_bytes([rounds, weighty])).axes[0]
    assert weighty.summary["bytes_up"] > 20 * sum(
        rounds.summary[k] for k in ("bytes_up", "bytes_down")
    )
    assert apart.get_xscale() == "log"
    assert apart.xaxis.get_major_formatter()(10_000.0) == "10,000"


def test_the_loss_of_a_round_is_its_uploads_mean(rounds: RunView) -> None:
    line = figure(run_plots.loss_over_updates([rounds])).axes[0].get_lines()[1]
    number, loss = metrics.loss_series(rounds.rows["service"])
    assert np.asarray(line.get_xdata()).tolist() == list(range(1, 61))
    np.testing.assert_allclose(
        np.asarray(line.get_ydata(), float), [loss[number == r].mean() for r in range(1, 61)]
    )


def test_lags_are_shares_of_uploads(alone: RunView, rounds: RunView) -> None:
    picture = run_plots.lag_histogram([rounds, alone])
    bars = figure(picture).axes[0].patches
    assert len(bars) == 1
    heights, edges = bars[0].get_data().values, bars[0].get_data().edges
    lag = alone.rows["sync"].column("lag").to_numpy()
    np.testing.assert_allclose(heights, np.bincount(lag) / len(lag))
    np.testing.assert_allclose(edges, np.arange(len(heights) + 1) - 0.5)
    assert f"mean {lag.mean():.3g}, max {lag.max()}" in legend_text(figure(picture))
    assert "Left out: rounds (every upload was made at the newest model)" in picture.caption
    assert run_plots.lag_histogram([rounds]) is None


def test_wide_lags_share_bars_of_equal_width() -> None:
    lag = np.concatenate([np.arange(501), [500] * 99])
    blank = {
        name: np.zeros(len(lag), int) for name in ("round", "client", "read", "missed", "pairs")
    }
    sync = pa.table(blank | {"lag": lag, "pulled": np.zeros(len(lag), bool)}).select(
        SCHEMAS["sync"].names
    )
    empty = {name: schema.empty_table() for name, schema in SCHEMAS.items()}
    run = RunView("wide", {"method": "decomfl"}, empty | {"sync": sync.cast(SCHEMAS["sync"])})
    data = figure(run_plots.lag_histogram([run])).axes[0].patches[0].get_data()
    assert len(data.values) <= 50
    assert set(np.diff(data.edges)) == {11.0}
    assert data.values.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(data.values[[0, -1]] * 600, [11, 6 + 99])


def test_of_many_clients_the_first_that_took_part_have_a_timeline() -> None:
    run = prepared(updates=100, clients=50_000, cohort=2, pause=1.0)
    took_part = np.unique(run.rows["service"].column("client").to_numpy())
    picture = client_plots.timeline([run])
    ticks = [t.get_text() for t in figure(picture).axes[0].get_yticklabels()]
    assert ticks == [f"client {m:,}" for m in took_part[:20]]
    assert f"The first 20 of {len(took_part)} clients that took part" in picture.caption
    assert "until the upload was served" in picture.caption
    drawn = figure(picture).axes[0].collections
    trips = np.isin(run.rows["service"].column("client").to_numpy(), took_part[:20]).sum()
    assert len(drawn) == 20 * 4
    assert sum(len(c.get_paths()) for i, c in enumerate(drawn) if i % 4 < 2) == trips


def test_a_mixed_report_says_how_bars_end_in_either(alone: RunView, vertical: RunView) -> None:
    picture = client_plots.timeline([alone, vertical])
    assert "(horizontal runs)" in picture.caption
    assert "reply was applied" in picture.caption
    assert len(figure(picture).axes) == 2


def test_legends_do_not_eat_the_picture(rounds: RunView) -> None:
    twins = [
        RunView(f"a run with a long name, number {i}", rounds.summary, rounds.rows)
        for i in range(8)
    ]
    one, many = (figure(run_plots.loss_over_updates(runs)) for runs in ([rounds], twins))
    for shown in (one, many):
        plots.image(shown)
    heights = [shown.axes[0].get_window_extent().height for shown in (one, many)]
    assert heights[1] > 0.85 * heights[0]


def test_a_hundred_thousand_clients_are_not_drawn_one_by_one(tmp_path: Path) -> None:
    count, draw = 200_000, Key(0).generator()
    update = np.arange(count) // 20 + 1
    who = draw.integers(0, 100_000, count).astype(np.int32)
    served = update.astype(float)
    zero = np.zeros(count, np.int64)
    service = {
        "round": update,
        "client": who,
        "step": zero,
        "due": served - 0.5,
        "woke": served - 0.5,
    }
    service |= {"late": zero > 0, "served": served, "applied": served * np.nan, "loss": 1 / update}
    sync = {
        "round": update,
        "client": who,
        "read": update - 1,
        "lag": zero,
        "missed": update % 977,
        "pairs": zero,
    }
    message = {
        "round": update,
        "client": who,
        "kind": ["x"] * count,
        "sent": served,
        "arrived": served,
    }
    sides = [message | {"direction": [d] * count, "bytes": update} for d in ("up", "down")]
    given = {"service": service, "sync": sync | {"pulled": zero > 0}}
    rows = {name: schema.empty_table() for name, schema in SCHEMAS.items()}
    rows |= {
        name: pa.table({f: given[name][f] for f in SCHEMAS[name].names}, SCHEMAS[name])
        for name in given
    }
    halves = [
        pa.table({f: side[f] for f in SCHEMAS["message"].names}, SCHEMAS["message"])
        for side in sides
    ]
    rows["message"] = pa.concat_tables(halves)
    run = RunView("crowd", {"method": "decomfl"}, rows)
    drawn: list[ReportFigure] = []
    drawing = cpu_seconds(lambda: drawn.extend(p for draw in DRAWINGS if (p := draw([run]))))
    assert {p.name for p in drawn} == {"loss_over_updates", "timeline"}
    # measured: two fifths; an artist per client takes minutes
    assert drawing < 3 * row_loop_seconds(rows.values())
