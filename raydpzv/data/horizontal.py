"""Shares of the rows among clients (horizontal learning).

iid                  at random, the same number of rows for every client
dirichlet, "equal"   the same number of rows, each client with class shares q_i ~ Dir(α p), where p
are the
                     class shares of the data: Hsu, Qi, Brown, "Measuring the effects of
                     non-identical data distribution for federated visual classification" (2019),
                     Section 3
dirichlet, "drawn"   the rows of every class shared out by Dir(α 1_M), so that sizes differ too: Li,
Diao, Chen,
                     He, "Federated learning on non-IID data silos" (ICDE 2022), Section IV

Small α: clients that see few classes; large α: clients alike. Every row has exactly one owner.
"""

# N rows, M clients, C classes that occur

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from raydpzv.errors import InputError, SpecError
from raydpzv.keys import Key
from raydpzv.registry import HORIZONTAL_SPLITS

if TYPE_CHECKING:
    from raydpzv.settings.sections_horizontal import HorizontalSplitSection

ALPHAS = (1e-6, 1e6)
"""The least and the greatest concentration: one class a client, and clients that are alike."""


class Partition(Protocol):
    """The rows of every client, in memory or computed."""

    @property
    def clients(self) -> int:
        """M."""
        ...

    @property
    def sizes(self) -> np.ndarray:
        """Rows of every client, int64 [M]."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        ...

    def rows(self, client: int) -> np.ndarray:
        """Return the client's row numbers, ascending. Raises InputError if there is no such
        client.
        """
        ...


@dataclass(frozen=True, eq=False)
class Parts:
    """The rows of every client in memory: 4 bytes a row and 4 bytes a client (8 and 8 beyond 2^31
    rows).

    ids      row numbers [N], int32 or int64: client 0's ascending, then client 1's, ...
    offsets  of the same type, [M + 1]: client i has ids[offsets[i] : offsets[i + 1]]
    """

    ids: np.ndarray
    offsets: np.ndarray

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets).astype(np.int64)

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.offsets.nbytes

    def rows(self, client: int) -> np.ndarray:
        """Return the client's row numbers, ascending: a read-only view."""
        check_client(client, self.clients)
        return self.ids[self.offsets[client] : self.offsets[client + 1]]


