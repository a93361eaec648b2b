"""DeComFL: horizontal learning with seeds and scalars alone on the wire.

Sources: DeComFL Algorithms 1 to 5, Appendix A (papers as printed use r for rounds from 0; here
rounds count from 1).

Clients come in two forms that give the same bits. `SharedClients` is how simulations run: all
clients of a process share one replica that replays every update once. `SeparateClients` does
literally what the paper writes (Algorithms 2 and 4), from the messages alone, at the cost of one
model per client: the check on the other, and the only way to measure what the paper's snapshot-free
revert (Eq. (10)) does to the bits.
"""

# M clients, m of them in a cohort, K local steps, P perturbations, d parameters

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from raydpzv.data.horizontal import Partition, batch_rows
from raydpzv.engine.objective import Objective
from raydpzv.errors import RunError
from raydpzv.keys import SERVER_PARTY, Key, perturbation_seeds
from raydpzv.methods.descriptor import (
    ClientGroupParts,
    HorizontalMethod,
    HorizontalServerParts,
    UpdateRule,
)
from raydpzv.methods.horizontal.rounds import Directed, Sampled, cohorts, row_weights
from raydpzv.methods.horizontal.seeded import (
    Estimate,
    SeededPullServer,
    SeededServer,
    SeededSettings,
    check_finite,
    seeds_of,
    updates_of,
)
from raydpzv.methods.horizontal.seeded_clients import (
    LedgerFollower,
    LocalWork,
    SharedClients,
    central_differences,
    chooses_seeds,
    seeds_to_try,
)
from raydpzv.methods.replica import Replica, UpdateSource
from raydpzv.methods.roles import Drift, Order, Upload
from raydpzv.methods.schedule import schedule_of
from raydpzv.settings.bounds import Bounds, Count, Momentum, Perturbations, Positive
from raydpzv.wire.messages import Body, ClientModels
from raydpzv.wire.seeds import (
    AgentScalars,
    AgentSeeds,
    CatchUp,
    PulledModel,
    Scalars,
    SeededScalars,
    Tail,
)
from raydpzv.zo.directions import Direction
from raydpzv.zo.spans import groups_of
from raydpzv.zo.update import Descent, Optimizer, Rule, Step
from raydpzv.zo.vectors import Vector, as_array

if TYPE_CHECKING:
    from raydpzv.settings.sections_horizontal import HorizontalSections

_PAIR = ("seeds", "scalars")
Revert = Literal["restore", "add_back"]


@dataclass(frozen=True)
class DecomflConfig(Directed, Sampled):
    """DeComFL: seeds and scalars in place of models, both ways (DeComFL Algorithms 1 to 5)."""

    name: Literal["decomfl"] = "decomfl"
    """The method."""
    asynchronous: bool = False
    """No rounds: a client wakes by its clock, pulls what it missed, and its scalars become the next
    update.
    """
    lr: Positive = 1e-3
    """Step size η of the update (η/P) Σ g_p z_p."""
    lr_at: tuple[tuple[Count, Positive], ...] = ()
    """Step sizes from later rounds on: [[round, lr], ...]."""
    perturbations_at: tuple[tuple[Count, Perturbations], ...] = ()
    """P from later rounds on: [[round, P], ...]."""
    momentum: Momentum = 0.0
    """Momentum β of DeComFL Eq. (8); β1 of ZO-Adam."""
    dampening: bool = True
    """Momentum as in Eq. (8), m <- βm + (1-β)g, or as the authors' program has it (torch's SGD), m
    <- βm + g.
    """
    optimizer: Optimizer = "sgd"
    """What is done with the estimate: ZO-SGD with Eq. (8) and (9), ZO-SignSGD, ZO-Adam or ZO-SVRG
    (DeComFL A.1).
    """
    beta2: Momentum = 0.3
    """β2 of ZO-Adam's second moment."""
    v0: Positive = 1e-7
    """What ZO-Adam's second moment and its maximum begin with."""
    epoch: Annotated[int, Bounds(ge=2, le=10**6)] | None = None
    """Rounds per epoch of ZO-SVRG: in the first of each all clients estimate the gradient on all
    their rows.
    """
    estimate: Estimate = "forward"
    """(f(x+μz) - f(x)) / μ, (f(x+μz) - f(x-μz)) / 2μ, or the first-order projection <∇f, z>
    (Algorithm 5).
    """
    replicas: Literal["shared", "per_client"] = "shared"
    """One model per process that all its clients share, or literally one per client: the same bits,
    more memory.
    """
    revert: Revert = "restore"
    """After the local steps: restore the model exactly, or the paper's snapshot-free Eq. (10),
    whose drift is shown.
    """
    last_round: Literal["server", "clients"] = "server"
    """Who keeps in which round a client last took part: the server (Algorithm 1), or clients, who
    are asked (A.2).
    """
    server_model: bool = False
    """The server keeps a model, as pulling needs it."""
    pull_after: Count | None = None
    """A client that lags more updates than this takes the whole model, if that is fewer bytes."""
    private_seed_shift: bool = False
    """Clients move every seed by a secret of theirs: the server cannot rebuild the model (A.3). No
    ε follows.
    """


