"""Noise on rows of an array, one row a record's: what a run releases, and the noise for a target (ε, δ).

On "embedding", every client clips each row of what it uploads to norm S and noises every coordinate; on "gradient", the
server does so with each row of what it answers. Replacing a record moves its own row by at most 2S, so that n releases
of one record's rows are (2S√n/σ)-GDP, if nothing but its own row depends on the record.

The DPZV papers say of their baselines only that they clip embeddings and add calibrated noise. VAFL Theorem 6 has
c = O(B√K / (μD)), a constant left open. Two calibrations are offered: "counted", σ = 2S√n/μ with n the releases that a
record takes part in by the plan, and "sampled", σ = 2S (B/D) √K/μ with K releases of batches, which is the argument
(and the constant) of DPZV Theorem VI.5. The second is a claim: the batches are known to whoever sees the rows.
"""

# M clients, D rows, B batch, T updates, P releases per upload, S clip, K releases of batches, n releases of one record

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from raydpzv.errors import InputError, SpecError, suggest
from raydpzv.privacy.calibration import BATCHES, planned_participations
from raydpzv.privacy.gdp import mu_of

PLACES = ("embedding", "gradient")
"""What is noised: what the clients send (against the server), or what the server sends (against the clients)."""
CALIBRATIONS = ("counted", "sampled")
"""Noise for the releases that one record takes part in, or with the sampling rate as the DPZV papers argue."""


@dataclass(frozen=True)
class RowSetting:
    """A run's releases of rows, planned or made; SpecError where a value makes no sense.

    `shares` is each client's expected share of the T updates. `hidden`: is there state that was trained on records
    without noise and that later rows depend on? `planned`: is `updates` what is planned or was made, or one for want of
    a plan? `fitted`: where one record moves what others are before any release, one clause each. `queries`: may rows be
    asked for again? `counted`, `rows_released` and `uploads` are facts of a finished run (None before): the most
    releases of one record's rows, all rows released, and the uploads, each of the client with most of them if the
    clients release (each has features of its own to protect), else of all together.
    """

    on: str
    rows: int
    batch: int
    updates: int
    per_upload: int
    clip: float | None
    sigma: float
    delta: float
    batches: str
    noise: str
    shares: tuple[float, ...]
    hidden: bool
    width: int
    queries: bool = False
    exact_shares: bool = False
    calibration: str = "counted"
    target: float | None = None
    counted: int | None = None
    rows_released: int | None = None
    uploads: int | None = None
    planned: bool = True
    fitted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, known in (("on", PLACES), ("batches", BATCHES), ("calibration", CALIBRATIONS)):
            value = getattr(self, name)
            if value not in known:
                raise SpecError(f'privacy {name} "{value}": {suggest(value, known)}Known: {", ".join(known)}')
        if not 0 <= self.sigma < math.inf:
            raise SpecError(f"want a finite σ >= 0, not {self.sigma}")

    @property
    def adversary(self) -> str:
        """Against whom the noise is."""
        return "server" if self.on == "embedding" else "client"

    @property
    def expected_uploads(self) -> int:
        """K/P as planned: of the client with the largest share if the clients release, else all."""
        if self.uploads is not None:
            return self.uploads
        return _uploads(self.updates, self.shares) if self.on == "embedding" else self.updates

    @property
    def expected_participations(self) -> int:
        """n of the calibration: releases of one record's rows if every client makes its share of the updates."""
        return expected_participations(
            self.on, self.batches, self.updates, self.per_upload, self.rows, self.batch, self.shares
        )

    @property
    def participations(self) -> int:
        """The most releases of one record's rows: counted, or bounded for every arrival order."""
        if self.counted is not None:
            return self.counted
        most = self._most_uploads * self.per_upload
        if self.queries:
            return most
        return planned_participations(
            batches=self.batches,
            releases=most,
            rows=self.rows,
            batch=self.batch,
            clients=1 if self.on == "embedding" else len(self.shares),
            perturbations=self.per_upload,
        )

    @property
    def released(self) -> int:
        """Rows released, each with noise of its own: counted, or bounded for every arrival order."""
        if self.rows_released is not None:
            return self.rows_released
        largest = self.rows if self.batches == "poisson" else self.batch
        return self._most_uploads * self.per_upload * largest

    @property
    def sensitivity(self) -> float:
        """How far replacing a record moves its own row: 2S."""
        return math.inf if self.clip is None else 2 * self.clip

    @property
    def _most_uploads(self) -> int:
        """One client may make all updates, unless the method shares them out; and one upload may still be under way."""
        if self.on != "embedding":
            return self.updates
        return 1 + (_uploads(self.updates, self.shares) if self.exact_shares else self.updates)


def expected_participations(
    on: str, batches: str, updates: int, per_upload: int, rows: int, batch: int, shares: Sequence[float]
) -> int:
    """Return how many releases of one record's rows there are if each client makes its share of the updates.

    "shuffle": ⌈K_m / ⌊D/B⌋⌉ passes each; else the average K_m B/D, above which the maximum lies.
    """

    def passes(uploads: int) -> int:
        return -(-uploads // (rows // batch)) if batches == "shuffle" else math.ceil(uploads * batch / rows)

    each = [passes(_uploads(updates, [share])) for share in shares]
    return per_upload * (max(each) if on == "embedding" else sum(each))


def row_sigma(
    *,
    epsilon: float,
    delta: float,
    clip: float,
    calibration: str,
    participations: int,
    uploads: int,
    rate: float,
) -> float:
    """Return σ = 2S√n/μ ("counted") or 2S (B/D) √K/μ ("sampled"); InputError where no finite noise reaches (ε, δ).

    participations: n; uploads: K, releases of batches; rate: B/D.
    """
    mu = mu_of(epsilon, delta)
    if not 0 < mu < math.inf:
        raise InputError(f"no noise level gives ε={epsilon}, δ={delta}: give a finite ε and 0 < δ < 1")
    reach = math.sqrt(participations) if calibration == "counted" else rate * math.sqrt(uploads)
    return 2 * clip * reach / mu


def _uploads(updates: int, shares: Sequence[float]) -> int:
    """Uploads of the client with the largest share; the tolerance keeps 2000 x 0.25 at 500."""
    return math.ceil(updates * max(shares) * (1 - 1e-12))
