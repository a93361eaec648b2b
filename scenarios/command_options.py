"""What can be typed: a dataclass for each command, whose fields are its arguments and options.

The docstring of a command's class is its help, and the docstring under a field is the field's,
unless its type has one (`scenarios.options`). The command's work is in `scenarios.commands`, and is
imported when it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from raydpzv.search.search_terms import SearchTerms
from scenarios.options import (
    Address,
    Explain,
    Jobs,
    Json,
    Log,
    Moved,
    Quiet,
    RunnerName,
    ScenarioName,
    Seed,
    Set,
    Storage,
    Verbose,
    comparable_names,
    space_names,
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a command."""


@dataclass(frozen=True, kw_only=True)
class SettingChanges(Options):
    """Settings that differ from the scenario's."""

    set_: Set = None
    seed: Seed = None

    @property
    def changes(self) -> list[str]:
        """The changes as key=value."""
        return [*(self.set_ or []), *([] if self.seed is None else [f"seed={self.seed}"])]


@dataclass(frozen=True, kw_only=True)
class OtherFolders(Options):
    """What folders of other users may do."""

    trust_code: bool = False
    """Run the code that the folder names ("module:attribute"), though you did not make the folder
    here.
    """


@dataclass(frozen=True, kw_only=True)
class Output(Options):
    """What is printed: JSON alone, no progress, tracebacks."""

    as_json: Json = False
    quiet: Quiet = False
    verbose: Verbose = False


@dataclass(frozen=True, kw_only=True)
class FullOutput(Output):
    """The same for commands that print notes when asked."""

    explain: Explain = False


@dataclass(frozen=True, kw_only=True)
class ManyRuns(Output, OtherFolders):
    """How many runs are made at a time and on which cluster, and what is printed of them."""

    jobs: Jobs = None
    address: Address = None


@dataclass(frozen=True, kw_only=True)
class Execution(ManyRuns):
    """The same of a comparison."""

    runner: str = "auto"
    """auto (Ray if it is installed and has cores), local (processes of this machine) or ray."""


@dataclass(frozen=True, kw_only=True)
class RunCommand(SettingChanges, FullOutput, OtherFolders):
    """Run a scenario; write its run folder; print a summary."""

    scenario: ScenarioName
    out: Path | None = None
    """Run folder to write [default: runs/SCENARIO-...]"""
    or_resume: bool = False
    """Resume an interrupted run of the same settings in --out or --storage, or show a complete
    one.
    """
    storage: Storage = None
    runner: RunnerName = "local"
    log: Log = None
    address: Address = None


@dataclass(frozen=True, kw_only=True)
class ResumeCommand(FullOutput, OtherFolders):
    """Resume an interrupted run, comparison or search; under the virtual clock, to the same
    bits.
    """

    run: Annotated[str, Argument()]
    """Folder of an interrupted run, comparison or search, or the URI of a run's copy."""
    out: Path | None = None
    """With a URI: folder on this machine to download to [default: runs/NAME]."""
    runner: str | None = None
    """local (this process) or ray (actors) [default: local, under the wall clock the run's first
    runner; comparisons
    and searches: auto]."""
    moved: Moved = None
    log: Log = None
    address: Address = None


@dataclass(frozen=True, kw_only=True)
class NewCommand(Options):
    """Write a scenario for your own table, whose columns belong to several parties (vertical
    learning).
    """

    name: Annotated[str, Argument()]
    """Name of the scenario: NAME.toml is written."""
    data: Path
    """Your table: a CSV file with a heading, or a Parquet file."""
    target: str | None = None
    """Column to predict [default: "label" or "target", if there is one]."""
    parties: str | None = None
    """The columns of each party: "bank=income,age shop=visits"; put ; between parties if names have
    blanks [default: two parties with half of the columns each]."""
    private: bool = False
    """Add noise for a proved ε of 1."""
    public_from_data: bool = False
    """With --private: confirm that the file's classes, categories and rough ranges are public
    knowledge.
    """
    force: bool = False
    """Replace an existing NAME.toml."""


