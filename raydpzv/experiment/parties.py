"""What each vertical party needs to come into being, wherever that is: plain data that can be sent
to an actor.

A client's factory holds its own features and nothing of the others; the server's holds the labels
and no features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from raydpzv.config.scenario import VerticalScenario
from raydpzv.data.table import Split
from raydpzv.data.vertical import Part
from raydpzv.engine.choice import (
    SPLIT_BY_DIRECTIONS,
    SPLIT_BY_GRADIENTS,
    Engine,
    choose,
    kernels_know,
    kernels_move,
)
from raydpzv.engine.compiled import CompiledBottom, CompiledTop
from raydpzv.engine.dense import DenseNetwork, dense_head
from raydpzv.engine.split_model import Bottom, BottomTraining, HeadSettings, Top, TopRows
from raydpzv.errors import SpecError
from raydpzv.experiment.initial_model import (
    bottom_model,
    bottom_module,
    bottom_network,
    check_patterns,
    check_size,
    checked_records,
    refuse_options,
)
from raydpzv.experiment.prepare import check_functions
from raydpzv.foreign import is_foreign
from raydpzv.keys import Key
from raydpzv.lazy_import import torch
from raydpzv.methods.descriptor import ClientParts, NoiseParts, ServerParts
from raydpzv.methods.roles import Client, VerticalServer
from raydpzv.models.flat import FlatModel, shapes
from raydpzv.models.initial_weights import shapes_alone, with_weights
from raydpzv.registry import HEADS
from raydpzv.settings.party_names import label

if TYPE_CHECKING:  # loads torch
    from raydpzv.models.own_model import OwnModel


@dataclass(frozen=True)
class ClientFactory:
    """One client: number, features [D, ...] and [N, ...], scenario, noise on what it sends, the key
    of its batches.

    Held-out rows are the test rows and, after them, the validation rows.
    """

    spec: VerticalScenario
    client: int
    x_train: np.ndarray
    x_held_out: np.ndarray
    noise: NoiseParts
    coins: Key = field(repr=False)

    def check(self) -> DenseNetwork | torch.nn.Module:
        """Return the bottom model without parameters. Raises SpecError if it does not fit this
        client's features.
        """
        spec, shape = self.spec, self.x_train.shape[1:]
        title = f"the bottom model of {label(self.client, spec.party_names)}"
        names = [spec.model.bottom_of(client) for client in range(spec.split.clients)]
        if not any(map(is_foreign, names)):  # else they are for the user's own
            refuse_options(spec.model.options, "options", names[self.client])
        model: DenseNetwork | torch.nn.Module | None = self.dense()
        if is_foreign(names[self.client]) and not shapes_alone():
            own = bottom_model(spec, self.client, shape)
            _check_own(
                own, self.x_train[: checked_records(spec.method)], spec.model.embedding, title
            )
            model = own.module
        elif model is None:
            model = shapes(lambda: bottom_module(spec, self.client, shape))
        check_size(model, title)
        spec.descriptor.fits(spec.method, _inner_layers(model))
        return model

    def network(self) -> DenseNetwork:
        """Return the bottom model of dense layers; only where it is one."""
        found = self.dense()
        assert found is not None  # the engine was chosen by this
        return found

    def dense(self) -> DenseNetwork | None:
        """Return the bottom model if it is one of dense layers, else None."""
        return bottom_network(self.spec, self.client, self.x_train.shape[1:])

    def make(self, device: str = "cpu") -> Client:
        """Build the client's role on a device."""

        def bottom(training: BottomTraining) -> Bottom:
            if self.spec.model.engine == "compiled":
                key = Key(self.spec.seed) / "client" / self.client
                return CompiledBottom(self.network(), self.x_train, self.x_held_out, training, key)
            from raydpzv.engine.torch_engine import (
                TorchBottom,
            )  # defines torch modules, and so loads torch

            return TorchBottom(
                bottom_model(self.spec, self.client, self.x_train.shape[1:], device),
                torch.tensor(self.x_train, device=device),
                torch.tensor(self.x_held_out, device=device),
                training,
            )

        parts = ClientParts(
            self.client,
            bottom,
            len(self.x_train),
            Key(self.spec.seed),
            self.noise,
            self.coins,
            self.spec.budget.updates,
        )
        return self.spec.descriptor.client(parts, self.spec.method)


