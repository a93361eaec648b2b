"""Options that belong together: each group is a dataclass, each field an option of the command line.

The docstring under a field is its help, unless its type brings one (`scenarios.options`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from scenarios.options import Address, Explain, Jobs, Json, Log, Quiet, Seed, Set, Storage, Verbose

if TYPE_CHECKING:
    from raydpzv.search.space import Dimension

DRAWS = 10
"""Default number of draws if the space has random settings."""


@dataclass(frozen=True)
class SettingChanges:
    """Settings that differ from the scenario's."""

    set_: Set = None
    seed: Seed = None

    @property
    def settings(self) -> list[str]:
        """The changes as key=value."""
        return [*(self.set_ or []), *([] if self.seed is None else [f"seed={self.seed}"])]


@dataclass(frozen=True)
class Output:
    """What is printed: JSON alone, no progress, notes too, tracebacks."""

    as_json: Json = False
    quiet: Quiet = False
    explain: Explain = False
    verbose: Verbose = False


@dataclass(frozen=True)
class ShortOutput:
    """The same for commands without notes."""

    as_json: Json = False
    quiet: Quiet = False
    verbose: Verbose = False

    @property
    def full(self) -> Output:
        """The same with no notes."""
        return Output(self.as_json, self.quiet, explain=False, verbose=self.verbose)


@dataclass(frozen=True)
class RunOutputs:
    """Where a run is written: its folder and a storage; whether it may be there already."""

    out: Path | None = None
    """Run folder to write [default: runs/SCENARIO-...]"""
    or_resume: bool = False
    """Resume an interrupted run of the same settings in --out or --storage, or show a complete one."""
    storage: Storage = None
    log: Log = None


@dataclass(frozen=True)
class ComparisonOptions:
    """The methods, seeds and values of a comparison, as typed."""

    methods: str | None = None
    """More methods by name, separated by commas, with their default settings."""
    seeds: str | None = None
    """Number of seeds, from 0; or a list: 0,7,9 [default: 3]."""
    epsilons: str | None = None
    """Values of ε, separated by commas; "none": no noise [default: none]."""
    targets: str | None = None
    """Test accuracies whose cost the tables show [default: 0.8,0.9]."""
    heads: str | None = None
    """Sentence for the tables: why the methods' heads learn differently."""


@dataclass(frozen=True)
class Pool:
    """Where the runs of a comparison are made."""

    jobs: Jobs = None
    runner: str = "auto"
    """auto (Ray if it is installed and has cores), local (one by one) or ray (side by side)."""
    address: Address = None


@dataclass(frozen=True)
class TrialPool(Pool):
    """Where the trials of a search are made."""

    runner: str = "auto"
    """auto or ray (side by side on Ray Tune), or local (one by one, without Ray)."""


@dataclass(frozen=True)
class SearchOptions:
    """How a space is searched, as typed; None: the default of the scenario or of the space."""

    samples: Annotated[int | None, Option(min=1)] = None
    """Draws of the random settings [default: 10, with optuna 30]."""
    search: str = "random"
    """random, or optuna, which learns from earlier trials."""
    metric: str | None = None
    """Metric that chooses the best [default: validation_accuracy if validation rows exist, else accuracy]."""
    scheduler: str = "none"
    """none, asha (pauses weak trials) or pbt (weak trials copy better ones)."""
    grace: Annotated[int | None, Option(min=1)] = None
    """With asha: updates before trials pause or stop [default: an eighth, by Ray Tune's rule a ninth]."""
    interval: Annotated[int | None, Option(min=1)] = None
    """With pbt: updates between comparisons of the trials [default: a tenth]."""
    quantile: float | None = None
    """With pbt: share of the trials that copy as many best ones [default: 0.25]."""
    epsilon: float | None = None
    """Do not start trials whose proved ε exceeds this."""
    draw_seed: Annotated[int, Option(min=0)] = 0
    """Seed of the draws."""
    actors: bool = False
    """Give each trial its own actors on Ray, as run --runner ray does."""

    def draws(self, space: Sequence[Dimension]) -> int:
        """Return how many draws a search makes that does not learn, at each point of its grid."""
        return self.samples or (DRAWS if any(d.kind != "grid" for d in space) else 1)

    def words(self) -> Iterator[str]:
        """Yield the words of the command line for these options, without those that have their default."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                yield f"--{field.name.replace('_', '-')}"
                if value is not True:
                    yield str(value)


@dataclass(frozen=True)
class AuditOptions:
    """How a run is audited, as typed; canaries: None for the default of the kind."""

    by: str = "ledger"
    """ledger (recomputed queries), runs (one canary in or out of many runs), guesses (many canaries in one run) or
    labels (clients guess labels, over ε)."""
    canaries: int | None = None
    """Records to change [default: 3; guesses: 200; labels: 20]."""
    row: list[int] | None = None
    """Training row to change instead of a drawn one. May be repeated."""
    kind: list[str] | None = None
    """Change of a record: label, features or absent; in turn if repeated [default: the run's relation]."""
    runs: int = 100
    """Runs to make (--by runs)."""
    epsilons: str = "0.5,1,2,4,8"
    """Values of ε (--by labels)."""


@dataclass(frozen=True)
class JobOptions:
    """The cluster, its job, and the run folder on the cluster and here."""

    address: str | None = None
    """HTTP address of the cluster's dashboard [default: RAY_API_SERVER_ADDRESS, RAY_ADDRESS, or
    http://127.0.0.1:8265]."""
    project: Path = Path()
    """Folder to pack and to run in; .gitignore and .rayignore exclude files."""
    there: str | None = None
    """Run folder on the cluster, for a disk that lasts [default: ~/raydpzv/JOB on the head]."""
    out: Path | None = None
    """With --storage: folder here to download to [default: runs/SCENARIO-...]"""
    no_fetch: bool = False
    """Download nothing."""
    no_wait: bool = False
    """Submit and leave; --job comes back to it."""
    job: str | None = None
    """A job submitted before, to follow and to download, instead of a scenario."""
    stop: bool = False
    """With --job: stop it."""
