"""A vertical run's ledger: every release is written there before the answer that carries it leaves
the server.

So the ledger, not the rows (which are written every few seconds), is the record of what was
released: a lost party is rebuilt from it, and whatever it holds is sent again, never drawn again.
"""

# P perturbations

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raydpzv.arrow_columns import array
from raydpzv.errors import ReplayMismatch, RunError
from raydpzv.experiment.vertical import PreparedVertical
from raydpzv.grouping import grouped
from raydpzv.keys import DirectionSeeds, Key
from raydpzv.ledger.entries import COLUMNS, ENTRY_COLUMNS, LedgerUpdate, Slice, bounds
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.descriptor import UpdateRule
from raydpzv.methods.roles import Metrics, Order, Upload, VerticalServer
from raydpzv.privacy.mechanisms import Address
from raydpzv.records.store import Rows
from raydpzv.wire.messages import Acknowledged

Past = tuple[Slice, int]
"""What a client is rebuilt from: the updates of its own that it had applied, and how many uploads
it had made.
"""

_STEP = struct.Struct("<q")


class LedgerServer:
    """A server that enters what it releases into a ledger, one update per upload served.

    A ledger that holds updates already is that of a run which is computed again: what was released
    then must be released now, entry by entry, and what comes after it is added.
    """

    answers = True

    def __init__(
        self, server: VerticalServer, ledger: Ledger, *, updates: UpdateRule, key: Key
    ) -> None:
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
        # updates of the ledger after each round, which are fewer where uploads are gathered
        self._versions = [0]

    @property
    def updates(self) -> int:
        """Uploads served so far."""
        return self._server.updates

    def first_orders(self) -> Sequence[Order]:
        return self._server.first_orders()

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Serve an upload. ReplayMismatch: the ledger has another release for it; RunError: it
        cannot be written.
        """
        client, uploads = upload.client, self._uploads
        if upload.step != uploads[client]:
            raise RunError(
                f"client {client} sent its upload {upload.step} where {uploads[client]} was due"
            )
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
        return self._server.evaluate(embeddings)

    def sha256(self) -> str:
        return self._server.sha256()

    def parameters(self) -> np.ndarray:
        return self._server.parameters()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the role's state, and what places the ledger's updates
        among the uploads.
        """
        placed = {"read": sorted(self._read.items()), "entered": self._entered}
        if self._entered != len(self._served):  # else each upload made the ledger's next update
            placed |= {
                "served": np.array(self._served, np.int32),
                "versions": np.array(self._versions, np.int64),
            }
        return {"role": self._server.state(), **placed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become what the server was when it returned this state; the ledger has what it had then,
        or more.
        """
        self._server.restore(state["role"])
        self._entered = state["entered"]
        if "served" in state:
            self._served, self._versions = state["served"].tolist(), state["versions"].tolist()
        else:
            made = self._ledger.since(0, self._entered)
            self._served = made.party[bounds(made.round)[:-1]].tolist()
            self._versions = list(range(self._entered + 1))
        self._uploads, self._read = Counter(self._served), dict(state["read"])

    @property
    def uploads(self) -> Mapping[int, int]:
        return dict(self._uploads)

    def awaited(self) -> Iterator[int]:
        """Yield whose upload is to be served next, until this run has come to all that the ledger
        held when it began.

        That is the ledger's order: nothing else tells it of a run under the wall clock. An update
        of several uploads says by the version it read when the last but one of them was served;
        those before may have come earlier.
        """
        ahead, gathered = (
            list(self._ledger.since(self._entered, self._known).updates()),
            self._rule.gathered,
        )
        early = grouped(
            (update.read, (update.party, (_STEP.unpack_from(update.step)[0] + 1) * gathered - 1))
            for update in (ahead if gathered > 1 else ())
        )
        for update in ahead:
            for client, uploads in early.get(self._entered, ()):
                while self._uploads[client] < uploads:
                    yield client
            yield update.party
        if self._entered < self._known:
            raise ReplayMismatch(
                f"the ledger holds {self._known} updates, of which {self._known - self._entered} "
                "cannot be served again; restore the run's folder from a copy"
            )

    def past(self, client: int, before: Order | None = None) -> Past:
        """Return what a client is rebuilt from, to what it was before it got an order (None: after
        all answers).
        """
        last = len(self._served) if before is None else before.round
        uploads = self._served[:last].count(client)
        applied = last if before is None or uploads == 0 else last - 1
        return self._ledger.since(0, self._versions[applied]).of(client), uploads

    def again(self, upload: Upload) -> Order | None:
        """Return the recorded answer to an upload that was served before: to send it again costs no
        privacy.

        A client that was lost makes its last upload once more if the answer to it was not on record
        when it was rebuilt; the first one may still have been served in between.
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
                f"the ledger has {self._ledger.version} updates where the server has made "
                f"{self._entered}"
            )
        else:
            self._ledger.enter(update)

    def _compare(self, update: LedgerUpdate) -> None:
        (was,) = self._ledger.since(update.round - 1, update.round).updates()
        for name, value, held in zip(update._fields, update, was, strict=True):
            if value != held:
                raise ReplayMismatch(
                    f"update {update.round}: {name} is {_shown(name, value)} and was "
                    f"{_shown(name, held)} when the ledger was written; another run, another "
                    "machine or other library versions (compare environment.json)"
                )


