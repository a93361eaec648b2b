"""Servers of methods that put seeds and scalars on a ledger, and the updates that each client
lacks.

Rounds count from 1: round r is update r of the ledger. A client that took part in round r has
reverted to the model before it, and must replay round r like everybody else: its next catch-up
begins with r.
"""

# M clients, m of them in a cohort, K local steps, P perturbations, d parameters

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from raydpzv.errors import Diverged, ReplayMismatch, RunError
from raydpzv.keys import SERVER_PARTY, Key, step_seed
from raydpzv.ledger.entries import SHARED, Slice
from raydpzv.methods.descriptor import HorizontalServerParts
from raydpzv.methods.horizontal.rounds import Cohorts, RoundServer
from raydpzv.methods.replica import Replica
from raydpzv.methods.roles import Order, Sync, Upload
from raydpzv.methods.schedule import Schedule, schedule_of
from raydpzv.wire.messages import Body
from raydpzv.wire.seeds import REQUEST_BYTES, AgentSeeds, CatchUp, PulledModel, SeededScalars, Tail
from raydpzv.zo.update import Rule

if TYPE_CHECKING:
    from raydpzv.ledger.ledger import Ledger

Estimate = Literal["forward", "central", "projection"]
SEED_BYTES, SCALAR_BYTES = 8, 4
"""Bytes on the wire of a step's seed and of one of its P scalars."""
ALL_ROWS = 2**62
"""A batch that no client's rows fill: it takes all of them."""
_TRIM_EVERY = 64
"""Updates between looks for pairs that nobody needs: looking costs one pass over all clients'
versions.
"""


@dataclass(frozen=True)
class SeededSettings:
    """Settings that servers and clients share.

    estimate: forward (f(x+μz) - f(x)) / μ (DeComFL Algorithm 2), central (f(x+μz) - f(x-μz)) / 2μ,
    or projection <∇f, z> (DeComFL Algorithm 5). The step size is that of the round in which an
    update is made. derived_seeds: clients make a round's seeds themselves, from the run's public
    key and the round's number; none travels.
    """

    key: Key
    rule: Rule
    batch: int
    lr: Schedule
    perturbations: Schedule
    local_steps: int = 1
    smoothing: float = 1e-3
    estimate: Estimate = "forward"
    derived_seeds: bool = False

    def width(self, round: int) -> int:
        """Return P in a round."""
        return int(self.perturbations.at(round))

    def pairs(self, round: int) -> int:
        """Return how many scalars, one per direction, a round adds."""
        return self.local_steps * self.width(round)

    def rows(self, round: int) -> int:
        """Return how many rows a client takes in a local step, at most."""
        return ALL_ROWS if self.rule.anchors(round) else self.batch


def settings_of(
    config: Any, key: Key, estimate: Estimate = "forward", *, derived_seeds: bool = False
) -> SeededSettings:
    """Return what servers and clients agree on: of a method with a `rule`, whose P stays the same
    in all rounds.
    """
    return SeededSettings(
        key,
        config.rule,
        config.batch,
        schedule_of(config, "lr"),
        Schedule(config.perturbations),
        config.local_steps,
        config.smoothing,
        estimate,
        derived_seeds=derived_seeds,
    )


def updates_of(parts: HorizontalServerParts, settings: SeededSettings, **how: Any) -> Updates:
    """Return the updates of a run's server; how: the keyword arguments of `Updates`."""
    assert parts.ledger is not None
    return Updates(parts.ledger, settings, len(parts.rows), **how)


