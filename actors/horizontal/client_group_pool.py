"""Clients' work on host actors: orders are dealt out, done side by side, and done again where a
host is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np

from actors.actor_process import start
from actors.horizontal.client_group_actor import ClientGroupActor
from actors.remote import lost
from actors.shares import Place
from actors.transport import work
from actors.transport.peers import Peers, Task
from actors.transport.sockets import MOST
from raydpzv.errors import RunError
from raydpzv.grouping import grouped
from raydpzv.methods.roles import Metrics, Order, Upload
from raydpzv.wire.messages import ClientModels

T = TypeVar("T")


def share_of(kept: ClientModels, host: int, hosts: int) -> ClientModels:
    """Return of clients' own models those of a host's, m mod `hosts` = `host`."""
    mine = kept.clients % hosts == host
    values = kept.values[np.repeat(mine, kept.counts)]
    return ClientModels(
        kept.clients[mine], kept.versions[mine], kept.models[mine], kept.counts[mine], values
    )


Noted = Callable[[int, str], None]
"""Records that a host was lost, and what was done."""


@dataclass
class ClientGroupPool:
    """The host actors of a run, and new ones in place of those that are lost.

    prepared: for each host a reference to what it gets, the same for all where all get the data,
    which travel once;
    ledger: the ledger actor (None for methods that send weights); place: the hosts'
    bundles follow the server's; made: what is there when a host is. goes_back: a run that loses a
    machine resumes from its checkpoint, with its actors placed anew.
    """

    prepared: Sequence[Any]
    ledger: Any | None
    place: Place
    restarts: int
    timeout: float
    actors: list[Any] = field(default_factory=list)
    made: list[Any] = field(default_factory=list)
    losses: int = 0
    goes_back: bool = False

    def begin(self, losses: int, *, goes_back: bool) -> None:
        """Begin with so many losses that the run has made up for."""
        self.losses, self.goes_back = losses, goes_back

    def raise_all(self) -> None:
        """Create every host."""
        pairs = [self._make(host) for host in range(len(self.place.plan.actors))]
        self.actors, self.made = [actor for actor, _ in pairs], [made for _, made in pairs]

    def replace(self, host: int, error: BaseException) -> str:
        """Put a new actor in the place of a lost one; return what was done. RunError if that was
        one too many.

        Raises the error where the run is to go back, since a machine was lost.
        """
        import ray

        why = " ".join(str(error).split())[:200]
        if self.losses >= self.restarts:
            raise RunError(
                f"host {host} was lost and resources.restarts = {self.restarts} replacements are "
                f"used up: raise it, or see what ends the hosts ({why})"
            ) from error
        if self.goes_back and not self.place.stands():
            raise error
        self.losses += 1
        ray.kill(self.actors[host])  # one that cannot be reached may still hold its share
        self.actors[host], _ = self._make(host)
        source = (
            "from the initial key and the ledger"
            if self.ledger is not None
            else "and needs nothing of the old one"
        )
        return (
            f"replaced ({self.losses} of {self.restarts}) by a new actor, rebuilt {source}: {why}"
        )

    def _make(self, host: int) -> tuple[Any, Any]:
        groups = {"ctl": ClientGroupActor.CONTROL, "look": ClientGroupActor.LOOKING}
        share = self.place.plan.actors[host]
        return start(
            ClientGroupActor,
            groups,
            {"ctl": 1, "look": 1},
            share.bundle(),
            self.place.group,
            self.place.bundle(host + 1),
            self.prepared[host],
            share.gpus,
            self.ledger,
        )


@dataclass
class _Work:
    """Orders that a host works on, in the order of the versions at which they are due."""

    host: int
    orders: Sequence[Order]
    task: Task


class PoolExecutor:
    """A `Executor` whose clients live in host actors: one message per host and batch of orders.

    Orders are gathered until an upload is wanted, then all are sent. Which host does an order moves
    no bits; it is the next in turn, or the one that keeps the client's own model or keys
    (`pinned`). Evaluations are host 0's. drifts: a lost host's clients had models that nobody can
    rebuild, so that no other takes its place and the run goes back.
    lean: see `work.work`.
    """

    def __init__(
        self,
        pool: ClientGroupPool,
        peers: Peers,
        *,
        lean: bool,
        pinned: bool,
        noted: Noted,
        drifts: bool = False,
    ) -> None:
        self._pool, self._peers, self._lean, self._pinned = pool, peers, lean, pinned
        self._noted, self._drifts = noted, drifts
        self._gathered: list[Order] = []
        self._dealt, self.calls = 0, 0
        self._sent: list[_Work] = []
        self._done: dict[int, Upload] = {}

    def submit(self, order: Order) -> int:
        """Gather the order; the client's number is the handle, since a client has one order at a
        time.
        """
        self._gathered.append(order)
        return order.client

    def result(self, handle: int) -> Upload:
        """Send what is gathered, unless this upload is there already, wait for it and return it."""
        if handle not in self._done:
            self._send()
            self._collect(
                next(sent for sent in self._sent if any(o.client == handle for o in sent.orders))
            )
        return self._done.pop(handle)

    def evaluate(self, version: int) -> Metrics:
        self._send()
        return cast(Metrics, self._probe(0, "evaluate", version))

    def state(self, version: int) -> np.ndarray:
        self._send()
        return cast(np.ndarray, self._probe(0, "state", version))

    def drift(self, version: int) -> tuple[float, float]:
        """Return how far clients' own models are from the ledger's: largest difference, largest
        share of elements.
        """
        found = [self._probe(host, "drift", version) for host in range(len(self._pool.actors))]
        return max(gap for gap, _ in found), max(share for _, share in found)

    def models(self, version: int) -> ClientModels:
        """Return what a checkpoint after `version` updates keeps of all hosts' clients."""
        found = [self._probe(host, "models", version) for host in range(len(self._pool.actors))]
        return ClientModels(
            *map(np.concatenate, zip(*(kept.arrays() for kept in found), strict=True))
        )

    def finish(self) -> None:
        """Let the hosts go: nothing is asked of them any more."""
        self._peers.finish()

    def _send(self) -> None:
        hosts = len(self._pool.actors)
        shares = grouped(
            ((order.client if self._pinned else turn) % hosts, order)
            for turn, order in enumerate(self._gathered, self._dealt)
        )
        self._dealt += len(self._gathered)
        self._gathered = []
        self._sent += [
            _Work(host, orders, self._start(host, orders)) for host, orders in shares.items()
        ]

    def _start(self, host: int, orders: Sequence[Order]) -> Task:
        self.calls += 1
        frame = work.work(orders, lean=self._lean)
        task = Task(
            f"the uploads of host {host}", work.most_bytes(orders), work.read_uploads, frame
        )
        return self._peers.send(host, task)

    def _collect(self, sent: _Work) -> None:
        uploads = self._waited(sent.host, lambda: self._peers.result(sent.host, sent.task))
        self._sent.remove(sent)
        self._done |= {upload.client: upload for upload in uploads}

    def _probe(self, host: int, name: str, version: int) -> Any:
        """Return what a host finds of the model at `version`, after the work that was sent
        before.
        """

        def probe() -> Any:
            read, frame = partial(work.read_probed, name), work.probe(name, version)
            task = Task(f"host {host} at update {version}", MOST, read, frame)
            return self._peers.result(host, self._peers.send(host, task))

        return self._waited(host, probe)

    def _waited(self, host: int, wait: Callable[[], T]) -> T:
        """Return a host's answer, from its replacement if it is lost before."""
        while True:
            try:
                return wait()
            except Exception as error:
                if not lost(error):
                    raise
                self._replace(host, error)

    def _replace(self, host: int, error: BaseException) -> None:
        """Let a new actor do again what the lost one had not handed over."""
        if self._drifts:
            if self._pool.goes_back:
                raise error
            raise RunError(
                f"host {host} was lost, and with it the models of its clients, which with revert = "
                '"add_back" only the '
                "run's last checkpoint has: continue from there with raydpzv resume"
            ) from error
        done = self._pool.replace(host, error)
        self._peers.replace(host, self._pool.actors[host])
        again = [sent for sent in self._sent if sent.host == host]
        for sent in again:
            sent.task = self._start(host, sent.orders)
        orders = sum(len(sent.orders) for sent in again)
        self._noted(host, f"{done}; {orders} orders are performed again")
