"""A picture of a search: each trial's metric over its ε or over a setting."""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from raydpzv.privacy.claim_words import USEFUL, small
from raydpzv.report.plots import FAINT, INK, chart, plain_log, wide
from raydpzv.search.tune_plan import SearchPlan
from raydpzv.search.tune_results import CUT, DONE, Row, SearchResults, is_number

_MARKS = {DONE: "o", CUT: "v"}
_COLOURS = "viridis"
_LARGE = 1.5 * USEFUL
"""The place on the axis of every ε that is too large to mean something."""


def search_figure(plan: SearchPlan, results: SearchResults) -> Figure | None:
    """Draw each measured trial's metric over its ε or a setting, coloured by another setting; None
    without any.

    Along the axis is ε where it is proved and not the same for all, else the setting that is
    numeric and has most values; the colour is that of the setting with most values among the
    others. All ε above 10 are at one place. Scales are logarithmic for settings drawn by
    loguniform, and for values that span much.
    """
    rows = [
        _drawn(r) for r in results.rows if r["status"] in _MARKS and not math.isnan(r[plan.metric])
    ]
    if not rows:
        return None

    # along the axis, and in colour
    settings = sorted(plan.settings, key=lambda name: -len({str(r[name]) for r in rows}))
    numeric = [name for name in settings if all(is_number(r[name]) for r in rows)]
    spent = {r["epsilon"] for r in rows}
    over = (
        "epsilon"
        if len(spent) > 1 and all(map(math.isfinite, spent))
        else next(iter(numeric), "trial")
    )
    by = next((name for name in numeric if name != over and len({r[name] for r in rows}) > 1), None)
    name = "proved ε" if over == "epsilon" else over
    figure, ax = chart(f"{plan.metric} of {len(rows)} trials over {name}", name, plan.metric)
    shades = [float(r[by]) for r in rows] if by else [0.0] * len(rows)
    logarithmic = by is not None and (by in plan.log_scaled or wide(shades)) and min(shades) > 0

    # a mark for each way in which trials ended
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
            label=status if own else "",
        )
    if by:
        figure.colorbar(drawn, ax=ax, label=by)
    if (best_trial := results.best) is not None and not plan.comparison:
        best = _drawn(results.row(best_trial))
        ax.scatter(
            [best[over]],
            [best[plan.metric]],
            s=160,
            facecolors="none",
            edgecolors=INK,
            label="best",
        )

    # the axis: logarithmic where values span much, with one place for every ε that is too large
    places = [float(r[over]) for r in rows]
    if (over in plan.log_scaled or wide(places)) and min(places) > 0:
        plain_log(ax, "x")
    if over == "epsilon" and _LARGE in spent:
        ticks = [float(tick) for tick in ax.get_xticks() if ax.get_xlim()[0] <= tick <= USEFUL]
        names = ax.xaxis.get_major_formatter().format_ticks(ticks)
        ax.set_xticks([*ticks, _LARGE], [*names, f"> {USEFUL:g}"])
    ax.legend(frameon=False)
    return figure


def _drawn(row: Row) -> Row:
    """Return a row with its place on the axis of ε."""
    large = math.isfinite(row["epsilon"]) and not small(row["epsilon"])
    return row | {"epsilon": _LARGE} if large else row
