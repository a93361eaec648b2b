"""DeComFL: horizontal learning with seeds and scalars alone on the wire. The servers; the clients are beside this.

Sources: DeComFL Algorithms 1 to 5, Appendix A (papers as printed use r for rounds from 0; here rounds count from 1, so
that round r is update r of the ledger). A client that took part in round r has reverted to the model before it, and
must replay round r like everybody else: its next catch-up begins with r.
"""

# M clients, m of them in a cohort, K local steps, P perturbations, d parameters

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from raydpzv.errors import Diverged, RunError
from raydpzv.keys import SERVER_PARTY, Key, direction_seed
from raydpzv.ledger.entries import SHARED
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.horizontal.rounds import Cohorts, RoundServer
from raydpzv.methods.replica import Replica
from raydpzv.methods.roles import Order, Sync, Upload
from raydpzv.wire.messages import Body
from raydpzv.wire.seeds import AgentScalars, AgentSeeds, CatchUp, PulledModel, Scalars, SeededScalars, Tail
from raydpzv.zo.update import Rule

Estimate = Literal["forward", "central", "projection"]
PAIR_BYTES = 8 + 4
"""Bytes of a seed and its scalar on the wire."""
_TRIM_EVERY = 64
"""Updates between looks for pairs that nobody needs: looking costs one pass over all clients' versions."""


@dataclass(frozen=True)
class Schedule:
    """A quantity that changes at given rounds: `changes` are (first round, value), ascending."""

    first: float
    changes: tuple[tuple[int, float], ...] = ()

    def at(self, round: int) -> float:
        """Return the value in round 1, 2, ..."""
        return [self.first, *(value for start, value in self.changes if start <= round)][-1]


@dataclass(frozen=True)
class Settings:
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
        """Return how many (seed, scalar) pairs a round adds."""
        return self.local_steps * self.width(round)


class _Synced:
    """What every client has replayed, and what it gets to catch up: bytes per client, not models.

    pull_after (L): a client that lags more than L updates takes the whole model if that is fewer bytes.
    """

    def __init__(self, ledger: Ledger, clients: int, pull_after: int | None, state_bytes: int) -> None:
        self._ledger = ledger
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
        """Take down that clients were brought to a version."""
        self._versions[clients] = version

    def _pulls(self, behind: int, now: int) -> bool:
        if self._pull_after is None or now - behind <= self._pull_after:
            return False
        return self._ledger.pairs(behind, now) * PAIR_BYTES > self._state_bytes

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
    """Samples a cohort and K·P seeds per round, averages the scalars it gets back, and appends them to the ledger.

    It holds no model unless one is given: `model` follows the ledger, for clients that pull it.
    agent: there is one client and no network (MeZO): its messages cost nothing.
    """

    def __init__(
        self,
        cohorts: Cohorts,
        ledger: Ledger,
        settings: Settings,
        *,
        weights: np.ndarray | None = None,
        model: Replica | None = None,
        pull_after: int | None = None,
        agent: bool = False,
    ) -> None:
        super().__init__(cohorts, weights)
        self._ledger, self._settings, self._model, self._agent = ledger, settings, model, agent
        state_bytes = model.state().nbytes if model and pull_after is not None else 0
        self._synced = _Synced(ledger, cohorts.clients, pull_after, state_bytes)

    def resume(self, round: int) -> None:
        """Take up the state after so many rounds: the ledger holds them, the cohorts can be drawn again."""
        super().resume(round)
        for past in range(1, round + 1):
            self._synced.note(self._cohorts.draw(past), past - 1)
        if self._model:
            self._model.go_to(round, self._ledger)

    def _orders(self, round: int, cohort: Sequence[int]) -> list[Order]:
        seeds_KP = round_seeds(self._settings, round)
        reply = 0 if self._agent else 4 * seeds_KP.size
        return [self._order(client, round, seeds_KP, reply) for client in cohort]

    def _order(self, client: int, round: int, seeds_KP: np.ndarray, reply: int) -> Order:
        sync = self._synced.sync(client)
        body: Body
        if sync.pulled:
            assert self._model is not None
            body = PulledModel(self._model.state(), seeds_KP)
        else:
            missed = self._ledger.since(sync.read - sync.missed, sync.read)
            kind = AgentSeeds if self._agent else CatchUp
            body = kind(missed.seed, missed.scalar, seeds_KP)
        return Order(client, body, round, start_immediately=True, upload_bytes=reply, sync=sync)

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
            seed=round_seeds(self._settings, round).ravel(),
            scalar=mean_KP.ravel(),
        )
        if self._model:
            self._model.go_to(round, self._ledger)
        if round % _TRIM_EVERY == 0:
            self._synced.trim()


class AsyncDecomflServer:
    """No rounds: a client that wakes pulls the ledger's tail, and what it uploads becomes the next update.

    The ledger's order is the model. The client chooses its seeds; the pair (client, version read) cannot occur twice.
    """

    answers = False

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        *,
        clients: int,
        model: Replica | None = None,
        pull_after: int | None = None,
    ) -> None:
        self._ledger, self._settings, self._model = ledger, settings, model
        state_bytes = model.state().nbytes if model and pull_after is not None else 0
        self._synced = _Synced(ledger, clients, pull_after, state_bytes)
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
            body = PulledModel(self._model.state(), np.zeros((0, 0), np.uint64))
        else:
            missed = self._ledger.since(sync.read - sync.missed, sync.read)
            body = Tail(missed.seed, missed.scalar)
        reply = PAIR_BYTES * self._settings.width(1)
        return Order(client, body, sync.read + 1, start_immediately=True, upload_bytes=reply, sync=sync)

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Append the client's pairs as the next update."""
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
            step=np.zeros(len(body.seeds), np.int64),
            perturbation=np.arange(len(body.seeds)),
            seed=body.seeds,
            scalar=body.values,
        )
        if self._model:
            self._model.go_to(round, self._ledger)
        if round % _TRIM_EVERY == 0:
            self._synced.trim()
        return ()


def round_seeds(settings: Settings, round: int) -> np.ndarray:
    """Return the seeds of a round, uint64 [K, P]; no two rounds of a run share one (see `direction_seed`)."""
    first = (round - 1) * settings.local_steps
    return np.array(
        [
            [direction_seed(settings.key, SERVER_PARTY, first + k, p) for p in range(settings.width(round))]
            for k in range(settings.local_steps)
        ],
        np.uint64,
    )


def client_seeds(settings: Settings, client: int, read: int) -> np.ndarray:
    """Return the seeds that a client chooses at a version, uint64 [P] (asynchronous)."""
    count = settings.width(1)
    return np.array([direction_seed(settings.key, client, read, p) for p in range(count)], np.uint64)


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
