"""The model of a horizontal scenario before the first update, and the rule by which updates move it: no data needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from raydpzv.config.scenario_horizontal import Decomfl, HorizontalScenario, Mezo
from raydpzv.errors import DataError
from raydpzv.keys import Key
from raydpzv.ledger.header import Header, Model
from raydpzv.methods.horizontal.decomfl import Schedule, Settings
from raydpzv.methods.replica import Replica
from raydpzv.models.flat import FlatModel
from raydpzv.models.whole import whole
from raydpzv.zo.update import Rule

MODEL = "shared"
"""The one model's name in the ledger, in the rows and in models.npz."""


@dataclass(frozen=True)
class ModelPlan:
    """shape: of one record's features; classes: that the labels have."""

    spec: HorizontalScenario
    shape: tuple[int, ...]
    classes: int

    @classmethod
    def of(cls, spec: HorizontalScenario, facts: Mapping[str, Any]) -> ModelPlan:
        """Return the plan of a recorded run, from what its environment.json says. Raises DataError."""
        try:
            shape, classes = tuple(int(n) for n in facts["input_shape"]), int(facts["classes"])
            if min(shape, default=0) < 1 or classes < 2:
                raise ValueError
            return cls(spec, shape, classes)
        except (KeyError, TypeError, ValueError):
            raise DataError(
                "environment.json: does not say what the run's model takes in (input_shape, classes); it is damaged"
            ) from None

    def facts(self) -> dict[str, Any]:
        """Return what `of` needs."""
        return {"input_shape": list(self.shape), "classes": self.classes}

    def module(self) -> nn.Module:
        """Return the network."""
        model = self.spec.model
        return whole(model.kind, self.shape, model.hidden, model.outputs or self.classes)

    def model(self, device: str = "cpu") -> FlatModel:
        """Return the network with its parameters before the first update."""
        return FlatModel(self.module, Key(self.spec.seed) / "model", device)

    def initial(self, device: str = "cpu") -> torch.Tensor:
        """Return the parameters before the first update, float32 [d]."""
        return self.model(device).flat

    def header(self) -> Header:
        """Return what identifies this run's ledger."""
        model, rule, method = self.model(), self.settings().rule, self.spec.method
        return Header(
            {MODEL: Model(model.size, model.layout, model.sha256())},
            rule.law,
            rule.momentum,
            rule.damped,
            isinstance(method, Decomfl) and method.private_seed_shift,
        )

    def replica(self, device: str = "cpu", *, follows_secret: bool = True) -> Replica:
        """Return the model before the first update, ready to follow a ledger.

        follows_secret: as a client does, who knows the seeds' secret shift if there is one; False: as the server.
        """
        method = self.spec.method
        shift = isinstance(method, Decomfl) and method.private_seed_shift and follows_secret
        return Replica(
            self.initial(device),
            self.settings().rule,
            secret=Key(self.spec.seed) / "private seed shift" if shift else None,
            threads=self.spec.resources.threads,
        )

    def settings(self) -> Settings:
        """Return what servers and clients of DeComFL (or MeZO) agree on."""
        method, key = self.spec.method, Key(self.spec.seed)
        if isinstance(method, Mezo):
            return Settings(
                key,
                Rule(method.direction),
                method.batch,
                Schedule(method.lr),
                Schedule(method.perturbations),
                smoothing=method.smoothing,
                estimate="central",
            )
        assert isinstance(method, Decomfl)
        return Settings(
            key,
            Rule(method.direction, method.momentum, damped=True),
            method.batch,
            Schedule(method.lr, method.lr_at),
            Schedule(method.perturbations, method.perturbations_at),
            method.local_steps,
            method.smoothing,
            method.estimate,
        )
