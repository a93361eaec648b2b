"""`raydpzv check`: does a scenario fit, and what will it cost?"""

from __future__ import annotations

import dataclasses
import sys

import raydpzv
from raydpzv.files import as_json as json_text
from raydpzv.preflight import check, foretell
from scenarios.command_options import CheckCommand


def check_command(options: CheckCommand) -> None:
    """Print what was found."""
    look = foretell if options.forecast else check
    found = look(raydpzv.load(options.scenario, options.changes))
    if options.as_json:
        sys.stdout.write(json_text(dataclasses.asdict(found)))
        return
    print("\n".join(found.lines()))
