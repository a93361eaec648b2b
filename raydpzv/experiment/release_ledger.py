"""A vertical run's ledger: every release is written there before the answer that carries it leaves the server.

So the ledger, not the rows (which are written every few seconds), is the record of what was released: whoever is lost
is rebuilt from it, and whatever it holds is sent again, never drawn again.
"""

# P perturbations

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from raydpzv.errors import ReplayMismatch, RunError
from raydpzv.experiment.vertical import PreparedVertical
from raydpzv.keys import Key, direction_seed
from raydpzv.ledger.entries import COLUMNS, ENTRY_COLUMNS, LedgerUpdate, Slice
from raydpzv.ledger.ledger import Ledger, begin_ledger
from raydpzv.methods.descriptor import UpdateRule
from raydpzv.methods.roles import Metrics, Order, Upload, VerticalServer
from raydpzv.privacy.mechanisms import Address
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.store import Rows

Past = tuple[Slice, int]
"""What a client is rebuilt from: the updates of its own that it had applied, and how many uploads it had made."""


class LedgerServer:
    """A server that enters what it releases into a ledger, one update per upload served.

    A ledger that holds updates already is that of a run which is computed again: what was released then must be
    released now, entry by entry, and what comes after it is added.
    """

    answers = True

    def __init__(self, server: VerticalServer, ledger: Ledger, *, updates: UpdateRule, key: Key) -> None:
        self._server, self._ledger, self._rule, self._key = server, ledger, updates, key
        # an update's columns of P entries as bytes
        self._packed = [struct.Struct(f"<{updates.perturbations}{code}").pack for code in "qiQf"]
        self._known = ledger.version
        self._uploads: Counter[int] = Counter()
        self._read: dict[int, int] = {}

    @property
    def updates(self) -> int:
        """Uploads served so far."""
        return self._server.updates

    def first_orders(self) -> Sequence[Order]:
        """Return the first orders."""
        return self._server.first_orders()

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Serve an upload. ReplayMismatch: the ledger has another release for it; RunError: it cannot be written."""
        due = self._uploads[upload.client]
        if upload.step != due:
            raise RunError(f"client {upload.client} sent its upload {upload.step} where {due} was due")
        orders = self._server.receive(upload)
        for order in orders:
            self._enter(upload, order)
        self._uploads[upload.client] += 1
        self._read[upload.client] = self.updates
        return orders

    def evaluate(self, embeddings: Sequence[np.ndarray]) -> Metrics:
        """Score the composed model on the held-out rows."""
        return self._server.evaluate(embeddings)

    def sha256(self) -> str:
        """Return the digest of the head's parameters."""
        return self._server.sha256()

    def parameters(self) -> np.ndarray:
        """Return a copy of the head's parameters, float32 [d_0]."""
        return self._server.parameters()

    def past(self, client: int, before: Order | None = None) -> Past:
        """Return what a client is rebuilt from, to what it was before it got an order (None: after all answers)."""
        until = self._served() if before is None else before.round
        mine = self._ledger.since(0, until).of(client)
        uploads = len(np.unique(mine.round))
        if before is None or uploads == 0:
            return mine, uploads
        return self._ledger.since(0, until - 1).of(client), uploads

    def again(self, upload: Upload) -> Order | None:
        """Return the recorded answer to an upload that was served before: to send it again costs no privacy.

        A client that was lost makes its last upload once more if the answer to it was not on record when it was
        rebuilt; the first one may still have been served in between.
        """
        if upload.step >= self._uploads[upload.client]:
            return None
        mine = self._ledger.since(0, self._served()).of(upload.client)
        at = mine.step == upload.step
        return Order(upload.client, self._rule.answer(mine.scalar[at]), int(mine.round[at][0]))

    def _served(self) -> int:
        """Updates of this run; a ledger that was there before may be further."""
        return min(self._ledger.version, self.updates)

    def _enter(self, upload: Upload, order: Order) -> None:
        client, step = upload.client, upload.step
        steps_P, numbers_P, seeds_P, scalars_P = self._packed
        numbers = [release.perturbation for release in order.releases]
        update = LedgerUpdate(
            order.round,
            client,
            self._read.get(client, 0),
            self._rule.lr,
            steps_P(*[step] * len(numbers)),
            numbers_P(*numbers),
            seeds_P(*[direction_seed(self._key, client, step, p) for p in numbers]),
            scalars_P(*[release.value for release in order.releases]),
        )
        if order.round <= self._known:
            self._compare(update)
        elif order.round != self._ledger.version + 1:
            raise RunError(
                f"the ledger has {self._ledger.version} updates where the server has made {order.round}"
            )
        else:
            self._ledger.enter(update)

    def _compare(self, update: LedgerUpdate) -> None:
        (was,) = self._ledger.since(update.round - 1, update.round).updates()
        for name, value, held in zip(update._fields, update, was, strict=True):
            if value != held:
                raise ReplayMismatch(
                    f"update {update.round}: {name} is {_shown(name, value)} and was {_shown(name, held)} when the "
                    "ledger was written; another run, another machine or other library versions (compare "
                    "environment.json)"
                )


def with_ledger(
    experiment: PreparedVertical, server: VerticalServer, ledger: Ledger | None
) -> VerticalServer:
    """Return a server that keeps the ledger, or the server itself if its method has none."""
    plan = experiment.plan()
    if ledger is None or plan is None:
        return server
    # an entry's step size says what its scalar is worth, so that whoever has the ledger can follow it
    updates = replace(plan.updates, lr=plan.updates.lr * experiment.privacy.noise().unit)
    return LedgerServer(server, ledger, updates=updates, key=Key(experiment.spec.seed))


@contextmanager
def open_release_ledger(experiment: PreparedVertical, folder: RunFolder | None) -> Iterator[Ledger | None]:
    """Give the ledger of a run in this process; None for methods without one."""
    plan = experiment.plan()
    if plan is None:
        yield None
        return
    with begin_ledger(folder.ledger if folder else None, plan.header(), None) as ledger:
        yield ledger


def _shown(name: str, value: Any) -> Any:
    return np.frombuffer(value, COLUMNS[name])[:3].tolist() if name in ENTRY_COLUMNS else value


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
