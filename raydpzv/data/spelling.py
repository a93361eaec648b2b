"""How names are written: in which order they come, and which differ by blanks or case alone.

No Arrow here: lists of data sets are printed without it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

_WHOLE = re.compile(r"-?[0-9]{1,4000}")  # int() takes no more digits
_FRACTION = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BARE = re.compile(r"[A-Za-z0-9_-]+")  # a key of TOML that needs no quotation marks
_SHOWN = 60  # letters of a name in a sentence


def in_order(values: Iterable[str]) -> list[str]:
    """Return texts sorted: as numbers where each is a whole number, else as texts."""
    listed = list(values)
    if all(map(_WHOLE.fullmatch, listed)):
        return sorted(listed, key=lambda text: (int(text), text))
    return sorted(listed)


def whole(values: Iterable[str]) -> bool:
    """Return whether each text is a whole number as it is usually written: no "007" and no "-0"."""
    return all(_WHOLE.fullmatch(text) and str(int(text)) == text for text in values)


def fraction(values: Sequence[str]) -> str | None:
    """Return a text with a decimal point where all texts are numbers; None: none, or they are
    names.
    """
    found = [text for text in values if _FRACTION.fullmatch(text)]
    numbers = all(_FRACTION.fullmatch(text) or _WHOLE.fullmatch(text) for text in values)
    return found[0] if found and numbers else None


def likeness(text: str) -> str:
    """Return what is left of a name without blanks and case, and with each letter written in one
    way.
    """
    return "".join(unicodedata.normalize("NFKC", text).split()).casefold()


def shown(text: str) -> str:
    """Return a name in quotation marks, with escapes for what the eye cannot tell apart."""
    whole = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return json.dumps(whole, ensure_ascii=unicodedata.normalize("NFKC", text) != text)


def toml_table(values: Mapping[str, object]) -> str:
    """Return a table of TOML in one line, to paste."""
    written = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}
    keys = {key: key if _BARE.fullmatch(key) else json.dumps(key) for key in written}
    return "{" + ", ".join(f"{keys[key]} = {value}" for key, value in written.items()) + "}"
