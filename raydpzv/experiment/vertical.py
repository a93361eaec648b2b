"""A vertical scenario with its data loaded: what every runner starts from."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from raydpzv.config.scenario import VerticalScenario
from raydpzv.data.vertical import Part, without_client
from raydpzv.errors import InputError
from raydpzv.experiment.initial_model import BottomPlan, base_sha256, bottom_model, bottom_module
from raydpzv.experiment.parties import ClientFactory, ServerFactory, vertical_parties
from raydpzv.experiment.prepare import (
    Prepared,
    TableChange,
    class_shares,
    fingerprint,
    load_scenario,
    own_measures,
    unrecorded_noise,
)
from raydpzv.experiment.privacy_setting import PrivacySetting, privacy_setting, with_batch
from raydpzv.foreign import is_foreign
from raydpzv.keys import Key
from raydpzv.lazy_import import torch
from raydpzv.models.flat import FlatModel
from raydpzv.models.initial_weights import weights_sha256
from raydpzv.privacy.mechanisms import Address
from raydpzv.privacy.release import ReleasePlan
from raydpzv.records import metrics
from raydpzv.records.store import Rows
from raydpzv.settings.party_names import client_number
from raydpzv.sim.interfaces import Budget, PrivacyFilter
from raydpzv.sim.privacy_filter import check_first_release, privacy_filter
from raydpzv.sim.virtual import Timing

_ROW_EACH = 16
"""Clients up to which a service has a staleness row for each of the others."""
Releases = Mapping[Address, float]


@dataclass(frozen=True)
class PreparedVertical(Prepared):
    """A scenario with its data loaded, its parties' factories ready and its privacy setting known.

    numbers: which row of the table as it was read each training row is, int [D]; unused: the
    columns that no client holds; secret: what the coins of its batches come from, for the operator
    alone,
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
    remarks: tuple[str, ...] = ()

    ledger_of_releases = lateness_by_client = True

    @property
    def setting(self) -> ReleasePlan | None:
        return self.privacy.claims

    @property
    def averages_after(self) -> int | None:
        plan = self.plan()
        return plan.tail() if plan else None

    def summary_facts(self, rows: Rows, updates: int) -> dict[str, Any]:
        service, clients = rows["service"], self.spec.split.clients
        staleness = metrics.staleness_summary(rows["staleness"], service, clients)
        return {"updates": metrics.updates(service), "staleness": staleness}

    @property
    def nbytes(self) -> int:
        """Bytes of the data that actors are given: each client's columns, the server's labels."""
        labels = (self.server.y_train, self.server.y_held_out, self.numbers)
        return sum((*self.client_bytes, *(array.nbytes for array in labels)))

    @property
    def client_bytes(self) -> tuple[int, ...]:
        return tuple(client.x_train.nbytes + client.x_held_out.nbytes for client in self.clients)

    @property
    def unrecorded(self) -> str | None:
        return unrecorded_noise(self.spec, self.privacy)

    def privacy_filter(self) -> PrivacyFilter:
        return privacy_filter(self.setting, self.spec.budget.epsilon, self.spec.budget.adversary)

    def budget(self) -> Budget:
        return replace(super().budget(), updates=self.privacy.updates)

    @property
    def barrier(self) -> int:
        return self.spec.barrier

    def plan(self) -> BottomPlan | None:
        """Return the clients' models and how releases move them; None for methods that keep no
        ledger.
        """
        if self.spec.descriptor.rule is None:
            return None
        return BottomPlan(self.spec, tuple(c.x_train.shape[1:] for c in self.clients))

    def ledger_plan(self) -> BottomPlan | None:
        return self.plan()

    def fingerprint(self, key: bytes) -> dict[str, Any]:
        arrays = [array for c in self.clients for array in (c.x_train, c.x_held_out)]
        found = fingerprint(self.spec, [*arrays, self.server.y_train, self.server.y_held_out], key)
        plan, model, names = self.plan(), self.spec.model, self.spec.party_names
        words = {"server": model.weights_of("server", ())}
        words |= {f"client {m}": model.weights_of(m, names) for m in range(len(self.clients))}
        own = [f"client {m}" for m in range(len(self.clients)) if is_foreign(model.bottom_of(m))]
        base = base_sha256(model.lora, own, self.flat_model)
        return found | (plan.facts() if plan else {}) | weights_sha256(words) | base

    def class_shares(self) -> list[float]:
        if self.server.y_held_out.dtype.kind == "f":
            return [math.nan]
        tested = len(self.server.y_held_out) - self.server.validated
        return class_shares(self.server.y_held_out[:tested], self.server.classes)

    def measures(self) -> tuple[str, ...]:
        return own_measures(self.spec, self.server.y_held_out, self.server.outputs)

    def model_names(self) -> list[str]:
        return ["server", *(f"client {m}" for m in range(len(self.clients)))]

    def model_name(self, party: str | int | None) -> str:
        if party == "server":
            return party
        if party is None:
            names = ", ".join(self.spec.party_names) or f"0 to {len(self.clients) - 1}"
            raise InputError(f"party: each party has a model; name one of {names}, or server")
        client = client_number(str(party), self.spec.party_names, "party")
        if not 0 <= client < len(self.clients):
            raise InputError(
                f"party: wanted a party from 0 to {len(self.clients) - 1}, got {party!r}"
            )
        return f"client {client}"

    def module(self, name: str) -> torch.nn.Module:
        if name == "server":
            return self.server.head()
        client = int(name.partition(" ")[2])
        return bottom_module(self.spec, client, self.clients[client].x_train.shape[1:])

    def flat_model(self, name: str) -> FlatModel:
        if name == "server":
            return FlatModel(self.server.head, Key(self.spec.seed) / "server")
        client = int(name.partition(" ")[2])
        return bottom_model(self.spec, client, self.clients[client].x_train.shape[1:])

    @property
    def age_window(self) -> int:
        clients = self.spec.split.clients
        return 1 if clients <= _ROW_EACH or self.spec.record.staleness == "all" else clients

    def skipped_rows(self) -> frozenset[str]:
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
    """Load the data, share out its features, and build what a run needs. Raises SpecError and
    DataError.

    secret: of the coins of a run that began before; None: a new one, if the scenario wants its
    coins from the system.
    change: made to the table as it was read; strangers: its rows whose label becomes one that no
    other row has.
    """
    loaded = load_scenario(spec, change, strangers)
    train = loaded.split.train
    spec = with_batch(spec, train.rows)
    parts = loaded.parts
    privacy = privacy_setting(spec, train.rows)
    if secret is None and spec.secret_coins:
        secret = secrets.randbits(256)
    coins = Key(spec.seed if secret is None else secret)
    clients, server = vertical_parties(spec, loaded.split, parts, privacy.noise(), coins)
    check_first_release(privacy.claims, spec.budget.epsilon, spec.budget.adversary)
    unused = (*without_client(parts, train.features), *train.unused)
    numbers = np.arange(train.rows) if train.numbers is None else train.numbers
    return PreparedVertical(
        server.spec,
        clients,
        server,
        parts,
        privacy,
        loaded.timing,
        numbers,
        unused,
        secret,
        train.remarks,
    )
