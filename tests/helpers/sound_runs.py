"""Small runs of privacy.mode = "proved" on a table of a file, with releases that are given out and
queries kept.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import scenarios
from raydpzv.config.scenario import VerticalScenario
from raydpzv.experiment.vertical import PreparedVertical, prepare_vertical
from raydpzv.keys import Key
from raydpzv.methods.descriptor import NoiseParts
from raydpzv.privacy.integer_release import IntegerNoise, IntegerRelease, Integers, SystemIntegers
from raydpzv.privacy.mechanisms import Receipt

ROWS, COLUMNS, CLASSES, CLIENTS = 80, 6, 3, 3
Address = tuple[int, int]

SMALL = (
    "data.source=csv",
    "data.target=label",
    "split.how=columns",
    f"split.clients={CLIENTS}",
    "data.scale=public",
    "data.centre=0.0",
    "data.spread=2.0",
    "data.split=plain",
    "data.classes=[0, 1, 2]",
    f"model.embedding={CLASSES}",
    "method.batch=8",
    "method.perturbations=3",
    "budget.updates=60",
    "method.lr=0.3",
    "privacy.epsilon=3.0",
    "evaluate.every=30",
    "model.initial=random",
)


def table(path: Path, changed: int | None = None) -> Path:
    """Write a table of three classes; changed: the row whose label and features are others."""
    generator = Key(5).generator()
    x = generator.standard_normal((ROWS, COLUMNS))
    labels = generator.permutation(np.arange(ROWS) % CLASSES)
    if changed is not None:
        x[changed] *= -50
        labels[changed] = (labels[changed] + 1) % CLASSES
    names = [f"x{i}" for i in range(COLUMNS)]
    lines = [
        ",".join([*map(repr, row.tolist()), str(label)])
        for row, label in zip(x, labels, strict=True)
    ]
    path.write_text("\n".join([",".join([*names, "label"]), *lines]))
    return path


def sound(path: Path, *overrides: str) -> VerticalScenario:
    """Return the small scenario on a table."""
    spec = scenarios.load("digits_private", [*SMALL, f"data.file={path}", *overrides])
    assert isinstance(spec, VerticalScenario)
    return spec


@dataclass
class Watched:
    """Gives out releases by address, draws those it has not, and keeps every sum before its
    noise.
    """

    given: Mapping[Address, np.ndarray] = field(default_factory=dict)
    sums: dict[Address, np.ndarray] = field(default_factory=dict)
    released: dict[Address, np.ndarray] = field(default_factory=dict)
    system: IntegerNoise = field(default_factory=SystemIntegers)

    def release(
        self, sums_P: Integers, how: IntegerRelease, address: Address, *, batch: int, nonfinite: int
    ) -> tuple[np.ndarray, Receipt]:
        drawn, receipt = self.system.release(sums_P, how, address, batch=batch, nonfinite=nonfinite)
        self.sums[address] = sums_P
        self.released[address] = self.given.get(address, drawn)
        return self.released[address], receipt


@dataclass
class WatchedGradient:
    """The same for the head's gradients, in the order in which they are released."""

    how: Any
    given: Sequence[np.ndarray] = ()
    sums: list[np.ndarray] = field(default_factory=list)
    released: list[np.ndarray] = field(default_factory=list)

    @property
    def clip(self) -> float:
        clip: float = self.how.clip
        return clip

    def release(self, total: np.ndarray) -> np.ndarray:
        drawn: np.ndarray = self.how.release(total)
        place = len(self.sums)
        self.sums.append(total)
        self.released.append(self.given[place] if place < len(self.given) else drawn)
        return self.released[-1]


@dataclass(frozen=True)
class WatchedParts(NoiseParts):
    """Noise that is looked at."""

    watched: IntegerNoise = field(default_factory=Watched)

    def of_integers(self) -> IntegerNoise:
        return self.watched


@dataclass
class Transcript:
    """What a run of so many rounds asked and released; ids: the rows of each release."""

    slopes: Watched
    heads: WatchedGradient | None
    ids: dict[Address, np.ndarray]


def transcript(
    spec: VerticalScenario,
    before: Transcript | None = None,
    *,
    rounds: int = 60,
    spoil: Callable[[Any, list[Any]], None] = lambda server, clients: None,
) -> Transcript:
    """Serve clients in a fixed irregular order; before: whose releases are given out again.

    spoil: changes the roles before the first round.
    """
    experiment = prepare_vertical(spec)
    watched = Watched(before.slopes.released if before else {})
    server = watching(experiment, watched).make()
    heads = None
    if experiment.privacy.gradient is not None:
        heads = WatchedGradient(
            experiment.privacy.gradient, before.heads.released if before and before.heads else ()
        )
        server._release = replace(server._release, head=heads)  # type: ignore[attr-defined]
    clients = [c.make() for c in experiment.clients]
    spoil(server, clients)
    ids = {}
    for m in (Key(6) / "wakes").generator().integers(0, CLIENTS, rounds).tolist():
        upload = clients[m].work()
        (order,) = server.receive(upload)
        clients[m].apply(order)
        if order.releases:
            found = order.releases[0]
            ids[m, found.step] = found.ids
    return Transcript(watched, heads, ids)


def watching(experiment: PreparedVertical, watched: IntegerNoise) -> Any:
    """Return the server's factory with noise that is looked at."""
    parts = WatchedParts(**vars(experiment.server.noise), watched=watched)
    return replace(experiment.server, noise=parts)
