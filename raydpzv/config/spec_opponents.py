"""Settings of DPZV's opponents. The docstring under each field is its line in the settings page."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from raydpzv.config.spec_batches import Batched
from raydpzv.settings.fields import Count, Momentum, NotNegative, Positive

Deviations = Annotated[tuple[NotNegative, ...], Field(strict=False)]
Calibration = Literal["counted", "sampled"]


class Vafl(Batched):
    """VAFL: asynchronous backpropagation through stale embeddings, perturbed local embeddings (Chen et al. 2020)."""

    name: Literal["vafl"] = "vafl"
    """The method."""
    lr: Positive = 0.02
    """Step size of the clients."""
    momentum: Momentum = 0.0
    """Momentum of the clients (the paper has none)."""
    l2: NotNegative = 0.0
    """Regulariser of the clients' parameters, l2 ‖w‖² / 2."""
    synchrony: Literal["asynchronous", "t-synchronous", "synchronous"] = "asynchronous"
    """A step for every upload; for every wait_for uploads; or for all clients' on the same rows (block SGD)."""
    wait_for: Annotated[int, Field(ge=2)] | None = None
    """t of "t-synchronous": uploads of different clients that the server waits for; all of them are answered."""
    max_delay: Count | None = None
    """D: cached embeddings older than so many rounds are queried afresh before a step; left out: no bound."""
    noise_on: Literal["embedding", "gradient"] = "embedding"
    """Noise of [privacy] on what goes up (against the server) or on what comes down (against the clients)."""
    layer_noise: Deviations = ()
    """c_l of uniform noise on ±√3 c_l inside the layers, from the first on; the last number holds for the rest."""
    calibration: Calibration = "counted"
    """Noise for the releases one record takes part in, or smaller by the DPZV papers' sampling argument."""

    @property
    def releases_per_upload(self) -> int:
        """Noised arrays per upload, P."""
        return 1


class ZooVfl(Batched):
    """ZOO-VFL: one-sided estimates from h(w) and h(w + λu); vector noise on both (Zhang et al. 2021)."""

    name: Literal["zoo_vfl"] = "zoo_vfl"
    """The method."""
    lr: Positive = 2e-3
    """Step size of the clients."""
    momentum: Momentum = 0.9
    """Momentum of the clients."""
    smoothing: Positive = 1e-3
    """Smoothing radius λ of the estimate (f(w+λu) - f(w)) / λ."""
    direction: Literal["sphere", "gaussian", "rademacher"] = "sphere"
    """Law of the directions."""
    server: Literal["sgd", "zo"] = "sgd"
    """How the head learns: backpropagation, or its own two-point step."""
    calibration: Calibration = "counted"
    """Noise for the releases one record takes part in, or smaller by the DPZV papers' sampling argument."""

    @property
    def releases_per_upload(self) -> int:
        """Noised arrays per upload, P."""
        return 2


class Czofo(Batched):
    """VFL-CZOFO: backpropagation at both ends, the gradient between them estimated from losses (Wang et al. 2024)."""

    name: Literal["czofo"] = "czofo"
    """The method."""
    lr: Positive = 0.02
    """Step size of the clients."""
    momentum: Momentum = 0.0
    """Momentum of the clients."""
    smoothing: Positive = 1e-3
    """Smoothing radius λ of the perturbations of an embedding."""
    perturbations: Annotated[int, Field(ge=1, le=1024)] = 5
    """Perturbations n of every row."""
    calibration: Calibration = "counted"
    """Noise for the releases one record takes part in, or smaller by the DPZV papers' sampling argument."""

    @property
    def releases_per_upload(self) -> int:
        """Noised arrays per upload, P."""
        return 1


Opponent = Vafl | ZooVfl | Czofo
OPPONENTS: dict[str, type[Opponent]] = {"vafl": Vafl, "zoo_vfl": ZooVfl, "czofo": Czofo}
"""The methods that are compared with DPZV, by name."""
