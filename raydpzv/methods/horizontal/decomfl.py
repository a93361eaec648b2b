"""DeComFL: horizontal learning with seeds and scalars alone on the wire.

Sources: DeComFL Algorithms 1 to 5, Appendix A (papers as printed use r for rounds from 0; here rounds count from 1, so
that round r is update r of the ledger). A client that took part in round r has reverted to the model before it, and
must replay round r like everybody else: its next catch-up begins with r.

Clients come in two forms that give the same bits. `SharedClients` is how simulations run: all clients of a process
share one replica that replays every update once. `SeparateClients` does literally what the paper writes (Algorithms 2
and 4), from the messages alone, at the cost of one model per client: the check on the other, and the only way to
measure what the paper's snapshot-free revert (Eq. (10)) does to the bits.
"""

# M clients, m of them in a cohort, K local steps, P perturbations, d parameters

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch

from raydpzv.data.batch_rows import batch_rows
from raydpzv.data.horizontal import Partition
from raydpzv.engine.objective import Objective
from raydpzv.errors import Diverged, RunError
from raydpzv.keys import SERVER_PARTY, Key, perturbation_seeds, step_seed
from raydpzv.ledger.entries import SHARED, Slice
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.descriptor import ClientGroupParts, HorizontalMethod, HorizontalServerParts, UpdateRule
from raydpzv.methods.horizontal.rounds import Cohorts, Directed, RoundServer, Sampled, cohorts, row_weights
from raydpzv.methods.replica import Replica, UpdateSource
from raydpzv.methods.roles import Drift, Metrics, Order, Sync, Upload
from raydpzv.settings.bounds import Bounds, Count, Momentum, Perturbations, Positive
from raydpzv.wire.messages import Body
from raydpzv.wire.seeds import (
    REQUEST_BYTES,
    AgentScalars,
    AgentSeeds,
    CatchUp,
    PulledModel,
    Scalars,
    SeededScalars,
    Tail,
)
from raydpzv.zo.directions import Direction
from raydpzv.zo.update import Descent, Optimizer, Rule, Step

if TYPE_CHECKING:
    from raydpzv.settings.sections_horizontal import HorizontalSections

Estimate = Literal["forward", "central", "projection"]
SEED_BYTES, SCALAR_BYTES = 8, 4
"""Bytes on the wire of a step's seed and of one of its P scalars."""
ALL_ROWS = 2**62
"""A batch that no client's rows fill: it takes all of them."""
_PAIR = ("seeds", "scalars")
_TRIM_EVERY = 64
"""Updates between looks for pairs that nobody needs: looking costs one pass over all clients' versions."""


Revert = Literal["restore", "add_back"]


