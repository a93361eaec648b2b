"""Formats that summary.json has had, and what those of before are in today's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raydpzv.errors import DataError

SUMMARY_FORMAT = 3
"""Format of summary.json. 1 (no number in it): `private` is true or the text why not; 2: true or false, and
`private_reason` beside it. In both `best_accuracy` is the highest of all evaluations, chosen on the test rows. 3: that
is `peak_accuracy`, and `best_accuracy` the test accuracy of the model that the validation rows choose."""


def todays(summary: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a summary of any format as one of today's. Raises DataError, which names its path, for a later one."""
    found = summary.get("format", 1)
    if found == SUMMARY_FORMAT:
        return summary
    if found not in (1, 2):
        raise DataError(
            f"{path}: has format {found!r}, this program reads up to {SUMMARY_FORMAT}; read it with the "
            "version that wrote it (environment.json names it)"
        )
    peak = {"peak_accuracy": summary["best_accuracy"]} if "best_accuracy" in summary else {}
    today = {**summary, **peak, "format": SUMMARY_FORMAT, "best_accuracy": None}
    if found == 2:
        return today
    private = summary.get("private") is True
    reason = None if private else str(summary.get("private") or summary.get("privacy_verdict") or "") or None
    return {**today, "private": private, "private_reason": reason}