class Updates:
    """The updates that a server makes, and what every client has replayed of them: bytes per
    client, not models.

    It holds no model unless one is given: `model` follows the ledger, for clients that pull it.
    pull_after (L): a client that lags more than L updates takes the whole model if that is fewer
    bytes. asks: clients keep their last round themselves and are asked for it (DeComFL A.2); a
    server that does not know what they lack forgets no pair.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: SeededSettings,
        clients: int,
        *,
        model: Replica | None = None,
        pull_after: int | None = None,
        asks: bool = False,
    ) -> None:
        self.version, self.settings, self.asks = 0, settings, asks
        self._ledger, self._model = ledger, model
        self._versions = np.zeros(clients, np.int32)
        self._pull_after = pull_after
        self._state_bytes = model.state().nbytes if model and pull_after is not None else 0

    def sync(self, client: int) -> Sync:
        """Update the client to the newest version and return what that takes."""
        now, behind = self.version, int(self._versions[client])
        self._versions[client] = now
        pairs = self._ledger.pairs(behind, now)
        if self._pulls(behind, now):
            return Sync(now, now - behind, 0, pulled=True)
        return Sync(now, now - behind, pairs)

    @property
    def versions(self) -> np.ndarray:
        """The version that each client has reached, int64 [clients], a copy."""
        return self._versions.astype(np.int64)

    def note(self, clients: np.ndarray, version: int | np.ndarray) -> None:
        """Record that clients reached a version, or each to its own."""
        self._versions[clients] = version

    def missed(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the last `count` updates: their steps' seeds, uint64 [s], and their scalars,
        float32 [n].
        """
        found = self._ledger.since(self.version - count, self.version)
        return seeds_of(found), found.scalar

    def pulled(self, seeds_K: np.ndarray) -> PulledModel:
        """Return the whole model for a client that is to try these seeds."""
        assert self._model is not None
        return PulledModel(self._model.state(), seeds_K)

    def recorded(self) -> np.ndarray | None:
        """Return the next update's scalars, float32 [K, P], where the ledger of a run that
        continues has it already.
        """
        if self.version == self._ledger.version:
            return None
        found = self._ledger.since(self.version, self.version + 1).scalar
        return found.reshape(self.settings.local_steps, -1)

    def enter(self, party: int, read: int, seeds_K: np.ndarray, values_KP: np.ndarray) -> None:
        """Make the next update: of `party`, from the model at version `read`.

        seeds_K: of steps, or of directions, [K, P]. Raises ReplayMismatch where the ledger has
        another in its place.
        """
        round = self.version + 1
        steps, perturbations = np.indices(values_KP.shape)
        update: dict[str, Any] = {
            "party": party,
            "read": read,
            "lr": self.settings.lr.at(round),
            "step": steps.ravel(),
            "perturbation": perturbations.ravel(),
            "seed": np.broadcast_to(seeds_K.reshape(len(seeds_K), -1), values_KP.shape).ravel(),
            "scalar": values_KP.ravel(),
        }
        if round > self._ledger.version:
            self._ledger.append(**update)
        else:
            self._require(round, update)
        self.go_to(round)
        if round % _TRIM_EVERY == 0 and not self.asks:
            self._trim()

    def made(self, first: int, last: int) -> Slice:
        """Return the updates after version `first`, up to `last`."""
        return self._ledger.since(first, last)

    def go_to(self, version: int) -> None:
        """Count so many updates as made; the ledger has them."""
        self.version = version
        if self._model:
            self._model.go_to(version, self._ledger)

    def _require(self, round: int, update: Mapping[str, Any]) -> None:
        recorded = self._ledger.since(round - 1, round)
        for name, value in update.items():
            if not np.array_equal(getattr(recorded, name), np.broadcast_to(value, len(recorded))):
                raise ReplayMismatch(
                    f"update {round}: its {name} is not what the ledger has; another machine or "
                    "other library versions (compare environment.json)"
                )

    def _pulls(self, behind: int, now: int) -> bool:
        if self._pull_after is None or now - behind <= self._pull_after:
            return False
        steps, scalars = self.settings.local_steps * (now - behind), self._ledger.pairs(behind, now)
        return SEED_BYTES * steps + SCALAR_BYTES * scalars > self._state_bytes

    def _trim(self) -> None:
        """Forget the pairs that no client needs any more; the log on disk keeps them.

        Without a log nothing is forgotten: hosts' replicas follow at their own pace and may need
        what no client does.
        """
        if not self._ledger.recalls:
            return
        now = self.version
        first, last = 0, now
        while first < last:  # the oldest version from which a client would not pull
            middle = (first + last) // 2
            first, last = (middle + 1, last) if self._pulls(middle, now) else (first, middle)
        self._ledger.trim(max(first, int(self._versions.min())))


class SeededServer(RoundServer):
    """Samples a cohort and K seeds per round, and makes one update of the scalars it gets back.

    A subclass says what comes of the uploads (`_released`). agent: there is one client and no
    network (MeZO): its messages cost nothing.
    """

    def __init__(
        self,
        cohorts: Cohorts,
        updates: Updates,
        *,
        weights: np.ndarray | None = None,
        agent: bool = False,
        value_bytes: int = SCALAR_BYTES,
    ) -> None:
        super().__init__(cohorts, weights)
        self._updates, self._settings = updates, updates.settings
        self._agent, self._value_bytes = agent, value_bytes
        self._request_bytes = REQUEST_BYTES if updates.asks else None

    def restore(self, round: int, state: np.ndarray | None) -> None:
        """Become what the server was after so many rounds: the ledger holds them, the cohorts can
        be drawn again.
        """
        super().restore(round, state)
        unknown = np.ones(self._cohorts.clients, bool)
        for past in range(
            round, 0, -1
        ):  # a client's version is that of the last round that it took part in
            cohort = self._cohorts.draw(past)
            last = cohort[unknown[cohort]]
            self._updates.note(last, past - 1)
            unknown[last] = False
            if not unknown.any():
                break
        self._updates.go_to(round)

    def _orders(self, round: int, cohort: Sequence[int]) -> list[Order]:
        syncs = [self._updates.sync(client) for client in cohort]
        reply = 0 if self._agent else self._upload_bytes(self._settings.pairs(round))
        return [
            Order(
                client,
                body,
                round,
                start_immediately=True,
                upload_bytes=reply,
                sync=sync,
                request_bytes=self._request_bytes,
            )
            for client, sync, body in zip(cohort, syncs, self._bodies(round, syncs), strict=True)
        ]

    def _bodies(self, round: int, syncs: Sequence[Sync]) -> Iterator[Body]:
        """Yield the message to each client of a round, in which it catches up."""
        # what any of them missed is the end of what the longest away did
        most = max((sync.missed for sync in syncs if not sync.pulled), default=0)
        seeds, scalars = self._updates.missed(most)
        seeds_K = round_seeds(self._settings, round)
        for sync in syncs:
            if sync.pulled:
                yield self._updates.pulled(seeds_K)
            else:
                first = len(seeds) - self._settings.local_steps * sync.missed
                yield self._catch_up(seeds[first:], scalars[len(scalars) - sync.pairs :], seeds_K)

    def _catch_up(self, seeds: np.ndarray, scalars: np.ndarray, seeds_K: np.ndarray) -> Body:
        """Return the updates that a client missed, and the seeds that it is to try."""
        return (AgentSeeds if self._agent else CatchUp)(seeds, scalars, seeds_K)

    def _upload_bytes(self, pairs: int) -> int:
        """Return the bytes of an answer with so many scalars."""
        return self._value_bytes * pairs

    def _close(self, round: int, uploads: Sequence[Upload]) -> None:
        values_KP = self._released(round, uploads)
        self._updates.enter(SHARED, round - 1, round_seeds(self._settings, round), values_KP)

    def _released(self, round: int, uploads: Sequence[Upload]) -> np.ndarray:
        """Return the scalars of the round's update, float32 [K, P]."""
        raise NotImplementedError


