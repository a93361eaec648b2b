"""What a notebook shows: small tables instead of long texts, and one line of progress that changes
in place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from html import escape
from time import monotonic
from typing import Any

PACE = 0.5
"""Seconds between two texts of a line."""


def in_kernel() -> bool:
    """Return whether this process is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    return hasattr(ipython.get_ipython() if ipython else None, "kernel")


class CellLine:
    """A line below a notebook's cell, changed in place; outside of a kernel nothing is shown."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._next = 0.0
        self.shown = in_kernel()

    def show(self, text: str, *, now: bool = False) -> None:
        """Show a text, at most twice a second unless it must be `now`."""
        if not self.shown or (monotonic() < self._next and not now):
            return
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

        self._next, content = monotonic() + PACE, {"text/plain": text}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def table_html(
    title: str,
    rows: Iterable[Sequence[object]],
    heads: Sequence[object] = (),
    notes: Iterable[object] = (),
) -> str:
    """Return a small table as HTML; every text is shown as it is, never read as HTML."""
    head = "".join(f"<th>{_text(cell)}</th>" for cell in heads)
    lines = [head, *("".join(f"<td>{_text(cell)}</td>" for cell in row) for row in rows)]
    body = "".join(f"<tr>{line}</tr>" for line in lines if line)
    below = "".join(f"<p>{_text(note)}</p>" for note in notes if note)
    return f"<table><caption>{_text(title)}</caption>{body}</table>{below}"


def _text(value: object) -> str:
    return escape(str(value))
