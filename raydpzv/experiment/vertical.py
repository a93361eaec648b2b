"""A vertical scenario with its data loaded: what every runner starts from."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from raydpzv.config.scenario import VerticalScenario
from raydpzv.config.timing import barrier
from raydpzv.data.vertical import Part, partition, without_client
from raydpzv.experiment.initial_model import BottomPlan
from raydpzv.experiment.parties import ClientFactory, ServerFactory, vertical_parties
from raydpzv.experiment.prepare import (
    TableChange,
    class_shares,
    fingerprint,
    load_scenario,
    no_new_leg,
    unrecorded_noise,
)
from raydpzv.experiment.privacy_setting import PrivacySetting, privacy_setting, with_batch
from raydpzv.keys import Key
from raydpzv.privacy.mechanisms import Address
from raydpzv.privacy.release import ReleasePlan
from raydpzv.records.checkpoint_policy import CheckpointPolicy
from raydpzv.sim.interfaces import Budget, PrivacyFilter
from raydpzv.sim.privacy_filter import check_first_release, privacy_filter
from raydpzv.sim.virtual import Timing

Releases = Mapping[Address, float]


@dataclass(frozen=True)
class PreparedVertical:
    """A scenario with its data loaded, its parties' factories ready and its privacy setting known.

    numbers: which row of the table as it was read each training row is, int [D]; unused: the columns that no client
    holds; secret: what the coins of its batches come from, for the operator alone,
    None: the run's seed.
    """

    spec: VerticalScenario
    clients: tuple[ClientFactory, ...]
    server: ServerFactory
    parts: tuple[Part, ...]
    privacy: PrivacySetting
    timing: Timing
    numbers: np.ndarray
    unused: tuple[str, ...] = ()
    secret: int | None = field(default=None, repr=False)

    @property
    def setting(self) -> ReleasePlan | None:
        """What the claims about privacy are made from; None for a run without noise."""
        return self.privacy.claims

    @property
    def engine(self) -> str:
        """What computes the models."""
        return self.spec.model.engine

    @property
    def nbytes(self) -> int:
        """Bytes of the data that actors are given: each client's columns, the server's labels."""
        columns = [array for client in self.clients for array in (client.x_train, client.x_held_out)]
        labels = (self.server.y_train, self.server.y_held_out, self.numbers)
        return sum(array.nbytes for array in (*columns, *labels))

    @property
    def unrecorded(self) -> str | None:
        """What of a run came from the operating system and is not kept, so that it cannot be made again; or None."""
        return unrecorded_noise(self.spec, self.privacy)

    @property
    def no_leg(self) -> str | None:
        """Why a run under the wall clock cannot go on as a new leg, or None; nothing hinders one of virtual time."""
        return no_new_leg(self.spec, noised=self.setting is not None)

    def pace(self) -> CheckpointPolicy | None:
        """Return when checkpoints are due; None for a run that can go on from none."""
        record = self.spec.record
        if self.unrecorded or self.no_leg:
            return None
        return CheckpointPolicy(record.checkpoint, record.checkpoint_updates, record.flush)

    def privacy_filter(self) -> PrivacyFilter:
        """Return a fresh privacy account."""
        return privacy_filter(self.setting, self.spec.budget.epsilon, self.spec.budget.adversary)

    def budget(self) -> Budget:
        """Return what ends the run (besides the privacy filter)."""
        b = self.spec.budget
        return Budget(self.privacy.updates, b.seconds, b.bytes)

    @property
    def barrier(self) -> int:
        """For how many clients' uploads the server waits before it answers."""
        return barrier(self.spec)

    def plan(self) -> BottomPlan | None:
        """Return the clients' models and how releases move them; None for methods that keep no ledger."""
        if self.spec.descriptor.rule is None:
            return None
        return BottomPlan(self.spec, tuple(c.x_train.shape[1:] for c in self.clients))

    def fingerprint(self, key: bytes) -> dict[str, Any]:
        """Return digests of scenario and data, by which a continuation knows its run, and what its models take in."""
        arrays = [array for c in self.clients for array in (c.x_train, c.x_held_out)]
        found = fingerprint(self.spec, [*arrays, self.server.y_train, self.server.y_held_out], key)
        plan = self.plan()
        return found | (plan.facts() if plan else {})

    def class_shares(self) -> list[float]:
        """Return the share of each class among the test rows: what constant predictions reach."""
        tested = len(self.server.y_held_out) - self.server.validated
        return class_shares(self.server.y_held_out[:tested], self.server.classes)

    def skipped_rows(self) -> frozenset[str]:
        """Return the row types this scenario does not keep."""
        return frozenset() if self.spec.record.staleness else frozenset({"staleness"})

    def with_record(self, releases: Releases, *, continues: bool) -> PreparedVertical:
        """Return the same with recorded releases in place of new ones."""
        noise = replace(self.server.noise, recorded=releases, continues=continues)
        return replace(self, server=replace(self.server, noise=noise))


def prepare_vertical(
    spec: VerticalScenario,
    secret: int | None = None,
    change: TableChange | None = None,
    strangers: tuple[int, ...] = (),
) -> PreparedVertical:
    """Load the data, share out its features, and build what a run needs. Raises SpecError and DataError.

    secret: of the coins of a run that began before; None: a new one, if the scenario wants its coins from the system.
    change: made to the table as it was read; strangers: its rows whose label becomes one that no other row has.
    """
    loaded = load_scenario(spec, change, strangers)
    train = loaded.split.train
    spec = with_batch(spec, train.rows)
    parts = partition(train.x.shape[1:], spec.split, train.features)
    privacy = privacy_setting(spec, train.rows)
    if secret is None and spec.method.coins == "system":
        secret = secrets.randbits(256)
    coins = Key(spec.seed if secret is None else secret)
    clients, server = vertical_parties(spec, loaded.split, parts, privacy.noise(), coins)
    check_first_release(privacy.claims, spec.budget.epsilon, spec.budget.adversary)
    unused = (*without_client(parts, train.features), *train.unused)
    numbers = np.arange(train.rows) if train.numbers is None else train.numbers
    return PreparedVertical(
        server.spec, clients, server, parts, privacy, loaded.timing, numbers, unused, secret
    )
