"""The tables of a vertical scenario, without methods, and those that every scenario has.

The docstring under each field is its line in the settings page (docs/settings.md), which is generated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from raydpzv.foreign import is_foreign, packed, unpack
from raydpzv.notebook import table_html
from raydpzv.registry import BOTTOMS, DATA_SOURCES, HEADS, VERTICAL_SPLITS
from raydpzv.settings.bounds import Count, Fraction, FractionOrNone, NotNegative, Positive, Width
from raydpzv.settings.fields import (
    Categories,
    Classes,
    Columns,
    Label,
    Named,
    OneLabel,
    Options,
    Parties,
    PartyName,
    PartyWeights,
    PerClientNotNegative,
    PerClientPositive,
    PerClientShare,
    PerColumn,
    PerColumnPositive,
    Section,
    VerticalSelectors,
    WidthOrWidths,
    Widths,
)
from raydpzv.settings.party_names import label


class DataSection(Section):
    """Where the rows come from."""

    source: Annotated[str, Named(DATA_SOURCES)] = "digits"
    """Data set, one of `raydpzv list`; or your own, "module:attribute"."""
    options: Options | None = None
    """Arguments of your own function that returns the data."""
    folder: str | None = None
    """Folder with the data set's files (mnist, fashion_mnist, cifar10, mimic3, amazon_polarity,
    creditcard, heart_disease, tcga_brca); see docs/data.md."""
    file: str | None = None
    """Table or array file (csv, parquet, survival, multiview, tokens); counts from the scenario file's folder."""
    target: str | None = None
    """Column with the label (csv, parquet); of survival times, whether one is an event (1, or 0 for censored)."""
    time: str | None = None
    """Column of survival times (survival), any numbers that grow."""
    groups: str | None = None
    """Column of which equal values (one patient's rows) stay on one side of every split of training, validation and
    test rows; no feature (csv, parquet). Horizontal clients share out the training rows one by one all the same."""
    skip_lines: Count | None = None
    """Lines of the file before its heading (csv)."""
    categories: Categories | None = None
    """Columns of categories (csv, parquet), each of which becomes a column of 0 and 1 for every value: a table of each
    column's values, which proofs need, such as {city = ["Oslo", "Rome"]}; or a list of columns, whose values are read
    off the training rows (one that these do not have, or none, is 0 in all of them)."""
    other: OneLabel | None = None
    """The value of `classes`, or of a column's list in `categories`, that each value outside the list counts as; where
    a list does not have it, and where it is left out, values outside are refused."""
    missing: Literal["refuse", "mean"] | None = None
    """Rows with empty cells (csv, parquet): refused (left out: too), or an empty cell of numbers becomes the mean of
    the training rows and one of categories is 0 in all its columns."""
    test_fraction: Fraction = 0.2
    """Share of the rows (with `groups`: of the groups) held out for the test, drawn as `split` says; ignored where the
    data set has its own test rows."""
    validation_fraction: FractionOrNone | None = None
    """Share of the training rows (with `groups`: of their groups) held out to choose the best of a run's models by,
    drawn as `split` says; left out or 0: none. Test rows choose nothing."""
    split: Literal["stratified", "plain"] = "stratified"
    """How held-out rows, train_rows and test_rows are drawn: by class, or without a look at labels, as proofs need."""
    scale: Literal["standard", "unit", "none", "public"] = "standard"
    """Fitted on the training rows (mean 0 and deviation 1, or the range [0, 1]), so that no ε is proved; none; or by
    public constants, (x - centre) / spread. Token ids are never scaled."""
    centre: PerColumn | None = None
    """Subtracted by "public" scaling: one number, one per column (of images: channel, or pixel), or a table by column
    name, {age = 50}, which leaves other columns as they are. Known without the data."""
    spread: PerColumnPositive | None = None
    """What "public" scaling divides by, in the same forms as `centre`. Known without the data."""
    train_rows: Count | None = None
    """Use only so many training rows, drawn as `split` says."""
    test_rows: Count | None = None
    """Use only so many test rows, drawn as `split` says."""
    rows: Count = 1000
    """Rows of the synthetic data sets; of synthetic_clients, those of all clients and the held-out ones."""
    columns: Count = 16
    """Columns of the synthetic data sets, or variables of the time series."""
    classes: Classes = 2
    """The labels of your own data (csv, parquet, multiview, tokens), numbered as listed, such as ["ill", "well"];
    proofs need the list, and without it labels are numbered by those that occur. A number: classes of the synthetic
    data sets."""
    steps: Annotated[int, Field(ge=1, le=100_000)] = 24
    """Time steps of the synthetic time series."""
    tokens: Annotated[int, Field(ge=1, le=100_000)] = 192
    """Length of a text in tokens (amazon_polarity, synthetic_reviews): longer texts are cut, shorter ones padded."""
    vocabulary: Annotated[int, Field(ge=2, le=2**24)] = 30_522
    """Token ids, 0 (padding) to one less; words are hashed to them, the source "tokens" has its own. BERT's number."""

    @property
    def labels(self) -> tuple[Label, ...] | None:
        """The public list of labels; None where there is none."""
        return None if isinstance(self.classes, int) else self.classes

    @property
    def generated_classes(self) -> int:
        """How many classes generated data have."""
        return self.classes if isinstance(self.classes, int) else len(self.classes)

    @property
    def category_columns(self) -> tuple[str, ...]:
        """Columns of categories, in either form."""
        return tuple(self.categories or ())

    @property
    def public_categories(self) -> Mapping[str, tuple[Label, ...]]:
        """The values of each column of categories that are known without the data."""
        return self.categories if isinstance(self.categories, Mapping) else {}


