"""The first line of what a run comes to: PRIVATE or NOT PRIVATE, accuracy, and ε in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raydpzv.privacy.claim_words import stated
from raydpzv.records.summary_fields import shown
from raydpzv.report import horizontal, text

Summary = Mapping[str, Any]


def headline(summary: Summary) -> str:
    """Return the first line of a run's summary; its accuracy follows PRIVATE, and ends what follows NOT PRIVATE."""
    return stated(summary).headline(accuracy_line(summary))


def accuracy_line(summary: Summary) -> str:
    """Return the final test accuracy, or concordance, after how many updates, and what is wrong with it if anything."""
    updates = (
        horizontal.updates_text(summary)
        if horizontal.is_horizontal(summary)
        else text.number(summary.get("updates"))
    )
    unit = "" if "rounds" in updates or "updates" in updates else " updates"
    best = text.chosen(summary)
    ranked, accuracy = summary.get("concordance"), summary.get("accuracy")
    scored = (
        f"concordance {text.number(ranked)}" if text.known(ranked) else f"accuracy {text.percent(accuracy)}"
    )
    line = f"Test {scored} after {updates}{unit}"
    line += f" (best model: {best})" if best else ""
    if failure := summary.get("failure"):
        return f"{line}: NO RESULT, {shown(str(failure))}."
    if summary.get("status") != "done":
        return f"{line}; the run {shown(str(summary.get('stopped_by') or 'did not finish'))}."
    return f"{line}."
