"""The results of a search: a row for each trial, read from its run's folder, the best trial, and a
picture.

Rows are a function of the folders alone. A search that was killed and resumed has the rows of one
that was not, but for the seconds.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from raydpzv.arrow_columns import array
from raydpzv.compare.run_comparison import read_made, set_aside
from raydpzv.config.paths import unlocated
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_tree
from raydpzv.experiment.diagnostics import LATE
from raydpzv.files import json_number
from raydpzv.privacy.claim_words import USEFUL, cut, small
from raydpzv.records.store import Rows
from raydpzv.report import text
from raydpzv.report.plots import FAINT, INK, chart, plain_log, wide
from raydpzv.report.run_tables import rates_asked
from raydpzv.report.table import Column
from raydpzv.search import asha
from raydpzv.search.composition import Composed, SearchClaims, compose, sentences
from raydpzv.search.population import as_trained, facts_of, legs, turns
from raydpzv.search.search_folder import cut_short, metric_at, run_path
from raydpzv.search.search_plan import METRICS, SearchPlan, Trial, planned_claim, planned_claims
from raydpzv.search.suggest import Outcome

DONE, CUT, STOPPED, DIVERGED, FAILED, SKIPPED, NOT_RUN = (
    "done",
    "stopped early",
    "stopped",
    "diverged",
    "failed",
    "not started",
    "not run",
)
"""What may have become of a trial: its budget is spent; the scheduler stopped it; the user did; its
loss is no number; it broke off; its ε is not what was asked; it is still to be run."""
_NUMBERS = (
    "updates",
    "uploads",
    "bytes_up",
    "bytes_down",
    "simulated_seconds",
    "seconds",
    "throughput",
)

Row = dict[str, Any]
_DEVIATIONS = 3.0
"""Standard deviations of a Poisson count by which uploads may fall short of what the rates ask
for.
"""


@dataclass(frozen=True)
class BestPoint:
    """The best settings: the trials that came to their end with them, and the median of the metric
    over these.

    The first, whose seed is the lowest, represents them: its scenario is the one to run again.
    """

    trials: tuple[Trial, ...]
    median: float

    def reason(self, metric: str) -> str:
        """Return in a sentence why a trial is the best though another one's metric may be better;
        "" for one seed.
        """
        if len(self.trials) == 1:
            return ""
        first, *others = (str(trial.number) for trial in self.trials)
        return (
            f"trials {', '.join([first, *others[:-1]])} and {others[-1]} share the settings with "
            f"the best median {metric}, {self.median:.6g}, of those with the most finished seeds "
            f"({len(self.trials)}): trial {first} represents them by the lowest seed, "
            f"{self.trials[0].spec.seed}"
        )


@dataclass(frozen=True)
class SearchResults:
    """Rows of all trials in their order, what was chosen (None: none came to its end) and what the
    search spent.
    """

    rows: tuple[Row, ...]
    choice: BestPoint | None
    spent: tuple[Composed, ...]

    @property
    def best(self) -> Trial | None:
        """The trial that represents the best settings."""
        return self.choice.trials[0] if self.choice else None

    def ranked(self, plan: SearchPlan) -> list[Row]:
        """Return the rows, the best first: those at their end, by the metric."""
        sign, metric = (-1 if plan.higher else 1), plan.metric
        return sorted(
            self.rows,
            key=lambda r: (
                r["status"] != DONE,
                math.isnan(r[metric]),
                sign * r[metric],
                r["trial"],
            ),
        )

    def outcomes(self, plan: SearchPlan) -> list[Outcome]:
        """Return what a search that learns goes by: each trial's settings, and its metric if it
        came to its end.
        """
        return [
            (
                trial.values,
                row[plan.metric]
                if row["status"] == DONE and not math.isnan(row[plan.metric])
                else None,
            )
            for trial, row in zip(plan.trials, self.rows, strict=True)
        ]

    def table(self) -> pa.Table:
        """Return the rows as an Arrow table; a setting whose values are of several kinds as
        text.
        """
        columns = {name: [row[name] for row in self.rows] for name in self.rows[0]}
        return pa.table({name: _column(values) for name, values in columns.items()})


def trial_columns(plan: SearchPlan, rows: Sequence[Row]) -> list[Column[Row]]:
    """Return the columns of a table of trials; those of the pace where one was asked of any."""
    settings = list(plan.trials[0].values)
    trained = [*(f"{name}_at" for name in settings), "donors"] if plan.population else []
    found: list[Column[Row]] = [Column(name, itemgetter(name)) for name in ("trial", *settings)]
    found += [Column(name, itemgetter(name), schedule_text) for name in trained]
    found += [
        _figures(plan.metric, plan.metric, "{:.4g}"),
        Column("proved ε", _proved),
        _figures("updates", "updates", "{:,.0f}"),
    ]
    if any(not math.isnan(row["rate_asked"]) for row in rows):
        found += [
            Column("late", itemgetter("late"), lambda share: text.percent(share, 0)),
            Column("uploads/s", itemgetter("throughput"), text.short),
            Column("asked", itemgetter("rate_asked"), text.short),
        ]
    return [
        *found,
        Column("became", itemgetter("status"), align="left"),
        Column("why", itemgetter("reason"), align="left"),
    ]


def _figures(title: str, name: str, form: str) -> Column[Row]:
    return Column(
        title, itemgetter(name), lambda value: "" if math.isnan(value) else form.format(value)
    )


def _proved(row: Row) -> str:
    if math.isnan(row["epsilon"]):
        return ""
    large = cut({"epsilon": row["epsilon"], "holds": True})
    return f"{large or text.number(row['epsilon'])} ({row['adversary']})"


def schedule_text(value: Any) -> str:
    """Return changes of a setting, [[first update, value], ...], as lines; anything else as it
    is.
    """
    if not isinstance(value, list | tuple):
        return str(value)
    return "\n".join(f"{then} from {update}" for update, then in value)


def search_results(
    folder: Path,
    plan: SearchPlan,
    reasons: Mapping[int, str] = MappingProxyType({}),
    *,
    stopped: bool = False,
) -> SearchResults:
    """Read the results of a search so far.

    reasons: by number, why one has no summary; stopped: has the user stopped the search, so that
    its best is no winner?
    """
    cut, rows = cut_short(folder), list[Row]()
    summaries = dict[int, Mapping[str, Any]]()
    found_turns = turns(folder)
    trials = as_trained(plan, found_turns)
    for trial in trials:
        path = run_path(folder, trial)
        summary, found = _read(trial, path)
        summaries[trial.number] = summary
        why = reasons.get(trial.number, "")
        row = _row(trial, path, summary, found, stopped=trial.number in cut, reason=why)
        rows.append(row | facts_of(trial.number, found_turns) if plan.population else row)
    measures = dict.fromkeys([plan.metric, *(name for row in rows for name in row)], math.nan)
    rows = [
        measures | row for row in rows
    ]  # a trial without a result has none of the user's measures
    choice = _best(plan, trials, rows)
    winner = choice.trials[0] if choice and not stopped else None
    # a run that broke off, as one does that diverges, ended where its releases had it end
    broken = any(summary and summary["status"] != "done" for summary in summaries.values())
    cut_short_by_results = stopped or plan.scheduler == "asha" or broken
    spent = _spent(folder, plan, summaries, winner, cut=cut_short_by_results)
    return SearchResults(tuple(rows), choice, tuple(spent))


@dataclass(frozen=True)
class TrialProgress:
    """How far a trial has come: to its end, or to where it pauses to be compared with others.

    value: its metric there; NaN where it has none, since it diverged (why: by what) or was not
    measured.
    """

    status: str
    why: str
    updates: int
    value: float


def trial_progress(folder: Path, plan: SearchPlan, number: int) -> TrialProgress | None:
    """Return how far a trial has come; None if it has not started, failed, or was stopped on its
    way.
    """
    trial = as_trained(plan, turns(folder))[number]
    path, cut = run_path(folder, trial), cut_short(folder)
    summary, found = _read(trial, path)
    status, why = _status(trial, summary, found, stopped=number in cut, reason="")
    if isinstance(found, str) or status == FAILED:
        return None
    updates, value = int(summary["updates"]), math.nan
    if status == STOPPED and updates not in _pauses(plan):
        return None
    if status == DONE:
        value = _measured(found).get(plan.metric, math.nan)
    elif status != DIVERGED:
        value = metric_at(path, plan.metric, updates)
    return TrialProgress(status, why, updates, value)


def _pauses(plan: SearchPlan) -> Sequence[int | None]:
    """Return after how many updates trials pause before their end."""
    return asha.rungs(plan) if plan.promotes else legs(plan)


def best_file(plan: SearchPlan, results: SearchResults, toml: str, command: str) -> str:
    """Return the winner's scenario as TOML text, which `raydpzv run` takes; command: what was asked
    for.
    """
    assert results.choice is not None
    best = results.choice.trials[0]
    value, reason = results.rows[best.number][plan.metric], results.choice.reason(plan.metric)
    head = [
        f"Made by: {command}",
        f"{best}, of {len(results.rows)} trials",
        f"{plan.metric} at the end: {value:.6g}{f'; {reason}' if reason else ''}",
        *sentences(results.spent),
    ]
    # in one line each: a line break would begin a setting
    return "".join(f"# {' '.join(line.split())}\n" for line in head) + toml


def _read(trial: Trial, path: Path) -> tuple[Mapping[str, Any], Rows | str]:
    """Return a run's summary and rows, or {} and why there are none."""
    if trial.skipped:
        return {}, trial.skipped
    summary, rows, fault = read_made(trial.planned(), path)
    return summary, fault if rows is None else rows


