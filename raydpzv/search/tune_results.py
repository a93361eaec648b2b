"""The results of a search: a row for each trial, read from its run's folder, and the best settings.

Rows are a function of the folders and of which trials Ray Tune ended. A search that was killed and
resumed has the rows of one that was not, but for the seconds.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raydpzv.arrow_columns import array
from raydpzv.compare.run_comparison import read_made
from raydpzv.config.paths import unlocated
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_tree
from raydpzv.errors import InputError
from raydpzv.experiment.diagnostics import DIVERGED as BLOWN_UP
from raydpzv.experiment.diagnostics import LATE
from raydpzv.files import json_number
from raydpzv.grouping import grouped
from raydpzv.privacy.claim_words import cut
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.settings_diff import other_setting
from raydpzv.records.store import Rows
from raydpzv.report import text
from raydpzv.report.comparison_lines import calibrated
from raydpzv.report.comparison_text import AIM
from raydpzv.report.run_tables import rates_asked
from raydpzv.report.table import Column
from raydpzv.search.composition import Claims, Composed, SearchClaims, compose
from raydpzv.search.search_terms import TrialOutcomes
from raydpzv.search.space import literal
from raydpzv.search.trial_checkpoint import left_runs, runs_copied
from raydpzv.search.tune_plan import (
    METRICS,
    SearchPlan,
    Trial,
    planned_claim,
    planned_claims,
    run_path,
)

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
SOONEST = "seconds_to_target"
"""The column of the simulated seconds to `SearchPlan.soonest`."""
_DEVIATIONS = 3.0
"""Standard deviations of a Poisson count by which uploads may fall short of what the rates ask
for.
"""

Row = dict[str, Any]


@dataclass(frozen=True)
class BestPoint:
    """The best settings of a scenario, or of one method of a comparison.

    The first trial, whose seed is the lowest, represents them: its scenario is the one to run
    again.
    """

    trials: tuple[Trial, ...]
    """The trials that came to their end with them."""
    median: float
    """Of the metric over these."""
    seconds: float
    """Median of the simulated seconds to `SearchPlan.soonest`; NaN where it was not asked."""
    points: int
    """How many settings they were chosen from."""
    edges: tuple[str, ...]
    """Settings whose value is the least or greatest that was tried, so that a better one may lie
    outside.
    """

    @property
    def trial(self) -> Trial:
        """The trial that represents them."""
        return self.trials[0]

    def reason(self, metric: str) -> str:
        """Return in a sentence why a trial is the best though another one's metric may be better;
        "" for one seed.
        """
        if len(self.trials) == 1:
            return ""
        *others, last = (str(trial.number) for trial in self.trials)
        return (
            f"trials {', '.join(others)} and {last} share the settings with the best median "
            f"{metric}, {self.median:.6g}, of those with the most finished seeds "
            f"({len(self.trials)}): trial {self.trial.number} represents them by the lowest seed, "
            f"{self.trial.spec.seed}"
        )


@dataclass(frozen=True)
class SearchResults:
    """What a search came to."""

    rows: tuple[Row, ...]
    """Of all trials, in their order."""
    choices: tuple[BestPoint | None, ...]
    """What was chosen for each of the plan's lines; None: no trial of it came to its end."""
    spent: tuple[Composed, ...]
    """The ε of the whole search, against each adversary."""

    @property
    def best(self) -> Trial | None:
        """The trial that represents the best settings of a scenario."""
        return self.choices[0].trial if self.choices[0] else None

    def row(self, trial: Trial) -> Row:
        """Return the row of a trial."""
        return next(row for row in self.rows if row["trial"] == trial.number)

    def ranked(self, plan: SearchPlan) -> list[Row]:
        """Return the rows, the best first: those at their end, by the metric."""
        sign, metric = (-1 if plan.higher else 1), plan.metric
        lines = [str(line) for line in plan.lines]
        return sorted(
            self.rows,
            key=lambda r: (
                lines.index(r["line"]),
                r["status"] != DONE,
                math.isnan(r[metric]),
                sign * r[metric],
                r["trial"],
            ),
        )

    def table(self) -> pa.Table:
        """Return the rows as an Arrow table; a setting whose values are of several kinds as
        text.
        """
        columns = {name: [row[name] for row in self.rows] for name in self.rows[0]}
        return pa.table({name: _column(values) for name, values in columns.items()})


