"""Peak memory of rounds of DeComFL, each way in a process of its own; a part of `decomfl_round`."""

from __future__ import annotations

from typing import Any

import torch
from common import show, verdict
from federations import OURS, WAYS, Case, Way, federation_of, published_of, small
from fresh_process import in_fresh_process
from peaks import Resident, predictable_malloc

from raydpzv.experiment.horizontal import PreparedHorizontal
from raydpzv.experiment.runner import run_local

TARGET = 0.2
"""Share of the published way's memory above idle, at most."""


def peak(way: Way, case: Case) -> dict[str, int]:
    """Return the peak of resident memory in two rounds, absolute and above idle; the process must
    be fresh.
    """
    predictable_malloc()
    run_local(small())
    prepared, meter = federation_of(case, 2, way.threads), Resident()
    before = meter.now()
    meter.reset()
    _two_rounds(way, case, prepared)
    return {
        "peak_bytes": meter.peak(),
        "idle_bytes": before,
        "above_idle_bytes": meter.peak() - before,
    }


def _two_rounds(way: Way, case: Case, prepared: PreparedHorizontal) -> None:
    if not way.published:
        run_local(prepared)
        return
    torch.set_num_threads(way.threads)
    clients, _ = published_of(case, prepared)
    for number in (1, 2):
        clients.round(number)


def memory(cases: tuple[Case, ...]) -> list[dict[str, Any]]:
    """Measure every way of one process, the published one on one thread."""
    found = []
    for case in cases:
        peaks = {way: in_fresh_process(peak, way, case) for way in (WAYS[0], *OURS)}
        published = peaks[WAYS[0]]["above_idle_bytes"]
        for way, measured in peaks.items():
            share, target = (
                measured["above_idle_bytes"] / published,
                None if way.published else TARGET,
            )
            met = None if target is None else share <= target
            facts = {
                "name": f"{case.name}: {way.name}",
                "share": share,
                "target": target,
                "met": met,
            }
            found.append(facts | measured)
    return found


def print_memory(found: list[dict[str, Any]]) -> None:
    """Print the table of peak memory."""
    rows = [
        [
            f["name"],
            f"{f['above_idle_bytes'] / 1e6:.1f}",
            f"{f['share']:.3f}",
            verdict(f["share"], f["target"], at_most=True),
            f"{f['peak_bytes'] / 1e6:.0f}",
            f"{f['idle_bytes'] / 1e6:.0f}",
        ]
        for f in found
    ]
    columns = [
        "model, P: way",
        "peak above idle MB",
        "/ published",
        "target",
        "absolute MB",
        "idle MB",
    ]
    show("Peak memory of two DeComFL rounds", columns, rows)
