"""The two roles of a method, which know no clock, no network and no Ray."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from raydpzv.engine.split_model import Ages, Metrics
from raydpzv.ledger.entries import Slice
from raydpzv.privacy.mechanisms import Receipt
from raydpzv.secure.attempts import Attempt
from raydpzv.wire.messages import Body, ClientModels


class Release(NamedTuple):
    """A release of a party, with the receipt of its noise: a scalar, or rows of an array (then the
    value is NaN).
    """

    perturbation: int
    value: float
    receipt: Receipt
    step: int | None = None  # of the upload it belongs to; None: the one being served
    ids: np.ndarray | None = None  # the rows it is about; None: those of the upload being served


class Sync(NamedTuple):
    """The catch-up of a client that keeps no model of its own.

    read: updates in that model; missed: those it had to replay first; pairs: (seed, scalar) pairs
    it got for that;
    pulled: it took the whole model instead.
    """

    read: int
    missed: int
    pairs: int
    pulled: bool = False


class Order(NamedTuple):
    """A message from the server to one client, and what the server knows about the service that
    made it.
    """

    client: int
    body: Body
    round: int = 0
    start_immediately: bool = False  # True: work on arrival; False: at the client's next activation
    is_query: bool = (
        False  # True: a query, answered beside the client's round trip and changing nothing in it
    )
    upload_bytes: int | None = (
        None  # the answer's size if its shapes are fixed, None if they are drawn
    )
    releases: tuple[Release, ...] = ()
    cache: Ages | None = None
    loss: float = math.nan  # training loss on the batch served
    sync: Sync | None = None
    request_bytes: int | None = (
        None  # what the client, called upon, sends before it is answered; None: nothing
    )
    version: int = 0  # the ledger's update that the answer carries, from 1; 0: it carries none
    # True: the next activation begins with a request, and continues with the answer to it
    asks: bool = False


_NO_ROWS = np.zeros(0, np.int32)


class Upload(NamedTuple):
    """A message from one client to the server.

    step: counts the client's uploads from 0, or, of a client that keeps no count, the updates
    before it worked.
    loss: the client's training loss, if it is the client who computes it; releases: the receipts of
    noise that the client added. Both are facts for the record, not on the wire. is_query: the
    answer to a query, or a client's own
    request: no upload to be learned from. attempt: at a round, of uploads that come to a release
    only together. cpu: seconds of the process that made it, where they are measured.
    """

    client: int
    step: int
    body: Body
    loss: float = math.nan
    releases: tuple[Release, ...] = ()
    is_query: bool = False
    attempt: Attempt | None = None
    cpu: float = math.nan

    @property
    def ids(self) -> np.ndarray:
        """The rows it is about, int32 [B]; none for a body without row ids."""
        found = getattr(self.body, "ids", None)
        return _NO_ROWS if found is None else found


class Client(Protocol):
    """A party with features. `process` is `apply` then `work`; evaluation is an order that changes
    nothing.
    """

    def process(self, order: Order) -> Upload:
        """Apply the order and return the next upload, computed from the client's own data and
        key.
        """
        ...

    def apply(self, order: Order) -> None:
        """Take in the answer to the last upload."""
        ...

    def work(self) -> Upload:
        """Compute the next upload."""
        ...

    def evaluate(self) -> Upload:
        """Return the embeddings of the held-out rows."""
        ...

    def sha256(self) -> str:
        """Return the digest of the parameters."""
        ...

    def parameters(self) -> np.ndarray:
        """Return a copy of the parameters, float32 [d]."""
        ...


class Rebuildable(Client, Protocol):
    """A client that is a function of its key and of the answers it got."""

    def restore(self, history: Slice, uploads: int) -> None:
        """Become what it was after so many uploads and the answers in `history`, its updates from
        the first on.
        """
        ...


class Server(Protocol):
    """The party that serves uploads."""

    # every upload gets an answer of its own (vertical), or a round's uploads get none (horizontal)
    answers: bool

    @property
    def updates(self) -> int:
        """Updates made so far: what `budget.updates` and `evaluate.every` count."""
        ...

    def first_orders(self) -> Sequence[Order]:
        """Return the first orders."""
        ...

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Serve one upload: () while a barrier fills, one order if asynchronous."""
        ...


class PullServer(Server, Protocol):
    """A server whose clients ask for the newest state when they wake."""

    def reads(self, client: int) -> int | None:
        """Return the version that a client works at, None if it is idle."""
        ...

    def wake(self, client: int) -> Order:
        """Return what the client is to work at, as things are now."""
        ...


class VerticalServer(Server, Protocol):
    """The party with labels."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: a tree of plain values, arrays and messages, none of
        which changes after.
        """
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become what the server was when it returned this state."""
        ...

    def evaluate(self, embeddings: Sequence[np.ndarray]) -> Metrics:
        """Score the composed model on the held-out rows; embeddings [N, E] in client order."""
        ...

    def sha256(self) -> str:
        """Return the digest of the head's parameters."""
        ...

    def parameters(self) -> np.ndarray:
        """Return a copy of the head's parameters, float32 [d_0]."""
        ...


class ClientGroup(Protocol):
    """Many horizontal clients in one process: none of them is an object, they share what they
    can.
    """

    def process(self, orders: Sequence[Order]) -> list[Upload]:
        """Do the work of several clients and return their uploads in the order of the orders."""
        ...


class LedgerGroup(ClientGroup, Protocol):
    """Clients around a replica that follows the ledger, which others may look at."""

    def evaluate(self, version: int, x: Any, y: Any) -> Metrics:
        """Score the model at `version` on held-out rows [N, ...] with classes [N]."""
        ...

    def state(self, version: int) -> np.ndarray:
        """Return a copy of parameters and momentum, if there is one, at `version`: float32 [1 or 2,
        d].
        """
        ...

    def adopt(self, state: np.ndarray, version: int) -> None:
        """Make clients that have done nothing yet follow from `version` on; state: what `state`
        returned there.
        """
        ...


@dataclass(frozen=True)
class Drift:
    """Distance of clients' models from the shared one after a catch-up: largest difference, share
    of elements.
    """

    largest: float
    share: float


class OwnModels(ClientGroup, Protocol):
    """Clients each of whom keeps a model of its own."""

    def models(self) -> ClientModels:
        """Return what a checkpoint keeps of the clients that took part, of methods whose models
        nobody can rebuild.
        """
        ...

    def restore_models(self, kept: ClientModels) -> None:
        """Make clients that have done nothing yet what they were when `models` returned this."""
        ...

    def drift(self, version: int) -> Drift:
        """Update every client that ever took part to `version` and compare it with the model of the
        ledger.
        """
        ...


class ResumableServer(Server, Protocol):
    """A server of rounds, which a checkpoint can restore."""

    def state(self) -> np.ndarray | None:
        """Return what a checkpoint must keep beside what ledger and key give: one array, or
        None.
        """
        ...

    def restore(self, round: int, state: np.ndarray | None) -> None:
        """Become what the server was after so many rounds."""
        ...


class WeightsServer(ResumableServer, Protocol):
    """A server that holds the model and sends it."""

    def parameters(self) -> np.ndarray:
        """Return a copy of the newest parameters, float32 [d]."""
        ...
