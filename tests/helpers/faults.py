"""What is wrong with how a command ended that was given odd input, called in this process."""

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from typer.testing import CliRunner

from scenarios.cli import app

HANG, WAITING = 10, 120
"""Seconds of work, and by the clock, after which an input hangs: another program may have the
CPU.
"""


class HungError(BaseException):
    """An input took too long. No `except Exception` on the way may swallow it."""


@contextmanager
def limited() -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> None:
        raise HungError

    timers = {
        signal.SIGPROF: (signal.ITIMER_PROF, HANG),
        signal.SIGALRM: (signal.ITIMER_REAL, WAITING),
    }
    before = {number: signal.signal(number, give_up) for number in timers}
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, _ in timers.values():
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def fault(arguments: list[str]) -> str | None:
    """Run the command line; say what is wrong with how it ended."""
    try:
        with limited():
            result = CliRunner().invoke(app, arguments)
    except HungError as error:
        return f"hangs in {traceback.extract_tb(error.__traceback__)[-1]}"
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return "".join(traceback.format_exception(result.exception))[-1500:]
    if any((ord(c) < 32 and c not in "\t\n") or 127 <= ord(c) < 160 for c in result.output):
        return f"control characters: {result.output!r:.1500}"
    if "Traceback" in result.output or "internal error" in result.stderr:
        return result.stderr
    if result.exit_code not in (0, 2) and not (result.exit_code == 1 and arguments[0] == "replay"):
        return f"status {result.exit_code}: {result.stderr}"
    if result.exit_code and (len(lines) != 1 or not lines[0].startswith("raydpzv: ")):
        return f"not one line: {result.stderr[:500]}"
    return None
