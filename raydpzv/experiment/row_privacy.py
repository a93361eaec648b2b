"""Privacy of the methods that noise rows: their setting, their σ, and the accounting of a run in progress."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np

from raydpzv.config.scenario import Budget, VerticalScenario
from raydpzv.config.spec_opponents import Opponent, Vafl, ZooVfl
from raydpzv.config.timing import noised, opponent, round_trips
from raydpzv.errors import NotRecomputable, SpecError
from raydpzv.methods.roles import Upload
from raydpzv.privacy.row_accountant import RowSpending
from raydpzv.privacy.row_claims import row_defect
from raydpzv.privacy.row_setting import RowSetting, expected_participations, row_sigma
from raydpzv.settings.fields import per_client
from raydpzv.sim.interfaces import Spent


def row_setting(spec: VerticalScenario, rows: int) -> RowSetting | None:
    """Return what privacy depends on, or None for a run without noise or for another method."""
    method, privacy = opponent(spec), spec.privacy
    if method is None or privacy.mode == "none":
        return None
    return RowSetting(
        on=noised(method),
        rows=rows,
        batch=method.batch,
        updates=spec.budget.updates or 1,
        per_upload=method.releases_per_upload,
        clip=privacy.clip,
        sigma=opponent_sigma(spec, method, rows),
        delta=math.nan if privacy.delta is None else privacy.delta,
        batches=method.batches,
        noise=privacy.noise,
        shares=shares(spec),
        hidden=not isinstance(method, ZooVfl),
        width=spec.model.embedding,
        queries=isinstance(method, Vafl) and method.max_delay is not None,
        exact_shares=isinstance(method, Vafl) and method.synchrony == "synchronous",
        calibration=method.calibration,
        target=privacy.epsilon,
    )


def opponent_sigma(spec: VerticalScenario, method: Opponent, rows: int) -> float:
    """Return σ on each coordinate of a row: given, or calibrated to ε."""
    privacy = spec.privacy
    if privacy.mode == "none" or privacy.epsilon is None:
        return privacy.sigma or 0.0
    assert privacy.delta is not None
    assert privacy.clip is not None
    assert spec.budget.updates is not None
    on, updates, per_upload = noised(method), spec.budget.updates, method.releases_per_upload
    largest = math.ceil(updates * max(shares(spec)) * (1 - 1e-12)) if on == "embedding" else updates
    return row_sigma(
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        clip=privacy.clip,
        calibration=method.calibration,
        participations=expected_participations(
            on, method.batches, updates, per_upload, rows, method.batch, shares(spec)
        ),
        uploads=largest * per_upload,
        rate=method.batch / rows,
    )


def shares(spec: VerticalScenario) -> tuple[float, ...]:
    """Return each client's expected share of the updates.

    Even with a trace or a barrier of all; else by its rate, or without an activation clock by one over its mean round
    trip. Waiting, for the server or at a barrier of some, only evens shares out, so that the largest is an upper end.
    """
    clients, method = spec.split.clients, spec.method
    if spec.arrivals.kind == "trace" or (isinstance(method, Vafl) and method.synchrony == "synchronous"):
        rates = [1.0] * clients
    elif spec.arrivals.kind == "immediate":
        rates = _immediate_rates(spec)
    else:
        rates = per_client(spec.arrivals.rate, clients)
    return tuple(rate / sum(rates) for rate in rates)


def _immediate_rates(spec: VerticalScenario) -> list[float]:
    """Updates per second up to a factor; clients that need no time at all leave none for the others."""
    method, width = opponent(spec), spec.model.embedding
    assert method is not None
    bytes_up = 4 * method.batch * (1 + width * method.releases_per_upload)
    bytes_down = 4 if isinstance(method, ZooVfl) else 4 * method.batch * width
    trips = round_trips(spec, bytes_up, bytes_down)
    if min(trips) == 0:
        return [float(trip == 0) for trip in trips]
    return [1 / trip for trip in trips]


def check_first_upload(setting: RowSetting, budget: Budget) -> None:
    """Refuse an ε budget that not even one update fits into."""
    limit, ids = budget.epsilon, np.arange(setting.batch)
    if limit is None:
        return
    if _account(setting).would_exceed(0, ids, setting.per_upload, limit, budget.adversary):
        raise SpecError(
            f"budget.epsilon: one update alone exceeds ε={limit:g} against {budget.adversary} (δ={setting.delta:g}); "
            "raise it, add noise, or ask: raydpzv privacy"
        )


def check_recomputable(spec: VerticalScenario, path: Path, *, replay: bool) -> None:
    """Raise NotRecomputable for a run that its record cannot bring back."""
    method = opponent(spec)
    if method is None:
        return
    if spec.privacy.mode != "none" and spec.privacy.noise == "system":
        raise NotRecomputable(
            f"{path}: its noise on every {noised(method)} row came from the operating system and was not kept, so it "
            "cannot be computed again; start a new run"
        )
    if replay and isinstance(method, Vafl) and method.max_delay is not None:
        raise NotRecomputable(
            f"{path}: what its queries were answered with (method.max_delay) hangs on the times of its messages, which "
            "a replay does not have; with the virtual clock the same scenario runs to the same bits"
        )


class RowPrivacyFilter:
    """Counts every record's releases and refuses an upload that would exceed the budget.

    Noise on embeddings is added by the clients, each of which keeps an account of its own and does not send an upload
    that would pass the budget. The simulator looks into these accounts when an upload comes, and when the run is over
    into those of the uploads still under way: what is refused was never sent.
    """

    def __init__(self, setting: RowSetting, budget: Budget) -> None:
        self._setting, self._budget = setting, budget
        self._spending = _account(setting)
        self.of_uploads = setting.on == "embedding"

    def refuses(self, upload: Upload) -> str | None:
        """Return why serving this upload would exceed the ε budget, or None."""
        limit, releases = self._budget.epsilon, self._setting.per_upload
        if limit is None or not self._spending.would_exceed(
            upload.client, upload.ids, releases, limit, self._budget.adversary
        ):
            return None
        return (
            f"the next release would exceed the budget ε={limit:g} (adversary {self._budget.adversary}, "
            f"δ={self._setting.delta:g}, replace one record)"
        )

    def charge(self, client: int, ids: np.ndarray, releases: int) -> tuple[float, float]:
        """Account releases of these rows; return ε so far: claimed by the calibration, proved against the clients."""
        self._spending.add(client, ids, releases)
        against_clients = self._setting.adversary == "client"
        return self._spending.claimed(), self._spending.epsilon() if against_clients else math.inf

    def spent(self) -> Spent:
        """Return what the final claims need."""
        s = self._spending
        return Spent(s.releases, s.participations, s.largest_batch, s.rows, s.uploads)


def final_row_setting(setting: RowSetting, spent: Spent) -> RowSetting:
    """Return a finished run's setting: what was planned replaced by what was counted."""
    if spent.releases == 0:
        return setting
    return dataclasses.replace(
        setting, counted=spent.counted, rows_released=spent.rows, uploads=spent.uploads
    )


def _account(setting: RowSetting) -> RowSpending:
    return RowSpending(setting, private=not row_defect(setting))
