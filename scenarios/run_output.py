"""Printed results of a run, or of a scenario's privacy: the verdict first, then tables, then notes
if asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from raydpzv.config.toml import as_tree
from raydpzv.errors import command
from raydpzv.files import as_json as json_text
from scenarios import screen
from scenarios.command_options import FullOutput

if TYPE_CHECKING:
    from raydpzv.config.scenario import AnyScenario
    from raydpzv.privacy.claim_words import Verdict
    from raydpzv.privacy.release import ReleasePlan
    from raydpzv.records.store import Rows

EXPLAIN = "--explain: the full verdict, where σ comes from, and a note on each ε"
WIDTH = 100
"""Columns of the tables where the terminal does not say how many it has."""


def tables_console(width: int = WIDTH) -> Console:
    """Return the console that tables are printed on: as wide as the terminal, `width` columns where
    there is none.
    """
    console = screen.console()
    return console if console.is_terminal else screen.console(width=width)


def show_run(
    summary: Mapping[str, Any], tables: Rows, spec: AnyScenario, folder: Path, output: FullOutput
) -> None:
    """Print a run's verdict and five figures, with `explain` all tables; or JSON: summary.json and
    its folder.

    tables: the run's rows; folder: where it is written.
    """
    if output.as_json:
        stated = json.loads((folder / "summary.json").read_text())
        print(json_text({"folder": str(folder)} | stated), end="")
        return
    from raydpzv.privacy.claim_words import withheld
    from raydpzv.report.privacy import verdict_line
    from raydpzv.report.run_summary import headline, key_figures, pairs_table

    console, clock = tables_console(), spec.clock.kind
    console.print(verdict_line(headline(summary)))
    for warning in summary["warnings"]:
        console.print(Text(f"warning: {warning}", style="yellow"))
    console.print()
    if output.explain:
        _show_tables(console, summary, tables, spec)
    else:
        console.print(pairs_table(key_figures(summary, clock)))
        console.print(Text("\n--explain: every table, digest and note on ε", "dim"))
    console.print(f"\nrun folder: {folder}\nreport: {command('report', folder)}", soft_wrap=True)
    if withheld(summary):
        console.print(
            "Keep this folder and its report to yourself. To write a copy that you may share: "
            f"{command('publish', folder, '--out', 'FOLDER')}",
            soft_wrap=True,
        )


def _show_tables(
    console: Console, summary: Mapping[str, Any], tables: Rows, spec: AnyScenario
) -> None:
    from raydpzv.report.privacy import PrivacyBlock, verdict_line
    from raydpzv.report.run_summary import summary_table
    from raydpzv.report.run_tables import CLIENT_NOTE, CLIENTS, RunView, client_rows, stalest
    from raydpzv.report.table import grid

    console.print(summary_table(summary, spec.clock.kind))
    if rows := client_rows(RunView("", summary, tables), as_tree(spec)):
        shown, others = stalest(rows)
        console.print()
        console.print(grid(CLIENTS, shown).console(caption=others))
        console.print(Text(CLIENT_NOTE, "dim"))
    if summary["epsilon"]:
        console.print()
        console.print(PrivacyBlock(summary["epsilon"], True))
    console.print()
    console.print(verdict_line(summary["privacy_verdict"]))


def show_privacy(
    table: list[dict[str, Any]],
    found: Verdict,
    plan: ReleasePlan | None,
    lists: Sequence[str],
    *,
    explain: bool,
) -> None:
    """Print a scenario's privacy before it runs: verdict, table and, with `explain`, notes.

    table: the plan's claims; found: the verdict on them; lists: sentences on what is public of
    labels and categories.
    """
    from raydpzv.report.privacy import PrivacyBlock, verdict_line

    console = tables_console()
    console.print(verdict_line(found.text if explain else found.headline()))
    if plan is None:
        return
    if not plan.planned:
        console.print("The scenario plans no number of updates: all of this is for ONE update.")
    if large := plan.large_delta():
        console.print(Text(f"warning: {large}", style="yellow"))
    console.print()
    console.print(PrivacyBlock(table, explain))
    for line in lists:
        console.print(Text(line), soft_wrap=True)
    console.print()
    if explain:
        console.print(Text(plan.calibration()))
    else:
        console.print(Text(EXPLAIN, "dim"))
