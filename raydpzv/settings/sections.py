"""The tables of a vertical scenario, without methods, and those that every scenario has.

The docstring under each field is its line in the settings page (docs/settings.md), which is
generated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from raydpzv.files import file_sha256
from raydpzv.foreign import HERE, is_foreign, packed, unpack, without_digest
from raydpzv.notebook import table_html
from raydpzv.registry import BOTTOMS, DATA_SOURCES, HEADS, LOSSES, VERTICAL_SPLITS
from raydpzv.settings.bounds import Bounds, Count, Fraction, NotNegative, Positive, Width
from raydpzv.settings.fields import (
    Columns,
    Named,
    Options,
    Own,
    Parties,
    PartyName,
    PartyWeights,
    PerClientNotNegative,
    PerClientPositive,
    PerClientShare,
    Section,
    Trusted,
    VerticalSelectors,
    Whole,
    WidthOrWidths,
    Widths,
)
from raydpzv.settings.party_names import label
from raydpzv.settings.sections_data import DataSection

LossName = Annotated[str, Named(LOSSES)]
TargetKind = Literal["classes", "numbers"]


class SplitSection(Section):
    """Which features each client holds."""

    how: Annotated[str, Named(VERTICAL_SPLITS)] = "columns"
    """Columns of a table, rows or patches of an image, views of an object, variables of a series,
    spans of a text.
    """
    clients: Annotated[int, Field(ge=1, le=1000)] = 4
    """Number of clients."""
    grid: Annotated[tuple[int, int] | None, Field(strict=False)] = None
    """Patches down and across; must multiply to the number of clients."""
    columns: Annotated[tuple[Columns, ...] | None, Field(strict=False)] = None
    """Explicit columns, one list per client: numbers, or names of a table's columns (a category's
    stands for all of its columns). Columns that no client gets are not used, and a warning says so.
    If all are names, only these are read."""
    parties: Parties | None = None
    """Named parties and their columns, in place of `clients` and `columns`: {bank = ["income"],
    shop = ["visits"]}. The first party is client 0. Reports and messages show the names."""
    names: Annotated[tuple[PartyName, ...] | None, Field(strict=False)] = None
    """Names of the clients whose arrays your own data hold, in their order."""

    @model_validator(mode="before")
    @classmethod
    def _count_parties(cls, given: Any) -> Any:
        """Derive the number of clients from the parties where only these are given."""
        parties = given.get("parties") if isinstance(given, Mapping) else None
        return (
            {"clients": len(parties), **given}
            if isinstance(parties, Mapping) and parties
            else given
        )

    @property
    def shares(self) -> tuple[Columns, ...] | None:
        """The columns of each client where the scenario lists them."""
        return tuple(self.parties.values()) if self.parties else self.columns

    @property
    def holders(self) -> dict[str, str]:
        """Who holds each column, where all that are held are listed by name; {} of other
        scenarios.
        """
        listed = [(column, m) for m, columns in enumerate(self.shares or ()) for column in columns]
        if not all(isinstance(column, str) for column, _ in listed):
            return {}
        return {str(column): label(m, tuple(self.parties or ())) for column, m in listed}


class LoraSection(Section):
    """Low-rank adapters beside frozen linear layers of your own model: only these learn
    (docs/own.md).
    """

    rank: Annotated[int, Bounds(ge=1, le=10_000)] = 8
    """Rank r of each adapter's two matrices."""
    alpha: Positive = 8.0
    """Scale of the adapters: each adds alpha / rank · B A to its weight."""
    targets: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    """Linear layers by name, end of name or pattern, such as ["query", "layers.5.*"]. Each must fit
    a layer.
    """
    modules_to_save: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Layers that learn whole, such as the head, found in the same ways."""


class BottomSection(Section):
    """The models of the clients, each from a record's features to an embedding."""

    bottom: Annotated[str, Named(BOTTOMS)] = "mlp"
    """Bottom model; "linear" is one linear layer, "lstm" takes series, "resnet18" images,
    "transformer" token ids; or your own, "module:attribute"."""
    bottoms: Annotated[tuple[Annotated[str, Named(BOTTOMS)], ...] | None, Field(strict=False)] = (
        None
    )
    """One bottom model for each client, in place of `bottom`."""
    hidden: Widths = (32,)
    """Widths of the layers of mlp, lstm and transformer, or channels of cnn and resnet18; unused by
    linear.
    """
    embedding: Width = 2
    """Width E of a client's embedding."""
    integers: Whole | None = None
    """Whether your own bottom models take rows as whole numbers, such as token ids, which nothing
    scales: true, false, or a list of the parties that do; left out: if an embedding layer reads
    them."""

    def bottom_of(self, client: int) -> str:
        """Return the name of a client's bottom model."""
        return self.bottoms[client] if self.bottoms else self.bottom


