"""The ledger against a plain list of updates, under appends, reopening, trims, truncations and torn
writes.
"""

import shutil
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raydpzv.errors import InputError
from raydpzv.ledger.entries import Slice
from raydpzv.ledger.header import Header, Model
from raydpzv.ledger.ledger import Ledger

HEADER = Header({"client 0": Model(3, "a", "b"), "client 1": Model(4, "c", "d")}, "rademacher")
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
NAMES = ("round", "party", "read", "lr", "step", "perturbation", "seed", "scalar")
Row = tuple[Any, ...]


def rows(entries: Slice) -> list[Row]:
    return list(zip(*(getattr(entries, name).tolist() for name in NAMES), strict=True))


class Against(RuleBasedStateMachine):
    """`updates[r - 1]` are the rows of update r."""

    def __init__(self) -> None:
        super().__init__()
        self.folder: Path | None = None
        self.updates: list[list[Row]] = []
        self.views: list[tuple[Slice, list[Row]]] = []
        self.digests = [""]
        self.trimmed = 0
        self.ledger: Ledger | None = None

    def teardown(self) -> None:
        if self.ledger:
            self.ledger.close()
        if self.folder:
            shutil.rmtree(self.folder)

    @precondition(lambda self: self.ledger is None)
    @rule(disk=st.booleans(), segment=st.integers(1, 5))
    def create(self, disk: bool, segment: int) -> None:
        self.folder = Path(tempfile.mkdtemp()) if disk else None
        self.ledger = Ledger.create(self.folder and self.folder / "ledger", HEADER, segment=segment)
        self.digests = [self.ledger.digest]

    @precondition(lambda self: self.ledger is not None)
    @rule(
        party=st.integers(-1, 2**31 - 1),
        lag=st.integers(0, 3),
        lr=st.floats(1e-300, 1e300),
        entries=st.dictionaries(
            st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)),
            st.tuples(st.integers(0, 2**64 - 1), FLOATS),
            min_size=1,
            max_size=12,
        ),
    )
    def append(
        self, party: int, lag: int, lr: float, entries: dict[tuple[int, int], tuple[int, float]]
    ) -> None:
        round = len(self.updates) + 1
        read = max(round - 1 - lag, 0)
        order = sorted(entries)
        seed = [entries[place][0] for place in order]
        scalar = np.array([entries[place][1] for place in order], np.float32)
        step, perturbation = zip(*order, strict=True)
        got = self.ledger.append(
            party=party,
            read=read,
            lr=lr,
            step=step,
            perturbation=perturbation,
            seed=seed,
            scalar=scalar,
        )
        assert got == round
        self.updates.append(
            [
                (round, party, read, lr, *place, s, v)
                for place, s, v in zip(order, seed, scalar.tolist(), strict=True)
            ]
        )
        self.digests.append(self.ledger.digest)

    @precondition(lambda self: self.updates)
    @rule(data=st.data())
    def slice(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, len(self.updates)))
        last = data.draw(st.integers(first, len(self.updates)))
        wanted = list(chain.from_iterable(self.updates[first:last]))
        assert self.ledger.pairs(first, last) == len(wanted)
        if self.folder is None and first < self.trimmed:
            with pytest.raises(InputError, match="trimmed"):
                self.ledger.since(first, last)
            return
        entries = self.ledger.since(first, last)
        assert rows(entries) == wanted
        self.views.append((entries, wanted))

    @precondition(lambda self: self.updates)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        version = data.draw(st.integers(0, len(self.updates)))
        self.ledger.trim(version)
        self.trimmed = max(self.trimmed, version)

    @precondition(lambda self: self.updates)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        version = data.draw(st.integers(0 if self.folder else self.trimmed, len(self.updates)))
        self.ledger.truncate(version)
        self._forget(version)
        self.trimmed = min(self.trimmed, version)

    @precondition(lambda self: self.folder)
    @rule()
    def reopen(self) -> None:
        self.ledger.close()
        self.ledger = Ledger.open(self.folder / "ledger", expect=HEADER, write=True)
        self.trimmed = 0

    @precondition(lambda self: self.folder and self.updates)
    @rule(data=st.data())
    def tear(self, data: st.DataObject) -> None:
        """The last record loses its end; a segment that has only just begun has none to lose."""
        self.ledger.close()
        path = max((self.folder / "ledger").glob("segment-*"))
        whole = path.read_bytes()
        head = 8 + int.from_bytes(whole[4:8], "little")
        if len(whole) > head:
            path.write_bytes(whole[: -data.draw(st.integers(1, 600))])
            self._forget(len(self.updates) - 1)
        self.ledger = Ledger.open(self.folder / "ledger", write=True)
        self.trimmed = 0

    @precondition(lambda self: self.ledger is not None)
    @rule()
    def verify(self) -> None:
        assert self.ledger.verify() == self.digests[-1]
        if self.folder:
            reader = Ledger.open(self.folder / "ledger")
            assert rows(reader.since(0)) == list(chain.from_iterable(self.updates))

    def _forget(self, version: int) -> None:
        del self.updates[version:]
        del self.digests[version + 1 :]

    @invariant()
    def the_ledger_is_where_the_list_is(self) -> None:
        if self.ledger is None:
            return
        assert (self.ledger.version, self.ledger.digest) == (len(self.updates), self.digests[-1])
        assert self.ledger.entries == sum(map(len, self.updates))

    @invariant()
    def what_was_handed_out_has_not_changed(self) -> None:
        for entries, wanted in self.views:
            assert rows(entries) == wanted


Against.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestAgainstAList = Against.TestCase


def test_the_digest_tells_every_pair_of_single_changes_apart() -> None:
    """Control: the same values at another place of the record give another digest."""
    base = {
        "party": 1,
        "read": 0,
        "lr": 1.0,
        "step": [2, 3],
        "perturbation": [2, 3],
        "seed": [2, 3],
        "scalar": [2, 3],
    }
    swaps = [base | {name: [3, 2]} for name in ("seed", "scalar")]
    moved = [
        base | {"step": [2, 4]},
        base | {"perturbation": [2, 4]},
        base | {"party": 0},
        base | {"lr": 2.0},
    ]
    digests = set()
    for update in (base, *swaps, *moved):
        ledger = Ledger.create(None, HEADER)
        ledger.append(**update)
        digests.add(ledger.digest)
    assert len(digests) == 7
