"""What a summary holds, so that a damaged one is known before a page is made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from raydpzv.errors import DataError

NEWEST = "newest"
"""What is evaluated and kept of a run that averages nothing (`evaluated_model`)."""
_TEXTS = (
    *("scenario", "title", "method", "status", "stopped_by", "privacy_verdict", "digest", "model_digest"),
    *("evaluated_model", "engine"),
)
_TEXTS_OR_NONE = ("failure", "failure_reason", "private_reason")
_TABLES = ("versions", "ledger", "drift", "user_level", "checkpoints", "ray", "published")
_COUNTS = ("seed", "updates", "updates_before", "uploads", "bytes_up", "bytes_down")
_NUMBERS = (
    *(
        "accuracy",
        "best_accuracy",
        "best_update",
        "validation_accuracy",
        "peak_accuracy",
        "roc_auc",
        "pr_auc",
        "balanced_accuracy",
        "concordance",
    ),
    *(
        "loss",
        "top_share",
        "largest_class_share",
        "seconds",
        "simulated_seconds",
        "throughput",
        "vector_length",
    ),
)
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
            f"{path}: has {has}, this program reads format {SUMMARY_FORMAT}; read it with the version that wrote it "
            "(environment.json names it)"
        )


def faults(summary: Mapping[str, Any]) -> Iterator[str]:
    """Say of each value that is not what a run writes under its name, what was wanted; a missing one is no fault."""
    for name, wanted, holds in (
        *((name, "a text", _is_text) for name in _TEXTS),
        *((name, "a whole number", _is_count) for name in _COUNTS),
        *((name, "a number", _is_number) for name in _NUMBERS),
        *((name, "a list of texts", _is_texts) for name in ("warnings", "parties")),
        ("staleness", "a table of numbers", _is_staleness),
        *(
            (name, "a text or null", lambda value: value is None or _is_text(value))
            for name in _TEXTS_OR_NONE
        ),
        *((name, "a table", lambda value: isinstance(value, dict)) for name in _TABLES),
        *((name, "true or false", lambda value: isinstance(value, bool)) for name in ("private", "proved")),
        ("privacy_asides", "a list of texts", _is_texts),
        ("ledger", "a table of whole numbers and a digest", _is_ledger),
        ("drift", "a table of numbers", _holds_numbers),
        ("kernels", "a table of numbers", _holds_numbers),
        ("legs", "a table of numbers, and of gaps a list", _is_legs),
        ("presence", "a list of tables of numbers", _is_presence),
        ("epsilon", "a list of claims", lambda value: isinstance(value, list) and all(map(_is_claim, value))),
    ):
        if name in summary and not holds(summary[name]):
            yield f"{name}: wanted {wanted}, got {summary[name]!r:.60}"


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_number(value: Any) -> bool:
    """NaN is null in JSON, and infinity a word."""
    return value is None or value == "infinity" or (isinstance(value, int | float) and abs(value) < 2**1000)


def _is_claim(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and "epsilon" in value
        and all(_is_text(value.get(name)) for name in _CLAIM_TEXTS)
        and all(_is_number(value.get(name)) for name in _CLAIM_NUMBERS)
    )


def _is_staleness(value: Any) -> bool:
    clients = value.get("clients", []) if isinstance(value, dict) else None
    return (
        isinstance(value, dict)
        and all(_is_number(value.get(name)) for name in ("mean", "max"))
        # of rounds it is how many took part
        and (_is_count(clients) or (isinstance(clients, list) and all(map(_holds_numbers, clients))))
    )


def _is_ledger(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _is_text(held) if name == "digest" else _is_count(held) for name, held in value.items()
    )


def _is_legs(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(_is_count(value.get(name)) for name in ("count", "recovered"))
        and isinstance(value.get("gaps"), list)
        and all(map(_is_number, value["gaps"]))
    )


def _is_presence(value: Any) -> bool:
    return isinstance(value, list) and all(map(_holds_numbers, value))


def _holds_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


_SHOWN = {
    "one class' share": "single-class accuracy",
    "no client wakes any more: the arrivals have ended": "the arrival trace is exhausted",
}


def shown(recorded: str) -> str:
    """Return a sentence with the words on record in it replaced by those that are shown."""
    for word, better in _SHOWN.items():
        recorded = recorded.replace(word, better)
    return recorded