class ModelSection(BottomSection):
    """The composed model: one bottom per client, one head at the server."""

    head: Annotated[str, Named(HEADS)] = "mlp"
    """Linear layers with ReLU, one linear layer, or the sum of the embeddings with a bias (logistic
    regression); or your own, "module:attribute", from embeddings [B, M·E]."""
    options: Options | None = None
    """Arguments of your own bottom models. Parameters named shape, embedding and client are filled
    in.
    """
    folder: str | None = None
    """Folder of a pretrained model, for your own models with a parameter `folder` (docs/own.md)."""
    head_options: Options | None = None
    """Arguments of your own head. Parameters named clients, embedding and classes are filled in."""
    loss: LossName | None = None
    """Loss of the scores: "cross_entropy" of classes (left out: this), "binary" of two with one
    score, "multi_label" of labels 0 and 1, "squared_error" of numbers; or your own,
    "module:attribute", one value a record."""
    targets: TargetKind | None = None
    """What your own loss takes, classes or numbers; left out: whole numbers and texts are classes,
    others numbers.
    """
    weights: PartyWeights | None = None
    """Weights before the first update, by party, and of the head as "server": each a file
    (.safetensors, .pt) or your own mapping of names to tensors, such as {bank = "bank.safetensors",
    server = "parts:head_weights"}."""
    partial_weights: bool | None = None
    """true: what `weights` lack is drawn from the seed; left out: refused."""
    head_hidden: WidthOrWidths = 32
    """Hidden width of the mlp head's two linear layers, or a list: one more layer for each further
    width.
    """
    lora: LoraSection | None = None
    """Adapters in every bottom model that is your own; other bottoms learn whole."""
    initial: Literal["random", "zero_last", "orthogonal_last"] = "random"
    """Parameters of the bottoms before the first update: drawn from the seed, or with a last layer
    of zeros, or of orthonormal weights without a bias."""
    engine: Literal["auto", "torch", "compiled", "compiled_head"] = "auto"
    """Compiled kernels (mlp and linear bottoms on CPUs; the same bits on every x86-64 machine),
    torch (every model), or compiled kernels for the head alone. "auto" takes compiled kernels where
    they are quicker than torch: for all parties, or for the head."""

    def weights_of(self, party: int | str, names: Sequence[str]) -> str | None:
        """Return a client's weights, or those of "server"; names: of the parties."""
        given = self.weights or {}
        return given.get(str(party)) or (
            given.get(names[party]) if isinstance(party, int) and party < len(names) else None
        )

    def stand_in(self, name: str) -> Self:
        """Return the same with another bottom model in place of each, and without weights; name: of
        a user's own.
        """
        none = dict.fromkeys(("bottoms", "options", "weights", "partial_weights", "folder", "lora"))
        return self.model_copy(
            update={**none, "bottom": name, "initial": "random", "engine": "auto"}
        )

    @property
    def head_widths(self) -> tuple[int, ...]:
        """Hidden widths of the mlp head."""
        return self.head_hidden if isinstance(self.head_hidden, tuple) else (self.head_hidden,)


