"""DeComFL's clients: thousands of them around one replica, or each with a model of its own.

Both give the same bits. `SharedClients` is how simulations run: all clients of a process share one replica that
replays every update once. `SeparateClients` does literally what the paper writes (Algorithms 2 and 4), from the
messages alone, at the cost of one model per client: the check on the other, and the only way to measure what the
paper's snapshot-free revert (Eq. (10)) does to the bits.
"""

# K local steps, P perturbations, d parameters

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
import torch

from raydpzv.data.batch_rows import batch_rows
from raydpzv.data.horizontal import Parts
from raydpzv.errors import RunError
from raydpzv.methods.horizontal.decomfl import Settings, client_seeds
from raydpzv.methods.horizontal.objective import Objective
from raydpzv.methods.replica import Replica, UpdateSource
from raydpzv.methods.roles import Metrics, Order, Upload
from raydpzv.wire.messages import Body
from raydpzv.wire.seeds import AgentScalars, AgentSeeds, CatchUp, PulledModel, Scalars, SeededScalars, Tail
from raydpzv.zo.directions import Direction
from raydpzv.zo.update import Descent, Step

Revert = Literal["restore", "add_back"]
_DOT = 1 << 20
"""Elements of an inner product at a time."""


class LedgerFollower:
    """A replica that follows the ledger, to be looked at; clients of both kinds have one."""

    def __init__(
        self,
        objectives: Sequence[Objective],
        replica: Replica,
        history: UpdateSource,
        parts: Parts,
        settings: Settings,
    ) -> None:
        self._replica, self._history = replica, history
        self._local = LocalSteps(objectives, parts, settings)

    def evaluate(self, version: int, x: torch.Tensor, y: torch.Tensor) -> Metrics:
        """Score the model at `version` on held-out rows."""
        self._replica.go_to(version, self._history)
        return self._local.evaluate(self._replica, x, y)

    def state(self, version: int) -> np.ndarray:
        """Return a copy of parameters and momentum, if there is one, at `version`: float32 [1 or 2, d]."""
        self._replica.go_to(version, self._history)
        return self._replica.state()


class SharedClients(LedgerFollower):
    """Clients of one process around one replica; they are rows of `parts` and nothing else.

    objectives: one per thread, all on the same data; the number of threads moves no bits.
    """

    def process(self, orders: Sequence[Order]) -> list[Upload]:
        """Do the work of several clients; orders come in the order of the versions they are to be done at."""
        uploads: list[Upload] = []
        for version, group in groupby(orders, key=lambda order: order.round - 1):
            self._replica.go_to(version, self._history)
            uploads += self._local.work(list(group), self._replica)
        return uploads


@dataclass(frozen=True)
class Drift:
    """How far clients' models are from the shared one after a full catch-up: largest difference, share of elements."""

    largest: float
    share: float


