"""What each party needs to come into being, wherever that is: plain data that can be sent to an actor.

A client's recipe holds its own features and nothing of the others; the server's holds the labels and no features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from raydpzv.config.scenario import Dpzv, Frozen, Sgd, VerticalScenario
from raydpzv.config.spec_opponents import Vafl, ZooVfl
from raydpzv.config.timing import opponent
from raydpzv.data.batches import Batches
from raydpzv.data.sources import SOURCES
from raydpzv.errors import SpecError
from raydpzv.experiment.opponent_parties import check_layers, make_client, make_server
from raydpzv.keys import Key
from raydpzv.methods.roles import Client, VerticalServer
from raydpzv.methods.vertical.dpzv import DpzvClient, DpzvServer, Privacy, ZerothOrder
from raydpzv.methods.vertical.embedding_cache import EmbeddingCache
from raydpzv.methods.vertical.frozen import FrozenClient, FrozenServer
from raydpzv.methods.vertical.head import Head
from raydpzv.methods.vertical.split_sgd import SgdClient, SgdServer
from raydpzv.models.bottoms import bottom
from raydpzv.models.flat import FlatModel
from raydpzv.models.heads import HEADS
from raydpzv.privacy.mechanisms import Address, Noise, NoNoise, RecordedNoise, SeededNoise, SystemNoise

_MOST_PARAMETERS = 10**11

Releases = Mapping[Address, float]


@dataclass(frozen=True)
class ClientRecipe:
    """One client: its number, its features [D, ...] and [N, ...], the scenario, and σ of noise on what it sends."""

    spec: VerticalScenario
    client: int
    x_train: np.ndarray
    x_test: np.ndarray
    sigma: float = 0.0

    def check(self) -> None:
        """Raise SpecError if the bottom model does not fit this client's features; builds no parameters."""
        with torch.device("meta"):
            module = _bottom(self.spec, self.x_train.shape[1:])
        check_size(module, f"the bottom model of client {self.client}")
        if isinstance(self.spec.method, Vafl):
            check_layers(self.spec.method, module)

    def make(self, device: str = "cpu") -> Client:
        """Build the client's role on a device."""
        key, method = Key(self.spec.seed), self.spec.method
        model = bottom_model(self.spec, self.client, self.x_train.shape[1:], device)
        x_train = torch.tensor(self.x_train, device=device)
        x_test = torch.tensor(self.x_test, device=device)
        if isinstance(method, Sgd):
            return SgdClient(self.client, model, x_train, x_test, lr=method.lr, momentum=method.momentum)
        if found := opponent(self.spec):
            return make_client(self.spec, found, self.client, model, x_train, x_test, self.sigma)
        assert isinstance(method, Dpzv | Frozen)
        batches = _batches(method, len(x_train), key / "batches" / self.client)
        if isinstance(method, Frozen):
            return FrozenClient(self.client, model, x_train, x_test, batches)
        return DpzvClient(self.client, model, x_train, x_test, batches, zeroth_order(method), key)


@dataclass(frozen=True)
class ServerRecipe:
    """The server: labels [D] and [N], number of classes, noise deviation σ, and the scenario.

    recorded: releases to give out again in place of new ones (replay and resume); continues: whether releases
    beyond the record are drawn anew.
    """

    spec: VerticalScenario
    y_train: np.ndarray
    y_test: np.ndarray
    classes: int
    sigma: float
    recorded: Releases | None = None
    continues: bool = False

    def check(self) -> None:
        """Raise SpecError if the head is larger than any machine holds; builds no parameters."""
        model = self.spec.model
        if model.head == "sum" and model.embedding != self.classes:
            raise SpecError(
                f'model.embedding: wanted {self.classes}, the number of classes, with head = "sum", '
                f"got {model.embedding}"
            )
        with torch.device("meta"):
            check_size(self._head(), "the head")

    def make(self, device: str = "cpu") -> VerticalServer:
        """Build the server's role on a device."""
        spec, key, method = self.spec, Key(self.spec.seed), self.spec.method
        clients, width = spec.split.clients, spec.model.embedding
        head = self._learner(FlatModel(self._head, key / "server", device), key)
        labels = torch.tensor(self.y_train, device=device)
        labels_test = torch.tensor(self.y_test, device=device)
        sizes: dict[str, Any] = {
            "clients": clients,
            "width": width,
            "fixed_batches": method.batches != "poisson",
        }
        if isinstance(method, Sgd):
            batches = _batches(method, len(labels), key / "batches" / "server")
            return SgdServer(head, batches, labels, labels_test, **sizes)
        table, sizes = EmbeddingCache(len(labels), clients, width, device), sizes | {"batch": method.batch}
        if found := opponent(spec):
            return make_server(spec, found, head, table, labels, labels_test, self.sigma, sizes)
        assert isinstance(method, Dpzv | Frozen)
        if isinstance(method, Frozen):
            return FrozenServer(head, table, labels, labels_test, **sizes)
        privacy = Privacy(spec.privacy.clip, self.sigma, self._noise(key))
        return DpzvServer(head, table, labels, labels_test, zeroth_order(method), privacy, **sizes)

    def _learner(self, model: FlatModel, key: Key) -> Head:
        method = self.spec.method
        if not isinstance(method, Dpzv | ZooVfl):
            return Head(model, "sgd", method.server_lr, method.server_momentum, key=key)
        return Head(
            model,
            method.server,
            method.server_lr,
            method.server_momentum,
            smoothing=method.smoothing,
            law=method.direction,
            key=key,
        )

    def _head(self) -> torch.nn.Module:
        spec = self.spec
        return HEADS[spec.model.head](
            spec.split.clients, spec.model.embedding, spec.model.head_hidden, self.classes
        )

    def _noise(self, key: Key) -> Noise:
        fresh: Noise = NoNoise()
        if self.spec.privacy.mode != "none":
            fresh = SeededNoise(key) if self.spec.privacy.noise == "seeded" else SystemNoise()
        if self.recorded is None:
            return fresh
        return RecordedNoise(self.recorded, fresh if self.continues else None)


def check_size(module: torch.nn.Module, what: str) -> None:
    """Refuse a model that no machine will hold."""
    size = sum(p.numel() for p in module.parameters())
    if size > _MOST_PARAMETERS:
        raise SpecError(f"model: {what} would have {size:,} parameters; the limit is {_MOST_PARAMETERS:,}")


def bottom_model(spec: VerticalScenario, client: int, shape: Sequence[int], device: str = "cpu") -> FlatModel:
    """Return a client's bottom model with its parameters before the first update; shape: of one record's features."""
    return FlatModel(lambda: _bottom(spec, shape), Key(spec.seed) / "client" / client, device)


def zeroth_order(method: Dpzv) -> ZerothOrder:
    """Return the settings that DPZV's clients and server share."""
    return ZerothOrder(method.smoothing, method.lr, method.momentum, method.perturbations, method.direction)


def _batches(method: Dpzv | Frozen | Sgd, rows: int, key: Key) -> Batches:
    return Batches(method.batches, method.batch, rows, key)


def _bottom(spec: VerticalScenario, shape: Sequence[int]) -> torch.nn.Module:
    model, data = spec.model, spec.data
    vocabulary = data.vocabulary if SOURCES[data.source].tokens else None
    return bottom(model.bottom, tuple(shape), model.hidden, model.embedding, vocabulary)
