"""From a horizontal scenario to everything a run needs; errors in the input show before anything is written."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from raydpzv.config.scenario_horizontal import Decomfl, Fedavg, Fedcom, Fedzo, HorizontalScenario, Mezo, Topk
from raydpzv.config.validation_horizontal import asynchronous
from raydpzv.data.horizontal import Parts, split_rows
from raydpzv.data.table import Split
from raydpzv.errors import SpecError
from raydpzv.experiment.initial_model_horizontal import ModelPlan
from raydpzv.experiment.parties import check_size
from raydpzv.experiment.vertical import fingerprint, load_data, timing
from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.horizontal.compression import Codec, Quantised, TopK, Whole
from raydpzv.methods.horizontal.decomfl import AsyncDecomflServer, DecomflServer
from raydpzv.methods.horizontal.decomfl_clients import SeparateClients, SharedClients
from raydpzv.methods.horizontal.fedavg import FedAvgServer, LocalSgd, LocalTrainers
from raydpzv.methods.horizontal.fedzo import LocalZerothOrder, ZerothOrderTrainers
from raydpzv.methods.horizontal.local_training import TrainingClientGroup
from raydpzv.methods.horizontal.objective import Objective
from raydpzv.methods.horizontal.rounds import Cohorts
from raydpzv.methods.replica import UpdateSource
from raydpzv.sim.interfaces import Budget, NoPrivacyFilter, PrivacyFilter
from raydpzv.sim.virtual import Timing

_MOST_BYTES = 16 * 2**30
"""Memory that separate models of all clients may ask for."""


@dataclass(frozen=True)
class PreparedHorizontal:
    """A horizontal scenario with its data loaded and shared out. No method here adds noise or claims an ε."""

    spec: HorizontalScenario
    split: Split
    parts: Parts
    timing: Timing
    setting: None = None

    @cached_property
    def plan(self) -> ModelPlan:
        """The model and how it moves, which needs no data."""
        train = self.split.train
        return ModelPlan(self.spec, tuple(train.x.shape[1:]), train.classes)

    @property
    def seeded(self) -> bool:
        """Whether updates are (seed, scalar) pairs, which a ledger keeps; else weights travel."""
        return isinstance(self.spec.method, Decomfl | Mezo)

    @property
    def asynchronous(self) -> bool:
        """Whether clients wake by themselves; else there are rounds."""
        return asynchronous(self.spec)

    @property
    def separate(self) -> bool:
        """Whether every client keeps a model of its own; else those of a process share one."""
        return isinstance(self.spec.method, Decomfl) and self.spec.method.replicas == "per_client"

    def privacy_filter(self) -> PrivacyFilter:
        """Return an accountant that accounts for nothing."""
        return NoPrivacyFilter()

    def budget(self) -> Budget:
        """Return what ends the run."""
        b = self.spec.budget
        return Budget(b.updates, b.seconds, b.bytes)

    def skipped_rows(self) -> frozenset[str]:
        """Return the row types that are not kept: none."""
        return frozenset()

    def fingerprint(self) -> dict[str, Any]:
        """Return digests of scenario and data, by which a continuation knows its run, and what its model takes in."""
        train, test = self.split.train, self.split.test
        return fingerprint(self.spec, [train.x, train.y, test.x, test.y]) | self.plan.facts()

    def objective(self, device: str = "cpu") -> Objective:
        """Return losses and gradients on the training rows."""
        train = self.split.train
        return Objective(self.plan.module, _shared(train.x), _shared(train.y), device)

    def objectives(self, device: str = "cpu") -> list[Objective]:
        """Return one objective per thread, all on the same rows."""
        first = self.objective(device)
        return [first, *(first.twin() for _ in range(self.spec.resources.threads - 1))]

    def held_out(self, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
        """Return features and labels of the held-out rows."""
        test = self.split.test
        return _shared(test.x).to(device), _shared(test.y).to(device)

    def seeded_group(self, history: UpdateSource, device: str = "cpu") -> SharedClients | SeparateClients:
        """Return clients that follow a ledger."""
        objectives = self.objectives(device)
        replica, method = self.plan.replica(device), self.spec.method
        if isinstance(method, Decomfl) and method.replicas == "per_client":
            return SeparateClients(
                objectives, replica, history, self.parts, self.plan.settings(), method.revert
            )
        return SharedClients(objectives, replica, history, self.parts, self.plan.settings())

    def training_group(self, device: str = "cpu") -> TrainingClientGroup:
        """Return clients that get weights and send updates."""
        method, key, objectives = self.spec.method, Key(self.spec.seed), self.objectives(device)
        if isinstance(method, Fedzo):
            settings = LocalZerothOrder(
                method.smoothing,
                method.lr,
                method.local_steps,
                method.perturbations,
                method.direction,
                method.estimate,
                method.batch,
            )
            return ZerothOrderTrainers(objectives, self.parts, self._codec(), settings, key, device)
        assert isinstance(method, Fedavg | Fedcom | Topk)
        local = LocalSgd(method.lr, method.local_steps, method.momentum, method.batch)
        return LocalTrainers(objectives, self.parts, self._codec(), local, key, device)

    def seeded_server(self, ledger: Ledger, device: str = "cpu") -> DecomflServer | AsyncDecomflServer:
        """Return the server of a method that sends seeds and scalars."""
        method, settings = self.spec.method, self.plan.settings()
        if isinstance(method, Mezo):
            return DecomflServer(self._cohorts(1), ledger, settings, agent=True)
        assert isinstance(method, Decomfl)
        model = self.plan.replica(device, follows_secret=False) if method.server_model else None
        if method.asynchronous:
            return AsyncDecomflServer(
                ledger,
                settings,
                clients=self.parts.clients,
                model=model,
                pull_after=method.pull_after,
            )
        return DecomflServer(
            self._cohorts(method.cohort),
            ledger,
            settings,
            weights=self._weights(),
            model=model,
            pull_after=method.pull_after,
        )

    def weight_server(self, device: str = "cpu") -> FedAvgServer:
        """Return the server of a method that sends weights."""
        method = self.spec.method
        assert isinstance(method, Fedavg | Fedcom | Topk | Fedzo)
        return FedAvgServer(
            self._cohorts(method.cohort),
            self.plan.initial(device),
            self._codec(),
            lr=method.server_lr,
            weights=self._weights(),
        )

    def _codec(self) -> Codec:
        method = self.spec.method
        if isinstance(method, Fedcom):
            return Quantised(Key(self.spec.seed))
        return TopK(method.share) if isinstance(method, Topk) else Whole()

    def _cohorts(self, size: int) -> Cohorts:
        return Cohorts(self.parts.clients, size, Key(self.spec.seed))

    def _weights(self) -> np.ndarray | None:
        return self.parts.sizes.astype(np.float64) if self.spec.method.weights == "rows" else None  # type: ignore[union-attr]


def _shared(array: np.ndarray) -> torch.Tensor:
    """Return a tensor of the same memory, which may belong to others and be read-only: data is never written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def prepare_horizontal(spec: HorizontalScenario) -> PreparedHorizontal:
    """Load the data, share out its rows, and see whether the model fits. Raises SpecError and DataError."""
    split = load_data(spec)
    how, key = spec.split, Key(spec.seed)
    parts = split_rows(
        split.train.y,
        how.clients,
        how.how,
        alpha=how.alpha,
        sizes=how.sizes,
        least=how.least,
        key=key / "parts",
    )
    found = PreparedHorizontal(spec, split, parts, timing(spec, how.clients))
    _check(found)
    return found


def _check(found: PreparedHorizontal) -> None:
    spec, classes = found.spec, found.split.train.classes
    if spec.model.outputs is not None and spec.model.outputs < classes:
        raise SpecError(f"model.outputs: wanted at least {classes}, one per class, got {spec.model.outputs}")
    with torch.device("meta"):
        module = found.plan.module()
    check_size(module, "the model")
    size = sum(p.numel() for p in module.parameters())
    method = spec.method
    if isinstance(method, Decomfl) and method.asynchronous and method.revert == "add_back":
        raise SpecError(
            'method.revert: wanted "restore" with method.asynchronous = true, got "add_back" (Eq. (10) is for rounds)'
        )
    if isinstance(method, Decomfl) and method.replicas == "per_client":
        need = 4 * size * spec.split.clients * (2 if method.momentum else 1)
        if need > _MOST_BYTES:
            raise SpecError(
                f'method.replicas: "per_client" needs {need / 2**30:.1f} GiB ({spec.split.clients} clients with '
                f'{size:,} parameters each); use "shared", which has the same bits'
            )
