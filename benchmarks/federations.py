"""What `decomfl_round` and `fedavg_round` train: images of noise shared out among clients, also as
published.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from published import Constants, Published, as_published

from raydpzv.config.scenario import HorizontalScenario
from raydpzv.data.horizontal import split_rows
from raydpzv.data.table import Split, Table
from raydpzv.experiment.horizontal import PreparedHorizontal
from raydpzv.experiment.prepare import timing
from raydpzv.keys import Key
from raydpzv.methods.horizontal.decomfl import DecomflConfig
from raydpzv.methods.horizontal.rounds import Cohorts, Sampled
from raydpzv.settings.sections import EvaluateSection
from raydpzv.settings.sections_horizontal import (
    HorizontalBudgetSection,
    HorizontalResourcesSection,
    HorizontalSplitSection,
    WholeModelSection,
)

_KEY = Key(0)
_CLASSES, _SHAPE = 10, (1, 28, 28)
_OUTPUTS = {"cnn_fashion": 62}
_NEVER = 10**9


@dataclass(frozen=True)
class Case:
    """What is trained: the network, P, clients M, cohort m, training rows, batch B."""

    model: str
    perturbations: int
    clients: int = 100
    cohort: int = 10
    rows: int = 6000
    batch: int = 32

    @property
    def name(self) -> str:
        """The table's first column."""
        return f"{self.model}, {self.perturbations}"


@dataclass(frozen=True)
class Way:
    """A way to do rounds: its name, whose program, threads, hosts on Ray (0: none)."""

    name: str
    published: bool
    threads: int
    hosts: int = 0


WAYS = tuple(
    Way(f"{name}, {threads} thread{'s' * (threads > 1)}", name == "as published", threads)
    for name in ("as published", "raydpzv")
    for threads in (1, 2)
)
OURS = tuple(way for way in WAYS if not way.published)
ON_RAY = Way("raydpzv on Ray, 2 hosts", False, 1, 2)


def federation_of(case: Case, rounds: int, threads: int = 1, hosts: int = 1) -> PreparedHorizontal:
    """Return a run of DeComFL of so many rounds, evaluated at its start and end alone."""
    method = DecomflConfig(cohort=case.cohort, batch=case.batch, perturbations=case.perturbations)
    return federation_with(method, case, rounds, threads, hosts)


def federation_with(
    method: Sampled, case: Case, rounds: int, threads: int = 1, hosts: int = 1
) -> PreparedHorizontal:
    """Return a run of any method that samples clients; of P, m and B in `case` the method has its
    own.
    """
    spec = HorizontalScenario(
        split=HorizontalSplitSection(how="iid", clients=case.clients),
        model=WholeModelSection(kind=case.model, outputs=_OUTPUTS.get(case.model), engine="torch"),
        method=method,  # type: ignore[arg-type]
        resources=HorizontalResourcesSection(threads=threads, hosts=hosts),
        budget=HorizontalBudgetSection(updates=rounds),
        evaluate=EvaluateSection(every=_NEVER),
    )
    split = Split(_images(case.rows, "train"), _images(case.batch, "test"))
    parts = split_rows(
        split.train.y, HorizontalSplitSection(how="iid", clients=case.clients), _KEY / "parts"
    )
    return PreparedHorizontal(spec, split, parts, timing(spec, case.clients))


def published_of(
    case: Case, prepared: PreparedHorizontal | None = None
) -> tuple[Published, Cohorts]:
    """Return the same run as published, and who takes part in which round."""
    prepared = prepared or federation_of(case, 1)
    train, method = prepared.split.train, prepared.spec.method
    assert isinstance(method, DecomflConfig)
    cohorts = Cohorts(case.clients, case.cohort, _KEY)
    constants = Constants(method.perturbations, method.lr, method.smoothing, method.batch)
    network = as_published(prepared.plan.model().module)  # type: ignore[arg-type]
    x, y = torch.from_numpy(train.x), torch.from_numpy(train.y)
    return Published(network, x, y, prepared.parts, cohorts, constants, _KEY), cohorts


def small() -> PreparedHorizontal:
    """Return a run that needs next to nothing and calls everything once."""
    return federation_of(Case("logistic", 2, clients=4, cohort=2, rows=40, batch=2), 2)


def _images(rows: int, part: str) -> Table:
    generator = (_KEY / "images" / part).generator()
    values = generator.standard_normal((rows, *_SHAPE), np.float32)
    return Table("noise", values, generator.permutation(np.arange(rows) % _CLASSES), _CLASSES)