class NoiseSection(Section):
    """How releases are clipped, and how much noise they get: a deviation, or an ε that it follows
    from.
    """

    mode: Literal["none", "paper", "proved"] = "none"
    """No noise; noise as the DPZV papers calibrate it (which does not prove what they claim), for
    other methods noise on rows, see `calibration`; or dpzv with integer releases whose ε is proved,
    see docs/privacy.md."""
    epsilon: Positive | None = None
    """ε: what the paper's calibration aims at (σ follows from it, δ, the clip, the rows and the
    planned updates), or what a "proved" run promises. Of ε, noise_multiplier and budget.updates
    "proved" wants two and finds the third."""
    delta: Fraction | None = None
    """δ; must be given with ε or σ. "proved" takes 1/(10 D) where none is given, and none from 1/D
    on.
    """
    sigma: Positive | None = None
    """Noise deviation on the released mean (DPZV) or on each coordinate of a row (others), in place
    of ε.
    """
    noise_multiplier: Positive | None = None
    """z of "proved": the noise's deviation over the largest part of one record in a released
    vector.
    """
    clip: Positive | None = None
    """Two-sided threshold C of per-sample slopes (DPZV; "proved": see method.clip_over), norm S of
    each row (others); without it nothing is clipped."""


class PrivacySection(NoiseSection):
    """Clipping and noise. What may be claimed is on the privacy page, not here."""

    relation: Literal["replace", "add_remove", "labels"] | None = None
    """What neighbouring tables of "proved" differ in: one record replaced (left out: this), its
    term set to zero, or its label alone."""
    adversary: Literal["client", "external", "server"] | None = None
    """Against whom "proved" promises its ε: all clients together (left out: this); anyone who sees
    releases and the final model but no row numbers, which wants secret Poisson batches; or the
    server, which wants frozen clients."""
    head_clip: Positive | None = None
    """Norm that each record's gradient of the head is clipped to (method.server = "dp_sgd")."""
    head_share: Fraction | None = None
    """Share of μ² that is spent on the head (method.server = "dp_sgd"); left out: 0.2."""
    permit_large_delta: bool | None = None
    """Let "proved" have a δ of 1/D or more, with which any ε permits that whole records are
    revealed.
    """
    trust: Trusted | None = None
    """Your own code that you state the proof's premise of (docs/own.md). No ε is proved until you
    state each.
    """
    noise: Literal["system", "seeded"] = "system"
    """Noise from the operating system, or from the run's seed (reproducible, NOT PRIVATE)."""


class ClockSection(Section):
    """Which time the run has, and how long work takes in it."""

    kind: Literal["virtual", "wall"] = "virtual"
    """Simulated time (deterministic), or real time with real concurrency."""
    compute: PerClientNotNegative = 0.0
    """Seconds a client computes per upload; one number or one per client. Under the wall clock:
    added by sleeping.
    """
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
    """Independent Poisson clocks, regular clocks, a recorded trace, or none: a client begins as
    soon as it is free.
    """
    rate: PerClientPositive = 1.0
    """Activations per second of "poisson" and "constant"; one number or one per client."""
    file: str | None = None
    """Trace: a CSV or Parquet file with the columns client and time; counts from the scenario
    file's folder.
    """


class NetworkSection(Section):
    """Every client's link to the server."""

    latency: PerClientNotNegative = 0.0
    """Seconds each way."""
    up: PerClientPositive | None = None
    """Bytes per second from client to server; left out: no limit."""
    down: PerClientPositive | None = None
    """Bytes per second from server to client; left out: no limit."""


