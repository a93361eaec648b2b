"""The finding of an audit: verdict, line, table, notes, and plain data. Each ε is printed with its terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from raydpzv.audit.label_inference import LabelGuesses
from raydpzv.audit.ledger_audit import OTHER_CLASSES, REFUSED, CanarySeen, LedgerAudit
from raydpzv.audit.recorded import RecordedRun
from raydpzv.audit.rerun import GuessesAudit, RunsAudit
from raydpzv.notebook import table_html
from raydpzv.privacy import claim_words
from raydpzv.report import text

NOT_FALSIFIED, FALSIFIED, NOTHING_PROVED = "not falsified", "FALSIFIED", "nothing proved"
_SEES = {
    "client": "clients, who know their batches and all releases",
    "external": "anyone with the final model",
}
_LEAST = "A bound from below at 95 %, seen on these canaries alone: nothing is certified. FALSIFIED is said at 99.9 %."


class _Seen(Protocol):
    """An ε seen: at 95 %, and at 99.9 %."""

    @property
    def epsilon(self) -> float: ...

    @property
    def surely(self) -> float: ...


@dataclass(frozen=True)
class _FindingTable:
    """A finding's table, its notes, and facts of its kind."""

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: tuple[str, ...]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """The finding of one audit.

    verdict: one of the three words above; line: it in a sentence, with ε seen and ε proved; heads, rows: a table;
    notes: sentences below it; facts: all of it as plain data.
    """

    verdict: str
    line: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    facts: Mapping[str, Any]

    def _repr_html_(self) -> str:
        return table_html(self.line, self.rows, self.heads, self.notes)


def of_ledger(run: RecordedRun, audit: LedgerAudit) -> Finding:
    """Return what a ledger audit says."""
    noise, others = audit.noise, sum(c.others for c in audit.canaries)
    heads = ("row", "canary", "scalars with it", "hidden difference", "of releases", "d / σ", "ε seen")
    rows = [(f"{c.canary.row:,}", c.canary.kind, *_seen(c)) for c in audit.canaries]
    hidden = (
        f"Hidden difference: the largest |q - q'| over releases without the record is {_difference(audit.hidden)}"
        + (", as it must be." if audit.hidden == 0 else "; it must be 0 for an ε that counts participation.")
        if others
        else "Every release is about every record, so that no hidden difference can show."
    )
    most = text.number(noise.deviation_up)
    told = f"Noise: {noise.releases:,} released scalars, deviation at most {most} of the one stated"
    notes = (
        hidden,
        f"{told} (95 %), Kolmogorov-Smirnov p = {text.number(noise.p, 2)}.",
        f"ε seen: of d over that deviation. {_LEAST}",
        *(_OUTCOMES[outcome] for outcome in dict.fromkeys(c.outcome for c in audit.canaries) if outcome),
    )
    facts = {
        "noise": {"releases": noise.releases, "deviation_up": noise.deviation_up, "p": noise.p},
        "hidden_difference": audit.hidden,
        "canaries": [asdict(c) for c in audit.canaries],
    }
    shown = _FindingTable(heads, rows, notes, facts)
    return _finding(run, "ledger", "client", audit.worst, shown, audit.contradictions)


def of_runs(run: RecordedRun, audit: RunsAudit) -> Finding:
    """Return what an audit of many runs says."""
    heads = ("row", "canary", "guessed as read, of runs as read", "of runs with it changed")
    row = (
        *(f"{audit.canary.row:,}", audit.canary.kind),
        *(f"{audit.hits} of {audit.inside}", f"{audit.alarms} of {audit.outside}"),
    )
    notes = (
        f"Clopper-Pearson, δ = {text.number(audit.delta)}; as many runs again chose the threshold. {_LEAST}",
    )
    return _finding(run, "runs", "external", audit, _FindingTable(heads, [row], notes, asdict(audit)))


def of_guesses(run: RecordedRun, audit: GuessesAudit) -> Finding:
    """Return what an audit of guesses in one run says."""
    heads = ("canaries", "guesses", "right")
    row = (f"{audit.canaries:,}", f"{audit.guesses:,}", f"{audit.right:,}")
    notes = (f"Steinke, Nasr and Jagielski 2023, δ = {text.number(audit.delta)}. {_LEAST}",)
    return _finding(run, "guesses", "external", audit, _FindingTable(heads, [row], notes, asdict(audit)))