class DecomflServer(SeededServer):
    """Averages the scalars of a round's cohort, weighted if its clients are."""

    def _released(self, round: int, uploads: Sequence[Upload]) -> np.ndarray:
        return self._average([_scalars(upload, round) for upload in uploads]).astype(np.float32)


def _scalars(upload: Upload, round: int) -> np.ndarray:
    body = upload.body
    if not isinstance(body, Scalars | AgentScalars):
        raise TypeError(f"a DeComFL server cannot serve {type(body).__name__}")
    check_finite(body.values, upload.client, round)
    return body.values


class SeparateClients(LedgerFollower):
    """Every client keeps its own model and knows nothing but the messages it got.

    revert: "restore" the model after the local steps, or "add_back": stay where the local steps led
    and subtract the difference to the others' mean at the next catch-up (Eq. (10): no snapshot is
    needed, but floating-point sums do not return to where they came from).
    """

    def __init__(
        self,
        objectives: Sequence[Objective],
        replica: Replica,
        history: UpdateSource,
        parts: Partition,
        settings: SeededSettings,
        revert: Revert = "restore",
    ) -> None:
        super().__init__(replica, history, LocalSteps(objectives, parts, settings))
        self._fresh, self._settings, self._revert = replica.twin(), settings, revert
        self._clients: dict[int, Replica] = {}
        self._own: dict[int, np.ndarray] = {}

    def process(self, orders: Sequence[Order]) -> list[Upload]:
        """Let each client catch up from its own message, and do its local steps."""
        if orders:
            self._replica.go_to(orders[-1].round - 1, self._history)
        return [self._process(order) for order in orders]

    def models(self) -> ClientModels:
        """Return what a checkpoint keeps of clients that add back: each client's model, and its own
        last scalars.
        """
        clients = sorted(self._clients)
        states = [self._clients[client].state() for client in clients]
        return ClientModels(
            np.array(clients, np.int32),
            np.array([self._clients[client].version for client in clients], np.int64),
            np.stack(states) if states else np.zeros((0, *self._fresh.state().shape), np.float32),
            np.array([self._own[client].size for client in clients], np.int64),
            np.concatenate(
                [np.zeros(0, np.float32), *(self._own[client].ravel() for client in clients)]
            ),
        )

    def restore_models(self, kept: ClientModels) -> None:
        own = np.split(kept.values, np.cumsum(kept.counts))[:-1]
        for client, version, state, values in zip(
            kept.clients.tolist(), kept.versions.tolist(), kept.models, own, strict=True
        ):
            self._clients[client] = self._fresh.twin()
            self._clients[client].adopt(state, version)
            self._own[client] = values.reshape(self._settings.local_steps, -1)

    def drift(self, version: int) -> Drift:
        self._replica.go_to(version, self._history)
        largest, share = 0.0, 0.0
        for client, replica in self._clients.items():
            missed = self._history.since(replica.version, version)
            self._catch_up(client, replica, seeds_of(missed), missed.scalar, version)
            gap = np.abs(as_array(replica.x) - as_array(self._replica.x))
            largest = max(largest, float(gap.max()))
            share = max(share, float((gap > 0).mean()))
        return Drift(largest, share)

    def _process(self, order: Order) -> Upload:
        if order.client not in self._clients:
            self._clients[order.client] = self._first_replica(order)
        replica, body = self._clients[order.client], order.body
        if isinstance(body, PulledModel):
            replica.adopt(body.state, order.round - 1)
            self._own.pop(order.client, None)
        elif isinstance(body, CatchUp | Tail | AgentSeeds):
            self._catch_up(
                order.client, replica, body.missed_seeds, body.missed_scalars, order.round - 1
            )
        (upload,) = self._local.work([order], replica)
        if self._revert == "add_back":
            values = np.atleast_2d(upload.body.values)  # type: ignore[attr-defined]
            seeds = seeds_to_try(order, self._settings)
            lr = self._settings.lr.at(order.round)
            directions = perturbation_seeds(seeds[:, None], np.arange(values.shape[1]))
            replica.apply_steps([Step(directions[k], values[k], lr) for k in range(len(seeds))])
            self._own[order.client] = values
        return upload

    def _first_replica(self, order: Order) -> Replica:
        """Return a client's model as its message expects it; one that took part elsewhere left it
        on the ledger.
        """
        replica, sync = self._fresh.twin(), order.sync
        if sync and (behind := sync.read - sync.missed):
            if self._revert == "add_back":
                raise RunError(
                    f"client {order.client}'s own model was lost with its process, and with "
                    'revert = "add_back" '
                    "nobody else can know it: continue from the run's last checkpoint with raydpzv "
                    "resume"
                )
            replica.go_to(behind, self._history)
        return replica

    def _catch_up(
        self, client: int, replica: Replica, seeds: np.ndarray, scalars: np.ndarray, version: int
    ) -> None:
        """Replay seeds and scalars that come without any structure: the schedule says what belongs
        to which round.
        """
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
                seeds_n, values_n = (
                    np.concatenate([getattr(s, name) for s in taken]) for name in _PAIR
                )
                taken = [Step(seeds_n, values_n, lr, anchor=True)]
            replica.apply_steps(taken)
            own = None
        replica.version = version


