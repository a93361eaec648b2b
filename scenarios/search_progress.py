"""The progress of a search, and its table of trials with the ε that it spent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.text import Text

from raydpzv.errors import command
from raydpzv.files import as_json as json_text
from raydpzv.report.table import HeadTable, grid
from raydpzv.search.composition import sentences
from raydpzv.search.run_tune import BEST, Search
from raydpzv.search.search_terms import SearchWatch
from raydpzv.search.tune_plan import SearchPlan
from raydpzv.search.tune_results import BestPoint, choice_columns, trial_columns
from scenarios.display import Bar, Display
from scenarios.run_output import tables_console

_WIDTH = 120
_MOST_SHOWN = 20
_PACE_HELP = (
    "its staleness is the machine's; run fewer trials at a time (--jobs), lower arrivals.rate, or "
    "keep the virtual clock"
)
_NO_TRIAL = "no trial runs: one starts, or waits for a free CPU, or GPU share, of Ray's"


class SearchProgress(SearchWatch):
    """Shows progress while its block runs: the trials that are over, and those at work.

    A terminal shows a table under a bar. Elsewhere each trial that ends gets a line. A restored
    search counts the trials of this process.
    """

    def __init__(self, plan: SearchPlan, console: Console, *, quiet: bool = False) -> None:
        self._plan = plan
        self._at_work: dict[int, Mapping[str, Any]] = {}
        self._over: dict[int, Mapping[str, Any]] = {}
        bar = Bar("trials", plan.size)
        self._display = Display(console, bar, lambda: [self.table()], self.line, quiet=quiet)

    def __enter__(self) -> SearchProgress:
        self._display.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._display.__exit__(*details)

    def began(self, trial: int) -> None:
        self._at_work[trial] = self._over.pop(trial, {})
        self._display.redraw()

    def reported(self, trial: int, report: Mapping[str, Any]) -> None:
        # a report between evaluations has no metric
        self._at_work[trial] = {**self._at_work.get(trial, {}), **report}
        self._display.redraw()

    def ended(self, trial: int, reason: str) -> None:
        figures = self._at_work.pop(trial, {})
        self._over[trial] = {**figures, "reason": reason}
        self._display.count(len(self._over))
        self._display.redraw(immediately=True)
        if not self._display.is_drawn:
            came = f"no result: {reason}" if reason else self._figures(figures) or "over"
            self._display.say(f"{len(self._over)}/{self._plan.size} {self._named(trial)}: {came}")

    def table(self) -> HeadTable:
        """Return a table of the trials: those at work, then those over, the best first."""
        metric, sign = self._plan.metric, -1 if self._plan.higher else 1
        over = sorted(
            self._over,
            key=lambda n: (metric not in self._over[n], sign * self._over[n].get(metric, 0.0), n),
        )
        table = HeadTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for head in ("trial", "updates", metric, "is"):
            table.add_column(head, overflow="fold")

        shown = [*self._at_work, *over][:_MOST_SHOWN]
        for n in shown:
            latest = self._at_work.get(n) or self._over.get(n, {})
            state = "at work" if n in self._at_work else latest.get("reason") or "over"
            updates = f"{latest['updates']:,}" if "updates" in latest else ""
            value = f"{latest[metric]:.4g}" if metric in latest else ""
            table.add_row(*map(Text, (self._named(n), updates, value, state)))
        if hidden := len(self._at_work) + len(over) - len(shown):
            table.caption = f"and {hidden} more"
        return table

    def line(self) -> str:
        """Return in a line how many trials are over, and which are at work."""
        at_work = [
            f"{self._named(n)}: {self._figures(latest) or 'starting'}"
            for n, latest in self._at_work.items()
        ]
        return f"{len(self._over)}/{self._plan.size} trials are over; {'; '.join(at_work) or _NO_TRIAL}"

    def _named(self, trial: int) -> str:
        # Optuna's are chosen while others run
        return str(self._plan.trials[trial]) if self._plan.trials else f"trial {trial}"

    def _figures(self, report: Mapping[str, Any]) -> str:
        parts = [f"{report['updates']:,} updates"] if "updates" in report else []
        if (metric := self._plan.metric) in report:
            parts.append(f"{metric} {report[metric]:.4g}")
        return ", ".join(parts)


def show_search(made: Search, *, as_json: bool) -> None:
    """Print the table of trials or of choices, and what the search spent; or all of it as JSON."""
    plan, results, folder = made.plan, made.results, made.path
    if as_json:
        spent = [vars(one) | {"sentence": one.sentence()} for one in results.spent]
        answer: dict[str, Any] = {"folder": str(folder), "metric": plan.metric}
        if plan.comparison:
            answer["choices"] = [_choice(plan, choice) for choice in results.choices if choice]
        else:
            best = results.choices[0]
            answer |= {
                "best": best.trial.number if best else None,
                "seeds": len(best.trials) if best else 0,
                "median": best.median if best else None,
            }
        print(json_text(answer | {"trials": list(results.rows), "spent": spent}), end="")
        return

    console = tables_console(_WIDTH)
    if plan.comparison:
        choices = [choice for choice in results.choices if choice]
        console.print(grid(choice_columns(plan), choices).console(f"chosen by {plan.metric}"))
    else:
        _show_trials(console, made)
    for line in sentences(results.spent):
        console.print(Text(line))

    files = [folder / "trials.parquet", folder / "trials.csv", folder / "trials.png"]
    console.print(f"\ntrials: {', '.join(str(path) for path in files)}", soft_wrap=True)
    if made.stopped:
        console.print(f"{BEST} is written when the search is over", soft_wrap=True)
    elif plan.comparison:
        console.print(
            f"compare on other seeds with: raydpzv compare {folder / BEST}", soft_wrap=True
        )
    elif choice := results.choices[0]:
        again = f"run it again with: {command('run', folder / BEST)}"
        console.print(f"best: trial {choice.trial.number}, {again}", soft_wrap=True)
        if reason := choice.reason(plan.metric):
            console.print(reason, soft_wrap=True, highlight=False)


def _show_trials(console: Console, made: Search) -> None:
    ranked = made.results.ranked(made.plan)
    hidden = f"{_MOST_SHOWN} of {len(ranked)}; all are in trials.csv"
    table = grid(trial_columns(made.plan, ranked), ranked[:_MOST_SHOWN])
    title = f"{len(ranked)} trials by {made.plan.metric}"
    console.print(table.console(title, hidden if len(ranked) > _MOST_SHOWN else ""))
    for row in ranked:
        if row["pace"]:
            console.print(
                Text(f"WARNING: trial {row['trial']} missed its pace: {row['pace']}; {_PACE_HELP}")
            )


def _choice(plan: SearchPlan, choice: BestPoint) -> dict[str, Any]:
    line = plan.lines[choice.trial.line]
    return {
        "label": line.label,
        "epsilon": line.epsilon,
        "chosen": list(choice.trial.point[1]),
        "median": choice.median,
        "seconds": choice.seconds,
        "combinations": choice.points,
        "edges": list(choice.edges),
    }