def trial_columns(plan: SearchPlan, rows: Sequence[Row]) -> list[Column[Row]]:
    """Return the columns of a table of trials; those of the pace where one was asked of any."""
    found: list[Column[Row]] = [Column("trial", itemgetter("trial"))]
    if plan.comparison:
        found.append(Column("method", itemgetter("line"), align="left"))
    found += [Column(name, itemgetter(name), schedule_text) for name in _setting_columns(plan)]
    found += [
        _figures(plan.metric, plan.metric, "{:.4g}"),
        Column("proved ε", _proved),
        _figures("updates", "updates", "{:,.0f}"),
    ]

    # columns that would be empty are left out
    if plan.soonest is not None:
        found.append(_figures("s to the target", SOONEST, "{:.3g}"))
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


def _setting_columns(plan: SearchPlan) -> list[str]:
    """Return the columns of the settings that vary, with pbt also of those in mid-run."""
    names = plan.settings
    return [*names, *(f"{name}_at" for name in names), "copied"] if plan.copies else names


def choice_columns(plan: SearchPlan) -> list[Column[BestPoint]]:
    """Return the columns of a table of what was chosen for the methods of a comparison."""
    return [
        Column("method", lambda c: plan.lines[c.trial.line].label, align="left"),
        Column(AIM, lambda c: plan.lines[c.trial.line].epsilon, calibrated),
        Column("chosen", lambda c: " ".join(c.trial.point[1]), align="left"),
        Column(plan.metric, lambda c: c, chosen_by),
        Column("of", lambda c: c.points),
        Column("at the edge of its values", lambda c: " ".join(c.edges), align="left"),
    ]


def chosen_by(choice: BestPoint) -> str:
    """Return by which figures settings were chosen."""
    time = "" if math.isnan(choice.seconds) else f", {choice.seconds:.3g} s to the target"
    return f"{choice.median:.3f}{time}"


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
    """Return changes of a setting, [[first update, value], ...], as lines; "" for none; anything
    else as it is.
    """
    if value is None:
        return ""
    if not isinstance(value, list | tuple):
        return str(value)
    return "\n".join(f"{then} from {update}" for update, then in value)


def search_results(folder: Path, plan: SearchPlan, outcome: TrialOutcomes) -> SearchResults:
    """Read the results of a search so far from its folder."""
    made = [_read(folder, plan, trial, outcome) for trial in plan.known_trials(folder)]
    rows = [one.row(plan, outcome) for one in made]

    # a trial without a result has none of the user's measures, one of another method other settings
    settings = dict.fromkeys(_setting_columns(plan))
    measures = dict.fromkeys([*(name for row in rows for name in row), plan.metric], math.nan)
    rows = [measures | settings | row for row in rows]

    choices = tuple(
        _best(plan, [one.trial for one in made if one.trial.line == line], rows)
        for line in range(len(plan.lines))
    )
    winner = choices[0].trial.number if choices[0] and not outcome.stopped else None

    # a run that broke off, as one does that diverges, ended where its releases had it end
    broken = any(one.summary and one.summary["status"] != "done" for one in made)
    spent = _spent(
        plan,
        made,
        None if plan.comparison else winner,
        cut=outcome.stopped or plan.scheduling.cuts or broken,
    )
    return SearchResults(tuple(rows), choices, tuple(spent))


