"""A run's summary in words: its first line, and (name, value) rows for a console or a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table
from rich.text import Text

from raydpzv.foreign import is_foreign
from raydpzv.methods.recorded_method import METHOD
from raydpzv.privacy.claim_words import smallest, stated, withheld
from raydpzv.records.summary_fields import NEWEST, beside, shown
from raydpzv.registry import METHODS
from raydpzv.report import text

if TYPE_CHECKING:
    import pyarrow as pa

Summary = Mapping[str, Any]
Row = tuple[str, str]

SO_FAR = "epsilon_so_far"
"""The part of the summary of a run at work that says what it has spent of each ε; all others are
planned then.
"""
_DIGEST = 16  # hex digits shown on a console: enough to compare by eye


def is_horizontal(summary: Summary) -> bool:
    """Return whether the run's clients share out rows and train one model, rather than share out
    features.
    """
    name = summary.get("method")
    if is_foreign(name):
        return bool(_own_method(summary).get("horizontal"))
    return name in METHODS and METHODS[str(name)].one_model


def headline(summary: Summary) -> str:
    """Return the first line of a run's summary; its accuracy follows PRIVATE, and ends what follows
    NOT PRIVATE.
    """
    return stated(summary).headline(accuracy_line(summary))


def accuracy_line(summary: Summary) -> str:
    """Return the final test accuracy, or what stands for it, after how many updates, and what is
    wrong with it.
    """
    updates = updates_text(summary)
    unit = "" if "rounds" in updates or "updates" in updates else " updates"
    best, name = _chosen(summary), score_name(summary)
    show = text.percent if name == "accuracy" else text.number
    line = f"Test {name} {show({**summary, **measures(summary)}.get(name))} after {updates}{unit}"
    line += f" (best model: {best})" if best else ""
    if failure := summary.get("failure"):
        return f"{line}: NO RESULT, {shown(str(failure))}."
    if summary.get("status") != "done":
        return f"{line}; the run {shown(str(summary.get('stopped_by') or 'did not finish'))}."
    return f"{line}."


def score_text(summary: Summary, name: str) -> str:
    """Return a run's score, and in brackets what it is judged by."""
    show = text.percent if name == "accuracy" else text.number
    against = [
        f"{of} {text.percent(value) if of == 'largest class' else text.number(value)}"
        for of, value in beside(summary).items()
    ]
    score = show({**summary, **measures(summary)}.get(name))
    return f"{score} ({', '.join(against)})" if against else score


def measures(summary: Summary) -> Mapping[str, Any]:
    """Return the measures of numbers, and those of the user, by name."""
    found = summary.get("measures")
    return found if isinstance(found, Mapping) else {}


def score_name(summary: Summary) -> str:
    """Return what a run's model is judged by: accuracy; of times concordance; of numbers rmse, or
    else the loss.
    """
    if text.known(summary.get("concordance")):
        return "concordance"
    if not text.known(summary.get("accuracy")) and "rmse" in measures(summary):
        return "rmse"
    return (
        "loss"
        if text.known(summary.get("loss")) and not text.known(summary.get("accuracy"))
        else "accuracy"
    )


def summary_rows(summary: Summary, clock: str = "virtual") -> list[Row]:
    """Return (name, value) for what a summary says, but for privacy and the staleness of single
    clients.

    clock: the run's, "virtual" or "wall": its seconds are simulated or real.
    """
    return [
        *_words(summary, "scenario", "method", "seed"),
        ("engine", str(summary.get("engine", "torch"))),
        ("status", _status(summary)),
        *_evaluated(summary),
        *_scores(summary),
        ("test loss", text.number(summary.get("loss"))),
        ("updates", updates_text(summary)),
        ("bytes up", text.size(summary.get("bytes_up"))),
        ("bytes down", text.size(summary.get("bytes_down"))),
        *_users(summary),
        *_vector(summary),
        *_times(summary, clock),
        *_compiling(summary),
        *(lag_rows(summary) if is_horizontal(summary) else [("staleness", _aged(summary))]),
        *ledger_rows(summary),
        ("digest of rows", str(summary.get("digest", text.NONE))),
        *_model(summary),
    ]


