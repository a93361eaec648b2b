"""The server's side of a run, the same under both clocks: serve, account, record, know when to
stop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from time import process_time
from typing import Any, NamedTuple, cast

import numpy as np

from raydpzv.errors import Diverged
from raydpzv.methods.roles import Metrics, Order, PullServer, Release, Server, Sync, Upload
from raydpzv.privacy.release import UNACCOUNTED, PrivacyLoss
from raydpzv.secure.attempts import Attempt
from raydpzv.sim.client_counts import ClientCounts
from raydpzv.sim.interfaces import (
    Activation,
    Budget,
    Evaluated,
    Observer,
    PrivacyFilter,
    Status,
    unheard,
)

SERVER = -1
"""Stands for the server among the clients of work rows."""


class WatchedServer:
    """A server that is watched: `seen` hears of each upload before it is served, `served` of the
    server after.
    """

    def __init__(
        self,
        server: Server,
        seen: Callable[[Upload], None] = lambda upload: None,
        served: Callable[[Any], None] = lambda server: None,
    ) -> None:
        self._server, self._seen, self._served = server, seen, served

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Serve one upload."""
        self._seen(upload)
        orders = self._server.receive(upload)
        self._served(self._server)
        return orders


@dataclass(slots=True)
class _Account:
    """What has happened so far, as `Status` says it; what a checkpoint keeps."""

    updates: int = 0
    uploads: int = 0
    time: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    numbers_up: int = 0
    numbers_down: int = 0
    late: int = 0
    accuracy: float = math.nan
    loss: float = math.nan
    concordance: float = math.nan
    staleness: float = math.nan


class _OpenService(NamedTuple):
    """A service whose answer is not applied yet, in the order of the columns of its row."""

    round: int
    client: int
    step: int
    due: float
    woke: float
    late: bool
    served: float
    loss: float


@dataclass(slots=True)
class _Open:
    """What is not settled yet between two events.

    services: whose answers are not applied, by client. syncs: what clients have read for their
    work. numbers: sent up and down since the last update. attempt: the last one that was recorded.
    """

    services: dict[int, _OpenService] = field(default_factory=dict)
    syncs: dict[int, Sync] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=lambda: [0, 0])
    attempt: tuple[int, int] = (0, 0)


class _Writers:
    """What records one row of each type that every update makes."""

    def __init__(self, observer: Observer) -> None:
        self.message, self.service = observer.writer("message"), observer.writer("service")
        self.release, self.sync = observer.writer("release"), observer.writer("sync")
        self.ages, self.user_epsilon = observer.writer("staleness"), observer.writer("user_epsilon")
        self.attempt, self.work = observer.writer("attempt"), observer.writer("work")


class _Reports:
    """The last evaluation, until it is reported."""

    def __init__(self, evaluated: Evaluated) -> None:
        self._evaluated, self._metrics = evaluated, cast(Metrics | None, None)

    def hold(self, metrics: Metrics) -> None:
        """Keep an evaluation until it is reported."""
        self._metrics = metrics

    @property
    def pending(self) -> bool:
        """Whether an evaluation is still to be reported to somebody."""
        return self._metrics is not None and self._evaluated is not unheard

    def report(self, status: Callable[[], Status]) -> None:
        """Report the evaluation, once."""
        metrics, self._metrics = self._metrics, None
        if metrics is not None:
            self._evaluated(status(), metrics)


