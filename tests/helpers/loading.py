"""Tables of data sources, and the errors that refuse them."""

from pathlib import Path

import numpy as np
import pytest

from raydpzv.data.sources import Request, load
from raydpzv.data.table import Split, Table
from raydpzv.keys import Key
from raydpzv.settings.sections_data import DataSection

KEY = Key(3)
_OF_RUNS = ("key", "owners", "strangers", "holders")


def request(name: str, folder: Path | None = None, **given) -> Request:
    """given: settings of [data], of which a file may be a path, and what else a request has."""
    paths = {"folder": folder, "file": given.pop("file", None)}
    run = {"key": KEY} | {field: given.pop(field) for field in _OF_RUNS if field in given}
    settings = (
        {"test_fraction": 0.25} | {name: str(path) for name, path in paths.items() if path} | given
    )
    return Request(DataSection(source=name, **settings), **run)


def get(name: str, folder: Path | None = None, **given) -> Split:
    return load(request(name, folder, **given))


def flat(rows: int = 60, columns: int = 4, classes: int = 3) -> Table:
    """Return rows whose columns differ in size by factors of ten."""
    x = (Key(7) / "flat" / rows).generator().normal(5, 3, (rows, columns)) * 10.0 ** -np.arange(
        columns
    )
    return Table("here", x, np.arange(rows) % classes, classes)


def refusal(kind: type[Exception], *words: str):
    """The message has all the words, which are patterns, in any place, and is one line."""
    pattern = "".join(f"(?=.*(?:{word}))" for word in words)
    return pytest.raises(kind, match=rf"\A{pattern}[^\n]+\Z")