class ResourcesSection(Section):
    """What each actor gets when the run is on Ray. Without Ray only the GPU shares matter (0:
    CPU).
    """

    client_cpus: PerClientShare = "auto"
    """CPU share per client actor: one number, one per client, or "auto" (an equal share of what is
    there).
    """
    client_gpus: PerClientShare = 0.0
    """GPU share per client actor: one number, one per client, or "auto" (a share of what is there,
    0 without).
    """
    server_cpus: NotNegative | Literal["auto"] = "auto"
    """CPU share of the server actor."""
    server_gpus: NotNegative | Literal["auto"] = 0.0
    """GPU share of the server actor."""
    client_actors: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Actors that hold the clients: "auto" one each; fewer share; 0 puts them into the server's
    actor.
    """
    placement: Literal["pack", "spread", "strict_pack", "strict_spread"] = "pack"
    """How actors lie on the machines of a cluster: on as few as can be, or on as many; strict_pack:
    all on one;
    strict_spread: each on its own."""
    labels: VerticalSelectors | None = None
    """Labels of the machines that actors go to, in Ray's words: labels.server = {zone = "a"},
    labels.clients = {"ray.io/accelerator-type" = "in(H100, A100)"}, "!a" for any other."""
    placement_timeout: NotNegative = 0.0
    """Seconds to wait until a cluster that grows has what is asked; "auto" shares are of what is
    there at the start.
    """
    timeout: Positive = 300.0
    """Seconds to wait for one piece of work; who has not answered by then is given up, as if lost
    (see `restarts`).
    """
    restarts: Annotated[int, Field(ge=0)] = 3
    """Actors that may be lost and made again before the run fails; 0: none. Clients of dpzv come
    back from the ledger; after other losses a run continues from its last checkpoint, under the
    wall clock as a new leg."""


class BudgetSection(Section):
    """What ends the run; whichever comes first."""

    updates: Count | None = None
    """Uploads served. The paper's calibration divides ε among them: more updates mean more noise in
    each.
    """
    seconds: Positive | None = None
    """Seconds of the run's clock."""
    bytes: Count | None = None
    """Bytes both ways."""
    epsilon: Positive | None = None
    """Stop before a release would pass this ε against `adversary`."""
    adversary: Literal["paper", "client", "server", "external"] = "client"
    """Whose ε the budget limits; "server" where embeddings are noised; "paper": what the paper's
    accountant states.
    """

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
    metrics: Own | None = None
    """Your own measures of held-out rows, "module:attribute": scores and labels to a table of
    floats by name.
    """
    lower: Annotated[tuple[str, ...] | None, Field(strict=False)] = None
    """Own measures of which less is better, for a search that chooses by one."""


