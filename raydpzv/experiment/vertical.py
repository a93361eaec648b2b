"""From a scenario to everything a run needs; all errors in the input show here, before anything is written."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from raydpzv.config.scenario import Dpzv, Scenario, VerticalScenario
from raydpzv.config.timing import links, opponent
from raydpzv.config.toml import as_toml
from raydpzv.data.builtin import Mixture
from raydpzv.data.sources import load
from raydpzv.data.table import Limits, Split, limit, scale
from raydpzv.data.text import Text
from raydpzv.data.vertical import Part, partition
from raydpzv.errors import DataError, SpecError
from raydpzv.experiment.initial_model import BottomPlan
from raydpzv.experiment.parties import ClientRecipe, Releases, ServerRecipe
from raydpzv.experiment.privacy_filter import MeanPrivacyFilter
from raydpzv.experiment.row_privacy import RowPrivacyFilter, check_first_upload, opponent_sigma, row_setting
from raydpzv.keys import Key
from raydpzv.privacy.calibration import paper_sigma
from raydpzv.privacy.mean_claims import spending
from raydpzv.privacy.mean_setting import Setting
from raydpzv.privacy.row_setting import RowSetting
from raydpzv.privacy.statements import AnySetting
from raydpzv.settings.fields import per_client
from raydpzv.sim.arrivals import Arrivals, Constant, Immediate, Poisson, Trace
from raydpzv.sim.delays import DelayModel
from raydpzv.sim.interfaces import Budget, NoPrivacyFilter, PrivacyFilter
from raydpzv.sim.virtual import Timing


@dataclass(frozen=True)
class PreparedVertical:
    """A scenario with its data loaded, its parties' recipes ready and its privacy setting known.

    setting: None for a run without noise.
    """

    spec: VerticalScenario
    clients: tuple[ClientRecipe, ...]
    server: ServerRecipe
    parts: tuple[Part, ...]
    setting: AnySetting | None
    timing: Timing

    def privacy_filter(self) -> PrivacyFilter:
        """Return a fresh privacy accountant."""
        if isinstance(self.setting, RowSetting):
            return RowPrivacyFilter(self.setting, self.spec.budget)
        return MeanPrivacyFilter(self.setting, self.spec.budget) if self.setting else NoPrivacyFilter()

    def budget(self) -> Budget:
        """Return what ends the run (besides the privacy_filter)."""
        b = self.spec.budget
        return Budget(b.updates, b.seconds, b.bytes)

    def plan(self) -> BottomPlan | None:
        """Return the clients' models and how releases move them; None for methods without releases."""
        if not isinstance(self.spec.method, Dpzv):
            return None
        return BottomPlan(self.spec, tuple(c.x_train.shape[1:] for c in self.clients))

    def fingerprint(self) -> dict[str, Any]:
        """Return digests of scenario and data, by which a continuation knows its run, and what its models take in."""
        arrays = [array for c in self.clients for array in (c.x_train, c.x_test)]
        found = fingerprint(self.spec, [*arrays, self.server.y_train, self.server.y_test])
        plan = self.plan()
        return found | (plan.facts() if plan else {})

    def skipped_rows(self) -> frozenset[str]:
        """Return the row types this scenario does not keep."""
        return frozenset() if self.spec.record.staleness else frozenset({"staleness"})

    def with_record(self, releases: Releases, *, continues: bool) -> PreparedVertical:
        """Return the experiment with recorded releases in place of new ones."""
        return replace(self, server=replace(self.server, recorded=releases, continues=continues))


def prepare(spec: VerticalScenario) -> PreparedVertical:
    """Load the data, share it out and build recipes. Raises SpecError and DataError."""
    split = load_data(spec)
    rows = split.train.rows
    columns = [list(c) for c in spec.split.columns] if spec.split.columns is not None else None
    parts = partition(
        split.train.x.shape[1:], spec.split.how, spec.split.clients, columns=columns, grid=spec.split.grid
    )
    if spec.method.batch > rows:
        raise SpecError(
            f"method.batch: wanted at most {rows}, the number of training rows, got {spec.method.batch}"
        )
    sigma = _sigma(spec, rows)
    clients = tuple(
        ClientRecipe(spec, m, part.select(split.train.x), part.select(split.test.x), sigma)
        for m, part in enumerate(parts)
    )
    for recipe in clients:
        recipe.check()
    server = ServerRecipe(spec, split.train.y, split.test.y, split.train.classes, sigma)
    server.check()
    found = setting(spec, rows)
    _check_first_release(spec, found)
    return PreparedVertical(spec, clients, server, parts, found, timing(spec, spec.split.clients))


def fingerprint(spec: Scenario, arrays: Sequence[np.ndarray]) -> dict[str, str]:
    """Return digests of a resolved scenario and of its data."""
    data = hashlib.sha256()
    for array in arrays:
        data.update(str((array.shape, array.dtype.str)).encode() + np.ascontiguousarray(array).tobytes())
    if spec.arrivals.file is not None:
        data.update(Path(spec.arrivals.file).read_bytes())
    scenario = hashlib.sha256(as_toml(spec).encode())
    return {"scenario_sha256": scenario.hexdigest(), "data_sha256": data.hexdigest()}