class LocalSteps(LocalWork):
    """K local steps of P estimates each, from a model that is left as it was (Algorithm 2,
    ClientZOLocalUpdate).
    """

    def __init__(
        self, objectives: Sequence[Objective], parts: Partition, settings: SeededSettings
    ) -> None:
        super().__init__(objectives)
        self._parts, self._settings = parts, settings

    def _share(
        self, objective: Objective, orders: Sequence[Order], replica: Replica
    ) -> list[Upload]:
        """The clients of one thread: those with the same seeds and one local step share every
        perturbed model.
        """
        if self._settings.local_steps > 1 or not self._share_directions(orders[0]):
            return [self._alone(objective, order, replica) for order in orders]
        rows = [self._rows(order, 0) for order in orders]
        round = orders[0].round
        used = replica.seeds(self._tried(orders[0])[0])
        losses, values = self._estimates(objective, replica.descent, used, rows, round)
        return [self._upload(order, values[i][None], losses[i]) for i, order in enumerate(orders)]

    def _alone(self, objective: Objective, order: Order, replica: Replica) -> Upload:
        """One client, whose own steps lead it away from the shared model until it reverts."""
        settings, round = self._settings, order.round
        seeds_KP, local = replica.seeds(self._tried(order)), replica.descent
        first, values_KP = float("nan"), np.zeros(seeds_KP.shape, np.float32)
        for k, used in enumerate(seeds_KP):
            (loss,), (values,) = self._estimates(
                objective, local, used, [self._rows(order, k)], round
            )
            first = loss if k == 0 else first
            values_KP[k] = values
            if k + 1 < len(seeds_KP) and not settings.rule.anchors(round):
                local = replica.fork() if local is replica.descent else local
                local.apply([Step(used, values, settings.lr.at(round))])
        return self._upload(order, values_KP, first)

    def _share_directions(self, order: Order) -> bool:
        """Return whether all clients of a round try the same directions."""
        return not chooses_seeds(order)

    def _tried(self, order: Order) -> np.ndarray:
        """Return the seeds of the directions that a client is to try, uint64 [K, P]."""
        seeds_K = seeds_to_try(order, self._settings)
        return perturbation_seeds(seeds_K[:, None], np.arange(self._settings.width(order.round)))

    def _upload(self, order: Order, values_KP: np.ndarray, loss: float) -> Upload:
        return Upload(order.client, order.round - 1, self._answer(order, values_KP), loss)

    def _answer(self, order: Order, values_KP: np.ndarray) -> Body:
        """Return the message with a client's derivatives, float32 [K, P]."""
        if chooses_seeds(order):
            return SeededScalars(seeds_to_try(order, self._settings), values_KP[0])
        return (AgentScalars if isinstance(order.body, AgentSeeds) else Scalars)(values_KP)

    def _rows(self, order: Order, step: int) -> np.ndarray:
        return batch_rows(
            self._parts,
            self._settings.key,
            order.client,
            order.round,
            step,
            self._settings.rows(order.round),
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

        Of ZO-SVRG the derivatives less those at w̃, along the same directions on the same rows;
        w̃'s own at w̃.
        """
        rule = self._settings.rule
        directions = [at.direction(int(seed)) for seed in seeds]
        losses, values = self._derivatives(objective, at.x, directions, rows)
        if rule.optimizer == "svrg" and not rule.anchors(round):
            values = values - self._derivatives(objective, at.kept[0], directions, rows)[1]
        return losses, values.astype(np.float32)

    def _derivatives(
        self,
        objective: Objective,
        x: Vector,
        directions: Sequence[Direction],
        rows: Sequence[np.ndarray],
    ) -> tuple[list[float], np.ndarray]:
        """Return each client's loss at x and its directional derivatives, [clients, P]."""
        settings = self._settings
        if settings.estimate == "projection":
            found = [objective.slopes(x, directions, ids) for ids in rows]
            return [loss for loss, _ in found], np.array([slopes for _, slopes in found])
        radius = settings.smoothing
        if settings.estimate == "central":
            return central_differences(objective, x, directions, radius, rows)
        plus, base = objective.losses(x, directions, radius, rows), objective.losses_at(x, rows)
        return base.tolist(), (plus - base[:, None]) / radius


def decomfl_settings(config: DecomflConfig, key: Key) -> SeededSettings:
    """Return what servers and clients agree on."""
    return SeededSettings(
        key,
        _rule(config).rule,
        config.batch,
        schedule_of(config, "lr"),
        schedule_of(config, "perturbations"),
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
        groups=groups_of(config.groups),
        optimizer=config.optimizer,
        beta2=config.beta2 if adam else 0.0,
        v0=config.v0 if adam else 0.0,
        epoch=config.epoch or 0,
    )
    return UpdateRule(rule, secret_seeds=config.private_seed_shift, step_seeds=True)


def _server(
    parts: HorizontalServerParts, config: DecomflConfig
) -> DecomflServer | SeededPullServer:
    updates = updates_of(
        parts,
        decomfl_settings(config, parts.key),
        model=parts.replica() if config.server_model else None,
        pull_after=config.pull_after,
        asks=config.last_round == "clients",
    )
    if config.asynchronous:
        return SeededPullServer(updates)
    return DecomflServer(
        cohorts(parts, config.cohort, config.epoch), updates, weights=row_weights(parts, config)
    )


def _clients(parts: ClientGroupParts, config: DecomflConfig) -> SharedClients | SeparateClients:
    assert parts.replica is not None
    assert parts.updates is not None
    settings = decomfl_settings(config, parts.key)
    if _own_models(config):
        return SeparateClients(
            parts.objectives, parts.replica, parts.updates, parts.parts, settings, config.revert
        )
    return SharedClients(
        parts.replica, parts.updates, LocalSteps(parts.objectives, parts.parts, settings)
    )


def _own_models(config: DecomflConfig) -> bool:
    return config.replicas == "per_client"


def of_asynchronous(config: Sampled, sections: HorizontalSections) -> Iterator[str]:
    """Say what a method without rounds, whose clients choose their seeds, cannot have."""
    without = {
        "local_steps": 1,
        "perturbations_at": (),
        "weights": "uniform",
        "last_round": "server",
    }
    yield from (
        f"method.{name}: has no meaning with method.asynchronous = true; leave it out"
        for name, usual in without.items()
        if getattr(config, name, usual) != usual
    )
    if sections.split.clients >= SERVER_PARTY:
        yield f"split.clients: wanted fewer than {SERVER_PARTY}, each client needs seeds of its own"


def _contradictions(config: DecomflConfig, sections: HorizontalSections) -> Iterator[str]:
    if config.asynchronous:
        yield from of_asynchronous(config, sections)
        if config.revert == "add_back":
            yield (
                'method.revert: wanted "restore" with method.asynchronous = true, got "add_back" '
                "(Eq. (10) is for rounds)"
            )
    if config.pull_after is not None and not config.server_model:
        yield (
            "method.server_model: wanted true with method.pull_after (clients pull the server's "
            "model)"
        )
    if config.private_seed_shift and config.server_model:
        yield (
            "method.server_model: the server cannot follow privately shifted seeds; set one of the "
            "two to false"
        )
    if config.revert == "add_back":
        if config.replicas != "per_client":
            yield (
                'method.replicas: wanted "per_client" with revert = "add_back" (every client drifts'
                " by itself)"
            )
        if config.momentum or config.optimizer != "sgd":
            yield (
                'method.momentum, method.optimizer: wanted 0 and "sgd" with revert = "add_back" '
                "(Eq. (10) is for plain "
                "SGD)"
            )
    yield from _of_optimizer(config)


def _of_optimizer(config: DecomflConfig) -> Iterator[str]:
    name, usual = config.optimizer, DecomflConfig()
    if name in ("signsgd", "svrg") and config.momentum:
        yield (
            f'method.momentum: wanted 0 with optimizer = "{name}", which has none, got'
            f" {config.momentum:g}"
        )
    yield from (
        f'method.{field}: has no meaning with optimizer = "{name}", only "adam" has it; leave it out'
        for field in ("beta2", "v0")
        if name != "adam" and getattr(config, field) != getattr(usual, field)
    )
    if name == "adam" and not config.dampening:
        yield (
            'method.dampening: wanted true with optimizer = "adam", whose first moment is m <- βm +'
            " (1-β)g"
        )
    if name == "svrg" and config.epoch is None:
        yield (
            'method.epoch: wanted with optimizer = "svrg" (rounds from one full estimate to the'
            " next), got none"
        )
    if name != "svrg" and config.epoch is not None:
        yield (
            f'method.epoch: has no meaning with optimizer = "{name}", only "svrg" has epochs; leave'
            " it out"
        )
    if name == "svrg" and config.asynchronous:
        yield (
            'method.optimizer: wanted another than "svrg" with method.asynchronous = true (its '
            "full estimates are "
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