class SplitSection(Section):
    """Which features each client holds."""

    how: Annotated[str, Named(VERTICAL_SPLITS)] = "columns"
    """Columns of a table, rows or patches of an image, views of an object, variables of a series, spans of a text."""
    clients: Annotated[int, Field(ge=1, le=1000)] = 4
    """Number of clients."""
    grid: Annotated[tuple[int, int] | None, Field(strict=False)] = None
    """Patches down and across; must multiply to the number of clients."""
    columns: Annotated[tuple[Columns, ...] | None, Field(strict=False)] = None
    """Explicit columns, one list per client: numbers, or names of a table's columns (a category's stands for all of its
    columns). Columns that no client gets are not used, and a warning says so. If all are names, only these are read."""
    parties: Parties | None = None
    """Named parties and their columns, in place of `clients` and `columns`: {bank = ["income"], shop = ["visits"]}. The
    first party is client 0. Reports and messages show the names."""
    names: Annotated[tuple[PartyName, ...] | None, Field(strict=False)] = None
    """Names of the clients whose arrays your own data hold, in their order."""

    @model_validator(mode="before")
    @classmethod
    def _count_parties(cls, given: Any) -> Any:
        """Derive the number of clients from the parties where only these are given."""
        parties = given.get("parties") if isinstance(given, Mapping) else None
        return {"clients": len(parties), **given} if isinstance(parties, Mapping) and parties else given

    @property
    def shares(self) -> tuple[Columns, ...] | None:
        """The columns of each client where the scenario lists them."""
        return tuple(self.parties.values()) if self.parties else self.columns

    @property
    def holders(self) -> dict[str, str]:
        """Who holds each column, where all that are held are listed by name; {} of other scenarios."""
        listed = [(column, m) for m, columns in enumerate(self.shares or ()) for column in columns]
        if not all(isinstance(column, str) for column, _ in listed):
            return {}
        return {str(column): label(m, tuple(self.parties or ())) for column, m in listed}