@dataclass(frozen=True)
class DecomflConfig(Directed, Sampled):
    """DeComFL: seeds and scalars in place of models, both ways (DeComFL Algorithms 1 to 5)."""

    name: Literal["decomfl"] = "decomfl"
    """The method."""
    asynchronous: bool = False
    """No rounds: a client wakes by its clock, pulls what it missed, and its scalars become the next update."""
    lr: Positive = 1e-3
    """Step size η of the update (η/P) Σ g_p z_p."""
    lr_at: tuple[tuple[Count, Positive], ...] = ()
    """Step sizes from later rounds on: [[round, lr], ...]."""
    perturbations_at: tuple[tuple[Count, Perturbations], ...] = ()
    """P from later rounds on: [[round, P], ...]."""
    momentum: Momentum = 0.0
    """Momentum β of DeComFL Eq. (8); β1 of ZO-Adam."""
    dampening: bool = True
    """Momentum as in Eq. (8), m <- βm + (1-β)g, or as the authors' program has it (torch's SGD), m <- βm + g."""
    optimizer: Optimizer = "sgd"
    """What is done with the estimate: ZO-SGD with Eq. (8) and (9), ZO-SignSGD, ZO-Adam or ZO-SVRG (DeComFL A.1)."""
    beta2: Momentum = 0.3
    """β2 of ZO-Adam's second moment."""
    v0: Positive = 1e-7
    """What ZO-Adam's second moment and its maximum begin with."""
    epoch: Annotated[int, Bounds(ge=2, le=10**6)] | None = None
    """Rounds per epoch of ZO-SVRG: in the first of each all clients estimate the gradient on all their rows."""
    estimate: Estimate = "forward"
    """(f(x+μz) - f(x)) / μ, (f(x+μz) - f(x-μz)) / 2μ, or the first-order projection <∇f, z> (Algorithm 5)."""
    replicas: Literal["shared", "per_client"] = "shared"
    """One model per process that all its clients share, or literally one per client: the same bits, more memory."""
    revert: Revert = "restore"
    """After the local steps: restore the model exactly, or the paper's snapshot-free Eq. (10), whose drift is shown."""
    last_round: Literal["server", "clients"] = "server"
    """Who keeps in which round a client last took part: the server (Algorithm 1), or clients, who are asked (A.2)."""
    server_model: bool = False
    """The server keeps a model, as pulling needs it."""
    pull_after: Count | None = None
    """A client that lags more updates than this takes the whole model, if that is fewer bytes."""
    private_seed_shift: bool = False
    """Clients move every seed by a secret of theirs: the server cannot rebuild the model (A.3). No ε follows."""


@dataclass(frozen=True)
class Schedule:
    """A quantity that changes at given rounds: `changes` are (first round, value), ascending."""

    first: float
    changes: tuple[tuple[int, float], ...] = ()

    def at(self, round: int) -> float:
        """Return the value in round 1, 2, ..."""
        return [self.first, *(value for start, value in self.changes if start <= round)][-1]


@dataclass(frozen=True)
class DecomflSettings:
    """What servers and clients of DeComFL agree on beforehand.

    estimate: forward (f(x+μz) - f(x)) / μ (Algorithm 2), central (f(x+μz) - f(x-μz)) / 2μ, or projection <∇f, z>
    (Algorithm 5). The step size is that of the round in which an update is made.
    """

    key: Key
    rule: Rule
    batch: int
    lr: Schedule
    perturbations: Schedule
    local_steps: int = 1
    smoothing: float = 1e-3
    estimate: Estimate = "forward"

    def width(self, round: int) -> int:
        """Return P in a round."""
        return int(self.perturbations.at(round))

    def pairs(self, round: int) -> int:
        """Return how many scalars, one per direction, a round adds."""
        return self.local_steps * self.width(round)

    def rows(self, round: int) -> int:
        """Return how many rows a client takes in a local step, at most."""
        return ALL_ROWS if self.rule.anchors(round) else self.batch


class _Synced:
    """What every client has replayed, and what it gets to catch up: bytes per client, not models.

    steps: local steps per update, K. pull_after (L): a client that lags more than L updates takes the whole model if
    that is fewer bytes.
    """

    def __init__(
        self, ledger: Ledger, clients: int, steps: int, pull_after: int | None, state_bytes: int
    ) -> None:
        self._ledger, self._steps = ledger, steps
        self._versions = np.zeros(clients, np.int32)
        self._pull_after, self._state_bytes = pull_after, state_bytes

    def sync(self, client: int) -> Sync:
        """Bring the client to the newest version and return what that takes."""
        now, behind = self._ledger.version, int(self._versions[client])
        self._versions[client] = now
        pairs = self._ledger.pairs(behind, now)
        if self._pulls(behind, now):
            return Sync(now, now - behind, 0, pulled=True)
        return Sync(now, now - behind, pairs)

    def note(self, clients: np.ndarray, version: int) -> None:
        """Record that clients were brought to a version."""
        self._versions[clients] = version

    def _pulls(self, behind: int, now: int) -> bool:
        if self._pull_after is None or now - behind <= self._pull_after:
            return False
        seeds, scalars = self._steps * (now - behind), self._ledger.pairs(behind, now)
        return SEED_BYTES * seeds + SCALAR_BYTES * scalars > self._state_bytes

    def trim(self) -> None:
        """Forget the pairs that no client needs any more; the log on disk keeps them.

        Without a log nothing is forgotten: hosts' replicas follow at their own pace and may need what no client does.
        """
        if not self._ledger.recalls:
            return
        now = self._ledger.version
        first, last = 0, now
        while first < last:  # the oldest version from which a client would not pull
            middle = (first + last) // 2
            first, last = (middle + 1, last) if self._pulls(middle, now) else (first, middle)
        self._ledger.trim(max(first, int(self._versions.min())))


