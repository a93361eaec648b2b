"""What a run does, as far as privacy depends on it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from raydpzv.errors import SpecError, suggest
from raydpzv.privacy.calibration import BATCHES, planned_participations

SERVERS = ("sgd", "zo", "frozen")
"""How w_0 learns; "sgd" and "zo" train it on labels without noise, which is hidden state."""
SOURCES = ("system", "seeded", "none", "recorded")
"""Where the noise comes from; "recorded" repeats the releases of another run."""

_POSITIVE = ("rows", "batch", "releases", "clip", "clients", "perturbations")


@dataclass(frozen=True)
class MeanSetting:
    """A run's releases, planned or made; SpecError where a value makes no sense.

    `releases` counts scalars (updates x perturbations). `sigma` is the noise's standard deviation on the
    released mean. `counted` and `largest_batch` are facts of a finished run, the most releases a record took
    part in and the most rows in a batch; None before it. The clip is two-sided and the divisor constant
    (`batch`). `target` is the ε asked for. `two_lambda` names the slope's form and changes no ε. `planned`: is
    `releases` what is planned or was made, or that of one update for want of a plan? `exposed`: why secret
    Poisson batches hide no record from outsiders, "" if they do. `fitted`: where one record moves what others
    are before any release (scaling, split), one clause each.
    """

    rows: int
    batch: int
    releases: int
    clip: float
    sigma: float
    delta: float
    batches: str
    server: str
    noise: str
    target: float | None = None
    clients: int = 1
    perturbations: int = 1
    counted: int | None = None
    largest_batch: int | None = None
    batchnorm: bool = False
    two_lambda: bool = True
    planned: bool = True
    exposed: str = ""
    fitted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, known in (("batches", BATCHES), ("server", SERVERS), ("noise", SOURCES)):
            value = getattr(self, name)
            if value not in known:
                raise SpecError(f'privacy {name} "{value}": {suggest(value, known)}Known: {", ".join(known)}')
        for name in _POSITIVE:
            if not 0 < getattr(self, name) < math.inf:
                raise SpecError(f"privacy {name} must be positive and finite, not {getattr(self, name)}")
        if self.batch > self.rows:
            raise SpecError(f"a batch of {self.batch} needs as many rows, there are {self.rows}")
        if not (0 < self.delta < 1 and 0 <= self.sigma < math.inf):
            raise SpecError(f"want 0 < δ < 1 and a finite σ >= 0, not δ={self.delta}, σ={self.sigma}")

    @property
    def hidden_state(self) -> bool:
        """Whether the server keeps state that is no function of released values."""
        return self.server != "frozen"

    @property
    def participations(self) -> int:
        """The most releases one record takes part in: counted, or bounded for every arrival order."""
        if self.counted is not None:
            return self.counted
        return planned_participations(
            batches=self.batches,
            releases=self.releases,
            rows=self.rows,
            batch=self.batch,
            clients=self.clients,
            perturbations=self.perturbations,
        )

    @property
    def participations_kind(self) -> str:
        """Where `participations` comes from: "counted" or "planned bound"."""
        return "planned bound" if self.counted is None else "counted"

    @property
    def load(self) -> float:
        """The largest batch over the divisor; a Poisson batch may hold all rows until it is counted."""
        if self.batches != "poisson":
            return 1.0
        return (self.rows if self.largest_batch is None else self.largest_batch) / self.batch

    @property
    def noise_multiplier(self) -> float:
        """z = σB/C, the noise in units of the add/remove sensitivity."""
        return self.sigma * self.batch / self.clip

    def sensitivity(self, relation: str) -> float:
        """How far one record's own term can move the mean: 2C/B replaced, C/B set to zero."""
        return (2 if relation == "replace" else 1) * self.clip / self.batch
