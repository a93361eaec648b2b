"""What a person should know before trusting a run's numbers: failures by name, and warnings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from raydpzv.arrow_columns import array, equal
from raydpzv.data.tabular import nameless
from raydpzv.experiment.prepare import Prepared
from raydpzv.methods.schedule import never_reached
from raydpzv.records import lateness, metrics
from raydpzv.records.lateness import clock_warnings
from raydpzv.records.store import Rows
from raydpzv.records.summary_fields import shown
from raydpzv.settings.party_names import label

_LISTED = 8
LATE = 0.1
"""Late share above which the machine, not the scenario, sets the pace (wall clock) or clients are
saturated.
"""
_SATURATED = "these clients could not keep their rates"
_KEPT_UP = "these clients kept their rates, but began so often later than [arrivals] asks for"
SILENT = 0.25
"""Share of a run's time (wall clock) for which a client may be silent without a word about it,
...
"""
_SILENT_TRIPS = 12
"""... and mean times between two uploads of a client: the longest of thousands of exponential gaps
is some ten of them.
"""


def warnings(experiment: Prepared, rows: Rows, failed: tuple[str, str]) -> list[str]:
    """Return one sentence per finding; an empty list is good news.

    failed: why the run is no result, in a word and in a sentence, as
    `raydpzv.experiment.diagnostics.failure` says it.
    """
    spec = experiment.spec
    said = [spec.note] if spec.note else []
    late = never_reached(spec.method, spec.budget.updates) if spec.budget.updates else ()
    found = [*said, *experiment.remarks, *_unused(experiment), *late]
    found += _of_result(experiment, rows, failed)
    found += (
        _lateness(experiment, rows) if experiment.lateness_by_client else _overall_lateness(rows)
    )
    found += clock_warnings(experiment.spec.arrivals, experiment.spec.split.clients, rows)
    found += _silence(experiment, rows) if experiment.spec.clock.kind == "wall" else []
    setting = experiment.setting
    return found + ([large] if setting and (large := setting.large_delta()) else [])


def _unused(experiment: Prepared) -> list[str]:
    columns = [name for name in experiment.unused if not nameless(name)]  # a frame's row numbers
    if not columns:
        return []
    more = f" and {len(columns) - _LISTED} more" if len(columns) > _LISTED else ""
    setting = "split.parties" if experiment.spec.party_names else "split.columns"
    return [
        f"no client holds the columns {', '.join(columns[:_LISTED])}{more}: they are not used; "
        f"list them in {setting}"
    ]


def _of_result(experiment: Prepared, rows: Rows, failed: tuple[str, str]) -> list[str]:
    if rows["evaluation"].num_rows == 0 or rows["service"].num_rows == 0:
        return ["no update was made"]
    word, why = failed
    found = [f"{shown(word).upper()}: {why}"] if word else []
    scored = tested(rows)
    # before the first of its evaluations a model is all but the initial one
    if scored and scored[-1]["round"] >= experiment.spec.evaluate.every:
        found += [*_collapse(rows, max(experiment.class_shares()), word), *_fall(rows)]
    found += _overconfidence(rows, word)
    nonfinite = int(np.sum(array(rows["release"].column("nonfinite"))))
    if nonfinite:
        found.append(f"{nonfinite:,} per-sample slopes were NaN or infinite and counted as 0")
    return found


def _collapse(rows: Rows, largest: float, failed: str) -> list[str]:
    scored = tested(rows)
    if not scored or failed == CONSTANT or not collapsed(scored[-1]["top_share"], largest):
        return []
    top, accuracy = scored[-1]["top_share"], scored[-1]["accuracy"]
    return [
        f"COLLAPSED: {100 * top:.1f} % of the held-out rows are predicted as one class, and the "
        f"largest class is {100 * largest:.1f} % of them: accuracy {100 * accuracy:.1f} % is next "
        "to a constant prediction's; add less noise or lower the step sizes"
    ]


def _fall(rows: Rows) -> list[str]:
    scored = [row for row in tested(rows) if not math.isnan(row["accuracy"])]
    peak = max(scored, key=lambda row: row["accuracy"], default=None)
    if peak is None or not fallen(peak["accuracy"], scored[-1]["accuracy"]):
        return []
    return [
        f"FALLEN: the final accuracy {100 * scored[-1]['accuracy']:.1f} % is far below the run's "
        f"peak, {100 * peak['accuracy']:.1f} % at update {peak['round']:,}; add less noise, lower "
        "step sizes or end earlier"
    ]


def _overconfidence(rows: Rows, failed: str) -> list[str]:
    scored = tested(rows)
    if not scored or failed or not blown_up(scored[0]["loss"], scored[-1]["loss"]):
        return []
    if math.isnan(scored[0]["accuracy"]):
        return []  # scores rank survival times, or are numbers: there are no certainties
    first, last = scored[0]["loss"], scored[-1]["loss"]
    return [
        f"OVERCONFIDENT: the test loss went from {first:.3g} to {last:.3g} though the accuracy is "
        f"{100 * scored[-1]['accuracy']:.1f} %: its mistakes are near certainties; add less noise "
        "or lower step sizes"
    ]


def tested(rows: Rows) -> list[dict[str, Any]]:
    """Return the evaluations on the test rows, in order."""
    return rows["evaluation"].filter(equal(rows["evaluation"]["part"], "test")).to_pylist()


def _lateness(experiment: Prepared, rows: Rows) -> list[str]:
    # at a barrier epochs pass while a client waits for the others: late is then the protocol's
    # doing, not a finding
    if experiment.barrier > 1:
        return []
    clients, service = experiment.spec.split.clients, rows["service"]
    found: dict[str, list[str]] = {_SATURATED: [], _KEPT_UP: []}
    shares = zip(
        metrics.late_share(service, clients), metrics.behind(service, clients), strict=True
    )
    for client, (late, behind) in enumerate(shares):
        if late > LATE:
            found[_SATURATED if behind > LATE else _KEPT_UP].append(
                f"{label(client, experiment.spec.party_names)} {100 * late:.0f} %"
            )
    return [
        f"epochs fell into running round trips ({', '.join(named)} of {_whose(named)} "
        f"activations): {what}"
        for what, named in found.items()
        if named
    ]


def _whose(named: Sequence[str]) -> str:
    return "its" if len(named) == 1 else "their"


def _silence(experiment: Prepared, rows: Rows) -> list[str]:
    """Name the clients that were away for long: of none of their uploads was heard for a good part
    of the run.
    """
    clients, service = experiment.spec.split.clients, rows["service"]
    names = experiment.spec.party_names
    if clients > lateness.MOST_CLIENTS or not service.num_rows:
        return []
    span, pace = float(np.max(array(service.column("served")))), clients / service.num_rows
    away = [
        f"{label(one['client'], names)} for {one['longest_silence']:.3g} s "
        f"({100 * one['share']:.1f} % of the updates are its)"
        for one in lateness.presence(service, clients)
        if one["longest_silence"] > max(SILENT, _SILENT_TRIPS * pace) * span
    ]
    said = f"clients were silent for long in the {span:.3g} s of the run: {', '.join(away)}"
    return [said] if away else []


def _overall_lateness(rows: Rows) -> list[str]:
    service = rows["service"]
    share = float(np.mean(array(service.column("late")))) if service.num_rows else 0.0
    if share <= LATE:
        return []
    return [
        f"{100 * share:.0f} % of the activations began late: their clients, or under the wall "
        "clock their hosts, were still at work; lower arrivals.rate or clock.compute to let the "
        "rates set the pace"
    ]


DIVERGED, CONSTANT, SHARE = "diverged", "constant prediction", "one class' share"
COLLAPSED_TOP = 0.9
"""Share of the rows predicted as one class from which a model is suspect; a sound one of two equal
classes has 0.5.
"""
COLLAPSED_EXCESS = 0.8
"""... and how much of what is not the largest class must be predicted as it too. Where 95 % of the
rows are one class, a sound model predicts it about as often, so that 90 % alone would say
nothing."""
FALLEN = 0.2
"""Share of its best accuracy that a run must have lost. Of the best of many evaluations on a few
dozen rows, a tenth is luck (two standard errors at 90 % of 36 rows); a fifth is not."""


def failure(rows: Rows, shares: Sequence[float]) -> tuple[str, str]:
    """Return why a run's last evaluation is no result, in a word and in a sentence; two empty texts
    if it is one.

    shares: of the classes among the held-out rows. A run has diverged where its loss is no number,
    or where it has blown up (see `blown_up`) and the accuracy is gone with it: no better than at
    the start or than the largest class, or far below the run's best. With survival times, which
    have no accuracy, concordance is looked at, with numbers the loss alone.
    """
    evaluations = tested(rows)
    if not evaluations:
        return "", ""
    first, last = evaluations[0], evaluations[-1]
    accuracy, loss = last["accuracy"], last["loss"]
    grown = blown_up(first["loss"], loss)
    no_number = DIVERGED, f"the test loss is {loss:g}; lower the step sizes"
    too_large = (
        DIVERGED,
        f"the test loss went from {first['loss']:.3g} to {loss:.3g}; lower the step sizes",
    )
    if "concordance" in rows and rows["concordance"].num_rows:  # survival times
        ranked = metrics.final_score(rows["concordance"], "concordance")
        if not (math.isfinite(loss) and math.isfinite(ranked)):
            return no_number
        if ranked == 0.5 and last["round"] and not grown:
            return (
                CONSTANT,
                "every held-out row has the same score: the concordance is that of chance",
            )
        return too_large if grown and ranked <= 0.5 else ("", "")
    if all(math.isnan(row["accuracy"]) for row in evaluations):  # numbers
        if not math.isfinite(loss):
            return no_number
        return too_large if grown else ("", "")
    best = max(
        (row["accuracy"] for row in evaluations if not math.isnan(row["accuracy"])),
        default=math.nan,
    )
    learned = accuracy > max(first["accuracy"], *shares) and not fallen(best, accuracy)
    if not (math.isfinite(loss) and math.isfinite(accuracy)):
        return no_number
    if last["top_share"] == 1.0:
        why = (
            f"every held-out row is predicted as one class: accuracy {accuracy:.4g} is that class' "
            "share"
        )
        return CONSTANT, f"{why}, and the test loss has grown to {loss:.3g}" if grown else why
    if grown and not learned:
        return too_large
    if any(math.isclose(accuracy, share, rel_tol=1e-6) for share in shares):
        return (
            SHARE,
            (
                f"accuracy {accuracy:.4g} is exactly the share of one class; look at it before you "
                "believe it"
            ),
        )
    return "", ""


def blown_up(first: float, last: float) -> bool:
    """Return whether a test loss is above three times the first one (or 1, if that was less)."""
    return last > 3 * max(first, 1.0)


def collapsed(top_share: float, largest_class_share: float) -> bool:
    """Return whether a model all but predicts one class, which the data do not explain. Shares of
    the held-out rows.

    NaN, which stands for what is not known, is no collapse.
    """
    excess = top_share - largest_class_share
    return top_share >= COLLAPSED_TOP and excess >= COLLAPSED_EXCESS * (1 - largest_class_share) > 0


def fallen(best: float, accuracy: float) -> bool:
    """Return whether a final accuracy is far below the best of the same run; NaN is not."""
    return best - accuracy >= FALLEN * best > 0


def not_above(accuracy: float, control: float) -> bool:
    """Return whether a run has not passed its control, whose clients are never trained; NaN on
    either side is not.
    """
    return accuracy <= control
