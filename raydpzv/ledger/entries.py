"""Entries: one update's record, a slice of the history, and the digest chain over both.

n entries of an update; N entries of a slice.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any, NamedTuple, TypedDict, cast

import numpy as np
import numpy.typing as npt

from raydpzv.errors import InputError

Array = npt.NDArray[Any]

SHARED = -1
"""The party of an update that all clients share (the average over a cohort)."""

COLUMNS: dict[str, np.dtype[Any]] = {
    "round": np.dtype("<i8"),
    "party": np.dtype("<i4"),
    "read": np.dtype("<i8"),
    "step": np.dtype("<i8"),
    "perturbation": np.dtype("<i4"),
    "seed": np.dtype("<u8"),
    "scalar": np.dtype("<f4"),
    "lr": np.dtype("<f8"),
}
"""The columns of an entry: 52 bytes."""
CONSTANT = ("round", "party", "read", "lr")
"""The columns that have one value per update."""
ENTRY_COLUMNS = ("step", "perturbation", "seed", "scalar")
"""The columns that have one value per entry."""
_FIXED = struct.Struct("<qiqdq")


class LedgerUpdate(NamedTuple):
    """One update, as one record on disk holds it. Columns are bytes, little-endian."""

    round: int
    party: int
    read: int  # the version that was read
    lr: float
    step: bytes  # int64 [n]
    perturbation: bytes  # int32 [n]
    seed: bytes  # uint64 [n]
    scalar: bytes  # float32 [n]

    @property
    def entries(self) -> int:
        """Number of entries, n."""
        return len(self.seed) // 8


@dataclass(frozen=True, eq=False, slots=True)
class Slice:
    """Updates first+1 .. last: one read-only column per field over their N entries, in the ledger's
    order.
    """

    first: int
    last: int
    round: Array  # int64 [N]
    party: Array  # int32 [N]
    read: Array  # int64 [N]
    step: Array  # int64 [N]
    perturbation: Array  # int32 [N]
    seed: Array  # uint64 [N]
    scalar: Array  # float32 [N]
    lr: Array  # float64 [N]

    def __len__(self) -> int:
        return len(self.seed)

    def of(self, party: int) -> Slice:
        """Return the entries of one party (a copy); first and last stay as they are."""
        mine = self.party == party
        return Slice(
            self.first, self.last, *(frozen(getattr(self, name)[mine]) for name in COLUMNS)
        )

    def steps(self) -> Iterator[tuple[Array, Array, float]]:
        """Yield one (seeds uint64 [P], scalars float32 [P], lr) per round and step, in order."""
        if len(self) == 0:
            return
        begins = np.flatnonzero((np.diff(self.round) != 0) | (np.diff(self.step) != 0)) + 1
        for a, b in pairwise([0, *begins.tolist(), len(self)]):
            yield self.seed[a:b], self.scalar[a:b], float(self.lr[a])

    def each(self) -> Iterator[Slice]:
        """Yield the updates that have entries here one by one, as slices (views)."""
        for a, b in pairwise(bounds(self.round).tolist()):
            round = int(self.round[a])
            yield Slice(round - 1, round, *(getattr(self, name)[a:b] for name in COLUMNS))

    def updates(self) -> Iterator[LedgerUpdate]:
        """Yield the updates one by one."""
        for a, b in pairwise(bounds(self.round).tolist()):
            yield LedgerUpdate(
                int(self.round[a]),
                int(self.party[a]),
                int(self.read[a]),
                float(self.lr[a]),
                *(getattr(self, name)[a:b].tobytes() for name in ENTRY_COLUMNS),
            )


def frozen(values: Array) -> Array:
    """Return a read-only view."""
    view = values.view()
    view.flags.writeable = False
    return view


def bounds(rounds: Array) -> Array:
    """Return where each run of equal rounds begins, and the end: int64 [updates + 1]."""
    inner = np.flatnonzero(np.diff(rounds) != 0) + 1
    return np.concatenate(([0], inner, [len(rounds)] if len(rounds) else [])).astype(np.int64)


def link(previous: bytes, update: LedgerUpdate) -> bytes:
    """Return the chain's next value: sha256(chain_{r-1} || canonical bytes of update r)."""
    round, party, read, lr, step, perturbation, seed, scalar = update
    fixed = _FIXED.pack(round, party, read, lr, len(seed) // 8)
    return sha256(b"".join((previous, fixed, step, perturbation, seed, scalar))).digest()


def links(start: bytes, entries: Slice) -> list[bytes]:
    """Return the chain's values: `start`, and one after each update, as `link` computes them.

    If all updates have equally many entries, as is usual, it takes a third of the time of single
    calls.
    """
    chains, places = [start], bounds(entries.round)
    counts = np.diff(places)
    if not len(counts) or (counts != counts[0]).any():
        for update in entries.updates():
            chains.append(link(chains[-1], update))
        return chains
    n = int(counts[0])
    table = np.empty(
        len(counts),
        [
            *((name, COLUMNS[name]) for name in CONSTANT),
            ("count", "<i8"),
            *((name, COLUMNS[name], n) for name in ENTRY_COLUMNS),
        ],
    )
    for name in CONSTANT:
        table[name] = getattr(entries, name)[places[:-1]]
    table["count"] = n
    for name in ENTRY_COLUMNS:
        table[name] = getattr(entries, name).reshape(-1, n)
    chain = start
    for (update,) in struct.iter_unpack(f"{table.itemsize}s", table.tobytes()):
        chain = sha256(chain + update).digest()
        chains.append(chain)
    return chains


class NewUpdate(TypedDict):
    """An update to append: its n entries ascend by (step, perturbation)."""

    party: int  # a client's number, or SHARED
    read: int  # the version that it was computed from
    lr: float
    step: npt.ArrayLike  # [n], as all that follow
    perturbation: npt.ArrayLike
    seed: npt.ArrayLike
    scalar: npt.ArrayLike


def checked(round: int, update: NewUpdate) -> LedgerUpdate:
    """Return the update `round` with the ledger's types, or raise InputError that names the
    argument.
    """
    party, read, lr = update["party"], update["read"], update["lr"]
    columns = {
        "step": update["step"],
        "perturbation": update["perturbation"],
        "seed": update["seed"],
        "scalar": update["scalar"],
    }
    if not -1 <= party < 2**31:
        raise InputError(f"party: wanted a client's number or SHARED (-1), got {party}")
    if not 0 <= read < round:
        raise InputError(
            f"read: wanted a version from 0 to {round - 1}, which the ledger has, got {read}"
        )
    if not (math.isfinite(lr) and lr > 0):
        raise InputError(f"lr: wanted a finite step size above 0, got {lr}")
    arrays = {name: _column(name, values) for name, values in columns.items()}
    lengths = {name: len(values) for name, values in arrays.items()}
    if len(set(lengths.values())) != 1 or lengths["seed"] == 0:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(f"append: wanted columns of one length, at least 1; got {listed}")
    if not np.isfinite(arrays["scalar"]).all():
        raise InputError(
            f"scalar: wanted finite values, got {arrays['scalar'].tolist()[:5]} in update {round}"
        )
    _require_order(arrays["step"], arrays["perturbation"])
    columns_n = (arrays[name].tobytes() for name in ENTRY_COLUMNS)
    return LedgerUpdate(round, int(party), int(read), float(lr), *columns_n)


def _column(name: str, values: Any) -> Array:
    dtype = COLUMNS[name]
    array = values if isinstance(values, np.ndarray) else _listed(name, values)
    if array.ndim != 1:
        raise InputError(
            f"{name}: wanted one value per entry (one axis), got the shape {array.shape}"
        )
    if array.dtype == dtype:
        return array
    return _whole(name, array, dtype) if dtype.kind in "iu" else _rounded(name, array, dtype)


def _listed(name: str, values: Any) -> Array:
    """Return a sequence as an array; numpy alone would turn a list of large seeds into float64."""
    listed = list(values) if np.ndim(values) == 1 else values
    if name == "scalar" or not isinstance(listed, list):
        return np.asarray(listed)
    return np.array(listed, dtype=object)


def _whole(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    info = np.iinfo(cast(Any, dtype))
    whole = array.dtype.kind in "iu" or all(
        isinstance(value, int | np.integer) for value in array.tolist()
    )
    ends = (array.min(), array.max()) if len(array) else ()
    if not whole or any(not info.min <= int(end) <= info.max for end in ends):
        raise InputError(
            f"{name}: wanted whole numbers from {info.min} to {info.max}, got {array.tolist()[:5]}"
        )
    return array.astype(dtype)


def _rounded(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    """Return the values as `dtype`; InputError if that rounds them, since a replay applies what is
    kept.
    """
    if array.dtype.kind not in "iuf":
        raise InputError(f"{name}: wanted numbers, got the type {array.dtype}")
    with np.errstate(over="ignore"):
        exact = array.astype(dtype)
    if not np.array_equal(exact, array, equal_nan=True):
        raise InputError(
            f"{name}: wanted {dtype.name} values, got {array.dtype} ones that are rounded there: "
            "round them before they are applied"
        )
    return exact


def _require_order(step: Array, perturbation: Array) -> None:
    """Refuse an update whose entries are not in the order in which a replay applies them."""
    later = (step[1:] > step[:-1]) | (
        (step[1:] == step[:-1]) & (perturbation[1:] > perturbation[:-1])
    )
    if step[0] < 0 or perturbation.min() < 0 or not later.all():
        raise InputError(
            "append: wanted entries ascending by (step, perturbation), both from 0; "
            f"got steps {step.tolist()[:5]}, perturbations {perturbation.tolist()[:5]}"
        )
