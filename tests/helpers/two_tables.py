"""Whole runs on two tables with the same releases: what is asked before the noise, and everything
else.

Releases are given out again by their address, at the sources where methods ask for noise. So a run
on another table differs from the first in its queries alone, if a proof's premises hold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_tree
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.experiment.parties import ServerFactory
from raydpzv.experiment.runner import run_local
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.foreign import without_digest
from raydpzv.methods.descriptor import NoiseParts
from raydpzv.privacy import integer_release
from raydpzv.privacy.integer_release import (
    GRID,
    IntegerNoise,
    IntegerRelease,
    SystemIntegers,
    release_integers,
)
from raydpzv.privacy.mean import MeanReleasePlan
from raydpzv.privacy.mechanisms import GradientRelease, Noise, Receipt, RowNoise, SystemNoise
from raydpzv.privacy.user_release import UserNoiseParts
from raydpzv.records.publish import publication

Address = tuple[int, ...]
_COINS = 5
"""The secret that coins of batches and users come from, the same in every run."""


@dataclass
class Tape:
    """Queries and releases of one run. given: releases of another run, in place of new ones; rows:
    of each upload.
    """

    given: Mapping[Address, np.ndarray] = field(default_factory=dict)
    queries: dict[Address, np.ndarray] = field(default_factory=dict)
    released: dict[Address, np.ndarray] = field(default_factory=dict)
    rows: dict[Address, np.ndarray] = field(default_factory=dict)
    limits: dict[Address, float] = field(default_factory=dict)

    def release(self, address: Address, query: Any, limit: float, fresh: Callable[[], Any]) -> Any:
        """Note a query, and how far the account lets one record, or user, move it; return its
        release.
        """
        assert address not in self.queries, "every release has an address of its own"
        self.queries[address] = np.array(query)
        self.limits[address] = limit
        self.released[address] = (
            np.array(self.given[address]) if address in self.given else np.array(fresh())
        )
        return self.released[address]


@dataclass
class TapedIntegers:
    """Sums of integers: one vector of P queries."""

    tape: Tape
    inner: IntegerNoise = field(default_factory=SystemIntegers)

    def release(
        self,
        sums_P: np.ndarray,
        how: IntegerRelease,
        address: tuple[int, int],
        *,
        batch: int,
        nonfinite: int,
    ) -> tuple[np.ndarray, Receipt]:
        fresh, receipt = self.inner.release(sums_P, how, address, batch=batch, nonfinite=nonfinite)
        return self.tape.release(
            address, sums_P, receipt.sensitivity_replace, lambda: fresh
        ), receipt


@dataclass
class TapedMeans:
    """Clipped means of DPZV; limit: how far one record moves one."""

    tape: Tape
    limit: float
    source: str = "system"
    inner: Noise = field(default_factory=SystemNoise)

    def release(self, mean: float, sigma: float, address: Address) -> float:
        return float(
            self.tape.release(
                address, mean, self.limit, lambda: self.inner.release(mean, sigma, address)
            )
        )


class Draws:
    """Noise that is still to be added to rows: adding it to a query releases that.

    numpy leaves the sum to this class, since it does not take part in ufuncs.
    """

    __array_ufunc__ = None

    def __init__(self, release: Callable[[np.ndarray], np.ndarray]) -> None:
        self._release = release

    def reshape(self, shape: Any) -> Draws:
        return self

    def __rmul__(self, sigma: float) -> Draws:
        return self

    def __radd__(self, query: np.ndarray) -> np.ndarray:
        return self._release(query)


@dataclass
class TapedRows:
    """Rows of embeddings, each clipped to a norm; limit: how far one record moves its own row."""

    tape: Tape
    limit: float
    sigma: float
    source: str = "system"
    inner: RowNoise = field(default_factory=SystemNoise)

    def normal(self, count: int, address: Address) -> Any:
        def release(query: np.ndarray) -> np.ndarray:
            draws = self.inner.normal(count, address).reshape(query.shape)
            found: np.ndarray = self.tape.release(
                address, query, self.limit, lambda: query + self.sigma * draws
            )
            return found

        return Draws(release)

    def uniform(self, count: int, address: Address) -> np.ndarray:
        raise AssertionError("no method with a proof has noise inside its layers")


@dataclass
class TapedGradient:
    """Sums of the head's clipped gradients, in the order in which they are released."""

    tape: Tape
    how: GradientRelease

    @property
    def clip(self) -> float:
        return self.how.clip

    def release(self, total: np.ndarray) -> np.ndarray:
        place = list(self.tape.rows)[-1]
        found: np.ndarray = self.tape.release(
            (*place, -1), total, 2 * self.how.clip, lambda: self.how.release(total)
        )
        return found

    def receipt(self, batch: int) -> Receipt:
        return self.how.receipt(batch)


@dataclass(frozen=True)
class TapedParts(NoiseParts):
    """The noise of a vertical run that is taped; moved: how far one record moves a mean."""

    tape: Tape = field(default_factory=Tape)
    moved: float = 0.0

    def of_integers(self) -> IntegerNoise:
        return TapedIntegers(self.tape)

    def of_means(self) -> Noise:
        return TapedMeans(self.tape, self.moved)

    def of_rows(self, place: Any) -> RowNoise | None:
        return (
            TapedRows(self.tape, 2 * (self.clip or 0.0), self.sigma) if self.on == place else None
        )