@dataclass(frozen=True, kw_only=True)
class CompareCommand(Execution):
    """Compare methods, values of ε and seeds on one split and budget, with controls beside them."""

    what: Annotated[list[str], Argument(autocompletion=comparable_names)]
    """A comparison (see `raydpzv list`, or a TOML file), or scenarios: the first gives data, split,
    model and budget, all give their methods."""
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
    set_: Set = None
    out: Path | None = None
    """Folder to write or to resume [default: runs/compare-...]"""
    latex: bool = False
    """Print the table alone on stdout, as LaTeX with medians and ranges."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions(SearchTerms, Options):
    """How a space is searched, as typed; None: the default of the scenario or of the space."""

    samples: Annotated[int | None, Option(min=1)] = None
    """Draws of the random settings [default: 10, with optuna 30]."""
    search: str = "random"
    """random, or optuna, which learns from earlier trials."""
    metric: str | None = None
    """Metric that chooses the best [default: validation_accuracy if validation rows exist, else
    accuracy].
    """
    scheduler: str = "none"
    """none, asha or hyperband (stop weak trials), or pbt (weak trials copy better ones)."""
    grace: Annotated[int | None, Option(min=1)] = None
    """With asha: updates before trials may stop [default: a ninth of the budget]."""
    interval: Annotated[int | None, Option(min=1)] = None
    """With pbt: updates between comparisons of the trials [default: a tenth]."""
    quantile: float | None = None
    """With pbt: share of the trials that copy as many best ones [default: 0.25]."""
    epsilon: float | None = None
    """Do not start trials whose proved ε exceeds this."""
    held_out: list[str] | None = None
    """Setting of [data] or [split] that the trials alone have, to choose on other rows than are
    reported: data.validation_fraction=0.2. May be repeated. [comparisons: this one]"""
    soonest: float | None = None
    """Choose what reaches this value of the metric in the fewest simulated seconds."""
    draw_seed: Annotated[int, Option(min=0)] = 0
    """Seed of the draws."""
    actors: bool = False
    """Give each trial its own actors on Ray, as run --runner ray does."""

    def words(self) -> Iterator[str]:
        """Yield the words of the command line for these options, without those that have their
        default.
        """
        for field in fields(SearchOptions):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            for one in value if isinstance(value, list) else [value]:
                yield f"--{field.name.replace('_', '-')}"
                if one is not True:
                    yield str(one)


@dataclass(frozen=True, kw_only=True)
class TuneCommand(SearchOptions, ManyRuns):
    """Search settings of a scenario, or of a comparison's methods, on Ray Tune.

    Prints the trials, the best and the ε of the whole search.
    """

    what: Annotated[str, Argument(autocompletion=comparable_names)]
    """A scenario or a comparison, by name (see `raydpzv list`) or as a TOML file."""
    space: Annotated[str, Option(autocompletion=space_names)]
    """Settings to vary and their values: a TOML file (docs/tune.md), or a name of `raydpzv
    list`."""
    set_: Set = None
    out: Path | None = None
    """Folder of the trials to write or to resume [default: runs/tune-...]"""
    storage: str | None = None
    """URI (s3://, gs://, file://) where Ray Tune keeps its state and copies of the runs."""
    log: str | None = None
    """Ray Tune's loggers, separated by commas: csv, json, tensorboard."""


@dataclass(frozen=True, kw_only=True)
class PrivacyCommand(SettingChanges, OtherFolders):
    """Show every ε with its adversary before training, and why the run is or is not private."""

    scenario: ScenarioName
    rows: Annotated[int | None, Option(min=1, max=10**12)] = None
    """Number of training rows, if the data is not here."""
    as_json: Json = False
    explain: Explain = False


@dataclass(frozen=True, kw_only=True)
class CheckCommand(SettingChanges, OtherFolders):
    """Check in seconds, without training, whether a scenario fits and what an update costs."""

    scenario: ScenarioName
    forecast: bool = False
    """Estimate memory, bytes and time alone, and read no weights."""
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class ReplayCommand(OtherFolders):
    """Rebuild the models of a run folder or a seed file; check every bit. Of a folder also at any
    update.
    """

    run: Annotated[Path, Argument()]
    """Run folder, or seed file (docs/seed-file.md)."""
    at: int | None = None
    """Stop after this many updates."""
    client: str | None = None
    """Only this client's model: its number, or its party's name."""
    moved: Moved = None
    weights: str | None = None
    """Of a seed file: the weights that the training started from (.safetensors, .pt,
    module:attribute).
    """
    out: Path | None = None
    """File for the parameters: .npz, or of a seed file .safetensors with the names of its
    tensors.
    """


@dataclass(frozen=True, kw_only=True)
class ExportCommand(OtherFolders):
    """Write a run's weights for other libraries: all of them in one file, or the adapters as peft
    loads them.
    """

    run: Annotated[Path, Argument()]
    """Run folder."""
    out: Path
    """File NAME.safetensors to write; with --format peft, a folder."""
    format: str = "safetensors"
    """safetensors (all weights, adapters merged) or peft (adapters and modules_to_save alone)."""
    party: str | None = None
    """Party of a vertical run: its number, its name, or server."""
    at: int | None = None
    """Model after this many updates [default: all]."""
    moved: Moved = None


@dataclass(frozen=True, kw_only=True)
class StepCommand(Output, OtherFolders):
    """Walk through a run's ledger, update by update; leave clients out. On a terminal it asks where
    to go.
    """

    run: Annotated[Path, Argument()]
    """Run folder."""
    at: int | None = None
    """Show this update, or search from it on [default: the last; searches: 0]."""
    fall: bool = False
    """Go to the next update at which held-out accuracy fell."""
    stale: int | None = None
    """Go to the next update that used an embedding or a model so many updates old."""
    clip: bool = False
    """Go to the next update at which the clip began to bind: it cut a record, and none in the
    update before.
    """
    without: str | None = None
    """Leave this client out, by number or party's name: the run's end without its scalars, to first
    order.
    """
    rank: bool = False
    """Leave out each client: first the one whose absence lowers the held-out loss most."""
    all: bool = False
    """List all clients of the ranking, not the first and last ten."""
    csv: bool = False
    """Print the ranking as CSV."""
    since: int = 0
    """Leave clients out after this update."""
    moved: Moved = None


@dataclass(frozen=True, kw_only=True)
class AuditCommand(Output, OtherFolders):
    """Try to falsify a run's ε: print an observed ε beside the proved one; exit with 1 if it is
    falsified.
    """

    run: Annotated[Path, Argument()]
    """Folder of a complete run."""
    by: str = "ledger"
    """ledger (recomputed queries), runs (one canary in or out of many runs), guesses (many canaries
    in one run) or labels (clients guess labels, over ε)."""
    canaries: int | None = None
    """Records to change [default: 3; guesses: 200; labels: 20]."""
    row: list[int] | None = None
    """Training row to change instead of a drawn one. May be repeated."""
    kind: list[str] | None = None
    """Change of a record: label, features or absent; in turn if repeated [default: the run's
    relation].
    """
    runs: int = 100
    """Runs to make (--by runs)."""
    epsilons: str = "0.5,1,2,4,8"
    """Values of ε (--by labels)."""
    moved: Moved = None
    out: Path | None = None
    """Folder for the audit's page, pictures and JSON."""


@dataclass(frozen=True, kw_only=True)
class ReportCommand(Options):
    """Write an HTML page and PNG plots of runs, or of a comparison that may still be running."""

    runs: Annotated[list[str], Argument()]
    """Run folders, or URIs of copies, which are downloaded to runs/NAME."""
    moved: Moved = None
    out: Path | None = None
    """Folder for report.html and plots/: of one run its own by default; several runs need one."""
    format: str = "png"
    """Form of the pictures: png, pdf or svg."""


@dataclass(frozen=True, kw_only=True)
class WatchCommand(OtherFolders):
    """Serve the page of a run or a comparison while it is made, on this machine alone."""

    folder: Annotated[Path, Argument()]
    """Folder of a run or a comparison, which may still be running."""
    port: int = 8765
    """The first port to try; the next free one is taken."""
    moved: Moved = None


@dataclass(frozen=True, kw_only=True)
class PublishCommand(Options):
    """Write what may leave of a private run; with --compact, models as a seed file."""

    run: Annotated[Path, Argument()]
    """Run folder."""
    out: Path | None = None
    """Folder to write or to replace. With --compact: the file to write [default: run.seeds]."""
    compact: bool = False
    """Write one file of kilobytes that rebuilds the models: first weights, seeds and scalars
    (docs/seed-file.md).
    """
    scalars: str | None = None
    """With --compact: float32, float16 (may round) or sign [default: the smallest that keeps every
    bit].
    """
    client: str | None = None
    """With --compact: only this client's model of a vertical run: its number, or its party's
    name.
    """
    weights: str | None = None
    """With --compact: first weights that readers have (.safetensors, .pt, module:attribute)
    [default: the file of model.weights]."""
    quiet: Quiet = False


@dataclass(frozen=True, kw_only=True)
class ListCommand(Options):
    """List scenarios, methods and data sets."""

    settings: bool = False
    """Print every setting as Markdown."""
    papers: bool = False
    """Print scenarios against their papers as Markdown."""
