"""`raydpzv privacy`: what a scenario claims, and against whom, before it trains.

It needs a scenario's settings and its number of rows, and starts without the libraries that train.
"""

from __future__ import annotations

import dataclasses
import sys

import raydpzv
from raydpzv.files import as_json as json_text
from raydpzv.report.privacy import privacy
from scenarios.command_options import PrivacyCommand
from scenarios.run_output import show_privacy


def privacy_command(options: PrivacyCommand) -> None:
    """Print every ε of a scenario."""
    found = privacy(raydpzv.load(options.scenario, options.changes), options.rows)
    table, said = found.claims, found.verdict
    if options.as_json:
        reason = None if said.private else said.lead
        answer = {"private": said.private, "private_reason": reason, "verdict": said.text}
        facts = dataclasses.asdict(found.plan) if found.plan else {}
        rest = {"planned": found.planned, "epsilon": table, "setting": facts, "lists": found.lists}
        sys.stdout.write(json_text(answer | rest))
        return
    show_privacy(table, said, found.plan, found.lists, explain=options.explain)