class ServerLoop:
    """Serves uploads one at a time and emits the rows of everything that happens."""

    def __init__(
        self,
        server: Server,
        privacy_filter: PrivacyFilter,
        observer: Observer,
        budget: Budget,
        evaluated: Evaluated = unheard,
    ) -> None:
        self.server, self.privacy_filter, self.observer, self.budget = (
            server,
            privacy_filter,
            observer,
            budget,
        )
        self._reports = _Reports(evaluated)
        self.stop_reason: str | None = None
        """Why the run is over, or None while it continues."""
        self._account, self._loss = _Account(), UNACCOUNTED
        self._open = _Open()
        self._clients: ClientCounts | None = ClientCounts()
        self._write = _Writers(observer)
        self._checkpoints = 0, 0.0  # how many, and the seconds that they took

    def checkpointed(self, seconds: float) -> None:
        """Count a checkpoint that took so long."""
        count, spent = self._checkpoints
        self._checkpoints = count + 1, spent + seconds

    def status(self) -> Status:
        """Return where the run stands."""
        a, clients = self._account, self._clients.fields() if self._clients else {}
        clients.setdefault("staleness", a.staleness)
        return Status(
            a.updates,
            a.uploads,
            a.time,
            a.bytes_up,
            a.bytes_down,
            a.late,
            a.accuracy,
            a.loss,
            self._loss,
            stop_reason=self.stop_reason,
            concordance=a.concordance,
            checkpoints=self._checkpoints[0],
            checkpoint_seconds=self._checkpoints[1],
            **clients,
        )

    @property
    def updates(self) -> int:
        """Updates made so far."""
        return self._account.updates

    @property
    def uploads(self) -> int:
        """Uploads served so far."""
        return self._account.uploads

    @property
    def time(self) -> float:
        """When the last service was done, or at what time the run's time was over."""
        return self._account.time

    def stop(self, reason: str) -> None:
        """End the run; the first reason counts."""
        if self.stop_reason is None:
            self.stop_reason = reason

    def start(self, now: float) -> Sequence[Order]:
        """Return the first orders."""
        orders = self.server.first_orders()
        for order in orders:
            self._account.bytes_down += order.body.wire_bytes
            self._open.numbers[1] += order.body.numbers
        return orders

    def account(self) -> dict[str, Any]:
        """Return the run's counts so far, for `restart`."""
        found = {name: value for name, value in asdict(self._account).items() if value == value}
        spent = self.privacy_filter.state()
        return found | ({"privacy": spent} if spent else {})

    def restart(self, account: Mapping[str, Any], *, lost: bool = False) -> Sequence[Order]:
        """Continue with the counts of a run that was interrupted; return the orders that they count
        as sent.

        lost: it may have continued after these counts were written.
        """
        self._resume_counts(account, lost=lost)
        orders = self.server.first_orders()
        self._open.numbers[1] = sum(order.body.numbers for order in orders)
        return orders

    def services(self) -> dict[str, Any]:
        """Return what is open between two events, beside the counts: what else `restore` needs."""
        return {
            "open": [tuple(service) for service in self._open.services.values()],
            "syncs": sorted(self._open.syncs.items()),
            "numbers": tuple(self._open.numbers),
            "loss": tuple(self._loss),
        }

    def restore(
        self, account: Mapping[str, Any], services: Mapping[str, Any], *, lost: bool
    ) -> None:
        """Continue between two events of a run that was interrupted; lost: it may have continued
        after these counts.
        """
        self._resume_counts(account, lost=lost)
        self._open.services = {found[1]: _OpenService(*found) for found in services["open"]}
        self._open.syncs = dict(services["syncs"])
        self._open.numbers = list(services["numbers"])
        self._loss = PrivacyLoss(*services["loss"])

    def _resume_counts(self, account: Mapping[str, Any], *, lost: bool) -> None:
        counts = dict(account)
        if spent := counts.pop("privacy", None):
            self.privacy_filter.restore(spent, lost=lost)
        self._account = _Account(**counts)
        self._clients = None  # an account does not say what each client did

    def counted(self, uploads: Mapping[int, int]) -> None:
        """Continue with what each client did before, by uploads that were served."""
        self._clients = ClientCounts.of(uploads)

    def released(self, client: int) -> None:
        """Charge an upload's release that the record knows of by its ledger alone."""
        self._loss = self.privacy_filter.charge(client, np.zeros(0, np.int64), 1)

    def resent(self, order: Order) -> None:
        """Count an order that is sent once more, of which nobody knows whether it came."""
        self._account.bytes_down += order.body.wire_bytes
        self._open.numbers[1] += order.body.numbers

    def wake(self, client: int) -> Order:
        """Return what a client that has just woken is to work at; the server is a `PullServer`."""
        order: Order = cast(PullServer, self.server).wake(client)
        self._account.bytes_down += order.body.wire_bytes
        self._open.numbers[1] += order.body.numbers
        return order

    def stop_at_time(self) -> None:
        """End the run because its time is over."""
        limit = self.budget.seconds
        if limit is not None and self.stop_reason is None:
            self._account.time = limit
            self.stop(f"the budget of {limit:g} seconds is spent")

    def serve(
        self, upload: Upload, how: Activation, arrived: float, now: Callable[[], float], size: int
    ) -> Sequence[Order]:
        """Serve one upload and return the orders it leads to; () also when the privacy budget
        refuses it.

        arrived: when it reached the server; now: asked for the time when the service is done; size:
        its wire bytes.
        """
        if refusal := self.privacy_filter.refuses(upload):
            self.stop(refusal)
            return ()
        account, server, is_query = self._account, self.server, upload.is_query
        client, body = upload.client, upload.body
        round = server.updates + (0 if is_query else 1)
        if upload.attempt:
            self._record_attempt(upload.attempt)
        if upload.releases:  # before it is served, which may fail: it was sent whatever comes of it
            self._record_releases(upload.releases, upload, client, round)
        measured = not math.isnan(upload.cpu)
        started = process_time() if measured else 0.0
        orders = self._received(upload)
        if measured:
            kind = type(body).__name__
            self._write.work((round, client, kind, upload.cpu))
            self._write.work((round, SERVER, kind, process_time() - started))
        account.time = served = now()
        account.bytes_up += size
        self._open.numbers[0] += body.numbers
        updates = server.updates
        if updates > account.updates:
            self._settle_numbers()
            if found := self._loss.user_epsilons():
                self._write.user_epsilon((updates, *found))
        account.updates = updates
        self._write.message((round, client, "up", type(body).__name__, how.sent, arrived, size))
        if not is_query:
            account.uploads += 1
            account.late += how.late
            if self._clients:
                self._clients.uploaded(client)
            self._record_service(upload, how, served, orders, round)
        if not server.answers and updates >= round:  # never in the midst of a round
            self._check_budget()
            if self.stop_reason:
                return ()
        for order in orders:
            answer = order.body
            account.bytes_down += answer.wire_bytes
            self._open.numbers[1] += answer.numbers
            self._record_order(order, served)
        if server.answers:
            self._check_budget()
        return orders

    def _received(self, upload: Upload) -> Sequence[Order]:
        """Have an upload served and charge what that releases, before anything else can fail.

        Where serving fails a release may have been written already: then the plan alone bounds what
        was released. What diverges is refused before it is.
        """
        try:
            orders = self.server.receive(upload)
        except Diverged:
            raise
        except BaseException:
            if not self.privacy_filter.of_uploads:
                self.privacy_filter.give_up()
            raise
        for order in orders:
            if order.releases:
                self._record_releases(order.releases, upload, order.client, order.round)
        return orders

    def unserved(self, upload: Upload) -> None:
        """Account for an upload that was sent but comes too late to be served: anyone who sees it
        has what it releases.

        One that the privacy_filter refuses was never sent.
        """
        if (
            self.privacy_filter.of_uploads
            and upload.releases
            and not self.privacy_filter.refuses(upload)
        ):
            self._record_releases(upload.releases, upload, upload.client, self.server.updates + 1)

    def sent(self, order: Order, at: float, arrives: float, size: int) -> None:
        """Record an order on its way to a client, of so many wire bytes."""
        if order.sync:
            self._open.syncs[order.client] = order.sync
        kind = type(order.body).__name__
        self._write.message((order.round, order.client, "down", kind, at, arrives, size))

    def requested(self, order: Order, sent: float, arrived: float, size: int) -> None:
        """Record what a client sent to say how far it has come, which the order answers."""
        self._account.bytes_up += size
        self._open.numbers[0] += 1
        self._write.message((order.round, order.client, "up", "PullRequest", sent, arrived, size))

    def applied(self, client: int, at: float) -> None:
        """Record that a client has applied the answer to its last served upload."""
        if service := self._open.services.pop(client, None):
            round, _, step, due, woke, late, served, loss = service
            self._write.service((round, client, step, due, woke, late, served, at, loss))

    def evaluated(
        self, metrics: Metrics, at: float, version: int | None = None, *, report: bool = True
    ) -> None:
        """Record an evaluation of the model after `version` updates (None: the current one).

        report: call `report`, too; else the caller does, when the run is between two events.
        """
        self._account.accuracy, self._account.loss = metrics.accuracy, metrics.loss
        self._account.concordance = math.nan if metrics.concordance is None else metrics.concordance
        round = self.updates if version is None else version
        self._record_evaluation(metrics, "test", round, at)
        if metrics.validation:
            self._record_evaluation(metrics.validation, "validation", round, at)
        self.observer.emit(
            "numbers",
            round=self.updates,
            up=self._account.numbers_up,
            down=self._account.numbers_down,
        )
        self._reports.hold(metrics)
        if report:
            self.report()

    @property
    def report_pending(self) -> bool:
        """Whether the last evaluation is still to be reported."""
        return self._reports.pending

    def report(self) -> None:
        """Report the last evaluation, once; its listener may let the run wait."""
        self._reports.report(self.status)

    def _record_evaluation(self, metrics: Metrics, part: str, round: int, at: float) -> None:
        self.observer.emit(
            "evaluation",
            round=round,
            time=at,
            part=part,
            accuracy=metrics.accuracy,
            loss=metrics.loss,
            top_share=metrics.top_share,
        )
        if metrics.roc_auc is not None:
            self.observer.emit(
                "auc",
                round=round,
                time=at,
                part=part,
                roc_auc=metrics.roc_auc,
                pr_auc=metrics.pr_auc,
            )
        for name in ("balanced_accuracy", "concordance"):
            if (score := getattr(metrics, name)) is not None:
                self.observer.emit(name, round=round, time=at, part=part, **{name: score})
        for name, value in metrics.measures.items():
            self.observer.emit("measure", round=round, time=at, part=part, name=name, value=value)

    def close(self) -> None:
        """Record the services whose answers were never applied."""
        for client in sorted(self._open.services):
            self.applied(client, math.nan)

    def _settle_numbers(self) -> None:
        """An update is made: what was sent for it counts from now on, as its bytes do by their
        round.
        """
        self._account.numbers_up += self._open.numbers[0]
        self._account.numbers_down += self._open.numbers[1]
        self._open.numbers = [0, 0]

    def _check_budget(self) -> None:
        limit, used = self.budget, self._account
        if limit.updates is not None and used.updates >= limit.updates:
            self.stop(f"{limit.updates} updates done")
        elif limit.bytes is not None and used.bytes_up + used.bytes_down >= limit.bytes:
            self.stop(f"the budget of {limit.bytes} bytes is spent")

    def _record_service(
        self, upload: Upload, how: Activation, served: float, orders: Sequence[Order], round: int
    ) -> None:
        client, answers = upload.client, self.server.answers
        if self._open.syncs:
            self._record_sync(client, round)
        if client in self._open.services:
            self.applied(client, math.nan)
        loss = orders[0].loss if answers and orders else upload.loss
        due, woke, late, _ = how
        self._open.services[client] = _OpenService(
            round, client, upload.step, due, woke, late, served, loss
        )
        if not answers:
            self.applied(client, math.nan)

    def _record_attempt(self, attempt: Attempt) -> None:
        """Record who takes part in an attempt, with its first upload; late ones are of attempts
        before it.
        """
        place = attempt.round, attempt.number
        if place > self._open.attempt:
            self._open.attempt = place
            self._write.attempt((*place, len(attempt.silos)))

    def _record_sync(self, client: int, round: int) -> None:
        if sync := self._open.syncs.pop(client, None):
            lag = round - 1 - sync.read
            self._account.staleness = float(lag)
            if self._clients:
                self._clients.aged(client, float(lag))
            self._write.sync((round, client, sync.read, lag, sync.missed, sync.pairs, sync.pulled))

    def _record_order(self, order: Order, served: float) -> None:
        service = self._open.services.get(order.client)
        if (
            service
            and service.loss != service.loss
            and service.round == order.round
            and not order.is_query
        ):
            # its upload was held back until now
            self._open.services[order.client] = service._replace(loss=order.loss, served=served)
        if order.cache is not None:
            self._write.ages(order.cache)
            if self._clients:
                self._clients.served(order.client, order.cache)

    def _record_releases(
        self, releases: Sequence[Release], upload: Upload, client: int, round: int
    ) -> None:
        """Account what was released, and record it; `upload`: whose service it came of."""
        ids = releases[0].ids
        loss = self.privacy_filter.charge(
            client, upload.ids if ids is None else ids, len(releases), upload.attempt
        )
        self._loss = loss
        paper, proved, *_ = loss
        for perturbation, value, receipt, step, _ in releases:
            mechanism, source, sigma, by_replacing, by_leaving_out, _, batch, nonfinite = receipt
            of = upload.step if step is None else step
            # fmt: off
            self._write.release(
                (round, client, of, perturbation, value, mechanism, source, sigma, by_replacing, by_leaving_out,
                 batch, nonfinite, paper, proved)
            )
            # fmt: on
