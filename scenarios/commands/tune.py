"""`raydpzv tune`: settings of a scenario, or of a comparison's methods, searched on Ray Tune."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from raydpzv.config import catalog
from raydpzv.errors import command
from raydpzv.search import run_tune
from raydpzv.search.run_tune import SearchView, planned, rows_note
from raydpzv.search.search_terms import TuneOptions
from raydpzv.search.tune_plan import SearchPlan, plan_to_resume
from raydpzv.search.tune_results import FAILED
from scenarios import screen
from scenarios.command_options import ManyRuns, TuneCommand
from scenarios.exit_codes import leave
from scenarios.options import output_folder
from scenarios.progress import foreground
from scenarios.search_progress import SearchProgress, show_search


def tune_command(options: TuneCommand) -> None:
    """Search a space of settings, or resume the search in `out` or `storage`; see `carry_out`."""
    say = screen.console(stderr=True, quiet=options.quiet).print
    space, changes = catalog.space(options.space), options.set_ or []
    plan, was_wall = planned(options.what, space, changes, options, options.storage)

    if was_wall:
        screen.console(stderr=True).print(
            "clock.kind = virtual in a search; --set clock.kind=wall keeps the wall clock"
        )
    if note := rows_note(plan):
        say(
            f"{note}; --set data.validation_fraction=0.2 gives an estimate from other rows",
            soft_wrap=True,
        )

    # best.toml names the command that made it
    words = [options.what, "--space", options.space, *options.words()]
    asked = shlex.join([*words, *(word for change in changes for word in ("--set", change))])
    folder = output_folder(options.out, f"tune-{plan.name}")
    carry_out(plan, folder, options, f"raydpzv tune {asked}", options.log)


def resume_search(folder: Path, moved: Sequence[str], how: ManyRuns) -> None:
    """Resume a search that was stopped or killed; moved: where its data are now."""
    carry_out(plan_to_resume(folder, moved), folder, how, command("resume", folder))


def carry_out(
    plan: SearchPlan, folder: Path, how: ManyRuns, asked: str, log: str | None = None
) -> None:
    """Run the remaining trials of a search, and print its result.

    asked: the command's words; log: names of Ray Tune's loggers. Leaves with 130 if the user
    stopped it; raises RunError if a trial failed or none came to its end.
    """
    console = screen.console(stderr=True)
    view = SearchView(
        foreground(console), lambda plan: SearchProgress(plan, console, quiet=how.quiet)
    )
    pool = TuneOptions(how.jobs, how.address, how.verbose, tuple(log.split(",")) if log else ())
    made = run_tune.carry_out(plan, folder, pool, view, asked)
    show_search(made, as_json=how.as_json)

    rows = made.results.rows
    failed = [f"trial {row['trial']}: {row['reason']}" for row in rows if row["status"] == FAILED]
    without = [
        str(line)
        for line, choice in zip(plan.lines, made.results.choices, strict=True)
        if choice is None
    ]
    nothing = (
        f"no trial of {', '.join(without)} came to its end with a result (see "
        f"{folder / 'trials.csv'}); put smaller step sizes into the space, or less noise"
    )
    leave(
        folder,
        f"{len(rows)} trials",
        failed,
        stopped=made.stopped,
        nothing=nothing if without else "",
    )