def _row(
    trial: Trial,
    path: Path,
    summary: Mapping[str, Any],
    found: Rows | str,
    *,
    stopped: bool,
    reason: str,
) -> Row:
    status, why = _status(trial, summary, found, stopped=stopped, reason=reason)
    rows = found if isinstance(found, dict) else None
    claim = _meant(trial, summary)
    row = {
        "trial": trial.number,
        "status": status,
        "reason": why,
        **trial.values,
        **(_measured(rows) if rows else dict.fromkeys(METRICS, math.nan)),
        "epsilon": float(claim["epsilon"]) if claim and claim["holds"] else math.nan,
        "delta": claim["delta"] if claim else math.nan,
        "adversary": claim["adversary"] if claim else "",
        "accountant": claim["accountant"] if claim else "",
        "late": float(np.mean(array(rows["service"]["late"])))
        if rows and rows["service"].num_rows
        else math.nan,
        **{name: json_number(summary.get(name)) for name in _NUMBERS},
        "rate_asked": rate_asked(trial.spec),
        "restarts": set_aside(path)[1],
        "digest": str(summary.get("digest", "")),
    }
    return row | {"pace": missed(row)}


def _status(
    trial: Trial, summary: Mapping[str, Any], found: Rows | str, *, stopped: bool, reason: str
) -> tuple[str, str]:
    """Return what became of a trial, and why it has no result."""
    if trial.skipped:
        return SKIPPED, trial.skipped
    if isinstance(found, str) and (found or not summary):
        return (FAILED, found or reason) if found or reason else (NOT_RUN, "")
    if summary["failure"] == "diverged":
        return DIVERGED, str(summary["failure_reason"])
    if summary["status"] == "stopped":
        return (CUT, "") if stopped else (STOPPED, "")
    return (DONE, "") if summary["status"] == "done" else (FAILED, str(summary["stopped_by"]))


