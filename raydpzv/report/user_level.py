"""Of runs that protect users: a picture of who has how many records where, and a table of the protocol's phases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import StrMethodFormatter

from raydpzv.records.store import Rows
from raydpzv.records.traffic import phases
from raydpzv.report import style, text
from raydpzv.report.figure import PLAIN, ReportFigure, RunView

PHASE_HEAD = ("phase", "messages", "up", "down", "CPU seconds, silos", "CPU seconds, server")
PHASE_NOTE = (
    "Bytes and CPU seconds of all silos together. CPU seconds are of the messages that the work ended with, as "
    "measured in the processes that did it; the making of the server's key is not among them."
)
_MOST_NAMED = 20


def records_per_user(runs: Sequence[RunView]) -> ReportFigure | None:
    """Draw how many records each user has, coloured by silo: Uldp-FL's figure 13; equal ones once."""
    found = [(run, counts_of(run.rows["pair"])) for run in runs if run.rows["pair"].num_rows]
    different: list[tuple[RunView, np.ndarray]] = []
    for run, counts_SU in found:
        if not any(np.array_equal(counts_SU, known) for _, known in different):
            different.append((run, counts_SU))
    if not different:
        return None
    figure, axes = style.canvas(8.0, 1.0 + 2.8 * len(different), rows=len(different))
    most = max(len(counts_SU) for _, counts_SU in different)
    for ax, (run, counts_SU) in zip(axes.flat, different, strict=True):
        _stack(ax, counts_SU)
        style.title(ax, "Records per user" + (f": {run.label}" if len(different) > 1 else ""))
        ax.set_ylabel("records")
        ax.yaxis.set_major_formatter(StrMethodFormatter(PLAIN))
    axes[-1, 0].set_xlabel("users, from most records to fewest")
    if most <= _MOST_NAMED:
        handles = [Patch(color=_colour(silo), label=f"silo {silo}") for silo in range(most)]
        style.legend(figure, handles, style.columns_for([str(h.get_label()) for h in handles]))
    caption = "Records of each user, coloured by the silo that holds them."
    if len(found) > len(different):
        caption += " Runs on the same users and silos are drawn once."
    return ReportFigure("records_per_user", caption, figure)


def counts_of(pair: pa.Table) -> np.ndarray:
    """Return n_su, int64 [S, U], of a run's `pair` rows."""
    users, silos = pair.column("user").to_numpy(), pair.column("silo").to_numpy()
    counts_SU = np.zeros((silos.max() + 1, users.max() + 1), np.int64)
    counts_SU[silos, users] = pair.column("records").to_numpy()
    return counts_SU


def phase_rows(rows: Rows) -> list[tuple[str, ...]]:
    """Return one row per phase under PHASE_HEAD; none of a run whose CPU time is not on record."""
    if not rows["work"].num_rows:
        return []
    return [
        (
            phase.name,
            f"{phase.messages:,}",
            text.size(phase.up),
            text.size(phase.down),
            text.number(phase.silos, 3),
            text.number(phase.server, 3),
        )
        for phase in phases(rows["message"], rows["work"])
    ]


def _stack(ax: Axes, counts_SU: np.ndarray) -> None:
    counts_SU = counts_SU[:, np.argsort(-counts_SU.sum(0), kind="stable")]
    tops_SU = np.cumsum(counts_SU, axis=0)
    edges = np.arange(counts_SU.shape[1] + 1) + 0.5
    for silo, top_U in enumerate(tops_SU):
        ax.stairs(top_U, edges, baseline=top_U - counts_SU[silo], fill=True, color=_colour(silo), linewidth=0)
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(bottom=0)


def _colour(silo: int) -> str:
    return style.PALETTE[silo % len(style.PALETTE)]
