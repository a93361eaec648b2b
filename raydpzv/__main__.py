"""The `raydpzv` command, and `python -m raydpzv`: light until its own packages are found and Ctrl-C is in hand."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from raydpzv.errors import InputError
from raydpzv.own_packages import NEIGHBOURS, import_module, load_own

INTERRUPTED = 130
"""The exit status of a program that Ctrl-C ended."""


def main() -> None:
    """Run the command line."""
    before = signal.signal(signal.SIGINT, _leave)
    try:
        for name in NEIGHBOURS:
            load_own(name)
        command_line = import_module("scenarios.cli")
    except InputError as error:
        print(f"raydpzv: {error}", file=sys.stderr)
        sys.exit(2)
    signal.signal(signal.SIGINT, before)
    try:
        command_line.main()
    except KeyboardInterrupt:
        _leave()


def _leave(number: int = signal.SIGINT, frame: FrameType | None = None) -> NoReturn:
    """End at once: an interrupt within an import would surface as whatever the imported library makes of it."""
    os.write(2, b"raydpzv: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