@dataclass(frozen=True)
class ServerFactory:
    """The server: labels [D] and [N], scenario, noise on what it releases, the key of batches.

    classes: that labels have; where labels are numbers, [D, T] and [N, T], how many of them a
    record has.
    validated: how many of the held-out rows, the last ones, are for validation.
    """

    spec: VerticalScenario
    y_train: np.ndarray
    y_held_out: np.ndarray
    classes: int
    noise: NoiseParts
    coins: Key = field(repr=False)
    validated: int = 0

    @property
    def outputs(self) -> int:
        """Scores of a record."""
        return self.spec.scores(self.classes)

    def check(self) -> None:
        """Raise SpecError if the head does not fit or is larger than any machine holds; builds no
        parameters.
        """
        model = self.spec.model
        if model.head == "sum" and model.embedding != self.outputs:
            of = (
                "the number of classes" if self.outputs == self.classes > 1 else "a record's scores"
            )
            raise SpecError(
                f'model.embedding: wanted {self.outputs}, {of}, with head = "sum", got '
                f"{model.embedding}"
            )
        if is_foreign(model.head) and not shapes_alone():
            widths = self.spec.split.clients, model.embedding
            many = checked_records(self.spec.method)
            records = np.linspace(-1, 1, many * math.prod(widths), dtype=np.float32).reshape(
                many, -1
            )
            own = FlatModel(self.head, Key(self.spec.seed) / "server")
            _check_own(own, records, self.outputs, "the head")
            return check_size(own.module, "the head")
        if not is_foreign(model.head):
            refuse_options(model.head_options, "head_options", model.head)
        return check_size(self.dense() or shapes(self.head), "the head")

    def check_row_gradients(self) -> None:
        """Refuse a user's head or loss through which single records have no gradient where one is
        wanted.

        Raises InputError.
        """
        plan, spec = self.spec.descriptor.noise(self.spec.method), self.spec
        own = is_foreign(spec.model.head) or is_foreign(spec.loss)
        if plan is None or plan.head != "dp_sgd" or not own or shapes_alone():
            return
        from raydpzv.engine.head import Head  # loads torch

        key, labels = Key(spec.seed), torch.tensor(self.y_train[:2])
        head = Head(
            FlatModel(self.head, key / "server"), HeadSettings("dp_sgd", 0.0), key, spec.loss
        )
        head.row_gradients(
            torch.ones(len(labels), spec.split.clients, spec.model.embedding), labels
        )

    def network(self) -> DenseNetwork:
        """Return the head of dense layers; only where it is one."""
        found = self.dense()
        assert found is not None  # the engine was chosen by this
        return found

    def dense(self) -> DenseNetwork | None:
        """Return the head if it is one of dense layers whose weights are drawn, with the loss that
        kernels know.
        """
        model = self.spec.model
        if self.spec.loss != "cross_entropy" or model.weights_of("server", ()):
            return None
        return dense_head(
            model.head, self.spec.split.clients, model.embedding, model.head_widths, self.classes
        )

    def make(self, device: str = "cpu") -> VerticalServer:
        """Build the server's role on a device."""
        spec, key = self.spec, Key(self.spec.seed)
        clients, width = spec.split.clients, spec.model.embedding

        metrics = spec.evaluate.metrics or ""
        rows = TopRows(self.y_train, self.y_held_out, clients, width, self.validated, metrics)

        def top(settings: HeadSettings) -> Top:
            if spec.model.engine in ("compiled", "compiled_head"):
                return CompiledTop(self.network(), settings, key, rows)
            from raydpzv.engine.head import Head
            from raydpzv.engine.torch_engine import TorchTop

            head = Head(FlatModel(self.head, key / "server", device), settings, key, spec.loss)
            return TorchTop(head, rows)

        parts = ServerParts(
            top, len(self.y_train), clients, width, key, self.noise, self.coins, spec.budget.updates
        )
        return spec.descriptor.server(parts, spec.method)

    def head(self) -> torch.nn.Module:
        """Return the head's network."""
        weights, partial = self.spec.model.weights_of("server", ()), self.spec.model.partial_weights
        return with_weights(self._head(), weights, partial, "the head", self.spec.sent_files)

    def _head(self) -> torch.nn.Module:
        spec, model = self.spec, self.spec.model
        if is_foreign(model.head):
            own: OwnModel = HEADS[model.head]
            offered = {
                "clients": spec.split.clients,
                "embedding": model.embedding,
                "classes": self.outputs,
            }
            return own(model.head_options or {}, offered)
        return cast(
            "torch.nn.Module",
            HEADS[model.head](spec.split.clients, model.embedding, model.head_widths, self.outputs),
        )


