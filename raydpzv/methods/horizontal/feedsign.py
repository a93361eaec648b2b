"""FeedSign: DeComFL's round with one bit for each directional derivative, and a vote in place of
the mean.

Source: Cai et al. 2025 ("FeedSign", arXiv 2501.17610), Algorithm 1. Every client sends the signs of
its derivatives. The server takes the majority of each, and every model steps by ±η along the
direction. Seeds follow from the run's public key and the round's number, so that packed signs are
all that travels.
"""

# m clients of a cohort, K local steps, P perturbations, n missed signs

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from raydpzv.engine.objective import Objective
from raydpzv.keys import Key
from raydpzv.methods.descriptor import (
    ClientGroupParts,
    HorizontalMethod,
    HorizontalServerParts,
    UpdateRule,
)
from raydpzv.methods.horizontal.decomfl import LocalSteps
from raydpzv.methods.horizontal.rounds import Directed, Sampled, cohorts, row_weights
from raydpzv.methods.horizontal.seeded import (
    SeededServer,
    SeededSettings,
    check_finite,
    settings_of,
    updates_of,
)
from raydpzv.methods.horizontal.seeded_clients import SharedClients, shared_clients
from raydpzv.methods.roles import Order, Upload
from raydpzv.settings.bounds import Count, Perturbations, Positive
from raydpzv.wire.messages import Body
from raydpzv.wire.seeds import MissedSigns, Signs
from raydpzv.zo.directions import Direction
from raydpzv.zo.vectors import Vector


@dataclass(frozen=True)
class FeedsignConfig(Directed, Sampled):
    """FeedSign: one bit for each directional derivative, both ways, and a majority vote (Cai et al.
    2025).
    """

    name: Literal["feedsign"] = "feedsign"
    """The method."""
    lr: Positive = 1e-3
    """Step size η of the update ±(η/P) Σ u_p."""
    lr_at: tuple[tuple[Count, Positive], ...] = ()
    """Step sizes from later rounds on: [[round, lr], ...]."""
    perturbations: Perturbations = 1
    """Directions per local step, P: the paper has one. Each is one bit of an upload."""


class SignSteps(LocalSteps):
    """Local steps by the signs of central differences, which are all that the server learns."""

    def _derivatives(
        self,
        objective: Objective,
        x: Vector,
        directions: Sequence[Direction],
        rows: Sequence[np.ndarray],
    ) -> tuple[list[float], np.ndarray]:
        losses, values = super()._derivatives(objective, x, directions, rows)
        return losses, np.where(np.isfinite(values), signs_of(values), np.nan)

    def _answer(self, order: Order, values_KP: np.ndarray) -> Body:
        check_finite(values_KP, order.client, order.round)  # a bit cannot say so
        return Signs(packed(values_KP))


class FeedsignServer(SeededServer):
    """Takes the majority of the cohort's signs, in which clients may count by their rows; a tie is
    +1.
    """

    def _catch_up(self, seeds: np.ndarray, scalars: np.ndarray, seeds_K: np.ndarray) -> Body:
        return MissedSigns(packed(scalars))

    def _upload_bytes(self, pairs: int) -> int:
        return -(-pairs // 8)

    def _released(self, round: int, uploads: Sequence[Upload]) -> np.ndarray:
        shape = self._settings.local_steps, self._settings.width(round)
        return signs_of(self._average([unpacked(_signs(upload), shape) for upload in uploads]))


def signs_of(values: np.ndarray) -> np.ndarray:
    """Return 1 or -1 for each value, float32 of the same shape; 1 for 0."""
    return np.where(values >= 0, np.float32(1), np.float32(-1))


def packed(signs: np.ndarray) -> np.ndarray:
    """Return n signs as bits, 1 for +1, the first in the highest bit, uint8 [⌈n/8⌉]."""
    return np.packbits(signs.ravel() > 0)


def unpacked(bits: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return packed signs as 1 and -1, float32 of this shape."""
    found = np.unpackbits(bits, count=int(np.prod(shape)))
    return (2 * found.astype(np.float32) - 1).reshape(shape)


def _signs(upload: Upload) -> np.ndarray:
    if not isinstance(upload.body, Signs):
        raise TypeError(f"a FeedSign server cannot serve {type(upload.body).__name__}")
    return upload.body.signs


def feedsign_settings(config: FeedsignConfig, key: Key) -> SeededSettings:
    """Return what server and clients agree on."""
    return settings_of(config, key, "central", derived_seeds=True)


def _server(parts: HorizontalServerParts, config: FeedsignConfig) -> FeedsignServer:
    updates = updates_of(parts, feedsign_settings(config, parts.key))
    return FeedsignServer(
        cohorts(parts, config.cohort), updates, weights=row_weights(parts, config)
    )


def _clients(parts: ClientGroupParts, config: FeedsignConfig) -> SharedClients:
    steps = SignSteps(parts.objectives, parts.parts, feedsign_settings(config, parts.key))
    return shared_clients(parts, steps)


FEEDSIGN = HorizontalMethod(
    config=FeedsignConfig,
    server=_server,
    clients=_clients,
    rule=lambda c: UpdateRule(c.rule, step_seeds=True),
    cohort=lambda c, clients: c.cohort,
)
