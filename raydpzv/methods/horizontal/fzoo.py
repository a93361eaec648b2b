"""FZOO: DeComFL whose scalars are divided by the spread of the losses that they were made from.

Source: Dang et al. 2025 ("FZOO", arXiv 2506.09034): one-sided differences along signs, a normalised
step. The paper has one machine; here each client divides by the standard deviation of its own
losses, and the server averages the scalars. What stands on the ledger are the divided scalars, so
that a rebuild needs no loss.
"""

# M clients, K local steps, P perturbations

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from raydpzv.engine.objective import Objective
from raydpzv.methods.descriptor import (
    ClientGroupParts,
    HorizontalMethod,
    HorizontalServerParts,
    UpdateRule,
)
from raydpzv.methods.horizontal.decomfl import DecomflServer, LocalSteps, of_asynchronous
from raydpzv.methods.horizontal.rounds import Directed, Sampled, cohorts, row_weights
from raydpzv.methods.horizontal.seeded import (
    SeededPullServer,
    settings_of,
    updates_of,
)
from raydpzv.methods.horizontal.seeded_clients import SharedClients, shared_clients
from raydpzv.settings.bounds import Bounds, Count, Positive
from raydpzv.zo.directions import Direction, Law
from raydpzv.zo.vectors import Vector

if TYPE_CHECKING:
    from raydpzv.settings.sections_horizontal import HorizontalSections


@dataclass(frozen=True)
class FzooConfig(Directed, Sampled):
    """FZOO: one-sided differences along signs, divided by the spread of their losses (Dang et al.
    2025).
    """

    name: Literal["fzoo"] = "fzoo"
    """The method."""
    asynchronous: bool = False
    """No rounds: a client wakes by its clock, pulls what it missed, and its scalars become the next
    update.
    """
    lr: Positive = 1e-5
    """Step size η of the update x <- x - (η/P) Σ (l_p - l_0) u_p / (μσ); η/μ is the step in units
    of the spread σ.
    """
    lr_at: tuple[tuple[Count, Positive], ...] = ()
    """Step sizes from later rounds on: [[round, lr], ...]."""
    perturbations: Annotated[int, Bounds(ge=2, le=1024)] = 8
    """Directions per local step, P, of whose losses σ is the standard deviation."""
    direction: Law = "rademacher"
    """Law of the directions; the paper has independent signs."""


class NormalisedSteps(LocalSteps):
    """Local steps by one-sided differences, each client's divided by the standard deviation of its
    own losses.
    """

    def _derivatives(
        self,
        objective: Objective,
        x: Vector,
        directions: Sequence[Direction],
        rows: Sequence[np.ndarray],
    ) -> tuple[list[float], np.ndarray]:
        losses, slopes_MP = super()._derivatives(objective, x, directions, rows)
        return losses, normalised(slopes_MP, self._settings.smoothing)


def normalised(slopes_MP: np.ndarray, radius: float) -> np.ndarray:
    """Return slopes (l_p - l_0) / μ divided by σ, the standard deviation of l_1, ..., l_P with P -
    1 below the line.

    Zero for a client whose losses are all the same. What is not finite stays so.
    """
    sigma_M1 = radius * slopes_MP.astype(np.float64).std(axis=1, ddof=1, keepdims=True)
    return np.where(sigma_M1 == 0, 0.0, slopes_MP / np.where(sigma_M1 == 0, 1.0, sigma_M1))


def _server(parts: HorizontalServerParts, config: FzooConfig) -> DecomflServer | SeededPullServer:
    updates = updates_of(parts, settings_of(config, parts.key))
    if config.asynchronous:
        return SeededPullServer(updates)
    return DecomflServer(cohorts(parts, config.cohort), updates, weights=row_weights(parts, config))


def _clients(parts: ClientGroupParts, config: FzooConfig) -> SharedClients:
    steps = NormalisedSteps(parts.objectives, parts.parts, settings_of(config, parts.key))
    return shared_clients(parts, steps)


def _contradictions(config: FzooConfig, sections: HorizontalSections) -> Iterator[str]:
    if config.asynchronous:
        yield from of_asynchronous(config, sections)


FZOO = HorizontalMethod(
    config=FzooConfig,
    server=_server,
    clients=_clients,
    rule=lambda c: UpdateRule(c.rule, step_seeds=True),
    pulls=lambda c: c.asynchronous,
    cohort=lambda c, clients: clients if c.asynchronous else c.cohort,
    contradictions=_contradictions,
)