def of_labels(run: RecordedRun, guesses: Sequence[LabelGuesses]) -> Finding:
    """Return what clients' guesses of labels say."""
    heads = ("ε proved", "labels guessed right", "share", "interval", "to be expected", "bound Φ(μ/2)")
    rows = [
        (
            *(text.number(g.epsilon), f"{g.right} of {g.count}", text.percent(g.right / g.count)),
            f"{text.percent(g.low)} to {text.percent(g.high)}",
            *(text.percent(g.expected), text.percent(g.bound)),
        )
        for g in guesses
    ]
    broken = [g for g in guesses if g.broken]
    verdict = FALSIFIED if broken else NOT_FALSIFIED
    where = ", ".join(text.number(g.epsilon) for g in broken)
    line = (
        f"{FALSIFIED}: labels are guessed more often than Φ(μ/2) permits at ε = {where}"
        if broken
        else f"{NOT_FALSIFIED}: no ε at which labels are guessed more often than Φ(μ/2) permits"
    )
    terms = f"δ = {text.number(guesses[0].delta)}, one record's label, against {_SEES['client']}"
    notes = (
        "One label of two candidates, all else known; one run at each ε, with these settings. Intervals hold together "
        "at 95 %. To be expected: the mean of Φ(d/2) over the records. FALSIFIED is said at 99.9 %.",
    )
    facts = {
        "by": "labels",
        "verdict": verdict,
        "adversary": "client",
        "relation": "labels",
        "guesses": [asdict(g) | {"bound": g.bound} for g in guesses],
    }
    return Finding(verdict, f"{line} ({terms}).", heads, tuple(rows), notes, facts)


def _finding(
    run: RecordedRun,
    by: str,
    adversary: str,
    seen: _Seen,
    shown: _FindingTable,
    contradictions: Sequence[str] = (),
) -> Finding:
    """Hold an ε that was seen against the one that the run states against this adversary."""
    claim = run.claim(adversary)
    proved = claim_words.epsilon_of(claim) if claim is not None and claim_words.proves(claim) else None
    reasons = list(contradictions)
    if claim is not None and seen.surely > claim_words.epsilon_of(claim):
        reasons.append("ε seen is above the ε stated")
    delta, change = text.number(run.delta(adversary)), _CHANGES[run.relation]
    terms = f"δ = {delta}, {change}, against {_SEES[adversary]}"
    least = f"ε ≥ {text.number(seen.epsilon)} seen"
    if proved is None:
        verdict, why = NOTHING_PROVED, f" ({'; '.join(reasons)})" if reasons else ""
        line = f"{NOTHING_PROVED}, so that nothing can be falsified: {least}{why} ({terms})."
    else:
        verdict = FALSIFIED if reasons else NOT_FALSIFIED
        said = f"{FALSIFIED}: {'; '.join(reasons)}; {least}" if reasons else f"{NOT_FALSIFIED}, {least}"
        line = f"{said}; proved: ε = {text.number(proved)} ({terms})."
    stated = {
        "by": by,
        "verdict": verdict,
        "reasons": reasons,
        "epsilon_seen": seen.epsilon,
        "epsilon_surely": seen.surely,
        "epsilon_proved": proved,
        "delta": run.delta(adversary),
        "adversary": adversary,
        "relation": run.relation,
    }
    return Finding(verdict, line, shown.heads, tuple(shown.rows), shown.notes, stated | dict(shown.facts))


_CHANGES = {
    "replace": "one record replaced",
    "labels": "one record's label",
    "add_remove": "one record's term set to zero",
}


_OUTCOMES = {
    REFUSED: "refused: a table with such a label is not run, since data.classes does not list it.",
    OTHER_CLASSES: "classes: such a label moves the list of classes, which every release depends on; set data.classes.",
}


def _seen(canary: CanarySeen) -> tuple[str, ...]:
    """Return a canary's cells; of one whose queries cannot be compared, why."""
    if canary.outcome:
        return (canary.outcome, "–", "–", "–", text.number(canary.epsilon))
    return (
        *(
            f"{canary.releases:,}",
            _difference(canary.hidden),
            f"{canary.hidden_count:,} of {canary.others:,}",
        ),
        *(text.number(canary.apart), text.number(canary.epsilon)),
    )


def _difference(value: float) -> str:
    return "0" if value == 0 else text.number(float(value), 3)
