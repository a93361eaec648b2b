"""Tables of comparisons, made by hand: known medians, failures and claims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from raydpzv.report.comparison_table import CLAIMS, CURVES, RUNS, Compared, ComparisonView
from raydpzv.report.comparison_text import summary_report
from tests.helpers import report_views

MECHANISM = "floating-point Gaussian, σ=0.5, system noise"


class Made:
    """Collects runs with their curves and claims; accuracy climbs evenly from 0.1 over 4
    evaluations.
    """

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.curves: list[dict[str, Any]] = []
        self.claims: list[dict[str, Any]] = []

    def run(
        self, label: str, epsilon: float | None, seed: int, final: float, rate: int = 100, pace: float = 1.0,
        **other: Any,
    ) -> Made:  # fmt: skip
        """Add a run of 40 updates; rate: bytes per update each way, pace: seconds per update."""
        who = {"label": label, "epsilon": epsilon, "seed": seed}
        row: dict[str, Any] = who | {
            "method": "dpzv", "control": False, "run": f"{len(self.runs):02d}-run", "status": "done", "outcome": "ok",
            "reason": "", "accuracy": final, "peak_accuracy": final, "best_accuracy": math.nan,
            "validation_accuracy": math.nan, "roc_auc": math.nan, "pr_auc": math.nan,
            "loss": 0.5, "top_share": 0.2, "updates": 40,
            "bytes_up": 40 * rate, "bytes_down": 40 * rate, "simulated_seconds": 40 * pace, "seconds": 1.0,
            "staleness": 2.0, "private": epsilon is not None, "verdict": "",
        }  # fmt: skip
        self.runs.append(row | other)
        for update in range(0, 41, 10):
            amounts = {
                "bytes_up": update * rate,
                "bytes_down": update * rate,
                "time": update * pace,
            }
            accuracy = 0.1 + (final - 0.1) * update / 40
            self.curves.append(
                who | amounts | {"update": update, "accuracy": accuracy, "loss": 0.5}
            )
        return self

    def claim(self, label: str, epsilon: float, claimed: float, **other: Any) -> Made:
        """Add a claim of seed 0, proved against a client."""
        row = {
            "label": label,
            "epsilon": epsilon,
            "seed": 0,
            "adversary": "client",
            "claimed": claimed,
            "delta": 1e-3,
        }
        row |= {
            "mechanism": MECHANISM,
            "sensitivity": 0.1,
            "relation": "replace",
            "accountant": "closed form (GDP)",
        }
        self.claims.append(
            row | {"holds": True, "note": "why", "scope": "2 releases; unit: one record"} | other
        )
        return self

    @property
    def tables(self) -> Compared:
        kinds = ((self.runs, RUNS), (self.curves, CURVES), (self.claims, CLAIMS))
        return Compared(*(pa.Table.from_pylist(rows, schema=schema) for rows, schema in kinds))


def field() -> Made:
    made = Made()
    for seed in (0, 1, 2):
        made.run("quick <b>bold</b>", None, seed, 0.9 - 0.1 * seed)
        made.run("quick <b>bold</b>", 1.0, seed, 0.5)
        made.run("langsam λ [red]", None, seed, 0.85, rate=9000, pace=3.0)
        failed = {"outcome": "constant prediction", "reason": "one class"} if seed == 1 else {}
        made.run("langsam λ [red]", 10.0, seed, 0.4, rate=9000, pace=3.0, **failed)
        made.run("frozen (control)", None, seed, 0.6, control=True)
    made.claim("quick <b>bold</b>", 1.0, 8.0)
    made.claim("langsam λ [red]", 10.0, 30.0)
    return made


def view(runs: pa.Table, curves: pa.Table, targets: Sequence[float] = ()) -> ComparisonView:
    return ComparisonView(Compared(runs, curves, CLAIMS.empty_table()), targets)


def printed(made: Compared, targets: list[float], width: int = 120) -> str:
    return report_views.printed(summary_report(ComparisonView(made, targets)), width)
