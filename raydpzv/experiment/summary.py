"""summary.json: what a run comes to, folded from its rows."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from raydpzv.errors import Diverged
from raydpzv.experiment.diagnostics import DIVERGED, failure, tested, warnings
from raydpzv.experiment.prepare import Prepared
from raydpzv.methods.recorded_method import own_method
from raydpzv.privacy.claim_words import judge
from raydpzv.privacy.release import Spent, verdict
from raydpzv.records import lateness, metrics
from raydpzv.records.environment import versions
from raydpzv.records.store import Rows, digest
from raydpzv.records.summary_fields import NEWEST, SUMMARY_FORMAT

NO_ACCOUNT = "the account of the releases is lost, and no planned number of updates bounds them"


class Outcome(NamedTuple):
    """How a run ended: status "done", "stopped" or "failed", and why; fault: the class of the error
    that ended it.
    """

    status: str
    reason: str
    fault: str = ""


@dataclasses.dataclass(frozen=True)
class Ending:
    """What is known at a run's end beside its rows; seconds: real ones that it took.

    beyond_plan: may legs that were lost have released more than the plan counts?
    """

    outcome: Outcome
    seconds: float
    simulated_seconds: float
    updates: int
    spent: Spent | None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    beyond_plan: bool = False


def summarise(scenario: str, experiment: Prepared, rows: Rows, ending: Ending) -> dict[str, Any]:
    """Return the summary of a run."""
    spec, setting = experiment.spec, experiment.setting
    last, best = tested(rows)[-1:], metrics.best_by_validation(rows["evaluation"])
    message, service = rows["message"], rows["service"]
    done = ending.outcome.status == "done"
    final = (
        setting.as_made(ending.spent, done=done, beyond_plan=ending.beyond_plan)
        if setting
        else None
    )
    said = judge((), NO_ACCOUNT) if setting and not final else verdict(final)
    found, shares = _failure(experiment, rows, ending), experiment.class_shares()
    failed, why_failed = found
    return {
        "format": SUMMARY_FORMAT,
        "scenario": scenario,
        "title": spec.title,
        "method": spec.method.name,
        **own_method(spec),
        "seed": spec.seed,
        "engine": experiment.engine,
        **({"parties": list(spec.party_names)} if spec.party_names else {}),
        "status": ending.outcome.status,
        "stopped_by": ending.outcome.reason,
        "evaluated_model": _evaluated_model(experiment, ending),
        "accuracy": last[0]["accuracy"] if last else math.nan,
        "best_accuracy": best.accuracy if best else math.nan,
        "best_update": best.update if best else None,
        "validation_accuracy": best.validation_accuracy if best else math.nan,
        "peak_accuracy": metrics.peak_accuracy(rows["evaluation"]),
        **metrics.final_areas(rows["auc"]),
        **{
            name: metrics.final_score(rows[name], name)
            for name in ("balanced_accuracy", "concordance")
        },
        **_measures(rows),
        "loss": last[0]["loss"] if last else math.nan,
        "top_share": last[0]["top_share"] if last else math.nan,
        "largest_class_share": max(shares),
        "failure": failed or None,
        "failure_reason": why_failed or None,
        "uploads": service.num_rows,
        "bytes_up": metrics.bytes_up(message),
        "bytes_down": metrics.bytes_down(message),
        **experiment.summary_facts(rows, ending.updates),
        "seconds": ending.seconds,
        "simulated_seconds": ending.simulated_seconds,
        "throughput": metrics.throughput(service),
        **_interruptions(experiment, rows),
        "epsilon": [dataclasses.asdict(c) for c in final.claims()] if final else [],
        "private": said.private,
        "private_reason": None if said.private else said.lead,
        "proved": said.proved,
        "privacy_verdict": said.text,
        "privacy_asides": list(said.asides),
        "warnings": warnings(experiment, rows, found),
        "digest": digest(rows),
        "model_digest": model_digest(rows),
        "versions": versions(),
        **({"faults": rows["fault"].to_pylist()} if rows["fault"].num_rows else {}),
        **ending.facts,
    }


def _measures(rows: Rows) -> dict[str, Any]:
    """Return each further measure at the last evaluation of the test rows; {} of runs without
    any.
    """
    found = metrics.measures(rows["measure"])
    return (
        {"measures": {name: float(values[-1]) for name, (_, values) in found.items()}}
        if found
        else {}
    )


def _evaluated_model(experiment: Prepared, ending: Ending) -> str:
    """Return in words which model the last evaluation scored, the one that is kept and
    published.
    """
    first, made = experiment.averages_after, ending.facts.get("ledger", {}).get("updates", 0)
    if first is None or made <= first:
        return NEWEST
    return f"mean of each party's models after the ledger's updates {first + 1} to {made}"


def _interruptions(experiment: Prepared, rows: Rows) -> dict[str, Any]:
    """Return what interrupted a run of real time: legs, and for how long each client was silent; {}
    of others.
    """
    spec = experiment.spec
    if spec.clock.kind == "virtual":
        return {}
    found, clients = lateness.leg_summary(rows["leg"]), spec.split.clients
    if clients > lateness.MOST_CLIENTS:
        return found
    return found | {"presence": lateness.presence(rows["service"], clients)}


def _failure(experiment: Prepared, rows: Rows, ending: Ending) -> tuple[str, str]:
    if ending.outcome.fault == Diverged.__name__:
        return DIVERGED, ending.outcome.reason
    return failure(rows, experiment.class_shares())


def model_digest(rows: Rows) -> str:
    """Return one digest over all parties' final parameters."""
    final = sorted((r["party"], r["sha256"]) for r in rows["model"].to_pylist())
    return hashlib.sha256(repr(final).encode()).hexdigest()