class SeparateClients(LedgerFollower):
    """Every client keeps its own model and knows nothing but the messages it got.

    revert: "restore" the model after the local steps, or "add_back": stay where the local steps led and subtract the
    difference to the others' mean at the next catch-up (Eq. (10): no snapshot is needed, but floating-point sums do
    not return to where they came from).
    """

    def __init__(
        self,
        objectives: Sequence[Objective],
        replica: Replica,
        history: UpdateSource,
        parts: Parts,
        settings: Settings,
        revert: Revert = "restore",
    ) -> None:
        super().__init__(objectives, replica, history, parts, settings)
        self._fresh, self._settings, self._revert = replica.twin(), settings, revert
        self._clients: dict[int, Replica] = {}
        self._own: dict[int, np.ndarray] = {}

    def process(self, orders: Sequence[Order]) -> list[Upload]:
        """Let each client catch up from its own message, and do its local steps."""
        if orders:
            self._replica.go_to(orders[-1].round - 1, self._history)
        return [self._process(order) for order in orders]

    def drift(self, version: int) -> Drift:
        """Bring every client that ever took part to `version` and compare it with the model of the ledger."""
        self._replica.go_to(version, self._history)
        largest, share = 0.0, 0.0
        for client, replica in self._clients.items():
            missed = self._history.since(replica.version, version)
            self._catch_up(client, replica, missed.seed, missed.scalar, version)
            gap = (replica.x - self._replica.x).abs()
            largest = max(largest, float(gap.max()))
            share = max(share, float((gap > 0).double().mean()))
        return Drift(largest, share)

    def _process(self, order: Order) -> Upload:
        if order.client not in self._clients:
            self._clients[order.client] = self._begun(order)
        replica, body = self._clients[order.client], order.body
        if isinstance(body, PulledModel):
            replica.adopt(body.state, order.round - 1)
            self._own.pop(order.client, None)
        elif isinstance(body, CatchUp | Tail | AgentSeeds):
            self._catch_up(order.client, replica, body.missed_seeds, body.missed_scalars, order.round - 1)
        (upload,) = self._local.work([order], replica)
        if self._revert == "add_back":
            values = np.atleast_2d(upload.body.values)  # type: ignore[attr-defined]
            seeds = _seeds(order, self._settings)
            lr = self._settings.lr.at(order.round)
            replica.apply_steps([Step(seeds[k], values[k], lr) for k in range(len(seeds))])
            self._own[order.client] = values
        return upload

    def _begun(self, order: Order) -> Replica:
        """Return a client's model as its message expects it; one that took part elsewhere left it on the ledger."""
        replica, sync = self._fresh.twin(), order.sync
        if sync and (behind := sync.read - sync.missed):
            if self._revert == "add_back":
                raise RunError(
                    f'client {order.client}\'s own model was lost with its process, and with revert = "add_back" '
                    "nobody else can know it: start a new run"
                )
            replica.go_to(behind, self._history)
        return replica

    def _catch_up(
        self, client: int, replica: Replica, seeds: np.ndarray, scalars: np.ndarray, version: int
    ) -> None:
        """Replay pairs that come without any structure: the schedule says how many belong to which round."""
        own, place = self._own.pop(client, None), 0
        for round in range(replica.version + 1, version + 1):
            for k in range(self._settings.local_steps):
                width = self._settings.width(round)
                values = scalars[place : place + width]
                if own is not None:  # Eq. (10): what the others' mean differs from the client's own
                    values = values.astype(np.float64) - own[k]
                step = Step(seeds[place : place + width], values, self._settings.lr.at(round))
                replica.apply_steps([step])
                place += width
            own = None
        replica.version = version


