"""FedAvg: clients take local SGD steps from the server's weights, the server averages what changed.

Source: McMahan et al. 2017, Algorithm 1, in the form of averaged updates with a step size of the
server's own (with step size 1 the average of the models). With the codecs of
`compression` it is FedCom (Haddadpour et al. 2021) or FedAvg+Top-k. Every message has the size of
the model: the baselines of DeComFL's Table 1.
"""

# d parameters, M clients, m of them in a cohort, K local steps

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from raydpzv.engine.objective import Objective
from raydpzv.errors import Diverged
from raydpzv.keys import Key
from raydpzv.methods.descriptor import ClientGroupParts, HorizontalMethod, HorizontalServerParts
from raydpzv.methods.horizontal.compression import Codec, Quantised, TopK, Whole
from raydpzv.methods.horizontal.local_training import TrainingClientGroup
from raydpzv.methods.horizontal.rounds import Cohorts, ModelServer, Sampled, cohorts, row_weights
from raydpzv.methods.roles import Upload
from raydpzv.settings.bounds import Fraction, Momentum, Positive
from raydpzv.zo.vectors import Vector


@dataclass(frozen=True)
class WeightsConfig(Sampled):
    """Settings of methods that send weights both ways and train by backpropagation."""

    lr: Positive = 0.1
    """Step size of the clients."""
    momentum: Momentum = 0.0
    """Momentum of the clients' local steps; starts anew each round."""
    dampening: bool = False
    """Momentum as torch's SGD has it, v <- βv + g, or as DeComFL's Eq. (8) has it, v <- βv +
    (1-β)g.
    """
    server_lr: Positive = 1.0
    """Step size of the server on the averaged update."""

    @property
    def undamped_lr(self) -> float:
        """The step size of v <- βv + g, x <- x - ηv that makes the same steps: η(1-β) where
        momentum is damped.
        """
        return self.lr * (1 - self.momentum) if self.dampening else self.lr


@dataclass(frozen=True)
class FedavgConfig(WeightsConfig):
    """FedAvg: weights both ways, local SGD (McMahan et al. 2017)."""

    name: Literal["fedavg"] = "fedavg"
    """The method."""


@dataclass(frozen=True)
class FedcomConfig(WeightsConfig):
    """FedCom: FedAvg with updates quantised to 8 bits (Haddadpour et al. 2021)."""

    name: Literal["fedcom"] = "fedcom"
    """The method."""


@dataclass(frozen=True)
class TopkConfig(WeightsConfig):
    """FedAvg whose clients send the largest entries of their update alone."""

    name: Literal["topk"] = "topk"
    """The method."""
    share: Fraction = 0.1
    """Share of the entries that is sent."""


class FedAvgServer(ModelServer):
    """Sends x to the cohort and makes x <- x + η_s · mean of the updates, whatever made them.

    initial: x_0, float32 [d]; codec: the clients'; lr: η_s; weights: one per client for a weighted
    mean, such as its number of rows. Raises Diverged for what is not finite.
    """

    def __init__(
        self,
        cohorts: Cohorts,
        initial: np.ndarray,
        codec: Codec,
        *,
        lr: float = 1.0,
        weights: np.ndarray | None = None,
    ) -> None:
        super().__init__(cohorts, initial, codec.wire_bytes(initial.size), weights)
        self._codec, self._lr = codec, lr

    def _close(self, round: int, uploads: Sequence[Upload]) -> None:
        mean = self._average([self._decoded(upload, round) for upload in uploads])
        with np.errstate(over="ignore"):
            step = self._lr * mean
        self._move(step, round)

    def _decoded(self, upload: Upload, round: int) -> np.ndarray:
        update = self._codec.decode(upload.body, self._x.size)
        if not np.isfinite(update).all():
            raise Diverged(
                f"an update must be finite, but client {upload.client}'s of round {round} is not: "
                "choose a smaller step size"
            )
        return update


class LocalTrainers(TrainingClientGroup[WeightsConfig]):
    """Clients that take K steps x <- x - ηv with v <- βv + g by backpropagation, each on a batch of
    its own.
    """

    def _train(self, objective: Objective, x: Vector, client: int, round: int) -> float:
        config, losses = self._settings, []
        descent = objective.descent(x, config.undamped_lr, config.momentum)
        for step in range(config.local_steps):
            loss, gradient = objective.gradient(x, self._rows(client, round, step))
            losses.append(loss)
            descent.step([gradient])
        return losses[0]


def weights_server(parts: HorizontalServerParts, config: Any, codec: Codec) -> FedAvgServer:
    """Return a server that averages what clients send with this codec; config: of a method that
    samples clients.
    """
    return FedAvgServer(
        cohorts(parts, config.cohort),
        parts.initial(),
        codec,
        lr=config.server_lr,
        weights=row_weights(parts, config),
    )


def _method(config: type[Any], codec: Callable[[Any, Key], Codec]) -> HorizontalMethod[Any]:
    """Return FedAvg with a codec."""

    def server(parts: HorizontalServerParts, given: WeightsConfig) -> FedAvgServer:
        return weights_server(parts, given, codec(given, parts.key))

    def clients(parts: ClientGroupParts, given: WeightsConfig) -> LocalTrainers:
        return LocalTrainers(
            parts.objectives, parts.parts, codec(given, parts.key), given, parts.key
        )

    return HorizontalMethod(
        config=config, server=server, clients=clients, cohort=lambda given, clients: given.cohort
    )


FEDAVG = _method(config=FedavgConfig, codec=lambda config, key: Whole())
FEDCOM = _method(config=FedcomConfig, codec=lambda config, key: Quantised(key))
TOPK = _method(config=TopkConfig, codec=lambda config, key: TopK(config.share))