def _measured(rows: Rows) -> Row:
    """Return every metric at a run's last evaluation; NaN where it was not measured."""
    found = dict.fromkeys(METRICS, math.nan)
    kinds = {"evaluation": ("accuracy", "loss"), "auc": ("roc_auc", "pr_auc")}
    for kind, names in (
        kinds | {name: (name,) for name in ("balanced_accuracy", "concordance")}
    ).items():
        for row in rows[kind].to_pylist():
            part = "validation_" if row["part"] == "validation" else ""
            found |= {f"{part}{name}": row[name] for name in names}
    for row in rows["measure"].to_pylist():
        found[f"{'validation_' if row['part'] == 'validation' else ''}{row['name']}"] = row["value"]
    return found


def _meant(trial: Trial, summary: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what a run claims against whom its noise is meant."""
    planned = planned_claim(trial.spec) if summary.get("epsilon") else None
    if planned is None:
        return None
    terms = (planned.adversary, planned.relation)
    return next((c for c in summary["epsilon"] if (c["adversary"], c["relation"]) == terms), None)


def _best(plan: SearchPlan, trials: Sequence[Trial], rows: Sequence[Row]) -> BestPoint | None:
    """Return the best settings, or None where no trial came to its end.

    Trials that differ in their seed alone are one point of the space. Of the points of which most
    seeds came to their end, that with the best median over these is chosen, of equal ones the
    first. In a population every trial is a point.
    """
    points: dict[tuple[str, ...], list[Trial]] = {}
    for trial in trials:
        if trial.skipped:
            continue
        key = tuple(item for item in trial.settings if not item.startswith("seed="))
        points.setdefault((str(trial.number),) if plan.population else key, []).append(trial)
    best, found = (0, -math.inf), None
    for alike in points.values():
        over = [
            t
            for t in alike
            if rows[t.number]["status"] == DONE and not math.isnan(rows[t.number][plan.metric])
        ]
        median = statistics.median(rows[t.number][plan.metric] for t in over) if over else math.nan
        score = (len(over), median if plan.higher else -median)
        if over and score > best:
            best = score
            found = BestPoint(tuple(sorted(over, key=lambda t: t.spec.seed)), median)
    return found


def _spent(
    folder: Path,
    plan: SearchPlan,
    summaries: Mapping[int, Mapping[str, Any]],
    best: Trial | None,
    *,
    cut: bool,
) -> list[Composed]:
    """Return what the search spent, for each claim of the best trial; without one, of any that was
    started.
    """
    made, planned = (
        dict[str, Sequence[Mapping[str, Any]]](),
        dict[str, Sequence[Mapping[str, Any]]](),
    )
    possible = 0
    for trial in plan.started():
        summary, path = summaries[trial.number], run_path(folder, trial)
        whole = [vars(claim) for claim in planned_claims(trial.spec)]
        planned[f"trial {trial.number}"] = whole
        if summary:
            made[f"trial {trial.number}"] = [_claim(c) for c in summary["epsilon"]]
        elif path.is_dir():  # how far it came is not known
            made[f"trial {trial.number}"] = whole
            possible += 1
        for leg in range(set_aside(path)[1]):
            name = f"trial {trial.number}, started before ({leg + 1})"
            made[name] = planned[name] = whole
            possible += 1
    if (
        plan.drawing
    ):  # those that are still to be chosen: like the others, wherever a number is justified
        alike = [vars(claim) for claim in planned_claims(plan.trials[0].spec)]
        planned |= {f"trial {n}": alike for n in range(len(plan.trials), plan.drawing.samples)}
    winner = made[f"trial {best.number}"] if best else None
    adaptive = plan.drawing is not None or plan.population is not None
    return compose(SearchClaims(winner, made, planned, _same_data(plan), cut, adaptive, possible))


def _same_data(plan: SearchPlan) -> bool:
    found = [_protected(trial.spec) for trial in plan.started()]
    return all(one == found[0] for one in found)


def _protected(spec: AnyScenario) -> Any:
    """Return the settings that say what records there are, and whose they are where that is what
    one user means.
    """
    tree = unlocated(as_tree(spec))
    if "users" not in tree:
        return tree["data"]
    return [tree["data"], tree["users"], tree["split"], spec.seed]


def _claim(stated: Mapping[str, Any]) -> Row:
    """Return a claim of summary.json, in which infinity is a word and NaN is null."""
    return {
        **stated,
        "epsilon": json_number(stated["epsilon"]),
        "delta": json_number(stated["delta"]),
    }


def _column(values: Sequence[Any]) -> pa.Array:
    kinds = {type(value) for value in values}
    if kinds <= {int, float} or (len(kinds) == 1 and list not in kinds):
        return pa.array([float(v) for v in values] if float in kinds else values)
    return pa.array([value if isinstance(value, str) else json.dumps(value) for value in values])


def rate_asked(spec: AnyScenario) -> float:
    """Return uploads per second of all clients as `[arrivals]` asks for them; NaN where nothing is
    asked of a machine.

    That is under the virtual clock, where clients come as soon as they can, and where they wait for
    one another.
    """
    if spec.clock.kind != "wall" or spec.barrier > 1:
        return math.nan
    rate = spec.arrivals.rate
    return sum(rates_asked(spec.arrivals.kind, rate, spec.split.clients))


def missed(row: Mapping[str, Any]) -> str:
    """Return in what a trial missed the pace asked, by its row; "" if it kept it or none was
    asked.
    """
    asked, measured, late, uploads = (
        row[name] for name in ("rate_asked", "throughput", "late", "uploads")
    )
    if math.isnan(asked) or math.isnan(measured):
        return ""
    found = []
    if late > LATE:
        found.append(f"{text.percent(late, 0)} of its activations began late")
    expected = uploads / measured * asked
    if uploads < (1 - LATE) * expected and uploads < expected - _DEVIATIONS * math.sqrt(expected):
        found.append(f"{measured:.3g} uploads a second came, {asked:.3g} are asked")
    return " and ".join(found)


_MARKS = {DONE: "o", CUT: "v"}
_COLOURS = "viridis"
_LARGE = 1.5 * USEFUL
"""The place on the axis of every ε that is too large to mean something."""


def search_figure(plan: SearchPlan, results: SearchResults) -> Figure | None:
    """Draw each measured trial's metric over its ε or a setting, coloured by another setting; None
    without any.

    Along the axis is ε where it is proved and not the same for all, else the setting that is
    numeric and has most values; the colour is that of the setting with most values among the
    others. All ε above 10 are at one place. Scales are logarithmic for settings drawn by
    loguniform, and for values that span much.
    """
    rows = [
        _drawn(r) for r in results.rows if r["status"] in _MARKS and not math.isnan(r[plan.metric])
    ]
    if not rows:
        return None
    settings = sorted(plan.trials[0].values, key=lambda name: -len({str(r[name]) for r in rows}))
    numeric = [name for name in settings if all(_is_number(r[name]) for r in rows)]
    spent = {r["epsilon"] for r in rows}
    over = (
        "epsilon"
        if len(spent) > 1 and all(map(math.isfinite, spent))
        else next(iter(numeric), "trial")
    )
    by = next((name for name in numeric if name != over and len({r[name] for r in rows}) > 1), None)
    name = "proved ε" if over == "epsilon" else over
    figure, ax = chart(f"{plan.metric} of {len(rows)} trials over {name}", name, plan.metric)
    shades = [float(r[by]) for r in rows] if by else [0.0] * len(rows)
    logarithmic = by is not None and (by in plan.log_scaled or wide(shades)) and min(shades) > 0
    for status, mark in _MARKS.items():
        own = [i for i, r in enumerate(rows) if r["status"] == status]
        drawn = ax.scatter(
            [rows[i][over] for i in own],
            [rows[i][plan.metric] for i in own],
            c=[shades[i] for i in own],
            norm="log" if logarithmic else None,
            vmin=min(shades),
            vmax=max(shades) if max(shades) > min(shades) else min(shades) + 1,
            cmap=_COLOURS,
            marker=mark,
            edgecolors=FAINT,
            label=status if own else "",
        )
    if by:
        figure.colorbar(drawn, ax=ax, label=by)
    if results.best is not None:
        best = _drawn(results.rows[results.best.number])
        ax.scatter(
            [best[over]],
            [best[plan.metric]],
            s=160,
            facecolors="none",
            edgecolors=INK,
            label="best",
        )
    places = [float(r[over]) for r in rows]
    if (over in plan.log_scaled or wide(places)) and min(places) > 0:
        plain_log(ax, "x")
    if over == "epsilon" and _LARGE in spent:
        ticks = [float(tick) for tick in ax.get_xticks() if ax.get_xlim()[0] <= tick <= USEFUL]
        names = ax.xaxis.get_major_formatter().format_ticks(ticks)
        ax.set_xticks([*ticks, _LARGE], [*names, f"> {USEFUL:g}"])
    ax.legend(frameon=False)
    return figure


def _drawn(row: Row) -> Row:
    """Return a row with its place on the axis of ε."""
    large = math.isfinite(row["epsilon"]) and not small(row["epsilon"])
    return row | {"epsilon": _LARGE} if large else row


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