@dataclass(frozen=True)
class _Made:
    """A trial and what its run's folder says of it."""

    trial: Trial
    path: Path
    summary: Mapping[str, Any]
    """{} without one."""
    rows: Rows | None
    fault: str
    """Why the folder is not to be believed, or why the trial is not started."""
    begun: bool
    """May the run have released anything?"""

    def row(self, plan: SearchPlan, outcome: TrialOutcomes) -> Row:
        """Return the trial's row in the table."""
        trial, summary = self.trial, self.summary
        status, why = self.status(outcome)
        claim = _meant(trial, summary)
        service = self.rows["service"] if self.rows else None

        row = {
            "trial": trial.number,
            "line": str(plan.lines[trial.line]),
            "status": status,
            "reason": why,
            **trial.values,
            **(_measured(self.rows) if self.rows else dict.fromkeys(METRICS, math.nan)),
            "epsilon": float(claim["epsilon"]) if claim and claim["holds"] else math.nan,
            "delta": claim["delta"] if claim else math.nan,
            "adversary": claim["adversary"] if claim else "",
            "accountant": claim["accountant"] if claim else "",
            "late": float(np.mean(array(service["late"])))
            if service is not None and service.num_rows
            else math.nan,
            **{name: json_number(summary.get(name)) for name in _NUMBERS},
            "rate_asked": rate_asked(trial.spec),
            "restarts": len(list(left_runs(self.path))),
            "digest": str(summary.get("digest", "")),
        }

        if plan.soonest is not None:
            row[SOONEST] = self._soonest(plan, status)
        if plan.copies:
            copied = runs_copied(self.path)
            row["copied"] = ", ".join(f"{int(who)} at {updates}" for who, updates in copied)
        return row | {"pace": missed(row)}

    def status(self, outcome: TrialOutcomes) -> tuple[str, str]:
        """Return what became of the trial, and why it has no result."""
        reason = outcome.reasons.get(self.trial.number, "")
        if self.trial.skipped:
            return SKIPPED, self.trial.skipped
        # a run that diverged would do so again: that is a result, though none to choose
        if self.summary.get("failure") == BLOWN_UP:
            return DIVERGED, str(self.summary["failure_reason"])
        if why := self.fault or reason:
            return FAILED, why
        if not self.summary:
            return NOT_RUN, ""

        # nobody but a scheduler and the user stops a run
        if self.summary["status"] == "stopped":
            cut = not outcome.stopped or self.trial.number in outcome.ended
            return (CUT if cut else STOPPED), ""
        done = self.summary["status"] == "done"
        return (DONE, "") if done else (FAILED, str(self.summary["stopped_by"]))

    def _soonest(self, plan: SearchPlan, status: str) -> float:
        """Return the simulated seconds to the target; infinite if the run did not get there."""
        if self.rows is None or plan.soonest is None or status != DONE:
            return math.inf
        sign = 1 if plan.higher else -1
        times = {row["round"]: row["time"] for row in self.rows["evaluation"].to_pylist()}
        there = (
            times[updates]
            for updates, value in curve(self.rows, plan.metric).items()
            if sign * value >= sign * plan.soonest
        )
        return min(there, default=math.inf)


def _read(folder: Path, plan: SearchPlan, trial: Trial, outcome: TrialOutcomes) -> _Made:
    path = run_path(folder, trial)
    begun = path.is_dir() or trial.number in outcome.started
    if trial.skipped:
        return _Made(trial, path, {}, None, trial.skipped, begun)
    if plan.copies and RunFolder.begun(path):
        trial = _as_trained(trial, path)
    summary, rows, fault = read_made(trial.planned(), path)
    return _Made(trial, path, summary, rows, fault, begun)


def _as_trained(trial: Trial, path: Path) -> Trial:
    """Return a trial with the step sizes that its run has had, also from the trials that it copied.

    A run that differs in any other setting is none of the trial, which is returned as it is.
    """
    try:
        spec = RunFolder.open(path).spec()
    except InputError:
        return trial  # reading the run says why

    # whatever else differs is caught where the run's scenario is held against the trial's
    names = [name.removeprefix("method.") for name in trial.values]
    names += [f"{name}_at" for name in names]
    found = {name: getattr(spec.method, name, None) for name in names}
    method = replace(trial.spec.method, **found)
    if other_setting(spec, trial.spec.model_copy(update={"method": method})):
        return trial
    settings = (f"method.{name}={literal(value)}" for name, value in found.items() if value)
    return replace(trial, settings=tuple(settings), spec=spec)


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


def curve(rows: Rows, metric: str) -> dict[int, float]:
    """Return a metric of a run by updates, each at the first evaluation after so many.

    NaN where the loss is no number: such a run has diverged, whatever it predicts.
    """
    part = "validation" if metric.startswith("validation_") else "test"
    name = metric.removeprefix("validation_")
    kind = {"accuracy": "evaluation", "loss": "evaluation", "roc_auc": "auc", "pr_auc": "auc"}.get(
        name, name
    )

    def first(kind: str, name: str) -> dict[int, float]:
        if kind not in rows:  # a measure of its own name
            found = (r for r in reversed(rows["measure"].to_pylist()) if r["name"] == name)
            return {r["round"]: r["value"] for r in found if r["part"] == part}
        return {r["round"]: r[name] for r in reversed(rows[kind].to_pylist()) if r["part"] == part}

    losses = first("evaluation", "loss")
    return {
        updates: value if math.isfinite(losses.get(updates, math.nan)) else math.nan
        for updates, value in first(kind, name).items()
    }


