"""The picture of a search: each trial's metric over its proved ε or over a setting, coloured by another setting."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.figure import Figure

from raydpzv.report.plots import FAINT, INK, chart, plain_log, wide
from raydpzv.search.search_plan import SearchPlan
from raydpzv.search.trial_results import CUT, DONE, SearchResults

_MARKS = {DONE: "o", CUT: "v"}
_COLOURS = "viridis"


def search_figure(plan: SearchPlan, results: SearchResults) -> Figure | None:
    """Draw the trials that were measured; None where there is none.

    Along the axis is ε where it is proved and not the same for all, else the setting that is numeric and has most
    values; the colour is that of the setting with most values among the others.
    Scales are logarithmic for settings drawn by loguniform, and for values that span much.
    """
    rows = [r for r in results.rows if r["status"] in _MARKS and not math.isnan(r[plan.metric])]
    if not rows:
        return None
    settings = sorted(plan.trials[0].values, key=lambda name: -len({str(r[name]) for r in rows}))
    numeric = [name for name in settings if all(_is_number(r[name]) for r in rows)]
    spent = {r["epsilon"] for r in rows}
    over = "epsilon" if len(spent) > 1 and all(map(math.isfinite, spent)) else next(iter(numeric), "trial")
    by = next((name for name in numeric if name != over and len({r[name] for r in rows}) > 1), None)
    name = "proved ε" if over == "epsilon" else over
    figure, ax = chart(f"{plan.metric} of {len(rows)} trials over {name}", name, plan.metric)
    shades = [float(r[by]) for r in rows] if by else [0.0] * len(rows)
    logarithmic = by is not None and (by in plan.log_scaled or wide(shades)) and min(shades) > 0
    for status, mark in _MARKS.items():
        own = [i for i, r in enumerate(rows) if r["status"] == status]
        drawn = ax.scatter(
            [rows[i][over] for i in own],
            [rows[i][plan.metric] for i in own],
            c=[shades[i] for i in own],
            norm="log" if logarithmic else None,
            vmin=min(shades),
            vmax=max(shades) if max(shades) > min(shades) else min(shades) + 1,
            cmap=_COLOURS,
            marker=mark,
            edgecolors=FAINT,
            label=status,
        )
    if by:
        figure.colorbar(drawn, ax=ax, label=by)
    if results.best is not None:
        best = results.rows[results.best.number]
        ax.scatter([best[over]], [best[plan.metric]], s=160, facecolors="none", edgecolors=INK, label="best")
    places = [float(r[over]) for r in rows]
    if (over in plan.log_scaled or wide(places)) and min(places) > 0:
        plain_log(ax, "x")
    ax.legend(frameon=False)
    return figure


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