class DecomflServer(RoundServer):
    """Samples a cohort and K seeds per round, averages the scalars it gets back, and appends them to the ledger.

    It holds no model unless one is given: `model` follows the ledger, for clients that pull it.
    agent: there is one client and no network (MeZO): its messages cost nothing. asks: clients keep their last round
    themselves and are asked for it (A.2); a server that does not know what they lack forgets no pair.
    """

    def __init__(
        self,
        cohorts: Cohorts,
        ledger: Ledger,
        settings: DecomflSettings,
        *,
        weights: np.ndarray | None = None,
        model: Replica | None = None,
        pull_after: int | None = None,
        agent: bool = False,
        asks: bool = False,
    ) -> None:
        super().__init__(cohorts, weights)
        self._ledger, self._settings, self._model, self._agent = ledger, settings, model, agent
        self._request_bytes = REQUEST_BYTES if asks else None
        state_bytes = model.state().nbytes if model and pull_after is not None else 0
        self._synced = _Synced(ledger, cohorts.clients, settings.local_steps, pull_after, state_bytes)

    def restore(self, round: int, state: np.ndarray | None) -> None:
        """Become what the server was after so many rounds: the ledger holds them, the cohorts can be drawn again."""
        super().restore(round, state)
        for past in range(1, round + 1):
            self._synced.note(self._cohorts.draw(past), past - 1)
        if self._model:
            self._model.go_to(round, self._ledger)

    def _orders(self, round: int, cohort: Sequence[int]) -> list[Order]:
        syncs = [self._synced.sync(client) for client in cohort]
        # what any of them missed is the end of what the longest away did
        most = max((sync.missed for sync in syncs if not sync.pulled), default=0)
        missed = self._ledger.since(round - 1 - most, round - 1)
        seeds, scalars, seeds_K = _seeds_of(missed), missed.scalar, round_seeds(self._settings, round)
        reply = 0 if self._agent else SCALAR_BYTES * self._settings.pairs(round)
        orders = []
        for client, sync in zip(cohort, syncs, strict=True):
            body: Body
            if sync.pulled:
                assert self._model is not None
                body = PulledModel(self._model.state(), seeds_K)
            else:
                first = len(seeds) - self._settings.local_steps * sync.missed
                kind = AgentSeeds if self._agent else CatchUp
                body = kind(seeds[first:], scalars[len(scalars) - sync.pairs :], seeds_K)
            orders.append(
                Order(
                    *(client, body, round),
                    start_immediately=True,
                    upload_bytes=reply,
                    sync=sync,
                    request_bytes=self._request_bytes,
                )
            )
        return orders

    def _close(self, round: int, uploads: Sequence[Upload]) -> None:
        values = [_scalars(upload, round) for upload in uploads]
        mean_KP = self._average(values).astype(np.float32)
        steps, perturbations = np.indices(mean_KP.shape)
        self._ledger.append(
            party=SHARED,
            read=round - 1,
            lr=self._settings.lr.at(round),
            step=steps.ravel(),
            perturbation=perturbations.ravel(),
            seed=np.repeat(round_seeds(self._settings, round), mean_KP.shape[1]),
            scalar=mean_KP.ravel(),
        )
        if self._model:
            self._model.go_to(round, self._ledger)
        if round % _TRIM_EVERY == 0 and self._request_bytes is None:
            self._synced.trim()