def _meant(trial: Trial, summary: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what a run claims against whom its noise is meant."""
    planned = planned_claim(trial.spec) if summary.get("epsilon") else None
    if planned is None:
        return None
    terms = (planned.adversary, planned.relation)
    return next((c for c in summary["epsilon"] if (c["adversary"], c["relation"]) == terms), None)


def _best(plan: SearchPlan, trials: Sequence[Trial], rows: Sequence[Row]) -> BestPoint | None:
    """Return the best settings of one line, or None where no trial of it came to its end.

    Trials that differ in their seed alone are one point of the space. Of the points of which most
    seeds came to their end, that with the best median over these is chosen, of equal ones the
    first. With pbt every trial is a point.
    """
    points: dict[Any, list[Trial]] = grouped(
        (trial.number if plan.copies else trial.point, trial)
        for trial in trials
        if not trial.skipped
    )

    by_number = {row["trial"]: row for row in rows}
    best, found = (0, -math.inf, -math.inf), None
    for alike in points.values():
        over = [t for t in alike if _has_result(by_number[t.number], plan)]
        if not over:
            continue

        median = statistics.median(by_number[t.number][plan.metric] for t in over)
        seconds = math.nan
        if plan.soonest is not None:
            seconds = statistics.median(by_number[t.number][SOONEST] for t in over)

        # more finished seeds first, since a median of few is easily high
        time = 0.0 if math.isnan(seconds) else -seconds
        score = (len(over), time, median if plan.higher else -median)
        if found is None or score > best:
            best = score
            ordered = tuple(sorted(over, key=lambda t: t.spec.seed))
            found = BestPoint(ordered, median, seconds, len(points), ())
    return None if found is None else replace(found, edges=tuple(_edges(found.trial, trials)))


def _has_result(row: Row, plan: SearchPlan) -> bool:
    return row["status"] == DONE and not math.isnan(row[plan.metric])


def _edges(best: Trial, trials: Sequence[Trial]) -> Iterator[str]:
    for name, value in best.values.items():
        # a trial that copied another has the steps of its change, and the others have none
        tried = {t.values[name] for t in trials if is_number(t.values.get(name))}
        if name != "seed" and len(tried) > 1 and value in (min(tried), max(tried)):
            yield f"{name}={literal(value)}"


def _spent(
    plan: SearchPlan, made: Sequence[_Made], winner: int | None, *, cut: bool
) -> list[Composed]:
    """Return what the search spent, for each claim of the best trial; without one, of any that was
    started.

    Every run that was started is charged: by its record, or by its whole plan where nobody knows
    how far it came. So are the runs that a trial left, but for those that a copy stands for.
    """
    released, planned, possible = dict[str, Claims](), dict[str, Claims](), 0
    tried = [one for one in made if not one.trial.skipped]
    for one in tried:
        name = f"trial {one.trial.number}"
        whole = [vars(claim) for claim in planned_claims(one.trial.spec)]
        planned[name] = whole
        if one.summary:
            released[name] = [_claim(c) for c in one.summary["epsilon"]]
        elif one.begun:
            released[name] = whole
            possible += 1

        # a run that the trial left has released, whatever came of it
        for n, _ in enumerate(left_runs(one.path), 1):
            again = f"{name}, started before ({n})"
            released[again] = planned[again] = whole
            possible += 1

    # those that are still to be chosen: like the others, wherever a number is justified
    alike = [vars(claim) for claim in planned_claims(plan.first_spec)]
    planned |= {f"trial {n}, to be chosen": alike for n in range(len(made), plan.size)}
    best = None if winner is None else released[f"trial {winner}"]
    adaptive = plan.suggestions is not None or plan.copies
    same_data = _same_data([one.trial for one in tried])
    return compose(SearchClaims(best, released, planned, same_data, cut, adaptive, possible))


def _same_data(trials: Sequence[Trial]) -> bool:
    found = [_protected(trial.spec) for trial in trials]
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
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} or (len(kinds) == 1 and list not in kinds):
        numbers = float in kinds
        return pa.array([float(v) if numbers and v is not None else v for v in values])
    return pa.array([v if v is None or isinstance(v, str) else json.dumps(v) for v in values])


def is_number(value: Any) -> bool:
    """Return whether a value of a setting is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def rate_asked(spec: AnyScenario) -> float:
    """Return uploads per second of all clients as `[arrivals]` asks for them; NaN where nothing is
    asked of a machine.

    That is under the virtual clock, where clients come as soon as they can, and where they wait for
    one another.
    """
    if spec.clock.kind != "wall" or spec.barrier > 1:
        return math.nan
    return sum(rates_asked(spec.arrivals.kind, spec.arrivals.rate, spec.split.clients))


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
