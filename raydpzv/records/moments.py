"""What the rows say of each update of a ledger: its round, staleness and ε; and what `raydpzv step`
found and kept.

T updates of the ledger; arrays over updates have T + 1 entries, the first of which is before update
1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raydpzv.arrow_columns import array
from raydpzv.errors import DataError
from raydpzv.files import PRIVATE, json_line, read_small, write_atomically
from raydpzv.privacy.claim_words import claim_behind
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.store import Rows

FOUND = "step.json"
"""What `raydpzv step` computed with the run's data, for the run's page."""
_SPENT = (("user_epsilon", "external", "external"), ("release", "epsilon_client", "client"))
"""Row type, column and adversary of the ε that is spent so far."""


def update_rounds(rows: Rows, updates: int) -> np.ndarray:
    """Return the server's round of each update, int64 [T + 1]: an update may gather several
    uploads, or silos' sums.

    Raises DataError if rows and ledger do not agree.
    """
    release = rows["release"]
    if not release.num_rows:
        return np.arange(updates + 1)
    first = array(release["round"])[array(release["perturbation"]) == 0]
    found = np.concatenate(([0], np.unique(first)))
    if len(found) <= updates:
        raise DataError(
            f"the ledger has {updates} updates, the rows only {len(found) - 1} releases; continue "
            "the run with raydpzv resume"
        )
    return found[: updates + 1]


def greatest_staleness(rows: Rows, rounds: np.ndarray) -> np.ndarray:
    """Return the age of the oldest embedding or model that each update used, int64 [T + 1]; -1:
    none on record.
    """
    found = np.full(len(rounds), -1, np.int64)
    for table, column in (("staleness", "age_max"), ("sync", "lag")):
        update = np.searchsorted(rounds, array(rows[table]["round"]))
        inside = update < len(rounds)
        np.maximum.at(found, update[inside], array(rows[table][column])[inside])
    return found


def spent_epsilon(
    rows: Rows, rounds: np.ndarray, claims: Sequence[Mapping[str, Any]]
) -> tuple[np.ndarray, Mapping[str, Any]] | None:
    """Return the ε that is proved until each update, float64 [T + 1], and the claim with its terms;
    None without one.

    NaN: nothing was spent yet.
    """
    for table, column, adversary in _SPENT:
        values, round = array(rows[table][column]), array(rows[table]["round"])
        if len(values) and (claim := claim_behind(claims, adversary, float(values[-1]))):
            order = np.argsort(round, kind="stable")
            until = np.searchsorted(round[order], rounds, "right")
            return np.concatenate(([np.nan], np.fmax.accumulate(values[order])))[until], claim
    return None


def next_update(flags: np.ndarray, after: int) -> int | None:
    """Return the first update > `after` with a flag, bool [T + 1], or None."""
    found = np.flatnonzero(flags[after + 1 :])
    return after + 1 + int(found[0]) if len(found) else None


def begins(clipped: np.ndarray) -> np.ndarray:
    """Return at which updates a clip began to bind, bool [T + 1]: it cut a record, and none in the
    update before.

    clipped: records that were cut in each update, int64 [T + 1].
    """
    return np.concatenate(([False], (clipped[1:] > 0) & (clipped[:-1] == 0)))


def keep_found(folder: RunFolder, digest: str, **found: Any) -> None:
    """Keep what was computed of the ledger with this digest; other findings on it stay."""
    kept = {**read_found(folder, digest), **found, "ledger": digest}
    write_atomically(folder.path / FOUND, json_line(kept).encode(), mode=PRIVATE)


def read_found(folder: RunFolder, digest: str) -> dict[str, Any]:
    """Return what was kept of the ledger with this digest. Raises DataError for a damaged file."""
    path = folder.path / FOUND
    if not path.is_file():
        return {}
    try:
        found = json.loads(read_small(path))
        return dict(found) if found["ledger"] == digest else {}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{path}: is damaged ({type(error).__name__}); delete it, and run raydpzv step again"
        ) from None
