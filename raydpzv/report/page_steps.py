"""What a page's slider shows of a run with a ledger: one row for each update, as packed columns. No
model is on a page.

A run of too many updates keeps some of them: each evaluation, the stalest of each stretch, where
the clip began to bind, and others evenly. Of a private run that shows what may leave, there are
pairs and lengths alone.
"""

# T updates, K of them kept

from __future__ import annotations

import base64
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from raydpzv.arrow_columns import array
from raydpzv.errors import DataError, RaydpzvError
from raydpzv.experiment.initial_model import ModelPlan
from raydpzv.experiment.local_session import one_thread
from raydpzv.experiment.rebuild import recorded_plan
from raydpzv.files import json_number
from raydpzv.ledger.entries import SHARED, Slice
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.replica import Replica
from raydpzv.privacy.claim_words import claim_text, useful
from raydpzv.records.moments import (
    begins,
    greatest_staleness,
    read_found,
    spent_epsilon,
    update_rounds,
)
from raydpzv.records.run_folder import RunFolder
from raydpzv.report.measure_plots import judged
from raydpzv.report.page_data import extremes
from raydpzv.report.run_summary import score_name
from raydpzv.report.run_tables import RunView
from raydpzv.settings.party_names import label
from raydpzv.zo.philox import normals
from raydpzv.zo.update import Rule

ROOM = 750_000
"""Bytes of the columns of all runs of a page, about."""
_LISTED = 8
"""Clients or scalars that an update lists."""
_MOST_WORK = 300_000_000
"""Numbers that are added up for the lengths of all steps, at most: about five seconds."""
_FEW, _FEW_OF_ONE = 10_000_000, 4_000
"""Numbers that numpy makes in the time that numba's import takes, and a replay of one update by
compiled kernels.
"""
_MADE = 1 << 15
"""Numbers that are made at a time, which the second cache holds."""
_RANKED = 10
"""Clients that a ranking shows at either end."""

Data = dict[str, Any]


@dataclass(frozen=True)
class _Column:
    """Values of the updates 0..T, one each, or some: counts [T + 1] of those that are listed."""

    values: np.ndarray
    counts: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        extra = 0 if self.counts is None else _compact(self.counts).nbytes
        return _compact(self.values).nbytes + extra

    def at(self, kept: np.ndarray) -> Data:
        """Return these updates' values as a page holds them."""
        if self.counts is None:
            return packed(self.values[kept])
        mine = np.zeros(len(self.counts), bool)
        mine[kept] = True
        return packed(self.values[np.repeat(mine, self.counts)]) | {
            "counts": packed(self.counts[kept])
        }


def packed(values: np.ndarray) -> Data:
    """Return numbers as a page holds them: the type of a JavaScript array, and its bytes in
    base64.
    """
    found = _compact(values)
    return {
        "type": f"{found.dtype.kind}{found.itemsize}",
        "bytes": base64.b64encode(found.tobytes()).decode(),
    }


def _compact(values: np.ndarray) -> np.ndarray:
    """Return numbers as float32, or as the smallest unsigned integers that hold them,
    little-endian.
    """
    if values.dtype.kind == "f":
        return values.astype("<f4")
    most = int(values.max(initial=0))
    return values.astype(next(t for t in ("<u1", "<u2", "<u4", "<u8") if most <= np.iinfo(t).max))


def steps(folder: RunFolder, view: RunView, *, withheld: bool, room: int = ROOM) -> Data | None:
    """Return what the slider shows of a run; None without a ledger, or where its ledger must not
    leave.

    withheld: rows are not shown; room: bytes, 0 for nothing. Damage is said in its place
    ("problem").
    """
    if not room or not folder.ledger.exists() or (withheld and not may_leave(view.summary)):
        return None
    try:
        with Ledger.open(folder.ledger) as ledger:
            return (
                _steps(folder, view, ledger, withheld=withheld, room=room)
                if ledger.version
                else None
            )
    except DataError as error:
        return {"problem": str(error)}


def may_leave(summary: Mapping[str, Any]) -> bool:
    """Return whether the ledger of a published run is among what may leave."""
    return bool((summary.get("published") or {}).get("adversary")) and bool(summary.get("ledger"))


