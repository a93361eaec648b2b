"""The clients' models of a DPZV run before the first update, and how releases move them: needs no data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raydpzv.config.scenario import Dpzv, VerticalScenario
from raydpzv.errors import DataError
from raydpzv.experiment.parties import bottom_model, zeroth_order
from raydpzv.ledger.header import Header, Model
from raydpzv.methods.replica import Replica
from raydpzv.models.flat import FlatModel
from raydpzv.zo.update import Rule


@dataclass(frozen=True)
class BottomPlan:
    """shapes: of one record's features, client by client."""

    spec: VerticalScenario
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, spec: VerticalScenario, facts: Mapping[str, Any]) -> BottomPlan:
        """Return the plan of a recorded run, from what its environment.json says. Raises DataError."""
        try:
            shapes = tuple(tuple(int(n) for n in shape) for shape in facts["input_shapes"])
        except (KeyError, TypeError, ValueError):
            shapes = ()
        if len(shapes) != spec.split.clients:
            raise DataError(
                "environment.json: does not say what each client's model takes in (input_shapes); it is damaged"
            )
        return cls(spec, shapes)

    def facts(self) -> dict[str, Any]:
        """Return what `of` needs."""
        return {"input_shapes": [list(shape) for shape in self.shapes]}

    def model(self, client: int) -> FlatModel:
        """Return a client's network with its parameters before the first update."""
        return bottom_model(self.spec, client, self.shapes[client])

    def header(self) -> Header:
        """Return what identifies this run's ledger: one model per client."""
        models = {f"client {m}": _identity(self.model(m)) for m in range(len(self.shapes))}
        return Header(models, self._rule.law, self._rule.momentum)

    def replica(self, client: int) -> Replica:
        """Return a client's model before the first update, ready to follow the client's part of the ledger."""
        return Replica(self.model(client).flat, self._rule, party=client)

    @property
    def _rule(self) -> Rule:
        assert isinstance(self.spec.method, Dpzv)
        settings = zeroth_order(self.spec.method)
        return Rule(settings.law, settings.momentum)


def _identity(model: FlatModel) -> Model:
    return Model(model.size, model.layout, model.sha256())