class ModelSection(Section):
    """The composed model: one bottom per client, one head at the server."""

    bottom: Annotated[str, Named(BOTTOMS)] = "mlp"
    """Bottom model; "linear" is one linear layer, "lstm" takes series, "resnet18" images, "transformer" token ids; or
    your own, "module:attribute"."""
    bottoms: Annotated[tuple[Annotated[str, Named(BOTTOMS)], ...] | None, Field(strict=False)] = None
    """One bottom model for each client, in place of `bottom`."""
    hidden: Widths = (32,)
    """Widths of the layers of mlp, lstm and transformer, or channels of cnn and resnet18; unused by linear."""
    embedding: Width = 2
    """Width E of a client's embedding."""
    head: Annotated[str, Named(HEADS)] = "mlp"
    """Linear layers with ReLU, one linear layer, or the sum of the embeddings with a bias (logistic regression); or
    your own, "module:attribute", from embeddings [B, M·E]."""
    options: Options | None = None
    """Arguments of your own bottom models. Parameters named shape, embedding and client are filled in."""
    head_options: Options | None = None
    """Arguments of your own head. Parameters named clients, embedding and classes are filled in."""
    weights: PartyWeights | None = None
    """Weights before the first update, by party, and of the head as "server": each a file (.safetensors, .pt) or your
    own mapping of names to tensors, such as {bank = "bank.safetensors", server = "parts:head_weights"}."""
    partial_weights: bool | None = None
    """true: what `weights` lack is drawn from the seed; left out: refused."""
    head_hidden: WidthOrWidths = 32
    """Hidden width of the mlp head's two linear layers, or a list: one more layer for each further width."""
    initial: Literal["random", "zero_last", "orthogonal_last"] = "random"
    """Parameters of the bottoms before the first update: drawn from the seed, or with a last layer of zeros, or of
    orthonormal weights without a bias."""
    engine: Literal["auto", "torch", "compiled", "compiled_head"] = "auto"
    """Compiled kernels (mlp and linear bottoms on CPUs; the same bits on every x86-64 machine), torch (every model), or
    compiled kernels for the head alone. "auto" takes compiled kernels where they are quicker than torch: for all
    parties, or for the head."""

    def bottom_of(self, client: int) -> str:
        """Return the name of a client's bottom model."""
        return self.bottoms[client] if self.bottoms else self.bottom

    def weights_of(self, party: int | str, names: Sequence[str]) -> str | None:
        """Return a client's weights, or those of "server"; names: of the parties."""
        given = self.weights or {}
        return given.get(str(party)) or (
            given.get(names[party]) if isinstance(party, int) and party < len(names) else None
        )

    @property
    def head_widths(self) -> tuple[int, ...]:
        """Hidden widths of the mlp head."""
        return self.head_hidden if isinstance(self.head_hidden, tuple) else (self.head_hidden,)


class PrivacySection(Section):
    """Clipping and noise. What may be claimed is on the privacy page, not here."""

    mode: Literal["none", "paper", "proved"] = "none"
    """No noise; noise as the DPZV papers calibrate it (which does not prove what they claim), for other methods noise
    on rows, see `calibration`; or dpzv with integer releases whose ε is proved, see docs/privacy.md."""
    epsilon: Positive | None = None
    """ε: what the paper's calibration aims at (σ follows from it, δ, the clip, the rows and the planned updates), or
    what a "proved" run promises. Of ε, noise_multiplier and budget.updates "proved" wants two and finds the third."""
    delta: Fraction | None = None
    """δ; must be given with ε or σ. "proved" takes 1/(10 D) where none is given, and none from 1/D on."""
    sigma: Positive | None = None
    """Noise deviation on the released mean (DPZV) or on each coordinate of a row (others), in place of ε."""
    noise_multiplier: Positive | None = None
    """z of "proved": the noise's deviation over the largest part of one record in a released vector."""
    clip: Positive | None = None
    """Two-sided threshold C of per-sample slopes (DPZV; "proved": see method.clip_over), norm S of each row (others);
    without it nothing is clipped."""
    relation: Literal["replace", "add_remove", "labels"] | None = None
    """What neighbouring tables of "proved" differ in: one record replaced (left out: this), its term set to zero, or
    its label alone."""
    adversary: Literal["client", "external", "server"] | None = None
    """Against whom "proved" promises its ε: all clients together (left out: this); anyone who sees releases and the
    final model but no row numbers, which wants secret Poisson batches; or the server, which wants frozen clients."""
    head_clip: Positive | None = None
    """Norm that each record's gradient of the head is clipped to (method.server = "dp_sgd")."""
    head_share: Fraction | None = None
    """Share of μ² that is spent on the head (method.server = "dp_sgd"); left out: 0.2."""
    permit_large_delta: bool | None = None
    """Let "proved" have a δ of 1/D or more, with which any ε permits that whole records are revealed."""
    trust_method: bool | None = None
    """true: you state that your own method ("module:attribute") releases only what its descriptor says. Without it no ε
    of such a method is proved."""
    noise: Literal["system", "seeded"] = "system"
    """Noise from the operating system, or from the run's seed (reproducible, NOT PRIVATE)."""


