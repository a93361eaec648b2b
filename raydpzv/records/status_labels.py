"""How words on record are shown. They stay as they are in folders, since comparisons read them back."""

from __future__ import annotations

_SHOWN = {
    "one class' share": "single-class accuracy",
    "no client wakes any more: the arrivals have ended": "the arrival trace is exhausted",
}


def shown(recorded: str) -> str:
    """Return a sentence with the words on record in it replaced by those that are shown."""
    for word, better in _SHOWN.items():
        recorded = recorded.replace(word, better)
    return recorded
