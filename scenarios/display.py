"""The display of runs at work: a bar and what is drawn below it on a terminal, a line every ten
seconds elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import NamedTuple, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

INTERVAL = 10.0
"""Seconds between lines if the output is no terminal."""
REDRAW = 0.1
"""Seconds between redraws on a terminal."""


class Bar(NamedTuple):
    """What a bar counts, how many there are (None: unknown), and its columns (None: how many of
    all).
    """

    unit: str
    total: float | None
    columns: Iterable[ProgressColumn] | None = None


class Display:
    """Shows progress while its block runs; prints nothing if quiet.

    below: returns what is drawn below the bar; line: returns the line that is printed every
    `interval` seconds if `console` is no terminal, "" for none.
    """

    def __init__(
        self,
        console: Console,
        bar: Bar,
        below: Callable[[], Iterable[RenderableType]],
        line: Callable[[], str],
        *,
        quiet: bool = False,
        interval: float = INTERVAL,
    ) -> None:
        self._console, self._below, self._line = console, below, line
        self._quiet, self._interval, self._last = quiet, interval, 0.0
        counted = (TextColumn(bar.unit), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())
        self._bar = Progress(*(bar.columns or counted), console=console)
        self._task = self._bar.add_task(bar.unit, total=bar.total)
        drawn = console.is_terminal and not quiet
        self._live = Live(self._bar, console=console, refresh_per_second=4) if drawn else None
        self._stack = ExitStack()

    @property
    def is_drawn(self) -> bool:
        """Is there a bar on a terminal?"""
        return self._live is not None

    def __enter__(self) -> Self:
        if self._live:
            self._stack.enter_context(self._live)
            self.redraw(immediately=True)
        elif not self._quiet:
            self._stack.enter_context(repeated(self._interval, lambda: self.say(self._line())))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.redraw(immediately=True)
        self._stack.close()

    def say(self, text: str) -> None:
        """Print a line, unless it is empty."""
        if text and not self._quiet:
            self._console.print(Text(text), soft_wrap=True)

    def count(self, done: float, total: float | None = None) -> None:
        """Set how far the bar is; total: None for no change."""
        self._bar.update(self._task, completed=done, total=total)

    def redraw(self, *, immediately: bool = False) -> None:
        """Draw what is below the bar anew, but not more often than every `REDRAW` seconds unless
        `immediately`.
        """
        if self._live and (immediately or time.monotonic() - self._last >= REDRAW):
            self._last = time.monotonic()
            self._live.update(Group(self._bar, *self._below()), refresh=immediately)


@contextmanager
def repeated(interval: float, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` every `interval` seconds, from a thread of its own, while the block runs."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(interval):
            act()

    thread = threading.Thread(target=repeat, name="progress lines", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
