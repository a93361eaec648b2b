"""Clients' work on host actors: orders are dealt out, done side by side, and done again where a host is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from actors.actor_reuse import start
from actors.horizontal.client_group_actor import ClientGroupActor
from actors.remote import get, lost
from actors.serialization import pack_work, unpack_upload
from actors.shares import Place
from raydpzv.errors import RunError
from raydpzv.methods.roles import Metrics, Order, Upload
from raydpzv.wire.messages import ClientModels

T = TypeVar("T")


def share_of(kept: ClientModels, host: int, hosts: int) -> ClientModels:
    """Return of clients' own models those of a host's, m mod `hosts` = `host`."""
    mine = kept.clients % hosts == host
    values = kept.values[np.repeat(mine, kept.counts)]
    return ClientModels(kept.clients[mine], kept.versions[mine], kept.models[mine], kept.counts[mine], values)


Noted = Callable[[int, str], None]
"""Records that a host was lost, and what was done."""


@dataclass
class ClientGroupPool:
    """The host actors of a run, and new ones in place of those that are lost.

    prepared: for each host a reference to what it gets, the same for all where all get the data, which travel once;
    ledger: the ledger actor (None for methods that send weights); place: the hosts'
    bundles follow the server's; made: what is there when a host is. goes_back: a run that loses a machine goes on from
    its checkpoint, with its actors placed anew.
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
        """Put a new actor in the place of a lost one; return what was done. RunError if that was one too many.

        Raises the error where the run is to go back, since a machine was lost.
        """
        import ray

        why = " ".join(str(error).split())[:200]
        if self.losses >= self.restarts:
            raise RunError(
                f"host {host} was lost and resources.restarts = {self.restarts} replacements are used up: raise it, "
                f"or see what ends the hosts ({why})"
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
        return f"replaced ({self.losses} of {self.restarts}) by a new actor, rebuilt {source}: {why}"

    def _make(self, host: int) -> tuple[Any, Any]:
        groups = {"ctl": ClientGroupActor.CONTROL, "look": ClientGroupActor.LOOKING}
        share = self.place.plan.actors[host]
        return start(
            *(ClientGroupActor, groups, {"ctl": 1, "look": 1}),
            *(share.bundle(), self.place.group, self.place.bundle(host + 1)),
            *(self.prepared[host], share.gpus, self.ledger),
        )


class HostDispatcher(Protocol):
    """The server's way to its hosts, each of which does what it is sent one after the other.

    Waiting raises Stalled past the time limit, Ray's error if the host is lost.
    """

    def work(self, host: int, orders: Sequence[Order]) -> Any:
        """Send orders; returns a handle at once."""
        ...

    def uploads(self, host: int, handle: Any) -> list[Upload]:
        """Wait for what comes of orders."""
        ...

    def look(self, host: int, name: str, version: int) -> Any:
        """Wait for what a method of `LOOKS` finds of the model at `version`, after the work sent before."""
        ...

    def replace(self, host: int, new: Any) -> None:
        """Send to a new host in the place of a lost one."""
        ...

    def finish(self) -> None:
        """Say that nothing follows; all was waited for."""
        ...


class HostCalls:
    """Calls of Ray; a handle is an object reference. lean: see `pack_work`."""

    def __init__(self, actors: Sequence[Any], timeout: float, *, lean: bool) -> None:
        self._actors, self._timeout, self._lean = list(actors), timeout, lean

    def work(self, host: int, orders: Sequence[Order]) -> Any:
        """Call the host; returns at once."""
        return self._actors[host].process.remote(pack_work(orders, lean=self._lean))

    def uploads(self, host: int, handle: Any) -> list[Upload]:
        """Wait for what a call returns."""
        return [unpack_upload(wire) for wire in get(handle, self._timeout, f"the uploads of host {host}")]

    def look(self, host: int, name: str, version: int) -> Any:
        """Call the host and wait."""
        reference = getattr(self._actors[host], name).remote(version)
        return get(reference, self._timeout, f"host {host} at update {version}")

    def replace(self, host: int, new: Any) -> None:
        """Call a new host."""
        self._actors[host] = new

    def finish(self) -> None:
        """Say nothing: calls come to an end by themselves."""


@dataclass
class _Sent:
    """Orders that a host is at work on, in the order of the versions they are to be done at."""

    host: int
    orders: Sequence[Order]
    handle: Any


class PoolExecutor:
    """A `Executor` whose clients live in host actors: one message per host and batch of orders.

    Orders are gathered until an upload is wanted, then all are sent. Which host does an order moves no bits; it is the
    next in turn, or the one that keeps the client's own model or keys (`pinned`). Evaluations are host 0's. drifts: a
    lost host's clients had models that nobody can rebuild, so that no other takes its place and the run goes back.
    """

    def __init__(
        self,
        pool: ClientGroupPool,
        dispatcher: HostDispatcher,
        *,
        pinned: bool,
        noted: Noted,
        drifts: bool = False,
    ) -> None:
        self._pool, self._dispatcher, self._pinned, self._noted = pool, dispatcher, pinned, noted
        self._drifts = drifts
        self._gathered: list[Order] = []
        self._dealt, self.calls = 0, 0
        self._sent: list[_Sent] = []
        self._done: dict[int, Upload] = {}

    def submit(self, order: Order) -> int:
        """Take the order; the client's number is the handle, since a client has one order at a time."""
        self._gathered.append(order)
        return order.client

    def result(self, handle: int) -> Upload:
        """Send what is gathered, unless this upload is there already, wait for it and return it."""
        if handle not in self._done:
            self._send()
            self._collect(next(sent for sent in self._sent if any(o.client == handle for o in sent.orders)))
        return self._done.pop(handle)

    def evaluate(self, version: int) -> Metrics:
        """Score the model at `version` on the held-out rows, after the work at earlier ones."""
        self._send()
        metrics: Metrics = self._look(0, "evaluate", version)
        return metrics

    def state(self, version: int) -> np.ndarray:
        """Return parameters and momentum, if there is one, at `version`."""
        self._send()
        state: np.ndarray = self._look(0, "state", version)
        return state

    def drift(self, version: int) -> tuple[float, float]:
        """Return how far clients' own models are from the ledger's: largest difference, largest share of elements."""
        found = [self._look(host, "drift", version) for host in range(len(self._pool.actors))]
        return max(gap for gap, _ in found), max(share for _, share in found)

    def models(self, version: int) -> ClientModels:
        """Return what a checkpoint after `version` updates keeps of all hosts' clients."""
        found = [self._look(host, "models", version) for host in range(len(self._pool.actors))]
        return ClientModels(*map(np.concatenate, zip(*(kept.arrays() for kept in found), strict=True)))

    def finish(self) -> None:
        """Let the hosts go: nothing is asked of them any more."""
        self._dispatcher.finish()

    def _send(self) -> None:
        hosts = len(self._pool.actors)
        shares: dict[int, list[Order]] = {}
        for order in self._gathered:
            turn = order.client if self._pinned else self._dealt
            shares.setdefault(turn % hosts, []).append(order)
            self._dealt += 1
        self._gathered = []
        for host, orders in shares.items():
            self._sent.append(_Sent(host, orders, self._start(host, orders)))

    def _start(self, host: int, orders: Sequence[Order]) -> Any:
        self.calls += 1
        return self._dispatcher.work(host, orders)

    def _collect(self, sent: _Sent) -> None:
        uploads = self._waited(sent.host, lambda: self._dispatcher.uploads(sent.host, sent.handle))
        self._sent.remove(sent)
        self._done |= {upload.client: upload for upload in uploads}

    def _look(self, host: int, name: str, version: int) -> Any:
        return self._waited(host, lambda: self._dispatcher.look(host, name, version))

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
                f'host {host} was lost, and with it the models of its clients, which with revert = "add_back" only the '
                "run's last checkpoint has: go on from there with raydpzv resume"
            ) from error
        done = self._pool.replace(host, error)
        self._dispatcher.replace(host, self._pool.actors[host])
        again = [sent for sent in self._sent if sent.host == host]
        for sent in again:
            sent.handle = self._start(host, sent.orders)
        orders = sum(len(sent.orders) for sent in again)
        self._noted(host, f"{done}; {orders} orders are performed again")