class AsyncDecomflServer:
    """No rounds: a client that wakes pulls the ledger's tail, and what it uploads becomes the next update.

    The ledger's order is the model. The client chooses its seeds; the pair (client, version read) cannot occur twice.
    """

    answers = False

    def __init__(
        self,
        ledger: Ledger,
        settings: DecomflSettings,
        *,
        clients: int,
        model: Replica | None = None,
        pull_after: int | None = None,
    ) -> None:
        self._ledger, self._settings, self._model = ledger, settings, model
        state_bytes = model.state().nbytes if model and pull_after is not None else 0
        self._synced = _Synced(ledger, clients, 1, pull_after, state_bytes)
        self._reading: dict[int, int] = {}

    @property
    def updates(self) -> int:
        """Updates in the ledger."""
        return self._ledger.version

    def first_orders(self) -> Sequence[Order]:
        """Nobody is told to begin: clients wake by themselves."""
        return ()

    def wake(self, client: int) -> Order:
        """Return the tail of the ledger that the client lacks."""
        sync = self._synced.sync(client)
        self._reading[client] = sync.read
        body: Body
        if sync.pulled:
            assert self._model is not None
            body = PulledModel(self._model.state(), np.zeros(0, np.uint64))
        else:
            missed = self._ledger.since(sync.read - sync.missed, sync.read)
            body = Tail(_seeds_of(missed), missed.scalar)
        reply = SEED_BYTES + SCALAR_BYTES * self._settings.width(1)
        return Order(client, body, sync.read + 1, start_immediately=True, upload_bytes=reply, sync=sync)

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Append the client's seed and scalars as the next update."""
        round, body = self._ledger.version + 1, upload.body
        if not isinstance(body, SeededScalars):
            raise TypeError(f"an asynchronous DeComFL server cannot serve {type(body).__name__}")
        if upload.client not in self._reading:
            raise RunError(
                f"client {upload.client} sent scalars for update {round} without having pulled since its last ones: "
                "its upload was sent twice"
            )
        _check_finite(body.values, upload.client, round)
        self._ledger.append(
            party=upload.client,
            read=self._reading.pop(upload.client),
            lr=self._settings.lr.at(round),
            step=np.zeros(len(body.values), np.int64),
            perturbation=np.arange(len(body.values)),
            seed=np.repeat(body.seeds, len(body.values)),
            scalar=body.values,
        )
        if self._model:
            self._model.go_to(round, self._ledger)
        if round % _TRIM_EVERY == 0:
            self._synced.trim()
        return ()


def round_seeds(settings: DecomflSettings, round: int) -> np.ndarray:
    """Return the seeds of a round's steps, uint64 [K]; no two rounds of a run share one (see `step_seed`)."""
    first = (round - 1) * settings.local_steps
    return np.array(
        [step_seed(settings.key, SERVER_PARTY, first + k) for k in range(settings.local_steps)], np.uint64
    )


def client_seeds(settings: DecomflSettings, client: int, read: int) -> np.ndarray:
    """Return the seed that a client chooses at a version, uint64 [1] (asynchronous)."""
    return np.array([step_seed(settings.key, client, read)], np.uint64)


def _seeds_of(missed: Slice) -> np.ndarray:
    """Return the seeds of updates' steps, one each, uint64 [s]."""
    return missed.seed[missed.perturbation == 0]


def _scalars(upload: Upload, round: int) -> np.ndarray:
    body = upload.body
    if not isinstance(body, Scalars | AgentScalars):
        raise TypeError(f"a DeComFL server cannot serve {type(body).__name__}")
    _check_finite(body.values, upload.client, round)
    return body.values