class ClockSection(Section):
    """Which time the run has, and how long work takes in it."""

    kind: Literal["virtual", "wall"] = "virtual"
    """Simulated time (deterministic), or real time with real concurrency."""
    compute: PerClientNotNegative = 0.0
    """Seconds a client computes per upload; one number or one per client. Under the wall clock: added by sleeping."""
    compute_law: Literal["constant", "exponential", "poisson"] = "constant"
    """Constant, or exponential or Poisson with that mean."""
    compute_quantum: Positive | None = None
    """Seconds of one count of the Poisson law: a delay is quantum · Poisson(compute / quantum)."""
    service: NotNegative = 0.0
    """Seconds the server takes per upload."""
    service_law: Literal["constant", "exponential"] = "constant"
    """Constant, or exponential with that mean."""


class ArrivalsSection(Section):
    """When clients activate."""

    kind: Literal["poisson", "constant", "trace", "immediate"] = "poisson"
    """Independent Poisson clocks, regular clocks, a recorded trace, or none: a client begins as soon as it is free."""
    rate: PerClientPositive = 1.0
    """Activations per second of "poisson" and "constant"; one number or one per client."""
    file: str | None = None
    """Trace: a CSV or Parquet file with the columns client and time; counts from the scenario file's folder."""


class NetworkSection(Section):
    """Every client's link to the server."""

    latency: PerClientNotNegative = 0.0
    """Seconds each way."""
    up: PerClientPositive | None = None
    """Bytes per second from client to server; left out: no limit."""
    down: PerClientPositive | None = None
    """Bytes per second from server to client; left out: no limit."""


class ResourcesSection(Section):
    """What each actor gets when the run is on Ray. Without Ray only the GPU shares matter (0: CPU)."""

    client_cpus: PerClientShare = "auto"
    """CPU share per client actor: one number, one per client, or "auto" (an equal share of what is there)."""
    client_gpus: PerClientShare = 0.0
    """GPU share per client actor: one number, one per client, or "auto" (a share of what is there, 0 without)."""
    server_cpus: NotNegative | Literal["auto"] = "auto"
    """CPU share of the server actor."""
    server_gpus: NotNegative | Literal["auto"] = 0.0
    """GPU share of the server actor."""
    client_actors: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Actors that hold the clients: "auto" one each; fewer share; 0 puts them into the server's actor."""
    placement: Literal["pack", "spread", "strict_pack", "strict_spread"] = "pack"
    """How actors lie on the machines of a cluster: on as few as can be, or on as many; strict_pack: all on one;
    strict_spread: each on its own."""
    labels: VerticalSelectors | None = None
    """Labels of the machines that actors go to, in Ray's words: labels.server = {zone = "a"},
    labels.clients = {"ray.io/accelerator-type" = "in(H100, A100)"}, "!a" for any other."""
    placement_timeout: NotNegative = 0.0
    """Seconds to wait until a cluster that grows has what is asked; "auto" shares are of what is there at the start."""
    timeout: Positive = 300.0
    """Seconds to wait for one piece of work; who has not answered by then is given up, as if lost (see `restarts`)."""
    lane: Literal["auto", "socket", "ray"] = "auto"
    """How messages travel between client actors and server: sockets ("auto" too), or calls of Ray."""
    restarts: Annotated[int, Field(ge=0)] = 3
    """Actors that may be lost and made again before the run fails; 0: none. Clients of dpzv come back from the ledger;
    after other losses a run continues from its last checkpoint, under the wall clock as a new leg."""


class BudgetSection(Section):
    """What ends the run; whichever comes first."""

    updates: Count | None = None
    """Uploads served. The paper's calibration divides ε among them: more updates mean more noise in each."""
    seconds: Positive | None = None
    """Seconds of the run's clock."""
    bytes: Count | None = None
    """Bytes both ways."""
    epsilon: Positive | None = None
    """Stop before a release would pass this ε against `adversary`."""
    adversary: Literal["paper", "client", "server", "external"] = "client"
    """Whose ε the budget limits; "server" where embeddings are noised; "paper": what the paper's accountant states."""

    @property
    def other_limits(self) -> list[str]:
        """Names of the limits that end a run at an update that depends on what its batches held."""
        epsilon = None if self.adversary == "external" else self.epsilon
        named = {"seconds": self.seconds, "bytes": self.bytes, "epsilon": epsilon}
        return [f"budget.{name}" for name, limit in named.items() if limit is not None]


