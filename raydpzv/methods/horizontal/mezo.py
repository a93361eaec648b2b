"""MeZO: DeComFL's round with one agent that holds all rows, central two-point estimates and no
network.

Source: Malladi et al. 2023 ("Fine-tuning language models with just forward passes"), Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from raydpzv.keys import Key
from raydpzv.methods.descriptor import (
    ClientGroupParts,
    HorizontalMethod,
    HorizontalServerParts,
    UpdateRule,
)
from raydpzv.methods.horizontal.decomfl import DecomflServer, LocalSteps
from raydpzv.methods.horizontal.rounds import Directed, cohorts
from raydpzv.methods.horizontal.seeded import SeededSettings, updates_of
from raydpzv.methods.horizontal.seeded_clients import SharedClients, shared_clients
from raydpzv.methods.schedule import Schedule, schedule_of
from raydpzv.settings.bounds import Count, Positive

if TYPE_CHECKING:
    from raydpzv.settings.sections_horizontal import HorizontalSections


@dataclass(frozen=True)
class MezoConfig(Directed):
    """MeZO: one agent with all rows, central two-point estimates, no network."""

    name: Literal["mezo"] = "mezo"
    """The method."""
    batch: Count = 32
    """Rows per step, B."""
    lr: Positive = 1e-3
    """Step size."""
    lr_at: tuple[tuple[Count, Positive], ...] = ()
    """Step sizes from later steps on: [[step, lr], ...]."""


def mezo_settings(config: MezoConfig, key: Key) -> SeededSettings:
    """Return what the agent works by."""
    return SeededSettings(
        key,
        config.rule,
        config.batch,
        schedule_of(config, "lr"),
        Schedule(config.perturbations),
        smoothing=config.smoothing,
        estimate="central",
    )


def _server(parts: HorizontalServerParts, config: MezoConfig) -> DecomflServer:
    updates = updates_of(parts, mezo_settings(config, parts.key))
    return DecomflServer(cohorts(parts, 1), updates, agent=True)


def _clients(parts: ClientGroupParts, config: MezoConfig) -> SharedClients:
    steps = LocalSteps(parts.objectives, parts.parts, mezo_settings(config, parts.key))
    return shared_clients(parts, steps)


def _contradictions(config: MezoConfig, sections: HorizontalSections) -> Iterator[str]:
    if sections.split.clients != 1:
        yield (
            "split.clients: mezo is one agent with all rows, wanted 1, got "
            f"{sections.split.clients}"
        )


MEZO = HorizontalMethod(
    config=MezoConfig,
    server=_server,
    clients=_clients,
    rule=lambda c: UpdateRule(c.rule, step_seeds=True),
    cohort=lambda c, clients: 1,
    agent=True,
    contradictions=_contradictions,
)
