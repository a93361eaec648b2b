"""What a DPZV run released: its rows and its ledger, which must agree."""

from __future__ import annotations

import numpy as np

from raydpzv.errors import ReplayMismatch
from raydpzv.ledger.ledger import Ledger
from raydpzv.privacy.mechanisms import Address
from raydpzv.records.store import Rows


def released(rows: Rows, ledger: Ledger | None) -> dict[Address, float]:
    """Return every release on record: those of the rows, and those that only the ledger has, as after a kill.

    Raises ReplayMismatch where they differ.
    """
    table = rows["release"]
    found = _by_address(
        *(table.column(name).to_numpy() for name in ("client", "step", "perturbation", "value"))
    )
    if ledger is None:
        return found
    kept = ledger.since(0)
    entered = _by_address(kept.party, kept.step, kept.perturbation, kept.scalar.astype(np.float64))
    for address in found.keys() & entered.keys():
        if found[address] != entered[address]:
            raise ReplayMismatch(
                f"client {address[0]}, step {address[1]}, perturbation {address[2]}: the rows have {found[address]!r} "
                f"as released, the ledger {entered[address]!r}; one of them was changed"
            )
    return entered | found


def compare(rows: Rows, ledger: Ledger) -> None:
    """Check that each release of the rows is in the ledger, with the same value. Raises ReplayMismatch."""
    if len(released(rows, ledger)) > ledger.entries:
        raise ReplayMismatch(
            f"the ledger lacks releases that the rows have ({ledger.entries} of {rows['release'].num_rows} are there), "
            "though each is written there first; bring it back from a copy"
        )


def _by_address(
    client: np.ndarray, step: np.ndarray, perturbation: np.ndarray, value: np.ndarray
) -> dict[Address, float]:
    addresses = zip(client.tolist(), step.tolist(), perturbation.tolist(), strict=True)
    return dict(zip(addresses, value.tolist(), strict=True))
