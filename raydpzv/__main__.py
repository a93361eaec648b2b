"""The `raydpzv` command, and `python -m raydpzv`: light until its own packages are found and Ctrl-C
is in hand.
"""

from __future__ import annotations

import atexit
import gc
import sys

from raydpzv.errors import InputError
from raydpzv.interrupts import leave, leaving_at_once
from raydpzv.package_check import NEIGHBOURS, import_module, load_own


def main() -> None:
    """Run the command line."""
    # what imports make stays: looking for cycles in it takes a twentieth of a short command, and a
    # fifth as it ends
    gc.set_threshold(20_000, 20)
    atexit.register(gc.freeze)
    try:
        with leaving_at_once():
            for name in NEIGHBOURS:
                load_own(name)
            command_line = import_module("scenarios.cli")
    except InputError as error:
        print(f"raydpzv: {error}", file=sys.stderr)
        sys.exit(2)
    try:
        command_line.main()
    except KeyboardInterrupt:
        leave()


if __name__ == "__main__":
    main()
