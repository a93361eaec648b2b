"""A vertical run's ledger: every release is written there before the answer that carries it leaves the server.

So the ledger, not the rows (which are written every few seconds), is the record of what was released: whoever is lost
is rebuilt from it, and whatever it holds is sent again, never drawn again.
"""

# P perturbations

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from raydpzv.errors import ReplayMismatch, RunError
from raydpzv.experiment.vertical import PreparedVertical
from raydpzv.keys import DirectionSeeds, Key
from raydpzv.ledger.entries import COLUMNS, ENTRY_COLUMNS, LedgerUpdate, Slice
from raydpzv.ledger.ledger import Ledger, begin_ledger
from raydpzv.methods.descriptor import UpdateRule
from raydpzv.methods.roles import Metrics, Order, Upload, VerticalServer
from raydpzv.privacy.mechanisms import Address
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.store import Rows
from raydpzv.wire.messages import Acknowledged

Past = tuple[Slice, int]
"""What a client is rebuilt from: the updates of its own that it had applied, and how many uploads it had made."""

_STEP = struct.Struct("<q")


class LedgerServer:
    """A server that enters what it releases into a ledger, one update per upload served.

    A ledger that holds updates already is that of a run which is computed again: what was released then must be
    released now, entry by entry, and what comes after it is added.
    """

    answers = True

    def __init__(self, server: VerticalServer, ledger: Ledger, *, updates: UpdateRule, key: Key) -> None:
        self._server, self._ledger, self._rule = server, ledger, updates
        count = updates.perturbations
        self._seeds = DirectionSeeds(key, count)
        self._numbers_P = struct.pack(f"<{count}i", *range(count))
        self._pack_scalars = struct.Struct(f"<{count}f").pack
        self._known = ledger.version
        self._uploads: Counter[int] = Counter()
        self._read: dict[int, int] = {}
        self._served: list[int] = []  # whose upload each round served
        self._entered = 0  # updates of the ledger that this run has come to
        self._versions = [
            0
        ]  # updates of the ledger after each round, which are fewer where uploads are gathered

    @property
    def updates(self) -> int:
        """Uploads served so far."""
        return self._server.updates

    def first_orders(self) -> Sequence[Order]:
        """Return the first orders."""
        return self._server.first_orders()

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Serve an upload. ReplayMismatch: the ledger has another release for it; RunError: it cannot be written."""
        client, uploads = upload.client, self._uploads
        if upload.step != uploads[client]:
            raise RunError(f"client {client} sent its upload {upload.step} where {uploads[client]} was due")
        orders = self._server.receive(upload)
        for order in orders:
            if order.releases:
                self._enter(upload, order)
        uploads[client] += 1
        self._served.append(client)
        self._versions.append(self._entered)
        self._read[client] = self._entered
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

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the role's state, and what places the ledger's updates among the uploads."""
        return {
            "role": self._server.state(),
            "served": np.array(self._served, np.int32),
            "versions": np.array(self._versions, np.int64),
            "read": sorted(self._read.items()),
            "entered": self._entered,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become what the server was when it returned this state; the ledger has what it had then, or more."""
        self._server.restore(state["role"])
        self._served, self._versions = state["served"].tolist(), state["versions"].tolist()
        self._uploads, self._read = Counter(self._served), dict(state["read"])
        self._entered = state["entered"]

    def past(self, client: int, before: Order | None = None) -> Past:
        """Return what a client is rebuilt from, to what it was before it got an order (None: after all answers)."""
        last = len(self._served) if before is None else before.round
        uploads = self._served[:last].count(client)
        applied = last if before is None or uploads == 0 else last - 1
        return self._ledger.since(0, self._versions[applied]).of(client), uploads

    def again(self, upload: Upload) -> Order | None:
        """Return the recorded answer to an upload that was served before: to send it again costs no privacy.

        A client that was lost makes its last upload once more if the answer to it was not on record when it was
        rebuilt; the first one may still have been served in between.
        """
        client, step, gathered = upload.client, upload.step, self._rule.gathered
        if step >= self._uploads[client]:
            return None
        round = [n for n, whose in enumerate(self._served, 1) if whose == client][step]
        if (step + 1) % gathered:
            return Order(client, Acknowledged(), round)
        mine = self._ledger.since(0, self._versions[round]).of(client)
        answered = mine.step == step // gathered
        version = int(mine.round[answered][0])
        return Order(client, self._rule.answer(mine.scalar[answered]), round, version=version)

    def _enter(self, upload: Upload, order: Order) -> None:
        client, step = upload.client, upload.step // self._rule.gathered
        self._entered += 1
        update = LedgerUpdate(
            self._entered,
            client,
            self._read.get(client, 0),
            self._rule.lr.at(order.round),
            _STEP.pack(step) * self._rule.perturbations,
            self._numbers_P,
            self._seeds.of(client, step).tobytes(),
            self._pack_scalars(*[release.value for release in order.releases]),
        )
        if self._entered <= self._known:
            self._compare(update)
        elif self._entered != self._ledger.version + 1:
            raise RunError(
                f"the ledger has {self._ledger.version} updates where the server has made {self._entered}"
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
    updates = replace(plan.updates, lr=plan.updates.lr.times(experiment.privacy.noise().unit))
    return LedgerServer(server, ledger, updates=updates, key=Key(experiment.spec.seed))


@contextmanager
def open_release_ledger(experiment: PreparedVertical, folder: RunFolder | None) -> Iterator[Ledger | None]:
    """Give the ledger of a run in this process; None for methods without one."""
    plan = experiment.plan()
    if plan is None:
        yield None
        return
    with begin_ledger(folder.ledger if folder else None, plan.header()) as ledger:
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
