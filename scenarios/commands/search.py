"""`raydpzv search`: the trials of one scenario on Ray Tune, and their result."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from raydpzv.compare.run_comparison import PoolOptions
from raydpzv.config import catalog
from raydpzv.search import run_search
from raydpzv.search.run_search import (
    SearchView,
    check_runner,
    planned,
    resumed_plan,
    rule,
    virtual_clock,
)
from raydpzv.search.search_folder import SEARCH
from raydpzv.search.search_plan import SearchPlan, read_search
from raydpzv.search.space import read_space
from raydpzv.search.trial_results import FAILED
from scenarios import screen
from scenarios.command_options import Execution, SearchCommand
from scenarios.exit_codes import leave
from scenarios.options import chosen_runner, output_folder
from scenarios.progress import foreground
from scenarios.search_progress import SearchProgress, show_search


def search_command(options: SearchCommand) -> None:
    """Search a space of settings of a scenario, or resume the search in `out`; see `carry_out`."""
    scenario = options.scenario
    say = screen.console(stderr=True, quiet=options.quiet).print
    changes, was_wall = virtual_clock(scenario, options.set_ or [])
    if was_wall:
        screen.console(stderr=True).print(
            "clock.kind = virtual in a search; --set clock.kind=wall keeps the wall clock"
        )
    space = read_space(options.space, catalog.load(scenario, changes), changes)
    plan, wanted = planned(scenario, changes, space, options, options.jobs)
    if note := plan.rows_note():
        say(
            f"{note}; --set data.validation_fraction=0.2 gives an estimate from other rows",
            soft_wrap=True,
        )
    if (repeated := wanted - len(plan.trials)) > 0:
        say(
            f"{len(plan.trials)} trials, not {wanted}: {repeated} of the draws came to the "
            "settings of another one",
            soft_wrap=True,
        )
    words = [scenario, "--space", str(options.space), *options.words()]
    asked = shlex.join([*words, *(word for change in changes for word in ("--set", change))])
    plan = resumed_plan(plan, options.out)
    folder = output_folder(options.out, f"tune-{plan.name}")
    carry_out(plan, folder, options, f"raydpzv search {asked}")


def resume_search(folder: Path, moved: Sequence[str], how: Execution) -> None:
    """Resume a search that was stopped or killed; moved: where its data are now."""
    carry_out(read_search(folder / SEARCH, moved), folder, how, f"raydpzv resume {folder}")


def carry_out(plan: SearchPlan, folder: Path, how: Execution, command: str) -> None:
    """Run the remaining trials of a search, and print its result.

    command: the command's words. Leaves with 130 if the user stopped it; raises RunError if a trial
    failed or none came to its end.
    """
    runner = chosen_runner(how.runner, "auto")
    pool = PoolOptions("ray" if runner == "auto" else runner, how.jobs, how.address, how.verbose)
    check_runner(plan, pool)
    console = screen.console(stderr=True)
    if plan.scheduler == "asha" and not how.quiet:
        console.print(Text(rule(plan)), soft_wrap=True)
    view = SearchView(
        foreground(console),
        lambda plan, left, reasons: SearchProgress(
            plan, left, console, reasons, folder, quiet=how.quiet
        ),
    )
    made = run_search.carry_out(plan, folder, pool, view, command)
    show_search(made.plan, made.results, folder, stopped=made.stopped, as_json=how.as_json)
    rows = made.results.rows
    failed = [f"trial {row['trial']}: {row['reason']}" for row in rows if row["status"] == FAILED]
    nothing = (
        f"no point of the space came to its end with a result (see {folder / 'trials.csv'}); put "
        "smaller step sizes into the space, or less noise"
    )
    found = made.results.best is not None
    leave(
        folder,
        f"{len(rows)} trials",
        failed,
        stopped=made.stopped,
        nothing="" if found else nothing,
    )
