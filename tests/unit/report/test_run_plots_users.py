from __future__ import annotations

import dataclasses

import numpy as np

import scenarios
from raydpzv.report import client_plots, run_summary, run_tables
from raydpzv.report.page import write_report
from raydpzv.report.run_tables import RunView
from tests.helpers.changed_settings import scenario
from tests.helpers.report_views import Page, figure, without_pixels
from tests.helpers.synthetic_horizontal import prepared

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
    assert [text.get_text() for text in shown.legends[0].get_texts()] == [f"silo {s}" for s in range(4)]

    rows = {row[0]: row[1:] for row in run_tables.phase_grid(view.rows).rows}
    assert list(rows) == ["key agreement", "end of the set-up", "failed silos", "rounds"]
    assert rows["key agreement"][:2] == ("12", "128 B")
    assert all(float(row[-2]) >= 0 for row in rows.values())
    assert float(rows["rounds"][-2]) > 0

    page = Page(write_report([tmp_path / "run"]).read_text())
    for words in ("CPU seconds, silos", "key agreement", "8 users in 4 silos", "Records of each user"):
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