@dataclass(frozen=True)
class EvenParts:
    """Rows 0..`total` - 1 in turn: client 0's, then client 1's, ... Nothing is kept of any client.

    total: rows of all `clients` together (N), at least one each; numbers of rows differ by at most
    1, the larger ones first.
    """

    clients: int
    total: int

    @property
    def sizes(self) -> np.ndarray:
        """Rows of every client, int64 [M]."""
        return _even(self.total, self.clients)

    @property
    def nbytes(self) -> int:
        """Bytes in memory: none that grow with rows or clients."""
        return 0

    def rows(self, client: int) -> np.ndarray:
        """Return the client's row numbers, int64, ascending."""
        check_client(client, self.clients)
        least, larger = divmod(self.total, self.clients)
        start = client * least + min(client, larger)
        return np.arange(start, start + least + (client < larger))

    def owners(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the clients that rows (int64 [n], numbers in 0..N-1) belong to, and which of their
        rows these are.
        """
        least, larger = divmod(self.total, self.clients)
        edge = larger * (least + 1)
        owners = np.where(rows < edge, rows // (least + 1), larger + (rows - edge) // least)
        return owners, rows - owners * least - np.minimum(owners, larger)


def check_client(client: int, clients: int) -> None:
    """Raise InputError for a number that no client has."""
    if not 0 <= client < clients:
        raise InputError(f"there is no client {client}: choose one of 0..{clients - 1}")


def split_rows(labels: np.ndarray, split: HorizontalSplitSection, key: Key) -> Parts:
    """Share the rows with these `labels` (whole numbers [N]) out among the clients of a [split]
    section.

    A client that draws fewer than `split.least` rows gets more from the largest. Depends on labels,
    settings and key alone. Needs 16 bytes a client and class in passing. Raises SpecError for an
    alpha out of range and fewer rows than clients · least.
    """
    share: Callable[[np.ndarray, HorizontalSplitSection, np.random.Generator], np.ndarray]
    share = HORIZONTAL_SPLITS[split.how]
    check_enough(len(labels), split.clients, split.least)
    check_alpha(split.alpha)
    return _parts(share(labels, split, (key / "rows of clients").generator()), split.clients)


def check_enough(rows: int, clients: int, least: int) -> None:
    """Raise SpecError where rows do not give every client `least`."""
    if rows < clients * least:
        raise SpecError(
            f"{rows} rows cannot give {clients} clients {least} each: use at most {rows // least} "
            "clients"
        )


def check_alpha(alpha: float) -> None:
    """Raise SpecError for a concentration out of range."""
    if not ALPHAS[0] <= alpha <= ALPHAS[1]:
        raise SpecError(
            f"alpha is {alpha}: choose a number from {ALPHAS[0]:g} (one class a client) to "
            f"{ALPHAS[1]:g} (alike)"
        )


def by_owner(
    owners: np.ndarray, split: HorizontalSplitSection, generator: np.random.Generator
) -> np.ndarray:
    """Return every row's owner as the data say, int32 [N]. Raises SpecError unless each of 0..M-1
    has enough rows.
    """
    rows = np.bincount(owners, minlength=split.clients)
    if len(rows) != split.clients:
        raise SpecError(
            f"split.clients: wanted {len(rows)}, the owners that the data name, got {split.clients}"
        )
    if (short := np.flatnonzero(rows < split.least)).size:
        raise SpecError(
            f"client {short[0]} has {rows[short[0]]} training rows, wanted at least {split.least} "
            "(split.least): hold out fewer test rows (data.test_fraction), or hand over test rows "
            "of your own"
        )
    return owners.astype(np.int32)


def iid(
    labels: np.ndarray, split: HorizontalSplitSection, generator: np.random.Generator
) -> np.ndarray:
    """Return every row's owner, int32 [N]: drawn at random, equally many rows each."""
    return generator.permutation(_owners(_even(len(labels), split.clients)))


def dirichlet(
    labels: np.ndarray, split: HorizontalSplitSection, generator: np.random.Generator
) -> np.ndarray:
    """Return every row's owner, int32 [N]: class mixtures that differ by client."""
    classes, supply = np.unique(labels, return_inverse=True, return_counts=True)[1:]
    if split.sizes == "equal":
        counts_MC = _equal_counts(_even(len(labels), split.clients), supply, split.alpha, generator)
        return owners_of(classes, counts_MC, generator)
    owner = owners_of(
        classes, _drawn_counts(split.clients, supply, split.alpha, generator), generator
    )
    return _top_up(owner, split.clients, split.least, generator)


def _equal_counts(
    sizes: np.ndarray, supply: np.ndarray, alpha: float, generator: np.random.Generator
) -> np.ndarray:
    """Draw every client's rows of every class, int64 [M, C], with the sums `sizes` [M] and `supply`
    [C].

    Each client asks for a multinomial draw from its own class shares. Where a class is asked for
    more often than it has rows, chance decides which of the wishes come true; what is still needed
    is asked for again among the classes that are left. Every turn satisfies everyone or uses up a
    class.
    """
    shares_MC = generator.dirichlet(alpha * supply / supply.sum(), len(sizes))
    counts_MC = np.zeros(shares_MC.shape, np.int64)
    need, left = sizes.copy(), supply.copy()
    while need.any():
        short = np.flatnonzero(need)
        wishes = generator.multinomial(need[short], _among(shares_MC[short], left))
        for j in np.flatnonzero(wishes.sum(0) > left):
            wishes[:, j] = generator.multivariate_hypergeometric(
                wishes[:, j], left[j], method="marginals"
            )
        counts_MC[short] += wishes
        need[short] -= wishes.sum(1)
        left -= wishes.sum(0)
    return counts_MC


def _among(shares_mC: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Shares of the classes that have rows left; who wants none of those takes them as they
    come.
    """
    open_mC = np.where(left > 0, shares_mC, 0.0)
    total = open_mC.sum(1, keepdims=True)
    wanting = total > 1e-300  # below, a quotient loses its digits or overflows
    return np.where(wanting, open_mC / np.where(wanting, total, 1.0), left / left.sum())


def _drawn_counts(
    clients: int, supply: np.ndarray, alpha: float, generator: np.random.Generator
) -> np.ndarray:
    """Cut the rows of every class at the cumulative sums of Dir(α 1_M): int64 [M, C]."""
    counts_MC = np.empty((clients, len(supply)), np.int64)
    for j, rows in enumerate(supply):
        cuts = np.cumsum(generator.dirichlet(np.full(clients, alpha)))[:-1] * rows
        counts_MC[:, j] = np.diff(np.minimum(cuts.astype(np.int64), rows), prepend=0, append=rows)
    return counts_MC


def owners_of(
    classes: np.ndarray, counts_MC: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Return every row's owner, int32 [N]: which rows of its class a client gets is chance."""
    owner = np.empty(len(classes), np.int32)
    by_class = np.argsort(classes, kind="stable")
    start = 0
    for counts_M in counts_MC.T:
        rows = by_class[start : start + counts_M.sum()]
        owner[rows] = generator.permutation(_owners(counts_M))
        start += len(rows)
    return owner


def _top_up(
    owner: np.ndarray, clients: int, least: int, generator: np.random.Generator
) -> np.ndarray:
    """Fill every client up to `least` rows with random rows of the largest, cut down to one
    level.
    """
    sizes = np.bincount(owner, minlength=clients)
    lack = np.maximum(least - sizes, 0)
    if not lack.any():
        return owner
    keep = _cut(sizes, int(lack.sum()))
    shuffled = generator.permutation(len(owner))
    grouped = shuffled[np.argsort(owner[shuffled], kind="stable")]
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    given = grouped[place >= np.repeat(keep, sizes)]
    topped = owner.copy()
    topped[generator.permutation(given)] = _owners(lack)
    return topped


def _cut(sizes: np.ndarray, wanted: int) -> np.ndarray:
    """Return the sizes after taking `wanted` rows one by one, each from the client that then has
    most.
    """
    above = bisect_left(
        range(int(sizes.max()) + 1),
        -wanted + 1,
        key=lambda level: -int(np.maximum(sizes - level, 0).sum()),
    )
    level = above - 1  # the greatest level with at least `wanted` rows above it
    keep = np.minimum(sizes, level)
    spared = int((sizes - keep).sum()) - wanted
    keep[np.flatnonzero(sizes > level)[:spared]] += 1
    return keep


def _even(rows: int, clients: int) -> np.ndarray:
    """Sizes that differ by at most 1, the larger ones first: int64 [M]."""
    return rows // clients + (np.arange(clients) < rows % clients)


def _owners(counts_M: np.ndarray) -> np.ndarray:
    """Each client's number as often as it has rows, int32."""
    return np.repeat(np.arange(len(counts_M), dtype=np.int32), counts_M)


def _parts(owner: np.ndarray, clients: int) -> Parts:
    kind = np.int32 if len(owner) < 2**31 else np.int64
    ids = np.argsort(owner, kind="stable").astype(kind)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=clients)))).astype(kind)
    for array in (ids, offsets):
        array.flags.writeable = False
    return Parts(ids, offsets)


def batch_rows(
    parts: Partition, key: Key, client: int, round: int, step: int, batch: int
) -> np.ndarray:
    """Return min(B, n_i) different row ids of the client, drawn uniformly."""
    held = parts.rows(client)
    if batch >= len(held):
        return held
    generator = (key / "rows" / client / round / step).generator()
    return held[generator.choice(len(held), batch, replace=False)]