def _check_finite(values: np.ndarray, client: int, round: int) -> None:
    if not np.isfinite(values).all():
        raise Diverged(
            f"client {client} sent a scalar that is not finite for update {round}: choose a smaller step size or a "
            "larger smoothing radius"
        )


class LedgerFollower:
    """A replica that follows the ledger, to be looked at; clients of both kinds have one."""

    def __init__(
        self,
        objectives: Sequence[Objective],
        replica: Replica,
        history: UpdateSource,
        parts: Partition,
        settings: DecomflSettings,
    ) -> None:
        self._replica, self._history = replica, history
        self._local = LocalSteps(objectives, parts, settings)

    def evaluate(self, version: int, x: torch.Tensor, y: torch.Tensor) -> Metrics:
        """Score the model at `version` on held-out rows."""
        self._replica.go_to(version, self._history)
        return self._local.evaluate(self._replica, x, y)

    def state(self, version: int) -> np.ndarray:
        """Return a copy of the parameters and of the V vectors kept beside them at `version`: float32 [1 + V, d]."""
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
        parts: Partition,
        settings: DecomflSettings,
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
            self._catch_up(client, replica, _seeds_of(missed), missed.scalar, version)
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
            directions = perturbation_seeds(seeds[:, None], np.arange(values.shape[1]))
            replica.apply_steps([Step(directions[k], values[k], lr) for k in range(len(seeds))])
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
        """Replay seeds and scalars that come without any structure: the schedule says what belongs to which round."""
        own, place, steps = self._own.pop(client, None), 0, iter(seeds)
        for round in range(replica.version + 1, version + 1):
            lr, taken = self._settings.lr.at(round), []
            for k in range(self._settings.local_steps):
                width = self._settings.width(round)
                values = scalars[place : place + width]
                if own is not None:  # Eq. (10): what the others' mean differs from the client's own
                    values = values.astype(np.float64) - own[k]
                taken.append(Step(perturbation_seeds(next(steps), np.arange(width)), values, lr))
                place += width
            if self._settings.rule.anchors(round):
                seeds_n, values_n = (np.concatenate([getattr(s, name) for s in taken]) for name in _PAIR)
                taken = [Step(seeds_n, values_n, lr, anchor=True)]
            replica.apply_steps(taken)
            own = None
        replica.version = version


class LocalSteps:
    """K local steps of P estimates each, from a model that is left as it was (Algorithm 2, ClientZOLocalUpdate)."""

    def __init__(self, objectives: Sequence[Objective], parts: Partition, settings: DecomflSettings) -> None:
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
        round = orders[0].round
        used = replica.seeds(perturbation_seeds(seeds[0], np.arange(settings.width(round))))
        losses, values = self._estimates(objective, replica.descent, used, rows, round)
        return [_upload(order, values[i][None], losses[i], seeds) for i, order in enumerate(orders)]

    def _alone(self, objective: Objective, order: Order, replica: Replica) -> Upload:
        """One client, whose own steps lead it away from the shared model until it reverts."""
        settings, round = self._settings, order.round
        seeds_K, width = _seeds(order, settings), settings.width(round)
        local = replica.descent
        first, values_KP = float("nan"), np.zeros((len(seeds_K), width), np.float32)
        for k, seed in enumerate(seeds_K):
            used = replica.seeds(perturbation_seeds(seed, np.arange(width)))
            (loss,), (values,) = self._estimates(objective, local, used, [self._rows(order, k)], round)
            first = loss if k == 0 else first
            values_KP[k] = values
            if k + 1 < len(seeds_K) and not settings.rule.anchors(round):
                local = replica.fork() if local is replica.descent else local
                local.apply([Step(used, values, settings.lr.at(round))])
        return _upload(order, values_KP, first, seeds_K)

    def _rows(self, order: Order, step: int) -> np.ndarray:
        return batch_rows(
            self._parts, self._settings.key, order.client, order.round, step, self._settings.rows(order.round)
        )

    def _estimates(
        self,
        objective: Objective,
        at: Descent,
        seeds: np.ndarray,
        rows: Sequence[np.ndarray],
        round: int,
    ) -> tuple[list[float], np.ndarray]:
        """Return each client's loss and directional derivatives, float32 [clients, P].

        Of ZO-SVRG the derivatives less those at w̃, along the same directions on the same rows; w̃'s own at w̃.
        """
        rule = self._settings.rule
        directions = [Direction(int(seed), objective.size, rule.law) for seed in seeds]
        losses, values = self._derivatives(objective, at.x, directions, rows)
        if rule.optimizer == "svrg" and not rule.anchors(round):
            values = values - self._derivatives(objective, at.kept[0], directions, rows)[1]
        return losses, values.astype(np.float32)

    def _derivatives(
        self,
        objective: Objective,
        x: torch.Tensor,
        directions: Sequence[Direction],
        rows: Sequence[np.ndarray],
    ) -> tuple[list[float], np.ndarray]:
        """Return each client's loss at x and its directional derivatives, [clients, P]."""
        settings = self._settings
        if settings.estimate == "projection":
            found = [objective.slopes(x, directions, ids) for ids in rows]
            return [loss for loss, _ in found], np.array([slopes for _, slopes in found])
        radius = settings.smoothing
        plus = objective.losses(x, directions, radius, rows)
        if settings.estimate == "central":
            minus = objective.losses(x, directions, -radius, rows)
            middle = ((plus + minus) / 2).mean(1)
            return middle.tolist(), (plus - minus) / (2 * radius)
        base = objective.losses_at(x, rows)
        return base.tolist(), (plus - base[:, None]) / radius