def _steps(folder: RunFolder, view: RunView, ledger: Ledger, *, withheld: bool, room: int) -> Data:
    entries, last = ledger.since(0), ledger.version
    lengths, why = _lengths(folder, entries, ledger)
    columns = _of_pairs(entries, last) | ({} if lengths is None else {"moved": _Column(lengths)})
    if len(set(entries.lr.tolist())) == 1:
        columns.pop("lr")
    found: Data = {
        "last": last,
        "lr": float(entries.lr[0]),
        "names": list(view.party_names),
        "unmoved": why,
        "withheld": withheld,
        "ranking": None,
    }
    keen = [np.array([0, last])]
    if not withheld:
        keen += _from_rows(folder, view, ledger, columns, found, room // 8)
    kept, all_there = (
        np.arange(last + 1),
        4 * sum(column.nbytes for column in columns.values()) // 3,
    )
    if all_there > room:
        kept = _some(keen, last, max(2, last * room // all_there))
        found["at"] = packed(kept)
    seen = found.pop("seen", None)
    if seen is not None:
        inside = np.isin(seen[0], kept)
        found |= {"evaluated": packed(seen[0][inside]), "scores": packed(seen[1][inside])}
    return found | {
        "held": len(kept),
        "columns": {name: column.at(kept) for name, column in columns.items()},
    }


def _some(keen: list[np.ndarray], last: int, most: int) -> np.ndarray:
    """Return at most about so many updates: those that are keen in turn, then others evenly."""
    found = np.zeros(last + 1, bool)
    for updates in keen:
        if found.sum() + len(updates) <= most:
            found[updates] = True
    spare = np.flatnonzero(~found)
    left = min(max(most - int(found.sum()), 0), len(spare))
    found[spare[np.linspace(0, len(spare) - 1, left).astype(int)]] = True
    return np.flatnonzero(found)


def _of_pairs(entries: Slice, last: int) -> dict[str, _Column]:
    """Return what the ledger has of each update: scalars, step size, and the first pair's seed."""
    counts = np.bincount(entries.round, minlength=last + 1)
    found = {"scalars": _listed(entries.scalar, entries.round, counts), "pairs": _Column(counts)}
    for name, values, empty in (("lr", entries.lr, np.nan), ("seeds", entries.seed, np.uint64(0))):
        first = np.full(last + 1, empty)
        first[counts > 0] = values[(np.cumsum(counts) - counts)[counts > 0]]
        found[name] = _Column(first)
    if (entries.party != SHARED).any():  # of updates that are one client's own
        own, place = np.full(last + 1, 0), entries.party != SHARED
        own[entries.round[place]] = entries.party[place]
        ones = np.bincount(entries.round[place], minlength=last + 1).clip(0, 1)
        found |= {"clients": _Column(own[ones > 0], ones), "served": _Column(ones)}
    return found


def _listed(values: np.ndarray, updates: np.ndarray, counts: np.ndarray) -> _Column:
    """Return the first values of each update; values and their updates are in order."""
    place = np.arange(len(values)) - (np.cumsum(counts) - counts)[updates]
    return _Column(values[place < _LISTED], np.minimum(counts, _LISTED))


def _from_rows(
    folder: RunFolder,
    view: RunView,
    ledger: Ledger,
    columns: dict[str, _Column],
    found: Data,
    most: int,
) -> list[np.ndarray]:
    """Add what the rows have of each update; return updates that a short list keeps, the keenest
    first.
    """
    last, rows = ledger.version, view.rows
    rounds = update_rounds(rows, last)
    stale = greatest_staleness(rows, rounds)
    columns["stale"] = _Column(stale.clip(0))
    update, client = (
        np.searchsorted(rounds, array(rows["service"]["round"])),
        array(rows["service"]["client"]),
    )
    order = np.lexsort((client, update))
    order = order[update[order] <= last]
    served = np.bincount(update[order], minlength=last + 1)
    columns |= {"clients": _listed(client[order], update[order], served), "served": _Column(served)}
    if spent := spent_epsilon(rows, rounds, view.summary.get("epsilon") or ()):
        columns["epsilon"] = _Column(spent[0])
        found["terms"] = _terms(*spent)
    seen = judged(view)
    at = np.searchsorted(rounds, seen.round, "right") - 1
    name = score_name(view.summary)
    found |= {"score": name, "form": "percent" if name == "accuracy" else "number"}
    found["seen"] = (at, np.asarray(seen.accuracy, float))
    kept = read_found(folder, ledger.digest)
    keen = [at[extremes(np.asarray(seen.accuracy, float), most // 40)]]
    clip = (folder.settings().get("privacy") or {}).get("clip")
    found["countable"] = clip is not None and not view.horizontal
    if "clipped" in kept:
        clipped = np.array(kept["clipped"], np.int64)
        columns["clipped"] = _Column(clipped)
        binds = np.flatnonzero(begins(clipped))[: most // 80]
        keen.append(
            np.concatenate((binds - 1, binds))
        )  # the update before shows that it did not bind there
    if "ranking" in kept:
        found["ranking"] = _ranking(kept["ranking"], view)
    return [*keen, extremes(stale.astype(float), most // 80)]


def _terms(spent: np.ndarray, claim: Mapping[str, Any]) -> list[tuple[int, str, bool]]:
    """Return from which update on what is said after "ε = ...", and whether it is useful: a larger
    one is not.
    """
    known = np.flatnonzero(~np.isnan(spent)).tolist()

    def at(update: int) -> Mapping[str, Any]:
        return {**claim, "epsilon": float(spent[update])}

    above = bisect_left(known, True, key=lambda update: not useful(at(update)))
    firsts = dict.fromkeys(known[k] for k in (0, above) if k < len(known))
    return [
        (update, claim_text(at(update)).partition(", ")[2], bool(useful(at(update))))
        for update in firsts
    ]


def _ranking(kept: Mapping[str, Any], view: RunView) -> Data:
    """Return both ends of a ranking as text: place, client, by how much the loss changes without
    it.
    """
    rows = list(enumerate(kept["rows"], 1))
    shown = rows if len(rows) <= 2 * _RANKED else rows[:_RANKED] + rows[-_RANKED:]
    lines = [
        (str(place), label(int(client), view.party_names), f"{json_number(change):+.4f}")
        for place, (client, change, *_) in shown
    ]
    return {"since": int(kept["since"]), "clients": len(rows), "lines": lines}


def _lengths(folder: RunFolder, entries: Slice, ledger: Ledger) -> tuple[np.ndarray | None, str]:
    """Return how far each update moved its model, float64 [T + 1], or None and why nobody says."""
    last = ledger.version
    try:
        replicas = _replicas(folder)
        size = max(len(replica.x) for replica in replicas.values())
        spec = folder.spec()
        pool = spec.descriptor.rule(spec.method).pool if spec.descriptor.rule else 0
        if (last + max(len(entries), last * pool)) * size > _MOST_WORK:
            return None, "the models are too large to be replayed for a page; raydpzv step shows it"
        found = np.zeros(last + 1)
        few = not pool and len(entries) * size < _FEW + _FEW_OF_ONE * last
        with one_thread(spec.model.engine), np.errstate(over="ignore", invalid="ignore"):
            for party, replica in replicas.items():
                mine = entries if party == SHARED else entries.of(party)
                if few and _is_plain(replica.descent.rule):
                    _add_up(replica, mine, found)
                else:
                    _follow(replica, np.unique(mine.round), ledger, found)
        return found, ""
    except RaydpzvError as error:
        return None, str(error)


def _is_plain(rule: Rule) -> bool:
    return rule.optimizer == "sgd" and rule.law in ("gaussian", "sphere") and not rule.shaped


def _add_up(replica: Replica, updates: Slice, found: np.ndarray) -> None:
    """Enter the lengths of steps along normal directions, to float32 rounding, without compiled
    kernels.
    """
    rule, size = replica.descent.rule, len(replica.x)
    directions = _directions(replica.direction_seeds(updates), size, sphere=rule.law == "sphere")
    share = 1 - rule.momentum if rule.damped else 1.0
    velocity, moved = np.zeros((2, size), np.float32)
    place, before = 0, 0
    for seeds, scalars, lr in updates.steps():
        velocity *= rule.momentum
        for scalar in scalars.tolist():
            velocity += share * scalar / len(seeds) * next(directions)
        update = int(updates.round[place])
        moved = lr * velocity + (moved if update == before else 0)
        found[update] = np.linalg.norm(moved)
        place, before = place + len(seeds), update


def _directions(seeds: np.ndarray, size: int, *, sphere: bool) -> Iterator[np.ndarray]:
    """Yield the normal direction of each seed, float32 [size], on the sphere of radius √size if
    asked.
    """
    count = max(1, _MADE // size)
    for first in range(0, len(seeds), count):
        z = normals(seeds[first : first + count], 0, size)
        yield from z * (math.sqrt(size) / np.linalg.norm(z, axis=1, keepdims=True)) if sphere else z


def _follow(replica: Replica, updates: np.ndarray, ledger: Ledger, found: np.ndarray) -> None:
    """Replay a model and enter the lengths of the steps that it takes at these updates."""
    before = replica.state()[0]
    for update in updates.tolist():
        replica.go_to(update, ledger)
        now = replica.state()[0]
        found[update] = np.linalg.norm(now.astype(np.float64) - before)
        before = now


def _replicas(folder: RunFolder) -> dict[int, Replica]:
    """Return the models that the ledger moves, before the first update, by party."""
    plan = recorded_plan(folder)
    if isinstance(plan, ModelPlan):
        return {SHARED: plan.replica()}
    return {m: plan.replica(m) for m in range(plan.spec.split.clients)}