class LocalSteps:
    """K local steps of P estimates each, from a model that is left as it was (Algorithm 2, ClientZOLocalUpdate)."""

    def __init__(self, objectives: Sequence[Objective], parts: Parts, settings: Settings) -> None:
        self._objectives, self._parts, self._settings = objectives, parts, settings

    def work(self, orders: Sequence[Order], replica: Replica) -> list[Upload]:
        """Return the uploads of clients that all work at `replica`."""
        shares = [orders[i :: len(self._objectives)] for i in range(len(self._objectives))]
        busy = [(o, share) for o, share in zip(self._objectives, shares, strict=True) if share]
        if len(busy) == 1:
            done = [self._share(busy[0][0], busy[0][1], replica)]
        else:
            with ThreadPoolExecutor(len(busy)) as pool:
                done = list(pool.map(lambda work: self._share(work[0], work[1], replica), busy))
        by_client = {upload.client: upload for uploads in done for upload in uploads}
        return [by_client[order.client] for order in orders]

    def evaluate(self, replica: Replica, x: torch.Tensor, y: torch.Tensor) -> Metrics:
        """Score a replica on held-out rows."""
        return self._objectives[0].evaluate(replica.x, x, y)

    def _share(self, objective: Objective, orders: Sequence[Order], replica: Replica) -> list[Upload]:
        """The clients of one thread: those with the same seeds and one local step share every perturbed model."""
        settings = self._settings
        if settings.local_steps > 1 or _chooses_seeds(orders[0]):
            return [self._alone(objective, order, replica) for order in orders]
        seeds = _seeds(orders[0], settings)
        rows = [self._rows(order, 0) for order in orders]
        losses, values = self._estimates(objective, replica.x, replica.seeds(seeds[0]), rows)
        return [_upload(order, values[i][None], losses[i], seeds) for i, order in enumerate(orders)]

    def _alone(self, objective: Objective, order: Order, replica: Replica) -> Upload:
        """One client, whose own steps lead it away from the shared model until it reverts."""
        settings = self._settings
        seeds_KP = _seeds(order, settings)
        local: Descent | None = None
        first, values_KP = float("nan"), np.zeros(seeds_KP.shape, np.float32)
        for k, seeds in enumerate(seeds_KP):
            used = replica.seeds(seeds)
            at = replica.x if local is None else local.x
            (loss,), (values,) = self._estimates(objective, at, used, [self._rows(order, k)])
            first = loss if k == 0 else first
            values_KP[k] = values
            if k + 1 < len(seeds_KP):
                local = local or replica.fork()
                local.apply([Step(used, values, settings.lr.at(order.round))])
        return _upload(order, values_KP, first, seeds_KP)

    def _rows(self, order: Order, step: int) -> np.ndarray:
        return batch_rows(
            self._parts, self._settings.key, order.client, order.round, step, self._settings.batch
        )

    def _estimates(
        self, objective: Objective, x: torch.Tensor, seeds: np.ndarray, rows: Sequence[np.ndarray]
    ) -> tuple[list[float], np.ndarray]:
        """Return each client's loss at x and its directional derivatives, float32 [clients, P]."""
        settings, law = self._settings, self._settings.rule.law
        directions = [Direction(int(seed), objective.size, law) for seed in seeds]
        if settings.estimate == "projection":
            found = [objective.gradient(x, ids) for ids in rows]
            slopes = [[_inner(gradient, u) for u in directions] for _, gradient in found]
            return [loss for loss, _ in found], np.array(slopes, np.float32)
        radius = settings.smoothing
        plus = objective.losses(x, directions, radius, rows)
        if settings.estimate == "central":
            minus = objective.losses(x, directions, -radius, rows)
            middle = ((plus + minus) / 2).mean(1)
            return middle.tolist(), ((plus - minus) / (2 * radius)).astype(np.float32)
        base = np.array([objective.loss(x, ids) for ids in rows])
        return base.tolist(), ((plus - base[:, None]) / radius).astype(np.float32)


def _chooses_seeds(order: Order) -> bool:
    """Tell whether the client chooses its seeds itself (asynchronous) or got them from the server."""
    return isinstance(order.body, Tail) or (isinstance(order.body, PulledModel) and not order.body.seeds.size)


def _seeds(order: Order, settings: Settings) -> np.ndarray:
    """Return the seeds a client is to try, uint64 [K, P]."""
    if _chooses_seeds(order):
        return client_seeds(settings, order.client, order.round - 1)[None]
    return order.body.seeds  # type: ignore[attr-defined]


def _upload(order: Order, values_KP: np.ndarray, loss: float, seeds_KP: np.ndarray) -> Upload:
    body: Body
    if _chooses_seeds(order):
        body = SeededScalars(seeds_KP[0], values_KP[0])
    else:
        body = (AgentScalars if isinstance(order.body, AgentSeeds) else Scalars)(values_KP)
    return Upload(order.client, order.round - 1, body, loss)


def _inner(gradient: torch.Tensor, direction: Direction) -> float:
    """<∇f, u> in float64, a piece of u at a time."""
    flat = gradient.cpu().numpy()
    return sum(
        float(
            np.dot(flat[i : i + _DOT].astype(np.float64), direction.values(i, min(i + _DOT, direction.size)))
        )
        for i in range(0, direction.size, _DOT)
    )