def _chooses_seeds(order: Order) -> bool:
    """Tell whether the client chooses its seeds itself (asynchronous) or got them from the server."""
    return isinstance(order.body, Tail) or (isinstance(order.body, PulledModel) and not order.body.seeds.size)


def _seeds(order: Order, settings: DecomflSettings) -> np.ndarray:
    """Return the seeds of the steps a client is to try, uint64 [K]."""
    if _chooses_seeds(order):
        return client_seeds(settings, order.client, order.round - 1)
    return order.body.seeds  # type: ignore[attr-defined]


def _upload(order: Order, values_KP: np.ndarray, loss: float, seeds_K: np.ndarray) -> Upload:
    body: Body
    if _chooses_seeds(order):
        body = SeededScalars(seeds_K, values_KP[0])
    else:
        body = (AgentScalars if isinstance(order.body, AgentSeeds) else Scalars)(values_KP)
    return Upload(order.client, order.round - 1, body, loss)


def decomfl_settings(config: DecomflConfig, key: Key) -> DecomflSettings:
    """Return what servers and clients agree on."""
    return DecomflSettings(
        key,
        _rule(config).rule,
        config.batch,
        Schedule(config.lr, config.lr_at),
        Schedule(config.perturbations, config.perturbations_at),
        config.local_steps,
        config.smoothing,
        config.estimate,
    )


def _rule(config: DecomflConfig) -> UpdateRule:
    adam = config.optimizer == "adam"
    rule = Rule(
        config.direction,
        config.momentum,
        config.dampening,
        optimizer=config.optimizer,
        beta2=config.beta2 if adam else 0.0,
        v0=config.v0 if adam else 0.0,
        epoch=config.epoch or 0,
    )
    return UpdateRule(rule, secret_seeds=config.private_seed_shift, step_seeds=True)


def _server(parts: HorizontalServerParts, config: DecomflConfig) -> DecomflServer | AsyncDecomflServer:
    assert parts.ledger is not None
    settings = decomfl_settings(config, parts.key)
    model = parts.replica() if config.server_model else None
    if config.asynchronous:
        return AsyncDecomflServer(
            parts.ledger, settings, clients=len(parts.rows), model=model, pull_after=config.pull_after
        )
    return DecomflServer(
        *(cohorts(parts, config.cohort, config.epoch), parts.ledger, settings),
        weights=row_weights(parts, config),
        model=model,
        pull_after=config.pull_after,
        asks=config.last_round == "clients",
    )


