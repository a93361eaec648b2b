"""What a run of privacy.mode = "sound" does, as far as its proof depends on it.

A release is one vector of P integers: the sum over its rows of each record's clipped slopes, of Euclidean norm at most
G, plus rounded Gaussian noise of deviation s = z G. With the head trained by DP-SGD ("dp_sgd") a release has a second
part, the noised gradient of w_0 on the same rows, of noise multiplier z_0. Nothing else that depends on records
persists at the server, so that a release depends on a record only if the record is among its rows.
"""

# D rows, B rows of an upload, Q uploads a release, P directions, n releases one record takes part in

from __future__ import annotations

import math
from dataclasses import dataclass

from raydpzv.errors import SpecError, suggest
from raydpzv.privacy.calibration import BATCHES, planned_participations

RELATIONS = {"replace": 2, "labels": 2, "add_remove": 1}
"""Neighbouring relations, and how far one moves a record's part of a sum, c, in units of its largest norm: one record
replaced, its label alone changed, its term set to zero."""
ADVERSARIES = ("client", "external")
"""Whom ε is promised against: all clients together, or whoever sees releases and final model but no row numbers."""
SERVERS = ("frozen", "joint", "dp_sgd")
"""How w_0 learns: not at all, along its part of the released direction, or by gradients with noise of their own."""


@dataclass(frozen=True, kw_only=True)
class SoundPlan:
    """A run but for its length and its noise; SpecError where nothing could be proved of it.

    rows: D; batch: B, rows of an upload (D for all); clip: C, so that V = C√P bounds a record's slopes; grid: G;
    head_share: of μ², spent on the head with "dp_sgd", else None. head_alone: clients never learn, and a release is the
    head's gradient alone, of norm C at most and with noise multiplier z (P is 1). permit_large_delta: may δ be 1/D or
    more? exposed: why secret Poisson batches hide no record from outsiders, "" if they do. unmet: what the proof
    supposes of table, model and plan and this run lacks, one clause each that names the setting; any refuses the plan.
    """

    rows: int
    batch: int
    delta: float
    clip: float
    batches: str = "shuffle"
    gather: int = 1
    clients: int = 1
    perturbations: int = 1
    grid: int = 4096
    server: str = "frozen"
    head_share: float | None = None
    head_alone: bool = False
    relation: str = "replace"
    adversary: str = "client"
    noise: str = "system"
    permit_large_delta: bool = False
    exposed: str = ""
    unmet: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._require_names()
        for name in ("rows", "batch", "clip", "gather", "clients", "perturbations", "grid"):
            if not 0 < getattr(self, name) < math.inf:
                raise SpecError(f"privacy {name} must be positive and finite, not {getattr(self, name)}")
        if self.unmet:
            raise SpecError(f'privacy.mode: "sound" proves nothing here: {"; ".join(self.unmet)}')
        require_system_noise(self.noise)
        if self.batch > self.rows:
            raise SpecError(f"a batch of {self.batch} needs as many rows, there are {self.rows}")
        require_delta(self.delta, self.rows, permitted=self.permit_large_delta)
        self._require_gather()
        if (self.server == "dp_sgd" and not self.head_alone) != (self.head_share is not None):
            raise SpecError(
                f'privacy.head_share: goes with method.server = "dp_sgd", which needs it; got {self.head_share} with '
                f'"{self.server}"'
            )
        if self.head_share is not None and not 0 < self.head_share < 1:
            raise SpecError(
                f"privacy.head_share: wanted a share between 0 and 1 of what dp_sgd spends, got {self.head_share}"
            )

    @property
    def change(self) -> int:
        """How far one record moves its part of a sum, c, in units of the part's largest norm."""
        return RELATIONS[self.relation]

    @property
    def release_rows(self) -> int:
        """Rows of a release, QB: the constant divisor."""
        return self.batch * self.gather

    @property
    def rate(self) -> float:
        """B/D, the probability that a record is in a Poisson batch."""
        return self.batch / self.rows

    @property
    def slope_share(self) -> float:
        """Share of μ² that is spent on what z is of: the slopes, or the head's gradient where there are none."""
        return 1.0 - (self.head_share or 0.0)

    @property
    def premise(self) -> str:
        """Return which premise of amplification by secret batches fails, or nothing."""
        if self.batches != "poisson":
            return f'batches are "{self.batches}", not "poisson" (method.batches)'
        return self.exposed

    def releases_of(self, updates: int) -> int:
        """Return the most releases of so many updates: a client's Q uploads make one."""
        return updates // self.gather

    def participations_of(self, updates: int) -> int:
        """Return the most releases of so many updates that one record can take part in, whatever the arrival order."""
        return planned_participations(
            batches=self.batches,
            releases=self.releases_of(updates),
            rows=self.rows,
            batch=self.release_rows,
            clients=self.clients,
        )

    def _require_names(self) -> None:
        for name, known in (
            ("batches", BATCHES),
            ("server", SERVERS),
            ("relation", RELATIONS),
            ("adversary", ADVERSARIES),
        ):
            value = getattr(self, name)
            if value not in known:
                raise SpecError(
                    f'privacy.mode: "sound" has no {name} "{value}". {suggest(value, known)}Known: {", ".join(known)}'
                )

    def _require_gather(self) -> None:
        if self.gather == 1:
            return
        if self.adversary == "external":
            raise SpecError(
                f'method.gather: wanted 1 with privacy.adversary = "external", which needs method.batches = "poisson", '
                f"got {self.gather}; leave it out"
            )
        batches = self.rows // self.batch
        if self.batches != "shuffle" or batches % self.gather:
            fitting = ", ".join(str(q) for q in range(1, batches + 1) if batches % q == 0)
            raise SpecError(
                f'method.gather: {self.gather} uploads a release want method.batches = "shuffle" and a divisor of the '
                f'{batches} batches of a pass ({fitting}), got batches "{self.batches}"'
            )


