"""Tables of data sources, and the errors that refuse them."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydpzv.data.sources import load
from raydpzv.keys import Key

KEY = Key(3)


def get(name: str, folder: Path | None = None, **options):
    return load(name, folder, **{"test_fraction": 0.25, "key": KEY, **options})


def refusal(kind: type[Exception], *words: str):
    """The message has all the words, in any place, and is one line."""
    pattern = "".join(f"(?=.*{word})" for word in words)
    return pytest.raises(kind, match=rf"\A{pattern}[^\n]+\Z")