def key_figures(summary: Summary, clock: str = "virtual", *, published: bool = False) -> list[Row]:
    """Return the few figures that a page opens with; published: those that may leave of a private
    run alone.
    """
    claims = summary.get("epsilon") or ()
    epsilon, whom = smallest(claims)
    noised = any(claim["mechanism"] != "none" for claim in claims)
    nothing = (
        "no useful ε is proved" if noised else "nothing is promised, because no noise is added"
    )
    so_far = summary.get(SO_FAR)
    proved = ("ε planned" if so_far else "ε", f"{epsilon}, against {whom}" if epsilon else nothing)
    if published:
        return [
            proved,
            ("updates", text.number(summary.get("updates"))),
            ("status", _status(summary)),
        ]
    name, stale = score_name(summary), summary.get("staleness") or {}
    real, run = (text.seconds(summary.get(key)) for key in ("seconds", "simulated_seconds"))
    passed = clock == "wall" or not summary.get("simulated_seconds")
    both = (
        f"{real} real, {run} simulated"
        if text.known(summary.get("seconds"))
        else f"{run} simulated"
    )
    return [
        (f"test {name}", score_text(summary, name)),
        *([("ε so far", so_far)] if so_far else []),
        proved,
        *([("staleness", _aged(summary))] if text.known(stale.get("mean")) else []),
        (
            "bytes",
            f"{text.size(summary.get('bytes_up'))} up, {text.size(summary.get('bytes_down'))} down",
        ),
        ("time", real if passed else both),
    ]


def published_rows(summary: Summary) -> list[Row]:
    """Return (name, value) for what was published of a run's summary, but for privacy."""
    rows = _words(summary, "scenario", "method", "seed", "engine")
    rows += [("status", _status(summary)), ("updates", text.number(summary.get("updates")))]
    rows += _evaluated(summary)
    if ledger := summary.get("ledger"):
        rows += [("releases in the ledger", text.number(ledger.get("pairs")))]
        rows += [("digest of ledger", str(ledger.get("digest", text.NONE)))]
    return [*rows, *_model(summary)]


def summary_table(summary: Summary, clock: str = "virtual") -> Table:
    """Return the summary as a two-column console table, digests shortened. clock: see
    `summary_rows`.
    """
    # a private run's rows hold losses: anyone who knows all but a label would find it by their
    # digest
    unshown = ("versions", "digest of rows") if withheld(summary) else ("versions",)
    return pairs_table(
        [
            (name, value[:_DIGEST] if name.startswith("digest") else value)
            for name, value in summary_rows(summary, clock)
            if name not in unshown
        ]
    )