class RecordSection(Section):
    """What is written down."""

    staleness: bool | Literal["all"] = True
    """Keep ages of the cached embeddings that each service used; above 16 clients as sums, unless
    "all".
    """
    flush: Positive = 5.0
    """Seconds between writes of the rows to the run folder."""
    checkpoint: Positive | None = None
    """Seconds between checkpoints, from which `raydpzv resume` continues; left out: so often that
    at most 1/100 of what was computed is lost, and at least twice a second. To take and write them
    is at most 1/40 of a run's time."""
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
    _files: dict[str, str | None] = PrivateAttr(default_factory=dict)

    @property
    def party_names(self) -> tuple[str, ...]:
        """The names of the clients' parties, in the order of the clients; () where they have
        none.
        """
        return ()

    @property
    def own(self) -> tuple[str, ...]:
        """The names of a user's objects. The data are apart: no party may get those of the
        others.
        """
        model, method = getattr(self, "model", None), getattr(self, "method", None)
        others = (getattr(method, "name", ""), getattr(model, "loss", ""), self.evaluate.metrics)
        words = (*self.own_models, *self.weights, *filter(None, others))
        return tuple(dict.fromkeys(filter(is_foreign, words)))

    @property
    def own_models(self) -> tuple[str, ...]:
        """The names of a user's models."""
        model = getattr(self, "model", None)
        words = [getattr(model, name, "") for name in ("kind", "bottom", "head")]
        words += getattr(model, "bottoms", None) or ()
        return tuple(dict.fromkeys(filter(is_foreign, words)))

    @property
    def weights(self) -> tuple[str, ...]:
        """The files and names of the weights that models start from."""
        given = getattr(getattr(self, "model", None), "weights", None) or {}
        return (given,) if isinstance(given, str) else tuple(given.values())

    @property
    def sent_files(self) -> Mapping[str, str | None]:
        """The digests of files of weights on the machine that sent this scenario; {} where it was
        made.
        """
        return self._files

    @property
    def premises(self) -> tuple[str, ...]:
        """What proofs suppose of a user's own code and nobody can check, in the words of
        privacy.trust.
        """
        supposed = {
            "model": self.own_models,
            "loss": is_foreign(self.loss),
            "method": is_foreign(getattr(getattr(self, "method", None), "name", "")),
            "weights": self.weights,
        }
        return tuple(word for word, found in supposed.items() if found)

    @property
    def loss(self) -> str:
        """The name of the loss: the scenario's, or that which the labels of the data set are
        for.
        """
        return (
            getattr(getattr(self, "model", None), "loss", None)
            or DATA_SOURCES[self.data.source].loss
        )

    @property
    def goal(self) -> tuple[str, str | None]:
        """The loss, and what a user's own takes."""
        return self.loss, self.targets

    @property
    def targets(self) -> str | None:
        """What a user's own loss takes, "classes" or "numbers"; None: as the labels' type says."""
        return getattr(getattr(self, "model", None), "targets", None)

    def scores(self, width: int) -> int:
        """Return how many scores a record has. width: classes, or numbers for labels."""
        asked = getattr(getattr(self, "model", None), "outputs", None)
        known = None if is_foreign(self.loss) else LOSSES[self.loss].outputs
        return asked or known or width

    def __getstate__(self) -> dict[Any, Any]:
        """Return the state, the user's objects, which another process may not have, and digests of
        files of weights.
        """
        state, files = (
            super().__getstate__(),
            [word for word in self.weights if not is_foreign(word)],
        )
        if folder := getattr(getattr(self, "model", None), "folder", None):
            files += [str(path) for path in sorted(Path(folder).glob("*")) if path.is_file()]
        digests = {path: file_sha256(Path(path)) for path in files}
        return (
            state
            | ({"own": packed(self.own)} if self.own else {})
            | ({"files": digests} if files else {})
        )

    def __setstate__(self, state: dict[Any, Any]) -> None:
        """Adopt a state, the user's objects, and what files of weights have to be here."""
        unpack(state.get("own", {}))
        super().__setstate__(
            {key: value for key, value in state.items() if key not in ("own", "files")}
        )
        self._files = state.get("files", {})

    def __repr__(self) -> str:
        """Show what runs, on what, and until when."""
        own: Any = vars(self)
        budget = own["budget"].model_dump(exclude_none=True, exclude_defaults=True)
        until = " or ".join(
            f"{value:,} {name}" for name, value in budget.items() if name != "adversary"
        )
        model, mode = own["model"], getattr(own["privacy"], "mode", "none")
        models = [model.kind] if hasattr(model, "kind") else model.bottoms or [model.bottom]
        words = [
            without_digest(word).replace(f"{HERE}:", "your ")
            for word in (self.data.source, *models)
        ]
        return (
            f"<scenario {self.name or self.title or own['method'].name}: {own['method'].name} on "
            f"{words[0]}, {own['split'].clients:,} clients, model "
            f"{', '.join(dict.fromkeys(words[1:]))}, until {until}, privacy {mode}, seed "
            f"{self.seed}>"
        )

    __str__ = __repr__

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
        """What is to be said of these settings beside every result; "": nothing. No setting
        itself.
        """
        return self._note

    def noted(self, note: str) -> Self:
        """Return the same scenario with that note."""
        found = self.model_copy()
        found._note = note
        return found


class Sections(CommonSections):
    """A scenario of vertical learning without its method: clients hold features, the server has the
    labels.
    """

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