@dataclass(frozen=True)
class TapedUsers(UserNoiseParts):
    """The noise of a run of users that is taped: a share is added to a silo's sum, or to a
    step's.
    """

    tape: Tape = field(default_factory=Tape)

    def share(self, count: int, parties: int, address: tuple[int, int, int], **named: Any) -> Any:
        drawn, receipt = super().share(count, parties, address, **named)

        def release(query: np.ndarray) -> np.ndarray:
            found: np.ndarray = self.tape.release(
                address, query, 2 * self.release.sensitivity, lambda: query + drawn
            )
            return found

        return Draws(release), receipt


@dataclass(frozen=True)
class Seen:
    """A run on one table."""

    tape: Tape
    prepared: Any
    public: dict[str, Any]
    """By name what may not depend on any record."""
    nonfinite: int
    """Terms that were no numbers and counted as 0. The digest covers how many; nobody is told."""


def seen(
    spec: AnyScenario, before: Seen | None = None, change: Callable[[Any], Any] = lambda p: p
) -> Seen:
    """Run a scenario from its raw file to its end. before: whose releases are given out again;
    change: of what is read.

    The run's digest covers its rows, and with them times, sizes, batches, evaluations and releases.
    """
    tape = Tape(before.tape.released if before else {})
    prepare: Any = {"vertical": prepare_vertical, "horizontal": prepare_horizontal}[spec.kind]
    prepared = change(prepare(spec, _COINS))
    with pytest.MonkeyPatch.context() as patch:
        found = run_local(_taped(prepared, tape, patch))
    tree = without_digest(as_tree(spec))
    tree["data"] = {k: v for k, v in tree["data"].items() if k not in ("file", "folder")}
    summary = found.summary
    public = {
        "settings": tree,
        "releases": sorted(tape.queries),
        "shapes": {address: query.shape for address, query in tape.queries.items()},
        "batches": {address: rows.tolist() for address, rows in tape.rows.items()},
        "models": {party: values.tobytes() for party, values in found.models.items()},
        "claims": summary["epsilon"],
        "published": publication(summary, tree, {}),
        "updates": summary["updates"],
        "digest": summary["digest"],
        **_of_kind(prepared),
    }
    nonfinite = sum(found.tables["release"].column("nonfinite").to_pylist())
    return Seen(tape, prepared, public, nonfinite)


def _of_kind(prepared: Any) -> dict[str, Any]:
    setting = dataclasses.asdict(prepared.setting)
    if prepared.spec.kind == "vertical":
        held_out = [c.x_held_out.tobytes() for c in prepared.clients]
        return {
            "setting": setting,
            "numbers": prepared.numbers.tolist(),
            "widths": [c.x_train.shape for c in prepared.clients],
            "classes": prepared.server.classes,
            "held out": (held_out, prepared.server.y_held_out.tobytes()),
            "start": [c.make().parameters().tobytes() for c in prepared.clients],
            "unused": prepared.unused,
        }
    x, y = prepared.split.held_out
    return {
        "setting": setting,
        "silos": prepared.parts.clients,
        "users": prepared.parts.users,
        "width": prepared.split.train.shape,
        "classes": prepared.split.train.classes,
        "held out": (x.tobytes(), y.tobytes()),
        "unused": prepared.unused,
    }


def _taped(prepared: Any, tape: Tape, patch: pytest.MonkeyPatch) -> Any:
    if prepared.spec.kind == "horizontal":
        noise = TapedUsers(**vars(prepared.privacy.noise), tape=tape)
        return replace(prepared, privacy=replace(prepared.privacy, noise=noise))
    _note_rows(tape, patch)
    _tape_memoized(tape, patch)
    setting = prepared.setting
    moved = setting.sensitivity("replace") if isinstance(setting, MeanReleasePlan) else 0.0

    def taped(noise: NoiseParts) -> TapedParts:
        gradient: Any = TapedGradient(tape, noise.gradient) if noise.gradient else None
        return TapedParts(**vars(noise) | {"gradient": gradient}, tape=tape, moved=moved)

    clients = tuple(replace(c, noise=taped(c.noise)) for c in prepared.clients)
    return replace(
        prepared,
        clients=clients,
        server=replace(prepared.server, noise=taped(prepared.server.noise)),
    )


def _note_rows(tape: Tape, patch: pytest.MonkeyPatch) -> None:
    """Hear which rows each upload is about, where the server receives it."""
    make = ServerFactory.make

    def noting(self: ServerFactory, device: str = "cpu") -> Any:
        server: Any = make(self, device)
        receive = server.receive

        def received(upload: Any) -> Any:
            tape.rows[upload.client, upload.step] = upload.ids.copy()
            return receive(upload)

        server.receive = received
        return server

    patch.setattr(ServerFactory, "make", noting)


def _tape_memoized(tape: Tape, patch: pytest.MonkeyPatch) -> None:
    """Tape the rows that are noised once and for all, in the order in which they are."""

    def once(whole: np.ndarray, how: IntegerRelease, **of: Any) -> Any:
        fresh, receipt = release_integers(whole, how, **of)
        if how.rows != 1:
            return fresh, receipt
        released = tape.release((len(tape.queries),), whole, 2 * GRID, lambda: fresh)
        return released, receipt

    patch.setattr(integer_release, "release_integers", once)