def pairs_table(rows: Sequence[Row]) -> Table:
    """Return names and values as a console table."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def updates_text(summary: Summary) -> str:
    """Return the number of updates; of a horizontal run also what an update was: a round of
    uploads, or each upload.
    """
    updates, uploads = summary.get("updates"), summary.get("uploads")
    count = text.number(updates)
    if not is_horizontal(summary) or not updates or uploads is None or _is_agent(summary):
        return count
    return (
        f"{count} rounds ({uploads:,} uploads)"
        if uploads > updates
        else f"{count} updates, one per upload"
    )


def lag_rows(summary: Summary) -> list[Row]:
    """Return what clients missed and how old their models were; nothing of what the method does not
    have.
    """
    stale = summary.get("staleness") or {}
    if stale.get("mean") is None or _is_agent(summary):
        return []
    if not stale.get("max") and not stale.get("late_share"):
        rows = [("lag", "0: every upload was made at the newest model")]
    else:
        rows = [("lag", _aged(summary))]
        rows += [("late", f"{text.percent(stale.get('late_share'))} of the activations")]
    missed = (
        f"mean {text.number(stale.get('missed_mean'))}, max {text.number(stale.get('missed_max'))}"
    )
    pairs = f"mean {text.number(stale.get('pairs_mean'))} per activation"
    rows += [("missed updates", f"{missed} per activation"), ("pairs received", pairs)]
    if stale.get("pulled_share"):
        rows += [("model pulled", f"{text.percent(stale['pulled_share'])} of the activations")]
    return rows


def ledger_rows(summary: Summary) -> list[Row]:
    """Return size and digest of the run's ledger, and the drift of clients that revert without a
    snapshot.
    """
    rows: list[Row] = []
    if ledger := summary.get("ledger"):
        size = f"{text.number(ledger.get('pairs'))} pairs, {text.size(ledger.get('bytes'))}"
        rows += [("ledger", f"{text.number(ledger.get('updates'))} updates, {size} on disk")]
        rows += [("digest of ledger", str(ledger.get("digest", text.NONE)))]
    if drift := summary.get("drift"):
        largest, share = text.short(drift.get("largest")), text.percent(drift.get("share"))
        rows += [("drift", f"largest {largest}, up to {share} of a client's parameters")]
    return rows


def participant_rows(message: pa.Table) -> list[Row]:
    """Return how many clients took part, and the bytes of the median and of the busiest of them."""
    from raydpzv.records import (
        traffic,
    )  # and pyarrow with it: the other functions here read summaries alone

    up, down = traffic.bytes_of_participants(message)
    if not len(up):
        return []
    return [("clients that took part", f"{len(up):,}"), _spread("up", up), _spread("down", down)]


def _spread(direction: str, amounts: Sequence[int] | np.ndarray) -> Row:
    median, most = text.size(int(np.median(amounts))), text.size(int(np.max(amounts)))
    return f"bytes {direction} per client", f"median {median}, most {most}"


def _words(summary: Summary, *names: str) -> list[Row]:
    return [(name, str(summary.get(name, text.NONE))) for name in names]


def _model(summary: Summary) -> list[Row]:
    versions = (
        ", ".join(f"{k} {v}" for k, v in (summary.get("versions") or {}).items()) or text.NONE
    )
    return [
        ("digest of model", str(summary.get("model_digest", text.NONE))),
        ("versions", versions),
    ]


def _evaluated(summary: Summary) -> list[Row]:
    """Return which model accuracy and digest speak of, where it is not the newest."""
    found = str(summary.get("evaluated_model", NEWEST))
    return [] if found == NEWEST else [("model", found)]


def _chosen(summary: Summary) -> str | None:
    """Return the test accuracy of the model that the validation rows choose, and which that is;
    None without them.
    """
    best, update = summary.get("best_accuracy"), summary.get("best_update")
    if not text.known(best) or update is None:
        return None
    by = text.percent(summary.get("validation_accuracy"))
    return f"{text.percent(best)}, chosen by validation ({by}) after update {update:,}"


def _scores(summary: Summary) -> list[Row]:
    """Return the test scores: accuracies, those of two classes or survival times, and measures of
    their own name.
    """
    best, accurate = _chosen(summary), score_name(summary) == "accuracy"
    rows = [("test accuracy", text.percent(summary.get("accuracy")))] if accurate else []
    if largest := beside(summary).get("largest class"):
        rows += [("largest class of the test rows", text.percent(largest))]
    rows += [("test accuracy of the best model", best)] if best else []
    named = (
        ("area under the ROC curve", "roc_auc", text.number),
        ("average precision (PR curve)", "pr_auc", text.number),
        ("balanced accuracy", "balanced_accuracy", text.percent),
        ("concordance", "concordance", text.number),
    )
    rows += [
        (name, show(summary[key])) for name, key, show in named if text.known(summary.get(key))
    ]
    return rows + [(name, text.number(value)) for name, value in measures(summary).items()]


def _status(summary: Summary) -> str:
    status, by = str(summary.get("status", text.NONE)), shown(str(summary.get("stopped_by") or ""))
    return f"{status} ({by})" if by and not by.endswith(status) else by or status


def _is_agent(summary: Summary) -> bool:
    """Return whether the one client is its own server: what it catches up on never travels."""
    name = str(summary.get("method"))
    if is_foreign(name):
        return bool(_own_method(summary).get("agent"))
    return is_horizontal(summary) and METHODS[name].agent


def _own_method(summary: Summary) -> Mapping[str, Any]:
    """Return what a summary says of a method of the user's own, whose code no report reads."""
    found = summary.get(METHOD)
    return found if isinstance(found, Mapping) else {}


