"""The server's side of a run, the same under both clocks: serve, account, record, know when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from raydpzv.methods.roles import Metrics, Order, PullServer, Release, Server, Sync, Upload
from raydpzv.sim.client_counts import ClientCounts
from raydpzv.sim.interfaces import Activation, Budget, Observer, PrivacyFilter, Status


@dataclass
class ServerLoop:
    """Serves uploads one at a time and emits the rows of everything that happens."""

    server: Server
    privacy_filter: PrivacyFilter
    observer: Observer
    budget: Budget
    _status: dict[str, Any] = field(default_factory=dict)
    _open_services: dict[int, dict[str, Any]] = field(default_factory=dict)
    _syncs: dict[int, Sync] = field(default_factory=dict)
    _clients: ClientCounts | None = field(default_factory=ClientCounts)

    def status(self) -> Status:
        """Return where the run stands."""
        return Status(**self._status, **(self._clients.fields() if self._clients else {}))

    @property
    def updates(self) -> int:
        """Updates made so far."""
        return int(self._status.get("updates", 0))

    @property
    def uploads(self) -> int:
        """Uploads served so far."""
        return int(self._status.get("uploads", 0))

    @property
    def stop_reason(self) -> str | None:
        """Why the run is over, or None while it goes on."""
        return self._status.get("stop_reason")

    def stop(self, reason: str) -> None:
        """End the run; the first reason counts."""
        self._status.setdefault("stop_reason", reason)

    def start(self, now: float) -> Sequence[Order]:
        """Return the first orders."""
        orders = self.server.first_orders()
        for order in orders:
            self._count(bytes_down=order.body.wire_bytes)
        return orders

    def account(self) -> dict[str, Any]:
        """Return the run's counts so far, for `restart`."""
        return {name: value for name, value in self._status.items() if name != "stop_reason"}

    def restart(self, account: Mapping[str, Any]) -> Sequence[Order]:
        """Go on with the counts of a run that was interrupted; return the orders that they count as sent."""
        self._status = dict(account)
        self._clients = None  # an account does not say what each client did
        return self.server.first_orders()

    def wake(self, client: int) -> Order:
        """Return what a client that has just woken is to work at; the server is a `PullServer`."""
        order: Order = cast(PullServer, self.server).wake(client)
        self._count(bytes_down=order.body.wire_bytes)
        return order

    def stop_at_time(self) -> None:
        """End the run because its time is over."""
        limit = self.budget.seconds
        if limit is not None and self.stop_reason is None:
            self._status["time"] = limit
            self.stop(f"the budget of {limit:g} seconds is spent")

    def serve(
        self, upload: Upload, how: Activation, arrived: float, now: Callable[[], float]
    ) -> Sequence[Order]:
        """Serve one upload and return the orders it leads to; () also when the privacy budget refuses it.

        arrived: when it reached the server; now: asked for the time when the service is done.
        """
        if refusal := self.privacy_filter.refuses(upload):
            self.stop(refusal)
            return ()
        round = self.server.updates + (0 if upload.is_query else 1)
        orders = self.server.receive(upload)
        served = now()
        self._count(
            uploads=int(not upload.is_query),
            bytes_up=upload.body.wire_bytes,
            late=int(how.late and not upload.is_query),
        )
        self._status |= {"time": served, "updates": self.server.updates}
        self._record_upload(upload, how, arrived, round)
        if not upload.is_query:
            if self._clients:
                self._clients.uploaded(upload.client)
            self._record_service(upload, how, served, orders, round)
        if not self.server.answers and self.server.updates >= round:  # never in the midst of a round
            self._check_budget()
            if self.stop_reason:
                return ()
        for order in orders:
            self._count(bytes_down=order.body.wire_bytes)
            self._record_order(upload, order, served)
        if self.server.answers:
            self._check_budget()
        return orders

    def unserved(self, upload: Upload) -> None:
        """Account for an upload that was sent but comes too late to be served: whoever sees it has what it releases.

        One that the privacy_filter refuses was never sent.
        """
        if self.privacy_filter.of_uploads and not self.privacy_filter.refuses(upload):
            self._record_releases(upload.releases, upload, upload.client, self.server.updates + 1)

    def sent(self, order: Order, at: float, arrives: float) -> None:
        """Record an order on its way to a client."""
        if order.sync:
            self._syncs[order.client] = order.sync
        self.observer.emit(
            "message",
            round=order.round,
            client=order.client,
            direction="down",
            kind=type(order.body).__name__,
            sent=at,
            arrived=arrives,
            bytes=order.body.wire_bytes,
        )

    def applied(self, client: int, at: float) -> None:
        """Record that a client has applied the answer to its last served upload."""
        if row := self._open_services.pop(client, None):
            self.observer.emit("service", **{**row, "applied": at})

    def evaluated(self, metrics: Metrics, at: float, version: int | None = None) -> None:
        """Record an evaluation of the model after `version` updates (None: the current one)."""
        self._status |= {"accuracy": metrics.accuracy, "loss": metrics.loss}
        self.observer.emit(
            "evaluation",
            round=self.updates if version is None else version,
            time=at,
            part="test",
            accuracy=metrics.accuracy,
            loss=metrics.loss,
            top_share=metrics.top_share,
        )

    def close(self) -> None:
        """Record the services whose answers were never applied."""
        for client in sorted(self._open_services):
            self.applied(client, math.nan)

    def _count(self, **amounts: int) -> None:
        for name, amount in amounts.items():
            self._status[name] = self._status.get(name, 0) + amount

    def _check_budget(self) -> None:
        limit, used = self.budget, self._status
        if limit.updates is not None and used["updates"] >= limit.updates:
            self.stop(f"{limit.updates} updates done")
        elif limit.bytes is not None and used["bytes_up"] + used["bytes_down"] >= limit.bytes:
            self.stop(f"the budget of {limit.bytes} bytes is spent")

    def _record_upload(self, upload: Upload, how: Activation, arrived: float, round: int) -> None:
        self.observer.emit(
            "message",
            round=round,
            client=upload.client,
            direction="up",
            kind=type(upload.body).__name__,
            sent=how.sent,
            arrived=arrived,
            bytes=upload.body.wire_bytes,
        )
        self._record_releases(upload.releases, upload, upload.client, round)

    def _record_service(
        self, upload: Upload, how: Activation, served: float, orders: Sequence[Order], round: int
    ) -> None:
        self._record_sync(upload.client, round)
        self.applied(upload.client, math.nan)
        service = {
            "round": round,
            "client": upload.client,
            "step": upload.step,
            "due": how.due,
            "woke": how.woke,
            "late": how.late,
            "served": served,
            "loss": orders[0].loss if self.server.answers and orders else upload.loss,
        }
        if self.server.answers:
            self._open_services[upload.client] = service
        else:
            self.observer.emit("service", **service, applied=math.nan)

    def _record_sync(self, client: int, round: int) -> None:
        if sync := self._syncs.pop(client, None):
            lag = round - 1 - sync.read
            self._status["staleness"] = float(lag)
            if self._clients:
                self._clients.aged(client, float(lag))
            self.observer.emit(
                "sync",
                round=round,
                client=client,
                read=sync.read,
                lag=lag,
                missed=sync.missed,
                pairs=sync.pairs,
                pulled=sync.pulled,
            )

    def _record_order(self, upload: Upload, order: Order, served: float) -> None:
        row = self._open_services.get(order.client)
        if row and math.isnan(row["loss"]) and row["round"] == order.round and not order.is_query:
            row |= {"loss": order.loss, "served": served}  # its upload was held back until now
        if order.cache:
            used = sum(c.rows - c.missing for c in order.cache)
            self._status["staleness"] = sum(c.age_sum for c in order.cache) / used if used else math.nan
        for use in order.cache:
            if self._clients:
                there = use.rows - use.missing
                self._clients.aged(use.client, use.age_sum / there if there else math.nan)
            self.observer.emit(
                "staleness",
                round=order.round,
                client=use.client,
                rows=use.rows,
                missing=use.missing,
                age_sum=use.age_sum,
                age_max=use.age_max,
                age_bins=use.age_bins,
            )
        self._record_releases(order.releases, upload, order.client, order.round)

    def _record_releases(self, releases: Sequence[Release], upload: Upload, client: int, round: int) -> None:
        """Account what was released, and record it; `upload`: whose service it came of."""
        if not releases:
            return
        ids = releases[0].ids
        paper, proved = self.privacy_filter.charge(client, upload.ids if ids is None else ids, len(releases))
        self._status["epsilon_paper"], self._status["epsilon_client"] = paper, proved
        for release in releases:
            receipt = release.receipt
            self.observer.emit(
                "release",
                round=round,
                client=client,
                step=upload.step if release.step is None else release.step,
                perturbation=release.perturbation,
                value=release.value,
                mechanism=receipt.mechanism,
                source=receipt.source,
                sigma=receipt.sigma,
                sensitivity_replace=receipt.sensitivity_replace,
                sensitivity_add_remove=receipt.sensitivity_add_remove,
                batch=receipt.batch,
                nonfinite=receipt.nonfinite,
                epsilon_paper=paper,
                epsilon_client=proved,
            )
