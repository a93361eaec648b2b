from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from raydpzv.report import page_data
from raydpzv.report.page_data import extremes
from raydpzv.report.run_plots import CLIENT, PAPER
from tests.helpers.report_views import view


def test_thinning_keeps_ends_and_extremes_and_short_curves_whole() -> None:
    values = np.sin(np.arange(10_000.0))
    values[[1234, 4321]] = 9, -9
    values[7000:7100] = np.nan
    kept = extremes(values, 50)
    assert {0, 1234, 4321, 9999} <= set(kept.tolist())
    assert len(kept) <= 102
    assert np.isfinite(values[kept]).all()
    assert extremes(values[:100], 50).tolist() == list(range(100))


def test_numbers_keep_seven_digits_and_what_is_none_is_null() -> None:
    assert page_data.numbers(np.array([1 / 3, np.nan, np.inf])) == [0.3333333, None, None]
    assert page_data.numbers(np.array([1, 2])) == [1, 2]


def test_clocks_are_exact_where_the_run_was_evaluated(tmp_path: Path) -> None:
    run = view(tmp_path, "a", rounds=900)
    words, (table,) = page_data.axes([run], "virtual")
    assert words["time"] == "simulated seconds"
    seen, message = run.rows["evaluation"].to_pylist(), run.rows["message"].to_pylist()
    for row in seen:
        at = table["update"].index(row["round"])
        assert table["time"][at] == pytest.approx(row["time"], rel=1e-6)
        assert table["bytes"][at] == sum(m["bytes"] for m in message if m["round"] <= row["round"])
    assert table["epsilon"][-1] == pytest.approx(8.25)


def test_the_axis_of_epsilon_says_whose_it_is_and_is_left_out_where_nothing_is_stated(
    tmp_path: Path,
) -> None:
    run = view(tmp_path, "a", rounds=60)
    claimed = [c | {"holds": False} for c in run.summary["epsilon"] if c["adversary"] == "paper"]
    unproved = np.full(run.rows["release"].num_rows, np.inf)
    place = run.rows["release"].schema.get_field_index("epsilon_client")
    release = run.rows["release"].set_column(place, "epsilon_client", pa.array(unproved))
    paper = replace(
        run,
        label="b",
        summary=run.summary | {"epsilon": claimed},
        rows={**run.rows, "release": release},
    )
    silent = replace(run, label="c", summary=run.summary | {"epsilon": []})
    assert page_data.axes([run], "virtual")[0]["epsilon"] == f"ε spent so far, {CLIENT}"
    assert page_data.axes([paper], "virtual")[0]["epsilon"] == f"ε spent so far, {PAPER}"
    both = page_data.axes([run, paper, silent], "virtual")[0]["epsilon"]
    assert both == f"ε spent so far, a: {CLIENT}; b: {PAPER}"
    assert "epsilon" not in page_data.axes([silent], "virtual")[0]
    large = run.rows["release"].set_column(
        place, "epsilon_client", pa.array(np.full(len(unproved), 53_490.0))
    )
    useless = replace(run, rows={**run.rows, "release": large})
    assert page_data.axes([useless], "virtual")[0]["epsilon"] == f"ε spent so far, {PAPER}"


def test_a_heat_map_has_the_mean_age_of_each_clients_embeddings(tmp_path: Path) -> None:
    run = view(tmp_path, "a", rounds=240)
    found = page_data.heat(run, "Staleness")
    rows = [
        r for r in run.rows["staleness"].to_pylist() if r["client"] == 2 and r["round"] in (31, 32)
    ]
    mean = sum(r["age_sum"] for r in rows) / sum(r["rows"] - r["missing"] for r in rows)
    assert (found["spans"], len(found["lanes"])) == (120, 4)
    assert found["mean"][2 * 120 + 15] == pytest.approx(mean, rel=1e-3)


def test_a_timeline_has_every_round_trip_or_says_how_many_a_bar_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = view(tmp_path, "a", rounds=300)
    service = run.rows["service"].to_pylist()
    whole = page_data.timeline(run, "Round trips", 1)
    assert sorted(whole["woke"]) == pytest.approx(sorted(r["woke"] for r in service), rel=1e-6)
    spans = [
        sum(parts)
        for parts in zip(*(whole[n] for n in ("work", "upload", "serve", "reply")), strict=True)
    ]
    lasted = [
        (r["served"] if np.isnan(r["applied"]) else r["applied"]) - r["woke"] for r in service
    ]
    assert sum(spans) == pytest.approx(sum(lasted), rel=1e-5)
    monkeypatch.setattr(page_data, "_TRIPS", 80)
    joined = page_data.timeline(run, "Round trips", 1)
    assert len(joined["woke"]) <= 84
    assert sum(joined["count"]) == 300
    assert "how many" in joined["caption"]
    assert "how many" not in whole["caption"]