def _users(summary: Summary) -> list[Row]:
    """Return whose privacy a run protects and how sums reach the server; nothing of runs that
    protect no users.
    """
    found = summary.get("user_level")
    if not found:
        return []
    users = (
        f"{found['users']:,} users in {found['silos']:,} silos, {found['pairs']:,} pairs of both"
    )
    rows = [
        ("users", users),
        ("aggregation", f"{found['aggregation']}, {found['weights']} weights"),
    ]
    if found.get("sensitivity") is not None:
        reach = f"{text.number(found['sensitivity'])} (one user, add or remove; noise is σC)"
        rows += [("sensitivity", reach)]
    if part := found.get("took_part"):
        tried = (
            f"{text.number(part['mean'])} of {found['silos']} on average, {part['least']} at the "
            "least"
        )
        rows += [("silos that took part", f"{tried}, in {found['attempts']:,} attempts")]
    return rows


def _vector(summary: Summary) -> list[Row]:
    """Return DeComFL's communication vector length; nothing of runs that do not have it."""
    length = summary.get("vector_length")
    if length is None:
        return []
    return [
        (
            "communication vector length",
            f"{text.number(length)} numbers sent, both ways, per client",
        )
    ]


def _times(summary: Summary, clock: str) -> list[Row]:
    """Return how long the run took, really and simulated, and its updates per second of each."""
    updates, real, run = (summary.get(name) for name in ("updates", "seconds", "simulated_seconds"))
    if legs := summary.get("legs"):
        took = (
            f"{text.seconds(run)} by the run's clock, in {legs['count']} legs; the last of them "
            f"took {text.seconds(real)} with its begin and end"
        )
        return [
            ("real time", took),
            ("gaps between legs", _gaps(legs)),
            *_rate("real", updates, run),
        ]
    if clock == "wall":
        took = f"{text.seconds(real)}, of which the run {text.seconds(run)}"
        return [("real time", took), *_rate("real", updates, run)]
    simulated = "0 s (no delays simulated)" if run == 0 else text.seconds(run)
    before = summary.get("updates_before", 0)
    since = f", since it was continued after update {before:,}" if before else ""
    return [
        ("real time", f"{text.seconds(real)}{since}"),
        ("simulated time", simulated),
        *_rate("simulated", updates, run),
        *_rate("real", updates - before if text.known(updates) else updates, real),
    ]


def _compiling(summary: Summary) -> list[Row]:
    """Return what was compiled, of a run that found not all on its machines; others load it from
    there.
    """
    found = summary.get("kernels")
    if not found:
        return []
    return [("kernels", f"{found['compiled']} compiled in {text.seconds(found['seconds'])}")]


def _gaps(legs: Mapping[str, Any]) -> str:
    gaps = ", ".join(text.NONE if gap is None else text.seconds(gap) for gap in legs["gaps"])
    again = f"; {legs['recovered']:,} updates were on the ledger alone" if legs["recovered"] else ""
    return f"{gaps} (in no time of the run's){again}"


def _rate(kind: str, updates: int | None, seconds: float | None) -> list[Row]:
    if not updates or not seconds or math.isnan(seconds):
        return []
    return [(f"updates per {kind} second", text.number(updates / seconds))]


def _aged(summary: Summary) -> str:
    stale, unit = summary.get("staleness") or {}, "updates" if is_horizontal(summary) else "rounds"
    return f"mean {text.number(stale.get('mean'))}, max {text.number(stale.get('max'))} {unit}"
