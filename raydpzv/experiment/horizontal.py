"""A horizontal scenario with its data loaded: what every runner starts from."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from raydpzv.config.scenario import HorizontalScenario
from raydpzv.data.generated import GeneratedSplit, GeneratedTable
from raydpzv.data.horizontal import Partition
from raydpzv.data.table import Split
from raydpzv.data.users import UserParts
from raydpzv.engine.choice import WHOLE_MODELS, choose, kernels_know, kernels_move
from raydpzv.engine.compiled_objective import CompiledObjective
from raydpzv.engine.objective import Objective
from raydpzv.engine.row_readers import GeneratedRows, KeptRows, RowReader, shared_tensor
from raydpzv.engine.split_model import Metrics, score_parts
from raydpzv.errors import InputError, SpecError
from raydpzv.experiment.initial_model import (
    MODEL,
    ModelPlan,
    base_sha256,
    check_patterns,
    check_size,
    checked_records,
    refuse_options,
    typed_rows,
)
from raydpzv.experiment.prepare import (
    Prepared,
    check_functions,
    class_shares,
    fingerprint,
    own_measures,
    shared_rows,
    timing,
)
from raydpzv.experiment.privacy_setting import UserPrivacy, user_privacy
from raydpzv.foreign import is_foreign
from raydpzv.keys import Key
from raydpzv.lazy_import import torch
from raydpzv.methods.descriptor import ClientGroupParts, HorizontalServerParts
from raydpzv.methods.horizontal.aggregation import users_drawn
from raydpzv.methods.replica import UpdateSource
from raydpzv.methods.roles import ClientGroup
from raydpzv.models.flat import FlatModel, shapes
from raydpzv.models.initial_weights import shapes_alone, weights_sha256
from raydpzv.models.losses import Loss
from raydpzv.privacy.users import UserReleasePlan
from raydpzv.records.checkpoint_policy import CheckpointPolicy
from raydpzv.registry import DATA_SOURCES, LOSSES
from raydpzv.secure import require_installed
from raydpzv.sim.interfaces import PrivacyFilter
from raydpzv.sim.privacy_filter import privacy_filter
from raydpzv.sim.virtual import Timing
from raydpzv.zo.vectors import as_array

if TYPE_CHECKING:  # a host needs neither
    from raydpzv.ledger.ledger import Ledger
    from raydpzv.records.store import Rows

_MOST_BYTES = 16 * 2**30
"""Memory that separate models of all clients may ask for."""


@dataclass(frozen=True)
class HeldOut:
    """Features [N, ...] and `Table.targets` of the test rows and, after them, those of `validated`
    validation rows.

    Arrays or tensors, as the objective that scores them wants them.
    """

    x: Any
    y: Any
    validated: int

    def scored(self, score: Callable[[Any, Any], Metrics]) -> Metrics:
        """Return what `score` finds on each part."""
        return score_parts(
            lambda part: score(self.x[part], self.y[part]), len(self.y), self.validated
        )


@dataclass(frozen=True)
class PreparedHorizontal(Prepared):
    """A horizontal scenario with its data loaded and shared out.

    privacy: of methods that release sums over users; lost: releases of a run that was broken off,
    of which its record says nothing; recorded: updates in the ledger of a run that resumes, where
    none may be released a second time.
    """

    spec: HorizontalScenario
    split: Split | GeneratedSplit
    parts: Partition
    timing: Timing
    privacy: UserPrivacy | None = field(default=None, repr=False)
    unused: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    lost: int = 0
    recorded: int = 0

    @property
    def setting(self) -> UserReleasePlan | None:
        return self.privacy.claims if self.privacy else None

    @property
    def secret(self) -> int | None:
        return self.privacy.secret if self.privacy else None

    def summary_facts(self, rows: Rows, updates: int) -> dict[str, Any]:
        from raydpzv.records import metrics  # a host needs neither
        from raydpzv.records.lateness import lag_summary

        numbers = rows["numbers"]
        found = {"updates": updates, "staleness": lag_summary(rows["sync"], rows["service"])}
        if numbers.num_rows:
            found["vector_length"] = float(
                metrics.vector_length(numbers, self.spec.split.clients)[1][-1]
            )
        return found | self._user_facts(rows)

    def _user_facts(self, rows: Rows) -> dict[str, Any]:
        """Return how users were protected, of methods that do; {} of others.

        sensitivity: how far one user (add or remove) moves what is released, on the scale on which
        its noise is σC.
        took_part: silos in the attempts at rounds, least and mean; attempts: how many there were.
        """
        parts, plan, setting = (
            self.user_parts,
            self.spec.descriptor.users(self.spec.method),
            self.setting,
        )
        if parts is None or plan is None:
            return {}
        from raydpzv.arrow_columns import array  # Arrow, which clients do without

        tried = array(rows["attempt"].column("silos"))
        found: dict[str, Any] = {
            "aggregation": plan.aggregation,
            "weights": plan.weights,
            "silos": parts.clients,
            "users": parts.users,
            "pairs": len(parts.owners),
            "sensitivity": setting.clip * setting.moved("add_remove") if setting else None,
        }
        if len(tried):
            took_part = {"least": int(tried.min()), "mean": float(tried.mean())}
            found |= {"took_part": took_part, "attempts": len(tried)}
        return {"user_level": found}

    @property
    def fsync(self) -> bool:
        return self.spec.record.fsync

    def ledger_plan(self) -> ModelPlan | None:
        return self.plan if self.seeded else None

    @property
    def nbytes(self) -> int:
        """Bytes of the data that actors are given: all rows, and which client holds each."""
        return self.split.train.nbytes + self.split.test.nbytes + self.parts.nbytes

    def object_store_bytes(self) -> int:
        if self.user_parts is None:
            return self.nbytes
        # hosts that get their own rows alone get a copy each of the held-out ones
        hosts = self.spec.resources.hosts
        here = (os.cpu_count() or 1) if hosts == "auto" else hosts
        copies = min(self.parts.clients, here)
        return self.nbytes + (copies - 1) * (self.split.test.nbytes + self.parts.nbytes)

    @cached_property
    def plan(self) -> ModelPlan:
        """The model and how it moves, which needs no data."""
        train = self.split.train
        return ModelPlan(self.spec, train.shape, train.width)

    @property
    def seeded(self) -> bool:
        """Whether updates are (seed, scalar) pairs, which a ledger keeps; else weights travel."""
        return self.spec.descriptor.rule is not None

    @property
    def asynchronous(self) -> bool:
        """Whether clients wake by themselves; else there are rounds."""
        return self.spec.descriptor.pulls(self.spec.method)

    @property
    def separate(self) -> bool:
        """Whether every client keeps a model of its own; else those of a process share one."""
        return self.spec.descriptor.own_models(self.spec.method)

    @property
    def drifts(self) -> bool:
        """Whether those models leave the ledger's, so that checkpoints keep them: nobody could
        rebuild them.
        """
        return self.spec.descriptor.drifts(self.spec.method)

    @property
    def pinned(self) -> bool:
        """Whether a client's work stays with one process, which keeps the client's own model, keys
        or rows.
        """
        return (
            self.separate
            or self.spec.descriptor.own_keys(self.spec.method)
            or self.user_parts is not None
        )

    @property
    def measured(self) -> bool:
        """Whether CPU time is recorded, phase by phase: of rounds of a protocol between silos."""
        return self.user_parts is not None and not self.asynchronous

    @property
    def user_parts(self) -> UserParts | None:
        protects = self.spec.descriptor.users(self.spec.method) is not None
        return self.parts if protects and isinstance(self.parts, UserParts) else None

    def for_server(self) -> PreparedHorizontal:
        """Return what the server's process gets: of a method that protects users, nothing that is
        in the silos.

        In place of their rows and of who has how many is one row of the held-out ones for each
        silo, with which first calls compile.
        """
        if self.user_parts is None or not isinstance(self.split, Split):
            return self
        silos = np.arange(self.parts.clients + 1)
        return replace(
            self,
            split=replace(self.split, train=self.split.test.select(np.zeros_like(silos[:-1]))),
            parts=UserParts(self.parts.clients, silos[:-1], silos, silos[:-1], silos),
        )

    def for_host(self, host: int, hosts: int) -> PreparedHorizontal:
        """Return what a host's process gets: of a method that protects users, its own silos' rows
        and no others.

        Its silos are those m with m mod `hosts` = `host`, of at most as many hosts as silos. The
        others' numbers of records stay where a user's weight or its used records depend on them;
        elsewhere they have one record of every user. A row of its own stands for all of theirs.
        """
        parts = self.user_parts
        if parts is None or not isinstance(self.split, Split):
            return self
        own = range(host, parts.clients, hosts)
        rows = np.sort(np.concatenate([parts.rows(silo) for silo in own]))
        plan = self.spec.descriptor.users(self.spec.method)
        assert plan is not None
        kept = parts if plan.counts_shared else parts.alone(own)
        return replace(
            self,
            split=replace(self.split, train=self.split.train.select(rows)),
            parts=kept.among(own, rows),
            privacy=self.privacy and self.privacy.for_silos(coins=plan.coins_shared),
        )

    @property
    def releases_again(self) -> bool:
        # other methods compute those updates again, and the ledger shows whether they differ
        return self.seeded and self.spec.descriptor.users(self.spec.method) is not None

    @property
    def awaits_checkpoints(self) -> bool:
        virtual = self.spec.clock.kind == "virtual"
        return virtual and self.setting is not None and not self.releases_again

    @property
    def under_way(self) -> int:
        """Releases that a segment may have made and lost: a round, or a sum of each silo."""
        return self.spec.split.clients if self.asynchronous else 1

    @property
    def counts_segments(self) -> bool:
        return self.setting is not None

    def checkpoint_policy(self) -> CheckpointPolicy | None:
        found = super().checkpoint_policy()
        if found and self.setting and not self.asynchronous:  # none of the rounds is forgotten
            return CheckpointPolicy(None, 1, self.spec.record.flush)
        return found

    def privacy_filter(self) -> PrivacyFilter:
        return privacy_filter(
            self.setting, self.spec.budget.epsilon, lost=self.lost, sample=self._sample()
        )

    def _sample(self) -> Callable[[int], np.ndarray] | None:
        """Who is drawn for a round, of methods whose silos do not know it."""
        plan = self.spec.descriptor.users(self.spec.method)
        if plan is None or self.privacy is None or plan.sampling == 1 or plan.coins_shared:
            return None
        noise, rate = self.privacy.noise, plan.sampling
        return lambda round: np.flatnonzero(users_drawn(noise, rate, round))

    def class_shares(self) -> list[float]:
        if not self.split.test.classed:
            return [math.nan]
        return class_shares(self.split.test.y, self.split.test.classes)

    def measures(self) -> tuple[str, ...]:
        return own_measures(self.spec, self.split.held_out[1], self.plan.outputs)

    def model_names(self) -> list[str]:
        return [MODEL]

    def model_name(self, party: str | int | None) -> str:
        if party not in (None, MODEL):
            raise InputError(f"party: all clients train one model; leave it out, got {party!r}")
        return MODEL

    def module(self, name: str) -> torch.nn.Module:
        return self.plan.module()

    def flat_model(self, name: str) -> FlatModel:
        return self.plan.model()

    def fingerprint(self, key: bytes) -> dict[str, Any]:
        arrays = [*self.split.train.arrays, *self.split.held_out]
        if self.spec.split.how == "owners":
            arrays += [self.parts.rows(client) for client in range(self.parts.clients)]
        weights = weights_sha256({MODEL: self.spec.model.weights})
        base = base_sha256(self.spec.model.lora, [MODEL], self.flat_model)
        return fingerprint(self.spec, arrays, key) | self.plan.facts() | weights | base

    def objective(self, device: str = "cpu") -> Objective:
        """Return losses and gradients on the training rows."""
        if self.engine == "compiled":
            network = self.plan.dense()
            assert network is not None  # the engine was chosen by this
            return CompiledObjective(
                network, self._reader(device), self.spec.evaluate.metrics or ""
            )
        from raydpzv.engine.torch_objective import TorchObjective  # loads torch

        metrics = self.spec.evaluate.metrics or ""
        return TorchObjective(self.plan.module, self._reader(device), self.spec.loss, metrics)

    def objectives(self, device: str = "cpu") -> list[Objective]:
        """Return one objective per thread, all on the same rows."""
        first = self.objective(device)
        return [first, *(first.twin() for _ in range(self.spec.resources.threads - 1))]

    def _reader(self, device: str) -> RowReader:
        train = self.split.train
        if isinstance(train, GeneratedTable):
            return GeneratedRows(train, device)
        return KeptRows(train.x, train.targets, device)

    def held_out(self, device: str = "cpu") -> HeldOut:
        """Return the held-out rows."""
        x, y = self.split.held_out
        if self.engine == "compiled":
            return HeldOut(x, y, self.split.validated)
        return HeldOut(
            shared_tensor(x).to(device), shared_tensor(y).to(device), self.split.validated
        )

    def client_group(self, updates: UpdateSource | None = None, device: str = "cpu") -> ClientGroup:
        """Return clients; updates: where those that follow a ledger find it."""
        parts = ClientGroupParts(
            self.objectives(device),
            self.parts,
            Key(self.spec.seed),
            self.plan.replica(device) if self.seeded else None,
            updates,
            self.privacy.noise if self.privacy else None,
            recorded=self.recorded,
        )
        return self.spec.descriptor.clients(parts, self.spec.method)

    def server(self, ledger: Ledger | None = None, device: str = "cpu") -> Any:
        """Return the server; ledger: of methods that send seeds and scalars."""
        parts = HorizontalServerParts(
            self.parts.sizes,
            Key(self.spec.seed),
            lambda: as_array(self.plan.initial(device)),
            lambda: self.plan.replica(device, follows_secret=False),
            ledger,
            self.privacy.noise if self.privacy else None,
        )
        return self.spec.descriptor.server(parts, self.spec.method)


def prepare_horizontal(spec: HorizontalScenario, secret: int | None = None) -> PreparedHorizontal:
    """Load the data, share out its rows, and see whether the model fits. Raises SpecError and
    DataError.

    secret: of the coins of a run that began before; None: a new one, if the scenario wants its
    coins from the system.
    """
    split, parts = shared_rows(
        spec.data, spec.split, spec.users, Key(spec.seed), spec.goal, partial(typed_rows, spec)
    )
    privacy = user_privacy(spec, parts, secret)
    remarks = getattr(split.train, "remarks", ())  # generated rows have none
    found = PreparedHorizontal(
        spec, split, parts, timing(spec, spec.split.clients), privacy, remarks=remarks
    )
    _check(found)
    return _with_engine(found)


def _with_engine(found: PreparedHorizontal) -> PreparedHorizontal:
    """Return the same with the engine that runs it, which is recorded: another version may choose
    otherwise.
    """
    model = found.spec.model
    engine = choose(
        model.engine,
        kernels_know(found.spec.loss)
        | kernels_move(found.spec.method)
        | {f'model.kind = "{model.kind}"': found.plan.dense()},
        WHOLE_MODELS,
        accelerator=found.spec.resources.host_gpus > 0,
    )
    resolved = model.model_copy(update={"engine": engine})
    return replace(found, spec=found.spec.model_copy(update={"model": resolved}))


def _check(found: PreparedHorizontal) -> None:
    spec = found.spec
    if spec.descriptor.own_keys(spec.method):
        require_installed()
    if DATA_SOURCES[spec.data.source].tokens and not is_foreign(spec.model.kind):
        raise SpecError(
            f'model.kind: "{spec.model.kind}" takes numbers, but the rows of data.source = '
            f'"{spec.data.source}" are '
            "token ids, whose size means nothing; use your own model, a vertical method with "
            "model.bottom = "
            '"transformer", or another source'
        )
    _check_outputs(spec, found.split.train.width)
    if is_foreign(spec.loss) or spec.evaluate.metrics:
        check_functions(spec, found.split.held_out[1], found.plan.outputs)
    size = _checked_size(found)
    if found.separate:
        need = 4 * size * spec.split.clients * (1 + found.plan.vectors)
        if need > _MOST_BYTES:
            raise SpecError(
                f'method.replicas: "per_client" needs {need / 2**30:.1f} GiB ({spec.split.clients} '
                f'clients with {size:,} parameters each); use "shared", which has the same bits'
            )


def _checked_size(found: PreparedHorizontal) -> int:
    """Return how many trained parameters the model has. Raises SpecError for a model that the
    scenario cannot train.
    """
    spec = found.spec
    if network := found.plan.dense():
        refuse_options(spec.model.options, "options", spec.model.kind)
        check_size(network, "the model")
        check_patterns(spec.method, network)
        return network.size
    if is_foreign(spec.model.kind) and not shapes_alone():
        from raydpzv.models.own_model import check_model  # loads torch

        model = found.plan.model()
        check_model(
            model,
            found.split.test.x[: checked_records(spec.method)],
            found.plan.outputs,
            "the model",
        )
        module = model.module
    else:
        module = shapes(found.plan.module)
    check_size(module, "the model")
    check_patterns(spec.method, module)
    if spec.descriptor.users(spec.method) is not None:
        _check_layers(spec.model.kind, module)
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def _check_outputs(spec: HorizontalScenario, width: int) -> None:
    """Refuse a number of scores that the loss does not go with. width: classes, or numbers for
    labels.
    """
    asked = spec.model.outputs
    if asked is None or is_foreign(spec.loss):
        return
    loss: Loss = LOSSES[spec.loss]
    if spec.loss == "cross_entropy":
        if asked < width:
            raise SpecError(f"model.outputs: wanted at least {width}, one per class, got {asked}")
    elif asked != (loss.outputs or width):
        what = (
            "a record's score with survival times"
            if loss.labels == "times"
            else f'with model.loss = "{spec.loss}"'
        )
        raise SpecError(
            f"model.outputs: wanted {loss.outputs or width}, {what}, got {asked}; leave it out"
        )


def _check_layers(kind: str, module: torch.nn.Module) -> None:
    """Refuse layers that let one user's records move another's, or that make of a loss no function
    of the model.
    """
    for name, layer in module.named_modules():
        if isinstance(
            layer, torch.nn.modules.batchnorm._BatchNorm | torch.nn.modules.dropout._DropoutNd
        ):
            raise SpecError(
                f'model.kind: "{kind}" has {type(layer).__name__} ({name}), so that what is '
                "computed for a user is no "
                "function of the model and the user's records alone; use a model without batch "
                "normalisation and dropout, such as one with GroupNorm"
            )