def with_ledger(
    experiment: PreparedVertical, server: VerticalServer, ledger: Ledger | None
) -> VerticalServer:
    """Return a server that keeps the ledger, or the server itself if its method has none."""
    plan = experiment.plan()
    if ledger is None or plan is None:
        return server
    # an entry's step size says what its scalar is worth, so that anyone with the ledger can follow
    # it
    updates = replace(plan.updates, lr=plan.updates.lr.times(experiment.privacy.noise().unit))
    return LedgerServer(server, ledger, updates=updates, key=Key(experiment.spec.seed))


def _shown(name: str, value: Any) -> Any:
    return np.frombuffer(value, COLUMNS[name])[:3].tolist() if name in ENTRY_COLUMNS else value


class Recorded(NamedTuple):
    """Releases on record, each once, in the order of their addresses: int64 [n] three times, and
    values float64 [n].
    """

    client: np.ndarray
    step: np.ndarray
    perturbation: np.ndarray
    value: np.ndarray

    @property
    def by_address(self) -> dict[Address, float]:
        """The values by client, step and perturbation."""
        addresses = zip(
            self.client.tolist(), self.step.tolist(), self.perturbation.tolist(), strict=True
        )
        return dict(zip(addresses, self.value.tolist(), strict=True))

    def where(self, kept: np.ndarray) -> Recorded:
        """Return those of a mask, bool [n]."""
        return Recorded(*(column[kept] for column in self))


def recorded(rows: pa.Table, ledger: Ledger | None) -> Recorded:
    """Return every release on record: those of release rows, and those that only the ledger has, as
    after a kill.

    rows: with the columns of `Recorded` at the least. Raises ReplayMismatch where rows and ledger
    differ.
    """
    columns = [array(rows.column(name)) for name in Recorded._fields]
    if ledger is None:
        return _once(*columns)
    kept = ledger.since(0)
    written = kept.party, kept.step, kept.perturbation, kept.scalar
    entered = _once(*written)
    if len(entered.value) == len(kept) and _begins(written, columns):
        return entered
    found = _once(*columns)
    both = Recorded(*map(np.concatenate, zip(entered, found, strict=True)))
    both = both.where(np.lexsort((both.perturbation, both.step, both.client)))
    twice = _like_the_next(both)
    for place in np.flatnonzero(twice & (both.value != np.roll(both.value, -1)))[:1]:
        client, step, perturbation, value = (column[place].item() for column in both)
        raise ReplayMismatch(
            f"client {client}, step {step}, perturbation {perturbation}: the rows have "
            f"{both.value[place + 1].item()!r} as released, the ledger {value!r}; one of them was "
            "changed"
        )
    return both.where(~twice)


def released(rows: Rows, ledger: Ledger | None) -> dict[Address, float]:
    """Return every release on record by its address, see `recorded`."""
    return recorded(rows["release"], ledger).by_address


def compare(rows: Rows, ledger: Ledger) -> None:
    """Check that each release of the rows is in the ledger, with the same value. Raises
    ReplayMismatch.
    """
    if len(recorded(rows["release"], ledger).value) > ledger.entries:
        raise ReplayMismatch(
            f"the ledger lacks releases that the rows have ({ledger.entries} of "
            f"{rows['release'].num_rows} are there), though each is written there first; restore "
            "it from a copy"
        )


def _once(
    client: np.ndarray, step: np.ndarray, perturbation: np.ndarray, value: np.ndarray
) -> Recorded:
    """Return releases in the order of their addresses; of several with the same one the last."""
    order = np.lexsort((perturbation, step, client))
    places = [column.astype(np.int64)[order] for column in (client, step, perturbation)]
    found = Recorded(places[0], places[1], places[2], value.astype(np.float64)[order])
    return found.where(~_like_the_next(found))


def _begins(columns: Sequence[np.ndarray], first: Sequence[np.ndarray]) -> bool:
    """Return whether columns begin with others, as a ledger's do with those of rows that nobody has
    changed.
    """
    return all(
        np.array_equal(column[: len(part)], part)
        for column, part in zip(columns, first, strict=True)
    )


def _like_the_next(found: Recorded) -> np.ndarray:
    """Return which releases have the address of the one after them, bool [n]."""
    like = np.zeros(len(found.value), bool)
    like[:-1] = np.all([column[1:] == column[:-1] for column in found[:3]], axis=0)
    return like
