"""FedZO: FedAvg whose clients take zeroth-order steps, each along directions of its own.

Source: Fang et al. 2022, Algorithm 1; DeComFL Eq. (2a)-(2c) and (3). Theirs are directions v on the
unit sphere and estimates (d/μ')(f(x + μ'v) - f(x))v; ours have E[z zᵀ] = I, so with law "sphere" z
= √d v and μ' = √d μ it is the same step. As no two clients share a direction, what a client uploads
is its whole update. The server is `FedAvgServer`.
"""

# d parameters, K local steps, P perturbations

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from raydpzv.engine.objective import Objective
from raydpzv.keys import direction_seed
from raydpzv.methods.descriptor import ClientGroupParts, HorizontalMethod
from raydpzv.methods.horizontal.compression import Whole
from raydpzv.methods.horizontal.fedavg import weights_server
from raydpzv.methods.horizontal.local_training import TrainingClientGroup
from raydpzv.methods.horizontal.rounds import Directed, Sampled
from raydpzv.settings.bounds import Positive
from raydpzv.zo.directions import Direction
from raydpzv.zo.update import Descent, Step
from raydpzv.zo.vectors import Vector

Estimate = Literal["forward", "central"]


@dataclass(frozen=True)
class FedzoConfig(Directed, Sampled):
    """FedZO: weights both ways, zeroth-order local steps along each client's own directions (Fang
    et al. 2022).
    """

    name: Literal["fedzo"] = "fedzo"
    """The method."""
    lr: Positive = 1e-3
    """Step size of the clients."""
    server_lr: Positive = 1.0
    """Step size of the server on the averaged update."""
    estimate: Estimate = "forward"
    """One- or two-sided differences."""


class ZerothOrderTrainers(TrainingClientGroup[FedzoConfig]):
    """Clients that take K steps x <- x - (η/P) Σ_p g_p z_p, each on a batch and along directions of
    its own.

    g_p: forward (f(x + μz) - f(x)) / μ, in P + 1 losses a step, or central (f(x + μz) - f(x - μz))
    / 2μ, in 2P.
    """

    def _train(self, objective: Objective, x: Vector, client: int, round: int) -> float:
        descent = Descent(x, self._settings.rule.on(objective.shapes))
        losses = []
        for step in range(self._settings.local_steps):
            directions = [descent.direction(int(seed)) for seed in self._seeds(client, round, step)]
            loss, slopes_P = self._slopes(objective, x, directions, self._rows(client, round, step))
            losses.append(loss)
            descent.apply([Step([u.seed for u in directions], slopes_P, self._settings.lr)])
        return losses[0]

    def _seeds(self, client: int, round: int, step: int) -> list[int]:
        """Return the seeds of the step's directions; K·round + k counts a client's local steps over
        all rounds.
        """
        number = self._settings.local_steps * round + step
        return [
            direction_seed(self._key, client, number, p)
            for p in range(self._settings.perturbations)
        ]

    def _slopes(
        self, objective: Objective, x: Vector, directions: Sequence[Direction], rows: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """Return the loss at x and the slopes along the directions, float64 [P].

        Forward: DeComFL Eq. (3). Central: the loss is the mean of all, equal to the loss at x up to
        O(μ²), which saves a forward pass.
        """
        radius = self._settings.smoothing
        if self._settings.estimate == "forward":
            plus_P, loss = (
                objective.losses(x, directions, radius, [rows])[0],
                objective.loss(x, rows),
            )
            return loss, (plus_P - loss) / radius
        (plus_P,), (minus_P,) = objective.central_losses(x, directions, radius, [rows])
        return float(plus_P.mean() + minus_P.mean()) / 2, (plus_P - minus_P) / (2 * radius)


def _clients(parts: ClientGroupParts, config: FedzoConfig) -> ZerothOrderTrainers:
    return ZerothOrderTrainers(parts.objectives, parts.parts, Whole(), config, parts.key)


FEDZO = HorizontalMethod(
    config=FedzoConfig,
    server=lambda parts, config: weights_server(parts, config, Whole()),
    clients=_clients,
    cohort=lambda config, clients: config.cohort,
)