@dataclass(frozen=True, kw_only=True)
class SoundSetting(SoundPlan):
    """A run with its length and its noise, planned or made.

    updates: uploads served; noise_multiplier: z, the slopes' noise over their largest part of one record. target: the ε
    asked for, None where it follows from the others. counted and made are facts of a run (None before): the most
    releases that one record took part in, and all releases.
    """

    updates: int
    noise_multiplier: float
    target: float | None = None
    counted: int | None = None
    made: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.noise_multiplier < math.inf:
            raise SpecError(
                f"privacy.noise_multiplier: wanted a number above 0, got {self.noise_multiplier}; without noise "
                "nothing is proved"
            )
        if self.updates < self.gather:
            raise SpecError(
                f"budget.updates: wanted at least method.gather = {self.gather} (nothing is released before), got "
                f"{self.updates}"
            )

    @property
    def releases(self) -> int:
        """All releases: as made, or as planned."""
        return self.releases_of(self.updates) if self.made is None else self.made

    @property
    def participations(self) -> int:
        """The most releases one record takes part in: counted, or bounded for every arrival order."""
        return self.participations_of(self.updates) if self.counted is None else self.counted

    @property
    def effective_multiplier(self) -> float:
        """Slopes and head on the same rows are one Gaussian mechanism of this multiplier, (z⁻² + z_0⁻²)^(-1/2)."""
        return self.noise_multiplier * math.sqrt(self.slope_share)

    @property
    def head_multiplier(self) -> float | None:
        """z_0, the noise of the head's gradient over its clip; None where it has no release beside slopes."""
        if self.head_share is None:
            return None
        return self.effective_multiplier / math.sqrt(self.head_share)

    @property
    def scale(self) -> float:
        """Deviation of the noise on the integers, s = z G."""
        return self.noise_multiplier * self.grid


def require_system_noise(source: str) -> None:
    """Raise SpecError for noise that proves nothing."""
    if source != "system":
        raise SpecError(
            f'privacy.noise: "{source}" noise proves nothing, since whoever has its source subtracts it; mode "sound" '
            'wants "system"'
        )


def require_delta(delta: float, rows: int, *, permitted: bool) -> None:
    """Raise SpecError for a δ that is none, or not below 1/D and not permitted."""
    if not 0 < delta < 1:
        raise SpecError(f"privacy.delta: wanted a number between 0 and 1, got {delta}")
    if delta * rows >= 1 and not permitted:
        raise SpecError(
            f"privacy.delta: {delta:g} is not below 1/D = {1 / rows:g} and would permit revealing whole records; lower "
            "it, or say privacy.permit_large_delta = true"
        )


def default_delta(rows: int) -> float:
    """Return δ = 1/(10 D)."""
    return 1 / (10 * rows)
