"""Pictures of measures that have names of their own: those of numbers, and a user's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from raydpzv.records import metrics
from raydpzv.report import plots, text
from raydpzv.report.plots import Curve, ReportFigure
from raydpzv.report.run_summary import score_name
from raydpzv.report.run_tables import RunView

_MOST = 8
"""Measures that are drawn."""


def judged(run: RunView) -> metrics.AccuracySeries:
    """Return the evaluations; in place of accuracies what a model without any is judged by."""
    found, score = (
        metrics.accuracy_series(run.rows["evaluation"], run.rows["message"]),
        score_name(run.summary),
    )
    if score == "accuracy":
        return found
    if score == "concordance":
        return replace(found, accuracy=metrics.concordances(run.rows["concordance"]))
    values = found.loss if score == "loss" else metrics.measures(run.rows["measure"])[score][1]
    return replace(found, accuracy=values)


def measures_over_updates(runs: Sequence[RunView]) -> ReportFigure | None:
    """Draw each measure of the test rows against the updates, a panel each; None without any."""
    found = [metrics.measures(run.rows["measure"]) for run in runs]
    names = list(dict.fromkeys(name for measures in found for name in measures))
    if not names:
        return None
    shown = names[:_MOST]
    rows = math.ceil(len(shown) / 2)
    figure, axes = plots.canvas(8.0, 3.2 * rows, rows, min(2, len(shown)))
    for spare in axes.flat[len(shown) :]:
        spare.set_visible(False)
    handles: list[Any] = []
    panels = []
    for name, ax in zip(shown, axes.flat, strict=False):
        plots.head(ax, name)
        ax.set_xlabel("updates")
        curves = [
            Curve(
                *measures[name],
                plots.line(i),
                run.label,
                end=text.short(measures[name][1][-1]),
                marked=True,
                run=i,
            )
            for i, (run, measures) in enumerate(zip(runs, found, strict=True))
            if name in measures
        ]
        drawn = plots.lines(ax, curves)
        panels.append(plots.Panel(name, name, curves))
        handles = drawn if len(drawn) > len(handles) else handles
    if len(runs) > 1:
        plots.legend(figure, handles)
    more = f" Not drawn: {', '.join(names[_MOST:])}." if names[_MOST:] else ""
    caption = f"Measures of the test rows: {', '.join(shown)}.{more}"
    return ReportFigure("measures_over_updates", caption, figure, panels)
