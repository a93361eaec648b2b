"""Small ledgers for the tests: addressed random updates, and the same updates as plain
dictionaries.
"""

from typing import Any

import numpy as np

from raydpzv.keys import Key
from raydpzv.ledger.entries import SHARED, Slice
from raydpzv.ledger.header import Header, Model
from raydpzv.ledger.ledger import Ledger

HEADER = Header({"shared": Model(28938, "layout", "initial")}, "gaussian", momentum=0.5)
COLUMNS = {
    "round": np.int64,
    "party": np.int32,
    "read": np.int64,
    "step": np.int64,
    "perturbation": np.int32,
    "seed": np.uint64,
    "scalar": np.float32,
    "lr": np.float64,
}


def update(round: int, seed: int = 0) -> dict[str, Any]:
    """The arguments of the append that becomes update `round`: 1 to 6 entries."""
    draw = (Key(seed) / "ledger" / round).generator()
    steps, perturbations = int(draw.integers(1, 3)), int(draw.integers(1, 4))
    n = steps * perturbations
    return {
        "party": int(draw.integers(SHARED, 3)),
        "read": int(draw.integers(0, round)),
        "lr": float(draw.uniform(1e-6, 1.0)),
        "step": np.repeat(np.arange(steps), perturbations),
        "perturbation": np.tile(np.arange(perturbations, dtype=np.int32), steps),
        "seed": draw.integers(0, 2**64, n, dtype=np.uint64),
        "scalar": draw.standard_normal(n, dtype=np.float32),
    }


def fill(ledger: Ledger, until: int, seed: int = 0) -> Ledger:
    for round in range(ledger.version + 1, until + 1):
        assert ledger.append(**update(round, seed)) == round
    return ledger


def expected(first: int, last: int, seed: int = 0) -> dict[str, list[Any]]:
    """The columns of updates first+1 .. last, made without the ledger."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for round in range(first + 1, last + 1):
        values = update(round, seed) | {"round": round}
        n = len(values["seed"])
        for name, column in columns.items():
            column.extend(np.broadcast_to(values[name], n).tolist())
    return columns


def assert_holds(entries: Slice, first: int, last: int, seed: int = 0) -> None:
    wanted = expected(first, last, seed)
    assert (entries.first, entries.last, len(entries)) == (first, last, len(wanted["seed"]))
    for name, dtype in COLUMNS.items():
        column = getattr(entries, name)
        assert column.dtype == dtype
        assert not column.flags.writeable
        assert column.tolist() == wanted[name], name
