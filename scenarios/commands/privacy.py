"""`raydpzv privacy`: what a scenario claims, and against whom, before it trains.

It needs a scenario's settings and its number of rows, and starts without the libraries that train.
"""

from __future__ import annotations

import dataclasses
import sys

import raydpzv
from raydpzv.config.public_lists import stated_lists
from raydpzv.experiment.prepare import planned_privacy
from raydpzv.files import as_json as json_text
from raydpzv.privacy.release import verdict
from scenarios.command_options import PrivacyCommand
from scenarios.run_output import show_privacy


def privacy_command(options: PrivacyCommand) -> None:
    """Print every ε of a scenario."""
    spec = raydpzv.load(options.scenario, options.changes)
    found = planned_privacy(spec, options.rows)
    table = [dataclasses.asdict(c) for c in found.claims()] if found else []
    said = verdict(found)
    facts = dataclasses.asdict(found) if found else {}
    lists = stated_lists(spec.data, spec.goal) if found else ()
    planned = found.planned if found else spec.budget.updates is not None
    if options.as_json:
        reason = None if said.private else said.lead
        answer = {"private": said.private, "private_reason": reason, "verdict": said.text, "planned": planned}
        sys.stdout.write(json_text(answer | {"epsilon": table, "setting": facts, "lists": lists}))
        return
    show_privacy(table, said, found, explain=options.explain)
    for line in lists:
        print(line)
