"""Where a client's work happens."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from time import process_time, thread_time
from typing import Any, Protocol

from raydpzv.lazy_import import torch
from raydpzv.limits import free_threads
from raydpzv.methods.roles import Client, ClientGroup, Metrics, Order, Upload, VerticalServer
from raydpzv.methods.vertical.base import composed
from raydpzv.wire.messages import Evaluate

_WORTH_A_THREAD = 1e-3
"""CPU seconds of a client's work from which threads do it. Shorter ones wait for each other's
Python code: at .5 ms two threads take as long as one or longer, from 1 ms on .65 to .8 of its time
(benchmarks/README.md)."""
_TRIALS = 8
"""Works whose shortest decides: the first ones load kernels."""


class Executor(Protocol):
    """Starts clients' work and hands over what comes of it."""

    def submit(self, order: Order) -> Any:
        """Start the work an order asks for; returns a handle at once."""
        ...

    def result(self, handle: Any) -> Upload:
        """Wait for the work behind a handle."""
        ...


class LocalExecutor:
    """Clients in this process: short work is done when it is asked for, long work in threads beside
    the server's.

    Threads move no bits: what a client does depends on its orders alone, and it does them one by
    one. A run evaluates every client last, so that none is at work after that.
    """

    def __init__(self, clients: Sequence[Client], threads: int | None = None) -> None:
        self._clients = clients
        self._threads = free_threads() if threads is None else threads
        self._pool: ThreadPoolExecutor | None = None
        self._newest: dict[int, Future[Upload]] = {}
        self._trials: list[float] = []

    def submit(self, order: Order) -> Upload | Future[Upload]:
        if self._pool is not None:
            before = self._newest.get(order.client)
            found = self._newest[order.client] = self._pool.submit(self._process, order, before)
            return found
        if len(self._trials) < _TRIALS and order.body.metered:
            return self._tried(order)
        return self._process(order)

    def result(self, handle: Upload | Future[Upload]) -> Upload:
        return handle.result() if isinstance(handle, Future) else handle

    def close(self) -> None:
        """End the threads: works at hand are waited for, works that wait are dropped."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _process(self, order: Order, before: Future[Upload] | None = None) -> Upload:
        """Do a client's work after its last one. Threads start works in order, so the last one is
        never behind it.
        """
        if before is not None:
            before.result()
        return self._clients[order.client].process(order)

    def _tried(self, order: Order) -> Upload:
        begun = thread_time()
        upload = self._process(order)
        self._trials.append(thread_time() - begun)
        if (
            len(self._trials) == _TRIALS
            and self._threads > 1
            and min(self._trials) >= _WORTH_A_THREAD
        ):
            self._pool = ThreadPoolExecutor(self._threads, "client", _take_torch_threads)
        return upload


def _take_torch_threads() -> None:
    """Let torch have as many threads in this one as the run set: some calls do not look, and more
    change the bits.

    Setting the number here would outlast a run of compiled kernels: it is every later thread's.
    """
    if "torch" in sys.modules:
        torch.get_num_threads()


class GroupExecutor:
    """Many clients in this process: orders are gathered until an upload is wanted, and then done
    together.

    measured: whether uploads say what CPU time they took.
    """

    def __init__(self, client_group: ClientGroup, *, measured: bool = False) -> None:
        self._process = partial(processed, client_group) if measured else client_group.process
        self._orders: list[Order] = []
        self._done: dict[int, Upload] = {}

    def submit(self, order: Order) -> int:
        """Take the order; the client's number is the handle, since a client has one order at a
        time.
        """
        self._orders.append(order)
        return order.client

    def result(self, handle: int) -> Upload:
        """Do the work of all orders taken so far, if this upload is not there yet, and return
        it.
        """
        if handle not in self._done:
            self._do(self._orders)
            self._orders = []
        return self._done.pop(handle)

    def run_until(self, version: int) -> None:
        """Do the work at models before `version`, which the client_group leaves behind when it goes
        to that one.
        """
        self._do([order for order in self._orders if order.round <= version])
        self._orders = [order for order in self._orders if order.round > version]

    def _do(self, orders: Sequence[Order]) -> None:
        self._done |= {upload.client: upload for upload in self._process(orders)}


def processed(client_group: ClientGroup, orders: Sequence[Order]) -> list[Upload]:
    """Return the uploads of a group, each with an equal share of the CPU time that all took."""
    begun = process_time()
    uploads = client_group.process(orders)
    share = (process_time() - begun) / max(len(uploads), 1)
    return [upload._replace(cpu=share) for upload in uploads]


def split_score(server: VerticalServer, host: Executor, clients: int) -> Callable[[], Metrics]:
    """Return what scores a composed model: every client embeds the held-out rows, the server's head
    does the rest.
    """

    def score() -> Metrics:
        handles = [host.submit(Order(m, Evaluate())) for m in range(clients)]
        return composed(server, [host.result(handle) for handle in handles])

    return score