def _clients(parts: ClientGroupParts, config: DecomflConfig) -> SharedClients | SeparateClients:
    assert parts.replica is not None
    assert parts.updates is not None
    given = (parts.objectives, parts.replica, parts.updates, parts.parts, decomfl_settings(config, parts.key))
    return SeparateClients(*given, config.revert) if _own_models(config) else SharedClients(*given)


def _own_models(config: DecomflConfig) -> bool:
    return config.replicas == "per_client"


def _contradictions(config: DecomflConfig, sections: HorizontalSections) -> Iterator[str]:
    clients = sections.split.clients
    for name in ("lr_at", "perturbations_at"):
        rounds = [round for round, _ in getattr(config, name)]
        if rounds != sorted(set(rounds)):
            yield f"method.{name}: wanted ascending rounds, got {rounds}"
    if config.asynchronous:
        for name, usual in (
            ("local_steps", 1),
            ("perturbations_at", ()),
            ("weights", "uniform"),
            ("last_round", "server"),
        ):
            if getattr(config, name) != usual:
                yield f"method.{name}: has no meaning with method.asynchronous = true; leave it out"
        if clients >= SERVER_PARTY:
            yield f"split.clients: wanted fewer than {SERVER_PARTY}, each client needs seeds of its own"
        if config.revert == "add_back":
            yield (
                'method.revert: wanted "restore" with method.asynchronous = true, got "add_back" '
                "(Eq. (10) is for rounds)"
            )
    if config.pull_after is not None and not config.server_model:
        yield "method.server_model: wanted true with method.pull_after (clients pull the server's model)"
    if config.private_seed_shift and config.server_model:
        yield "method.server_model: the server cannot follow privately shifted seeds; set one of the two to false"
    if config.revert == "add_back":
        if config.replicas != "per_client":
            yield 'method.replicas: wanted "per_client" with revert = "add_back" (every client drifts by itself)'
        if config.momentum or config.optimizer != "sgd":
            yield (
                'method.momentum, method.optimizer: wanted 0 and "sgd" with revert = "add_back" (Eq. (10) is for plain '
                "SGD)"
            )
    yield from _of_optimizer(config)


def _of_optimizer(config: DecomflConfig) -> Iterator[str]:
    name, usual = config.optimizer, DecomflConfig()
    if name in ("signsgd", "svrg") and config.momentum:
        yield f'method.momentum: wanted 0 with optimizer = "{name}", which has none, got {config.momentum:g}'
    for field in ("beta2", "v0"):
        if name != "adam" and getattr(config, field) != getattr(usual, field):
            yield f'method.{field}: has no meaning with optimizer = "{name}", only "adam" has it; leave it out'
    if name == "adam" and not config.dampening:
        yield 'method.dampening: wanted true with optimizer = "adam", whose first moment is m <- βm + (1-β)g'
    if name == "svrg" and config.epoch is None:
        yield 'method.epoch: wanted with optimizer = "svrg" (rounds from one full estimate to the next), got none'
    if name != "svrg" and config.epoch is not None:
        yield f'method.epoch: has no meaning with optimizer = "{name}", only "svrg" has epochs; leave it out'
    if name == "svrg" and config.asynchronous:
        yield (
            'method.optimizer: wanted another than "svrg" with method.asynchronous = true (its full estimates are '
            "rounds of all clients)"
        )


DECOMFL = HorizontalMethod(
    config=DecomflConfig,
    server=_server,
    clients=_clients,
    rule=_rule,
    pulls=lambda c: c.asynchronous,
    cohort=lambda c, clients: clients if c.asynchronous else c.cohort,
    own_models=_own_models,
    drifts=lambda c: c.revert == "add_back",
    contradictions=_contradictions,
)
