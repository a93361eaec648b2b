"""Ctrl-C: while the program loads its libraries, and while it trains."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

INTERRUPTED = 130
"""The exit status of a program that Ctrl-C ended."""


def leave(number: int = signal.SIGINT, frame: FrameType | None = None) -> NoReturn:
    """End the process at once and say so."""
    os.write(2, b"raydpzv: interrupted\n")
    os._exit(INTERRUPTED)


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process at once: within an import it would surface as whatever the library
    makes of it.

    Signals are the main thread's; in any other this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def stopping(
    signals: Sequence[int], stop: threading.Event, say: Callable[[str], object]
) -> Iterator[threading.Event]:
    """Let the first of these signals set `stop`, for a clean end; a second one interrupts at
    once.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        say("stopping after the update in progress; once more to interrupt at once")

    before: list[Any] = [signal.signal(number, handle) for number in signals]
    try:
        yield stop
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def interruptible(stop: threading.Event | None, sentence: str) -> Iterator[None]:
    """Let Ctrl-C set `stop`, for a clean end of the block; after it KeyboardInterrupt ends the cell
    with a sentence.

    Where `stop` is None, in other threads, and where the program has a handler of its own, nothing
    changes.
    """
    main = threading.current_thread() is threading.main_thread()
    if (
        stop is None
        or not main
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    pressed = threading.Event()

    def say(text: str) -> None:
        pressed.set()
        print(text, file=sys.stderr)

    with stopping((signal.SIGINT,), stop, say):
        yield
    if pressed.is_set():  # others may have set `stop`, too
        raise KeyboardInterrupt(sentence)