def _check_own(model: FlatModel, records: np.ndarray, width: int, title: str) -> None:
    from raydpzv.models.own_model import check_model  # loads torch

    check_model(model, records, width, title)


def _inner_layers(model: DenseNetwork | torch.nn.Module) -> int:
    """Return how many layers with parameters come before the last."""
    if isinstance(model, DenseNetwork):
        return len(model.paths) - 1
    from raydpzv.engine.torch_engine import inner_layers

    return len(inner_layers(model))


def vertical_parties(
    spec: VerticalScenario, split: Split, parts: Sequence[Part], noise: NoiseParts, coins: Key
) -> tuple[tuple[ClientFactory, ...], ServerFactory]:
    """Return the factories of clients and server, each checked, their scenario's engine resolved.

    Raises SpecError and DataError.
    """
    x_held_out, y_held_out = split.held_out
    clients = tuple(
        ClientFactory(spec, m, part.select(split.train.x), part.select(x_held_out), noise, coins)
        for m, part in enumerate(parts)
    )
    server = ServerFactory(
        spec, split.train.targets, y_held_out, split.train.width, noise, coins, split.validated
    )
    # one client of each shape: a deep model takes tens of milliseconds to build
    first_of: dict[object, ClientFactory] = {}
    for client in clients:
        m = client.client
        made = spec.model.bottom_of(m), spec.model.weights_of(m, spec.party_names)
        first_of.setdefault((client.x_train.shape[1:], *made), client)
    check_patterns(spec.method, *(client.check() for client in first_of.values()))
    server.check()
    check_functions(spec, server.y_held_out, server.outputs)
    server.check_row_gradients()
    resolved = _with_engine(spec, clients, server)
    return tuple(replace(client, spec=resolved) for client in clients), replace(
        server, spec=resolved
    )


def _with_engine(
    spec: VerticalScenario, clients: Sequence[ClientFactory], server: ServerFactory
) -> VerticalScenario:
    """Return the scenario with the engine that runs it, which is recorded: another version may
    choose otherwise.
    """
    model, resources, batch = spec.model, spec.resources, spec.method.batch
    shares = (
        resources.client_gpus
        if isinstance(resources.client_gpus, tuple)
        else (resources.client_gpus,)
    )
    on_gpu = resources.server_gpus != 0.0
    given: dict[str, Any] = {
        "rows": batch if isinstance(batch, int) else len(server.y_train),
        "engines": spec.descriptor.engines,
    }
    family = SPLIT_BY_DIRECTIONS if spec.descriptor.rule else SPLIT_BY_GRADIENTS
    bottoms: dict[str, Any] = {
        f'model.bottom = "{model.bottom_of(0)}"': client.dense() for client in clients[:1]
    }
    bottoms |= kernels_move(spec.method)
    bottoms |= {label(client.client, spec.party_names): client.dense() for client in clients}
    law = kernels_move(replace(spec.method, groups=None)) if hasattr(spec.method, "groups") else {}
    head = kernels_know(spec.loss) | law | {f'model.head = "{model.head}"': server.dense()}
    if model.engine == "compiled_head":
        choose("compiled", head, SPLIT_BY_GRADIENTS, accelerator=on_gpu, **given)
        engine: Engine = "compiled_head"
    else:
        somewhere = on_gpu or any(share != 0.0 for share in shares)
        engine = choose(model.engine, bottoms | head, family, accelerator=somewhere, **given)
    if (model.engine, engine) == ("auto", "torch"):
        with_head = (
            choose("auto", head, SPLIT_BY_GRADIENTS, accelerator=on_gpu, **given) == "compiled"
        )
        engine = "compiled_head" if with_head else "torch"
    return spec.model_copy(update={"model": model.model_copy(update={"engine": engine})})