def setting(spec: VerticalScenario, rows: int) -> AnySetting | None:
    """Return what privacy depends on, or None for a run without noise."""
    if opponent(spec):
        return row_setting(spec, rows)
    method, privacy = spec.method, spec.privacy
    if privacy.mode == "none" or not isinstance(method, Dpzv):
        return None
    assert privacy.clip is not None
    assert privacy.delta is not None
    return Setting(
        rows=rows,
        batch=method.batch,
        releases=_planned_releases(spec),
        clip=privacy.clip,
        sigma=_sigma(spec, rows),
        delta=privacy.delta,
        batches=method.batches,
        server=method.server,
        noise=privacy.noise,
        target=privacy.epsilon,
        clients=spec.split.clients,
        perturbations=method.perturbations,
    )


def _check_first_release(spec: VerticalScenario, found: AnySetting | None) -> None:
    """Refuse an ε budget that not even one update fits into."""
    limit = spec.budget.epsilon
    if isinstance(found, RowSetting):
        check_first_upload(found, spec.budget)
        return
    if limit is None or found is None:
        return
    batch = np.arange(found.batch)
    if spending(found).would_exceed(batch, limit, spec.budget.adversary, found.perturbations):
        raise SpecError(
            f"budget.epsilon: one update alone exceeds ε={limit:g} against {spec.budget.adversary} "
            f"(δ={found.delta:g}, replace one record); raise it, add noise, or ask: raydpzv privacy"
        )


def timing(spec: Scenario, clients: int) -> Timing:
    """Return arrivals, delays and network of a scenario."""
    key, clock = Key(spec.seed), spec.clock
    return Timing(
        _arrivals(spec, clients, key),
        DelayModel(
            per_client(clock.compute, clients), clock.compute_law, key / "compute", clock.compute_quantum
        ),
        DelayModel([clock.service], clock.service_law, key / "service"),
        links(spec, clients),
    )


def load_data(spec: Scenario) -> Split:
    """Load a scenario's data, cut to size and scaled."""
    data, key = spec.data, Key(spec.seed) / "data"
    split = load(
        data.source,
        Path(data.folder) if data.folder else None,
        file=Path(data.file) if data.file else None,
        target=data.target,
        test_fraction=data.test_fraction,
        key=key / "split",
        mixture=Mixture(data.rows, data.columns, data.classes, steps=data.steps),
        text=Text(data.tokens, data.vocabulary),
        limits=Limits(data.train_rows, data.test_rows, key / "limit"),
    )
    return scale(limit(split, data.train_rows, data.test_rows, key / "limit"), data.scale)


def _planned_releases(spec: VerticalScenario) -> int:
    """Scalars the run is to release; without a budget of updates, one, so that claims made ahead are a lower end."""
    assert isinstance(spec.method, Dpzv)
    return (spec.budget.updates or 1) * spec.method.perturbations


def _sigma(spec: VerticalScenario, rows: int) -> float:
    privacy = spec.privacy
    if found := opponent(spec):
        return opponent_sigma(spec, found, rows)
    if privacy.mode == "none" or privacy.epsilon is None:
        return privacy.sigma or 0.0
    assert privacy.delta is not None
    assert privacy.clip is not None
    return paper_sigma(
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        clip=privacy.clip,
        releases=_planned_releases(spec),
        rows=rows,
    )


def _arrivals(spec: Scenario, clients: int, key: Key) -> Arrivals:
    arrivals = spec.arrivals
    if arrivals.kind == "trace":
        assert arrivals.file is not None
        return Trace(_trace(Path(arrivals.file), clients))
    if arrivals.kind == "immediate":
        return Immediate()
    rates = per_client(arrivals.rate, clients)
    return Poisson(rates, key) if arrivals.kind == "poisson" else Constant(rates)


def _trace(path: Path, clients: int) -> dict[int, list[float]]:
    """Read a trace file with the columns client and time, one row per activation."""
    try:
        parquet = path.suffix == ".parquet"
        table = pyarrow.parquet.read_table(path) if parquet else pyarrow.csv.read_csv(path)
        client, times = table.column("client"), table.column("time")
        if not pa.types.is_integer(client.type):
            raise ValueError(f"client numbers are whole, these are {client.type}")
        pairs = list(zip(client.to_pylist(), map(float, times.to_pylist()), strict=True))
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{path}: wanted a CSV or Parquet trace with the columns client and time ({reason})"
        ) from None
    if not pairs:
        raise DataError(f"{path}: the trace has no rows; give at least one activation")
    if not all(0 <= time < math.inf for _, time in pairs):
        raise DataError(
            f"{path}: the trace has a time that is negative or not finite; times are seconds from 0"
        )
    if stray := {c for c, _ in pairs} - set(range(clients)):
        raise DataError(f"{path}: the trace names client {min(stray)}; there are clients 0..{clients - 1}")
    epochs: dict[int, list[float]] = {}
    for client, time in pairs:
        epochs.setdefault(client, []).append(time)
    return epochs
