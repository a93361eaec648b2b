"""The progress of a search, and its table of trials with the ε that it spent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.text import Text

from raydpzv.errors import command
from raydpzv.files import as_json as json_text
from raydpzv.records.run_folder import RunFolder
from raydpzv.report.table import HeadTable, grid
from raydpzv.search import asha
from raydpzv.search.asha import TrialLeg
from raydpzv.search.composition import sentences
from raydpzv.search.population import Turn, current, said
from raydpzv.search.search_folder import run_path
from raydpzv.search.search_plan import SearchPlan, Trial
from raydpzv.search.search_terms import SearchWatch
from raydpzv.search.trial_results import (
    CUT,
    DIVERGED,
    DONE,
    STOPPED,
    SearchResults,
    TrialProgress,
    trial_columns,
    trial_progress,
)
from scenarios.display import Bar, Display
from scenarios.run_output import tables_console

_WIDTH = 120
_MOST_SHOWN = 20
_PACE_HELP = (
    "its staleness is the machine's; run fewer trials at a time (--jobs), lower arrivals.rate, or "
    "keep the virtual clock"
)
_STATES = {DONE: "over", CUT: "stopped early", STOPPED: "paused", DIVERGED: "diverged"}
_NO_TRIAL = "no trial runs: one starts, or waits for a free CPU, or GPU share, of Ray's"


class SearchProgress(SearchWatch):
    """Shows progress while its block runs: the trials that are over, and those at work.

    A terminal shows a table under a bar: trials at work, then the best of those over. Elsewhere
    each trial that ends gets a line. ASHA may resume a paused trial, so it counts trials started,
    not trials finished. The best is a finished trial that did not diverge; before there is one, it
    is a paused trial with the most updates. reasons: filled with why trials have no result, by
    their numbers; folder: the search's, which has the results of trials.
    """

    def __init__(
        self,
        plan: SearchPlan,
        left: int,
        console: Console,
        reasons: dict[int, str],
        folder: Path,
        *,
        quiet: bool = False,
    ) -> None:
        self._plan, self._reasons, self._folder = plan, reasons, folder
        self._at_work: dict[int, Mapping[str, Any]] = {}
        self._values: dict[int, float] = {}
        self._standing: dict[int, TrialProgress] = {}
        self._begun: set[int] = set()
        self._over: dict[int, Mapping[str, Any]] = {}
        self._changed: dict[int, Mapping[str, Any]] = {}
        self._ends: dict[int, int | None] = {}
        self._done = len(list(plan.started())) - left
        bar = Bar("trials started" if plan.promotes else "trials", plan.size)
        self._display = Display(console, bar, lambda: [self.table()], self.line, quiet=quiet)

    def __enter__(self) -> SearchProgress:
        self._recall()
        self._count(self._done)
        if self._done:
            said = "had started before" if self._plan.promotes else "are there already"
            self._display.say(f"{self._done} of {self._plan.size} trials {said}")
        self._display.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._display.__exit__(*details)

    def _recall(self) -> None:
        """Take in how far trials came before."""
        for trial in self._plan.started():
            if RunFolder.begun(run_path(self._folder, trial)):
                self._begun.add(trial.number)
            if found := trial_progress(self._folder, self._plan, trial.number):
                self._over[trial.number] = {}
                self._take_in(trial.number, found)
        if self._plan.promotes:
            self._count(len(self._begun))

    def _take_in(self, trial: int, found: TrialProgress) -> None:
        self._standing[trial] = found
        known: dict[str, float] = {"updates": found.updates}
        if not math.isnan(found.value):
            known[self._plan.metric] = self._values[trial] = found.value
        self._over[trial] = {**self._over[trial], **known}

    def _count(self, done: int) -> None:
        """Show how many trials are over; with promotions, how many have started."""
        self._done = done
        self._display.count(done, self._plan.size)

    def grew(self, plan: SearchPlan) -> None:
        self._plan = plan
        self._count(self._done)

    def leg(self, until: int | None, trials: Sequence[Trial]) -> None:
        for trial in trials:
            self._over.pop(trial.number, None)
        if self._plan.population:
            self._changed = {trial.number: current(trial) for trial in trials}
        self._ends = {trial.number: until for trial in trials}
        self._count(self._plan.size - len(trials))
        end = "the end" if until is None else f"{until:,} updates"
        self._display.say(f"{len(trials)} of {self._plan.size} trials go to {end}")

    def sent(self, leg: TrialLeg) -> None:
        """Record that one trial starts or resumes; print a line for one that resumes from a
        rung.
        """
        self._ends[leg.trial] = leg.until
        self._over.pop(leg.trial, None)
        self._begun.add(leg.trial)
        self._count(len(self._begun))
        if leg.since:
            self._display.say(asha.said(leg))

    def turned(self, turn: Turn) -> None:
        """Print which trials continue from others; their own results so far no longer count."""
        for exploit in turn.exploits:
            self._reasons.pop(exploit.trial, None)
            self._values.pop(exploit.trial, None)
            self._standing.pop(exploit.trial, None)
        for line in said(turn):
            self._display.say(line)

    def began(self, trial: int) -> None:
        self._at_work[trial] = {}

    def reported(self, trial: int, report: Mapping[str, Any]) -> None:
        stood, metric = self._at_work.get(trial, {}), self._plan.metric
        end = self._ends.get(trial)
        if report.get("updates") == end == stood.get("updates") and metric in stood:
            # a leg's end is evaluated once more when it stops; trials are held against one another
            # by the first time
            report = {**report, metric: stood[metric]}
        self._at_work[trial] = {**stood, **report}
        if self._plan.metric in report:
            self._values[trial] = float(report[self._plan.metric])
        self._display.redraw()

    def ended(self, trial: int, reason: str) -> None:
        self._over[trial] = self._at_work.pop(trial, {})
        self._standing.pop(trial, None)
        if reason:
            self._reasons[trial] = reason
        if not reason and (found := trial_progress(self._folder, self._plan, trial)):
            self._take_in(trial, found)
        if not self._plan.promotes:
            self._count(self._done + 1)
        self._display.redraw(immediately=True)
        if not self._display.is_drawn:
            self._display.say(self._came(trial))

    def _came(self, trial: int) -> str:
        """Return the result so far of a trial that is not at work, as a line."""
        head = "" if self._plan.promotes else f"{self._done}/{self._plan.size} "
        if reason := self._reasons.get(trial):
            return f"{head}{self._named(trial)}: no result: {reason}"
        found, figures = self._standing.get(trial), self._figures(self._over[trial]) or "over"
        if found and found.status == DIVERGED:
            figures += f", diverged: {found.why}"
        if not self._plan.promotes:
            return f"{head}{self._named(trial)}: {figures}"
        place = (
            "stopped" if found is None else "at its end" if self._ends[trial] is None else "paused"
        )
        return f"{self._named(trial)}: {place} after {figures}"

    def table(self) -> HeadTable:
        """Return a table of the trials: those at work, then those over, the best first, as many as
        fit.
        """
        metric = self._plan.metric
        over = sorted(self._over, key=lambda n: (n in self._reasons, *self._rank(n)))
        table = HeadTable(box=box.SIMPLE_HEAD, pad_edge=False)
        settings = list(self._plan.trials[0].values)
        for head in ("trial", *settings, "updates", metric, "is"):
            table.add_column(head, overflow="fold")
        shown = [*self._at_work, *over][:_MOST_SHOWN]
        for n in shown:
            latest = {**self._over.get(n, {}), **self._at_work.get(n, {})}
            values = self._settings(n)
            state = "at work" if n in self._at_work else self._reasons.get(n) or self._state(n)
            updates = f"{latest['updates']:,}" if "updates" in latest else ""
            value = f"{self._values[n]:.4g}" if n in self._values else ""
            table.add_row(
                *map(Text, (str(n), *(str(values[s]) for s in settings), updates, value, state))
            )
        if hidden := len(self._at_work) + len(over) - len(shown):
            table.caption = f"and {hidden} more"
        return table

    def _state(self, trial: int) -> str:
        found = self._standing.get(trial)
        return _STATES[found.status] if found else "over"

    def _rank(self, trial: int) -> tuple[int, int, float, int]:
        """Return the key that orders trials, the best first: finished, paused, without a value.

        A metric counts for trials after as many updates alone, since it grows with them.
        """
        found, sign = self._standing.get(trial), -1 if self._plan.higher else 1
        if found is None or math.isnan(found.value):
            return 2, 0, sign * self._values.get(trial, math.inf * sign), trial
        if found.status == DONE:
            return 0, 0, sign * found.value, trial
        return 1, -found.updates, sign * found.value, trial

    def line(self) -> str:
        """Return in a line how many trials are over, which are at work, and the best so far."""
        at_work = "; ".join(self._lines()) or _NO_TRIAL
        are = "started" if self._plan.promotes else "over"
        return f"{self._done}/{self._plan.size} trials {are}; {at_work}"

    def _lines(self) -> list[str]:
        lines = [
            f"{self._named(n)}: {self._figures(at) or 'starting'}"
            for n, at in self._at_work.items()
        ]
        standing = dict(self._standing)  # which another thread changes
        ranks = [rank for rank in map(self._rank, standing) if rank[0] < 2]
        if ranks:
            best = min(ranks)[-1]
            found = standing[best]
            place = "" if found.status == DONE else f" after {found.updates:,} updates"
            lines.append(f"best so far: {self._plan.metric} {found.value:.4g}, trial {best}{place}")
        return lines

    def _settings(self, trial: int) -> Mapping[str, Any]:
        """Return what a trial tries; in a population, now."""
        return self._changed.get(trial, self._plan.trials[trial].values)

    def _named(self, trial: int) -> str:
        if trial not in self._changed:
            return str(self._plan.trials[trial])
        return (
            f"trial {trial} "
            f"({', '.join(f'{name}={value}' for name, value in self._changed[trial].items())})"
        )

    def _figures(self, report: Mapping[str, Any]) -> str:
        parts = [f"{report['updates']:,} updates"] if "updates" in report else []
        metric = self._plan.metric
        return ", ".join(
            [*parts, *([f"{metric} {report[metric]:.4g}"] if metric in report else [])]
        )


def show_search(
    plan: SearchPlan, results: SearchResults, folder: Path, *, stopped: bool, as_json: bool
) -> None:
    """Print the table of trials, the best first, and what the search spent; or all of it as JSON.

    stopped: has the user stopped it, so that its best is the best so far?
    """
    choice = results.choice
    if as_json:
        spent = [vars(one) | {"sentence": one.sentence()} for one in results.spent]
        answer = {
            "folder": str(folder),
            "metric": plan.metric,
            "best": choice.trials[0].number if choice else None,
            "seeds": len(choice.trials) if choice else 0,
            "median": choice.median if choice else None,
        }
        print(json_text(answer | {"trials": list(results.rows), "spent": spent}), end="")
        return
    console = tables_console(_WIDTH)
    ranked = results.ranked(plan)
    more = (
        f"{_MOST_SHOWN} of {len(ranked)}; all are in trials.csv"
        if len(ranked) > _MOST_SHOWN
        else ""
    )
    table = grid(trial_columns(plan, ranked), ranked[:_MOST_SHOWN])
    console.print(table.console(f"{len(ranked)} trials by {plan.metric}", more))
    if plan.scheduler == "asha":
        made = sum(row["updates"] for row in ranked if not math.isnan(row["updates"]))
        updates = f"{made:,.0f} of {plan.budget * len(list(plan.started())):,}"
        console.print(f"updates: {updates} that all trials in full would make", highlight=False)
    for row in ranked:
        if row["pace"]:
            console.print(
                Text(f"WARNING: trial {row['trial']} missed its pace: {row['pace']}; {_PACE_HELP}")
            )
    for line in sentences(results.spent):
        console.print(Text(line))
    files = [folder / "trials.parquet", folder / "trials.csv", folder / "trials.png"]
    console.print(f"\ntrials: {', '.join(str(path) for path in files)}", soft_wrap=True)
    if choice is None:
        return
    best = f"trial {choice.trials[0].number}"
    again = f"run it again with: {command('run', folder / 'best.toml')}"
    later = "best.toml is written when the search is over"
    console.print(
        f"best so far: {best}; {later}" if stopped else f"best: {best}, {again}", soft_wrap=True
    )
    if reason := choice.reason(plan.metric):
        console.print(reason, soft_wrap=True, highlight=False)