class SeededPullServer:
    """No rounds: a client that wakes pulls the ledger's tail, and what it uploads becomes the next
    update.

    The ledger's order is the model. The client chooses its seeds; the pair (client, version read)
    cannot occur twice.
    """

    answers = False

    def __init__(self, updates: Updates) -> None:
        self._updates, self._settings = updates, updates.settings
        self._reading: dict[int, int] = {}

    @property
    def updates(self) -> int:
        return self._updates.version

    def state(self) -> np.ndarray:
        """Return what a checkpoint keeps: the version each client has reached, and reads at now
        (-1: at none).
        """
        reading = np.full(len(self._updates.versions), -1, np.int64)
        reading[list(self._reading)] = list(self._reading.values())
        return np.stack([self._updates.versions, reading])

    def restore(self, round: int, state: np.ndarray) -> None:
        """Become what the server was after so many updates: the ledger holds them."""
        versions, reading = state
        self._updates.note(np.arange(len(versions)), versions)
        self._reading = {
            int(client): int(reading[client]) for client in np.flatnonzero(reading >= 0)
        }
        self._updates.go_to(round)

    def first_orders(self) -> Sequence[Order]:
        """Clients wake by themselves: no message starts them."""
        return ()

    def reads(self, client: int) -> int | None:
        return self._reading.get(client)

    def wake(self, client: int) -> Order:
        """Return the tail of the ledger that the client lacks."""
        sync = self._updates.sync(client)
        self._reading[client] = sync.read
        own_seeds = np.zeros(0, np.uint64)
        body = (
            self._updates.pulled(own_seeds)
            if sync.pulled
            else Tail(*self._updates.missed(sync.missed))
        )
        reply = SEED_BYTES * self._settings.local_steps + SCALAR_BYTES * self._settings.pairs(1)
        return Order(
            client, body, sync.read + 1, start_immediately=True, upload_bytes=reply, sync=sync
        )

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Append the client's seeds and scalars as the next update."""
        round, body = self.updates + 1, upload.body
        if not isinstance(body, SeededScalars):
            raise TypeError(f"a server of clients that pull cannot serve {type(body).__name__}")
        if upload.client not in self._reading:
            raise RunError(
                f"client {upload.client} sent scalars for update {round} without having pulled "
                "since its last ones: its upload was sent twice"
            )
        check_finite(body.values, upload.client, round)
        read = self._reading.pop(upload.client)
        self._updates.enter(upload.client, read, body.seeds, np.atleast_2d(body.values))
        return ()


def round_seeds(settings: SeededSettings, round: int) -> np.ndarray:
    """Return the seeds of a round's steps, uint64 [K]; no two rounds of a run share one (see
    `step_seed`).
    """
    return _step_seeds(settings, SERVER_PARTY, round - 1)


def client_seeds(settings: SeededSettings, client: int, read: int) -> np.ndarray:
    """Return the seeds that a client chooses at a version, uint64 [K] (asynchronous)."""
    return _step_seeds(settings, client, read)


def _step_seeds(settings: SeededSettings, party: int, read: int) -> np.ndarray:
    first = read * settings.local_steps
    return np.array(
        [step_seed(settings.key, party, first + k) for k in range(settings.local_steps)], np.uint64
    )


def seeds_of(missed: Slice) -> np.ndarray:
    """Return the seeds of updates' steps, one each, uint64 [s]."""
    return missed.seed[missed.perturbation == 0]


def check_finite(values: np.ndarray, client: int, round: int) -> None:
    """Raise Diverged for scalars that are not finite."""
    if not np.isfinite(values).all():
        raise Diverged(
            f"client {client} sent a scalar that is not finite for update {round}: choose a "
            "smaller step size or a larger smoothing radius"
        )