class EvaluateSection(Section):
    """How often the composed model is scored on the held-out rows."""

    every: Count = 100
    """Updates between evaluations."""


class RecordSection(Section):
    """What is written down."""

    staleness: bool = True
    """Keep a row for the cached embeddings of every other client that each service used."""
    flush: Positive = 5.0
    """Seconds between writes of the rows to the run folder."""
    checkpoint: Positive | None = None
    """Seconds between checkpoints, from which `raydpzv resume` continues; left out: so often that at most
    1/100 of what was computed is lost, and at least every `flush` seconds. To take and write them is at most 1/40 of
    a run's time."""
    checkpoint_updates: Count | None = None
    """Updates between checkpoints, in place of seconds."""


class CommonSections(Section):
    """What every scenario has, vertical or horizontal, beside its method."""

    name: str = ""
    """Name of the scenario; left out: the file's."""
    title: str = ""
    """One line for `raydpzv list`."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of everything but the noise."""
    data: DataSection = DataSection()
    clock: ClockSection = ClockSection()
    arrivals: ArrivalsSection = ArrivalsSection()
    network: NetworkSection = NetworkSection()
    evaluate: EvaluateSection = EvaluateSection()
    _note: str = PrivateAttr("")

    @property
    def party_names(self) -> tuple[str, ...]:
        """The names of the clients' parties, in the order of the clients; () where they have none."""
        return ()

    @property
    def own(self) -> tuple[str, ...]:
        """The names of a user's models and method. The data are apart: no party may get those of the others."""
        model, method = getattr(self, "model", None), getattr(self, "method", None)
        words = [getattr(method, "name", "")]
        words += [getattr(model, name, "") for name in ("kind", "bottom", "head")]
        words += getattr(model, "bottoms", None) or ()
        given = getattr(model, "weights", None) or ""
        words += given.values() if isinstance(given, Mapping) else [given]
        return tuple(dict.fromkeys(filter(is_foreign, words)))

    def __getstate__(self) -> dict[Any, Any]:
        """Return the state, and the user's objects with it: another process may not be able to import them."""
        state = super().__getstate__()
        return {**state, "own": packed(self.own)} if self.own else state

    def __setstate__(self, state: dict[Any, Any]) -> None:
        """Adopt a state and the user's objects."""
        unpack(state.get("own", {}))
        super().__setstate__({key: value for key, value in state.items() if key != "own"})

    def _repr_html_(self) -> str:
        """Show the settings that differ from their defaults."""
        method: Any = vars(self)["method"]
        given = self.model_dump(mode="json", exclude_defaults=True, exclude={"method"})
        given["method"] = {
            f.name: value
            for f in dataclasses.fields(method)
            if (value := getattr(method, f.name)) != f.default or f.name == "name"
        }
        rows = [
            (f"{table}.{key}", f"{value!s:.60}")
            for table, settings in given.items()
            if isinstance(settings, Mapping)
            for key, value in settings.items()
        ]
        alone = [(key, value) for key, value in given.items() if not isinstance(value, Mapping)]
        return table_html(f"scenario {self.name or self.title or method.name}", [*alone, *rows])

    @property
    def note(self) -> str:
        """What is to be said of these settings beside every result; "": nothing. No setting itself."""
        return self._note

    def noted(self, note: str) -> Self:
        """Return the same scenario with that note."""
        found = self.model_copy()
        found._note = note
        return found


class Sections(CommonSections):
    """A scenario of vertical learning without its method: clients hold features, the server has the labels."""

    split: SplitSection = SplitSection()
    model: ModelSection = ModelSection()
    privacy: PrivacySection = PrivacySection()
    resources: ResourcesSection = ResourcesSection()
    budget: BudgetSection = BudgetSection()
    record: RecordSection = RecordSection()

    @property
    def party_names(self) -> tuple[str, ...]:
        """The names in `split.parties` or `split.names`."""
        return tuple(self.split.parties or self.split.names or ())
