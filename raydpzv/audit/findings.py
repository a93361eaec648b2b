"""The finding of an audit: verdict, line, table, notes, and plain data. Each ε is printed with its
terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from raydpzv.audit.label_inference import LabelGuesses
from raydpzv.audit.ledger_audit import OTHER_CLASSES, REFUSED, SMALLEST_P, CanarySeen, LedgerAudit
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
_LEAST = (
    "The ε shown is a lower bound at 95 % for these records. It certifies nothing. FALSIFIED needs "
    "99.9 %."
)


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

    verdict: one of the three words above; line: it in a sentence, with ε seen and ε proved; heads,
    rows: a table;
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
    heads = (
        "row",
        "changed",
        "releases with it",
        "others changed",
        "largest change",
        "d / σ",
        "ε shown",
    )
    rows = [(f"{c.canary.row:,}", c.canary.kind, *_seen(c)) for c in audit.canaries]
    change = _difference(audit.hidden)
    hidden = (
        "Every release uses every record, so there are no others to compare."
        if not others
        else (
            "Releases without the changed record stay the same. So ε may count only the releases "
            "with it."
            if audit.hidden == 0
            else (
                f"Releases without the changed record change by {change} at most. "
                "So an ε that counts only the releases with it does not hold."
            )
        )
    )
    notes = (
        (
            "For each row of the table, raydpzv changed one training record and computed all "
            "releases without noise."
        ),
        hidden,
        "d / σ: how far the record moves its releases, in standard deviations of the noise.",
        (
            f"Noise of the {noise.releases:,} released numbers: at most "
            f"{text.number(noise.deviation_up)} times the stated deviation, at 95 %. "
            f"Kolmogorov-Smirnov test of the normal law: p = {text.number(noise.p, 2)} (at least "
            f"{SMALLEST_P:g} wanted)."
        ),
        _LEAST,
        *(
            _OUTCOMES[outcome]
            for outcome in dict.fromkeys(c.outcome for c in audit.canaries)
            if outcome
        ),
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
    heads = (
        "row",
        "changed",
        'runs as read: guessed "as read"',
        'runs with the change: guessed "as read"',
    )
    row = (
        f"{audit.canary.row:,}",
        audit.canary.kind,
        f"{audit.hits} of {audit.inside}",
        f"{audit.alarms} of {audit.outside}",
    )
    notes = (
        (
            "The attacker sees the final model and guesses whether the record was changed. As many "
            "other runs set the threshold."
        ),
        f"Bound of Clopper and Pearson, δ = {text.number(audit.delta)}.",
        _LEAST,
    )
    return _finding(
        run, "runs", "external", audit, _FindingTable(heads, [row], notes, asdict(audit))
    )


def of_guesses(run: RecordedRun, audit: GuessesAudit) -> Finding:
    """Return what an audit of guesses in one run says."""
    heads = ("records changed by a coin", "guesses made", "right guesses")
    row = (f"{audit.canaries:,}", f"{audit.guesses:,}", f"{audit.right:,}")
    notes = (
        (
            "A coin decided whether each record was changed. The attacker sees the final model and "
            "guesses the coins."
        ),
        f"Bound of Steinke, Nasr and Jagielski (2023), δ = {text.number(audit.delta)}.",
        _LEAST,
    )
    return _finding(
        run, "guesses", "external", audit, _FindingTable(heads, [row], notes, asdict(audit))
    )


def of_labels(run: RecordedRun, guesses: Sequence[LabelGuesses]) -> Finding:
    """Return what clients' guesses of labels say."""
    heads = (
        "ε proved",
        "right guesses",
        "share",
        "95 % interval",
        "expected share",
        "most that ε permits",
    )
    rows = [
        (
            text.number(g.epsilon),
            f"{g.right} of {g.count}",
            text.percent(g.right / g.count),
            f"{text.percent(g.low)} to {text.percent(g.high)}",
            text.percent(g.expected),
            text.percent(g.bound),
        )
        for g in guesses
    ]
    broken = [g for g in guesses if g.broken]
    verdict = FALSIFIED if broken else NOT_FALSIFIED
    where = ", ".join(text.number(g.epsilon) for g in broken)
    line = (
        f"{FALSIFIED}: the attacker guesses more labels than the proof permits at ε = {where}"
        if broken
        else (
            f"{NOT_FALSIFIED}: at each ε, the attacker guesses no more labels than the proof "
            "permits"
        )
    )
    terms = f"δ = {text.number(guesses[0].delta)}, one record's label, against {_SEES['client']}"
    notes = (
        (
            "The attacker knows all else and chooses between two labels of a record. raydpzv made "
            "one run at each ε."
        ),
        (
            "Expected share: the mean of Φ(d/2) over the records. Most that ε permits: Φ(μ/2). All "
            "intervals hold together at 95 %. The word FALSIFIED needs 99.9 %."
        ),
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
    seen: CanarySeen | RunsAudit | GuessesAudit,
    shown: _FindingTable,
    contradictions: Sequence[str] = (),
) -> Finding:
    """Hold an ε that was seen against the one that the run states against this adversary."""
    claim = run.claim(adversary)
    proved = (
        claim_words.epsilon_of(claim) if claim is not None and claim_words.proves(claim) else None
    )
    reasons = list(contradictions)
    if claim is not None and seen.surely > claim_words.epsilon_of(claim):
        reasons.append("the attack shows a larger ε than the run states")
    delta, change = text.number(run.delta(adversary)), _CHANGES[run.relation]
    terms = f"δ = {delta}, {change}, against {_SEES[adversary]}"
    shows = f"the attack shows ε ≥ {text.number(seen.epsilon)}"
    if proved is None:
        verdict, why = (
            NOTHING_PROVED,
            f", and found that {' and '.join(reasons)}" if reasons else "",
        )
        line = f"{NOTHING_PROVED}, so there is nothing to falsify: {shows}{why} ({terms})."
    else:
        verdict = FALSIFIED if reasons else NOT_FALSIFIED
        why = f"{' and '.join(reasons)}. T{shows[1:]}" if reasons else shows
        small = (
            "" if claim is not None and claim_words.useful(claim) else ", too large to be useful"
        )
        line = f"{verdict}: {why}, and the run proves ε = {text.number(proved)}{small} ({terms})."
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
    return Finding(
        verdict, line, shown.heads, tuple(shown.rows), shown.notes, stated | dict(shown.facts)
    )


_CHANGES = {
    "replace": "one record replaced",
    "labels": "one record's label",
    "add_remove": "one record's term set to zero",
}


_OUTCOMES = {
    REFUSED: (
        "refused: raydpzv does not run a table with such a label, since data.classes does not list "
        "it, or with such a number, since rows are whole numbers (model.integers)."
    ),
    OTHER_CLASSES: (
        "classes: such a label changes the list of classes, which all releases depend on. Set "
        "data.classes."
    ),
}


def _seen(canary: CanarySeen) -> tuple[str, ...]:
    """Return a canary's cells; of one whose queries cannot be compared, why."""
    if canary.outcome:
        return (canary.outcome, "–", "–", "–", text.number(canary.epsilon))
    return (
        f"{canary.releases:,}",
        f"{canary.hidden_count:,} of {canary.others:,}",
        _difference(canary.hidden) if canary.others else "–",
        text.number(canary.apart),
        text.number(canary.epsilon),
    )


def _difference(value: float) -> str:
    return "0" if value == 0 else text.number(float(value), 3)
