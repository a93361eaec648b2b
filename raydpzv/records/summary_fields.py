"""Check the fields of a summary, so that a damaged one is found before a page is made of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from raydpzv.errors import DataError

NEWEST = "newest"
"""Value of `evaluated_model` in a run that averages no models."""
_CLAIM_TEXTS = ("adversary", "mechanism", "relation", "accountant", "note", "scope")
_CLAIM_NUMBERS = ("epsilon", "delta", "sensitivity", "direct_only", "guess", "multiplier")
SUMMARY_FORMAT = 3
"""Format of summary.json."""


def check_format(summary: Mapping[str, Any], path: Path) -> None:
    """Raise DataError, which names the path, for a summary of another format."""
    found = summary.get("format")
    if found != SUMMARY_FORMAT:
        has = "no format number" if found is None else f"format {found!r}"
        raise DataError(
            f"{path}: has {has}, this program reads format {SUMMARY_FORMAT}; read it with the "
            "version that wrote it (environment.json names it)"
        )


def faults(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each value that no run writes under its name; a missing value is no
    fault.
    """
    return (
        f"{name}: wanted {wanted}, got {summary[name]!r:.60}"
        for names, wanted, holds in _FIELDS
        for name in names.split()
        if name in summary and not holds(summary[name])
    )


def beside(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return what a score is judged by, by name, as far as the run has it.

    An accuracy is held against the share of the largest class among the test rows, which a constant
    prediction reaches. With two classes the area under the ROC curve goes with it, and with rmse the
    share of the variance that the model explains.
    """
    measures = summary.get("measures")
    given = {
        "largest class": summary.get("largest_class_share"),
        "ROC AUC": summary.get("roc_auc"),
        "R²": measures.get("r2") if isinstance(measures, Mapping) else None,
    }
    return {
        name: float(value)
        for name, value in given.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _list_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(holds, value))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_number(value: Any) -> bool:
    """NaN is null in JSON, and infinity a word."""
    return (
        value is None
        or value == "infinity"
        or (isinstance(value, int | float) and abs(value) < 2**1000)
    )


def _is_claim(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and "epsilon" in value
        and all(_is_text(value.get(name)) for name in _CLAIM_TEXTS)
        and _is_text(value.get("premise", ""))
        and all(_is_number(value.get(name)) for name in _CLAIM_NUMBERS)
    )


def _is_staleness(value: Any) -> bool:
    clients = value.get("clients", []) if isinstance(value, dict) else None
    return (
        isinstance(value, dict)
        and all(_is_number(value.get(name)) for name in ("mean", "max"))
        # of rounds it is how many took part
        and (
            _is_count(clients) or (isinstance(clients, list) and all(map(_holds_numbers, clients)))
        )
    )


def _is_ledger(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _is_text(each) if name == "digest" else _is_count(each) for name, each in value.items()
    )


def _is_legs(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(_is_count(value.get(name)) for name in ("count", "recovered"))
        and isinstance(value.get("gaps"), list)
        and all(map(_is_number, value["gaps"]))
    )


def _holds_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


_FIELDS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("scenario title method status stopped_by evaluated_model engine", "a text", _is_text),
    ("privacy_verdict digest model_digest", "a text", _is_text),
    (
        "failure failure_reason private_reason",
        "a text or null",
        lambda value: value is None or _is_text(value),
    ),
    ("warnings parties privacy_asides", "a list of texts", _list_of(_is_text)),
    ("private proved", "true or false", lambda value: isinstance(value, bool)),
    ("seed updates updates_before uploads bytes_up bytes_down", "a whole number", _is_count),
    (
        "accuracy best_accuracy best_update validation_accuracy peak_accuracy",
        "a number",
        _is_number,
    ),
    ("roc_auc pr_auc balanced_accuracy concordance loss top_share", "a number", _is_number),
    (
        "largest_class_share seconds simulated_seconds throughput vector_length",
        "a number",
        _is_number,
    ),
    (
        "versions user_level checkpoints ray published own_method",
        "a table",
        lambda value: isinstance(value, dict),
    ),
    ("drift kernels measures", "a table of numbers", _holds_numbers),
    ("ledger", "a table of whole numbers and a digest", _is_ledger),
    ("staleness", "a table of numbers", _is_staleness),
    ("legs", "a table of numbers, and of gaps a list", _is_legs),
    ("presence", "a list of tables of numbers", _list_of(_holds_numbers)),
    ("epsilon", "a list of claims", _list_of(_is_claim)),
)
"""Names of fields, what they hold, and the check of a value."""

_SHOWN = {
    "one class' share": "single-class accuracy",
    "no client wakes any more: the arrivals have ended": "the arrival trace is exhausted",
}


def shown(recorded: str) -> str:
    """Return a sentence with the words on record in it replaced by those that are shown."""
    for word, better in _SHOWN.items():
        recorded = recorded.replace(word, better)
    return recorded
