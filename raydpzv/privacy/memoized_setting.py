"""Rows noised once and repeated for ever ("memoization", Erlingsson et al. 2014): what a run's ε depends on.

Each client, whose model never changes, clips each record's embedding to norm S, adds N(0, σ²) to every coordinate once,
and sends that same row whenever it is asked. Then n = 1: the server's view of one record's features at one client is
(2/z)-GDP with z = σ/S (the record replaced), of its features at all clients (2√M/z)-GDP, however long the run is.
"""

# D rows, M clients, E embedding width

from __future__ import annotations

import math
from dataclasses import dataclass

from raydpzv.errors import SpecError
from raydpzv.privacy.gdp import epsilon_of, mu_of
from raydpzv.privacy.sound_setting import require_delta, require_system_noise


@dataclass(frozen=True, kw_only=True)
class MemoizedSetting:
    """A run's noise on rows; SpecError where nothing could be proved of it.

    rows: D; clip: S; noise_multiplier: z = σ/S; grid: whole numbers in S that rows are cut to; target: the ε asked for,
    None where it follows from z. unmet: what the proof supposes of the table and this run lacks, one clause each.
    """

    rows: int
    clients: int
    width: int
    clip: float
    delta: float
    noise_multiplier: float
    grid: int = 4096
    target: float | None = None
    noise: str = "system"
    permit_large_delta: bool = False
    unmet: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("rows", "clients", "width", "clip", "noise_multiplier", "grid"):
            if not 0 < getattr(self, name) < math.inf:
                raise SpecError(f"privacy {name} must be positive and finite, not {getattr(self, name)}")
        if self.unmet:
            raise SpecError(f'privacy.mode: "sound" proves nothing here: {"; ".join(self.unmet)}')
        require_system_noise(self.noise)
        require_delta(self.delta, self.rows, permitted=self.permit_large_delta)

    @property
    def mu(self) -> float:
        """μ of one record's features at one client: 2S/σ."""
        return 2 / self.noise_multiplier

    @property
    def epsilon(self) -> float:
        """ε of one record's features at one client."""
        return epsilon_of(self.mu, self.delta)

    @property
    def record_epsilon(self) -> float:
        """ε of one record's features at all M clients, μ = 2S√M/σ."""
        return epsilon_of(self.mu * math.sqrt(self.clients), self.delta)


def memoized_multiplier(*, epsilon: float, delta: float) -> float:
    """Return z = 2/μ(ε, δ), the noise on rows that are sent once; SpecError where none reaches (ε, δ)."""
    mu = mu_of(epsilon, delta)
    if not 0 < mu < math.inf:
        raise SpecError(f"privacy.epsilon: wanted a finite number above 0, got {epsilon}")
    return 2 / mu
