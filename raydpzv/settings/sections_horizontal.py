"""The tables of a horizontal scenario, without methods: rows are shared out among the clients, all
train one model.

As in `sections`, the docstring under each field is its line in the settings page.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field

from raydpzv.registry import HORIZONTAL_SPLITS, WHOLE_MODELS
from raydpzv.settings.bounds import Count, Fraction, NotNegative, Positive, Width
from raydpzv.settings.fields import (
    HorizontalSelectors,
    Named,
    OneWeights,
    Options,
    Section,
    Trusted,
    Widths,
)
from raydpzv.settings.sections import CommonSections, LoraSection, LossName, TargetKind


class HorizontalSplitSection(Section):
    """Which rows each client holds."""

    how: Annotated[str, Named(HORIZONTAL_SPLITS)] = "dirichlet"
    """Equal random parts, class mixtures that differ by client, the owners that your own data name,
    or silos of users, see [users]."""
    clients: Annotated[int, Field(ge=1, le=100_000_000)] = 100
    """Number of clients, M; of silos, S."""
    alpha: Positive = 1.0
    """Concentration of the Dirichlet law; smaller: clients differ more."""
    sizes: Literal["equal", "drawn"] = "equal"
    """Each client's class mixture is drawn, all hold equally many rows; or each class is shared out
    by a draw.
    """
    least: Count = 1
    """Rows that every client holds at the least (sizes = "drawn")."""


class UsersSection(Section):
    """Whose the records are (split.how = "users"): a user's lie in several silos, and the silos are
    the clients.
    """

    count: Count | None = None
    """Users that records are shared out among; those that get none are left out. Left out with how
    = "column".
    """
    how: Literal["uniform", "zipf", "column"] = "zipf"
    """Each record's user: all alike, p_u ∝ u^-alpha, or as a column of the data says."""
    alpha: NotNegative = 0.5
    """Exponent of how = "zipf"."""
    silos: Literal["uniform", "zipf", "main", "column"] = "zipf"
    """Each record's silo: all alike; p ∝ rank^-silo_alpha in an order of the silos that is its
    user's own; or as the
    data say: "column" of records whose users are drawn from all, "main" of users that have .8 of
    their records in one silo, as far as there is room."""
    silo_alpha: NotNegative = 2.0
    """Exponent of silos = "zipf"."""
    labels: Count | None = None
    """Classes that a user has at most; left out: any."""
    least: Count = 1
    """Records that a user has at the least in a silo where it has any."""
    columns: Annotated[tuple[str, str] | None, Field(strict=False)] = None
    """Columns of user and silo (csv, parquet), which are no features; "" for one that the file does
    not have.
    """


class WholeModelSection(Section):
    """The model that all clients train."""

    kind: Annotated[str, Named(WHOLE_MODELS)] = "mlp"
    """Multilayer perceptron, logistic regression, or the networks of the DeComFL paper or the
    Uldp-FL paper (cnn_users, mlp_normed); or your own, "module:attribute"."""
    options: Options | None = None
    """Arguments of your own model. Parameters named shape, outputs and classes are filled in."""
    integers: bool | None = None
    """Whether your own model takes rows as whole numbers, such as token ids, which nothing scales;
    left out: if an embedding layer reads them."""
    folder: str | None = None
    """Folder of a pretrained model, for your own models with a parameter `folder` (docs/own.md)."""
    weights: OneWeights | None = None
    """Weights before the first update: a file (.safetensors, .pt), or your own mapping of names to
    tensors, "module:attribute"."""
    partial_weights: bool | None = None
    """true: what `weights` lack is drawn from the seed; left out: refused."""
    lora: LoraSection | None = None
    """Adapters in your own model, which alone learn."""
    hidden: Widths = (32,)
    """Hidden widths of mlp and mlp_normed."""
    loss: LossName | None = None
    """Loss of the scores: "cross_entropy" of classes (left out: this, or "cox" of survival times),
    "binary" of two with one score, "multi_label" of labels 0 and 1, "squared_error" of numbers; or
    your own, "module:attribute", one value a record."""
    targets: TargetKind | None = None
    """What your own loss takes, classes or numbers; left out: whole numbers and texts are classes,
    others numbers.
    """
    outputs: Width | None = None
    """Scores; left out: one per class or number. (The paper's Fashion network has 62 for 10
    classes.)
    """
    engine: Literal["auto", "torch", "compiled"] = "auto"
    """Compiled kernels (mlp and logistic on CPUs; the same bits on every x86-64 machine), torch
    (every model), or "auto": compiled kernels where the model is small enough for them to be
    quicker, else torch."""

    def stand_in(self, name: str) -> Self:
        """Return the same with another model in place of this one, and without weights; name: of a
        user's own.
        """
        none = dict.fromkeys(("options", "weights", "partial_weights", "folder", "lora"))
        return self.model_copy(update={**none, "kind": name, "engine": "auto"})


class HorizontalPrivacySection(Section):
    """Clipping and noise of methods that release sums over users. What may be claimed is on the
    privacy page.
    """

    mode: Literal["none", "user"] = "none"
    """No noise; or discrete Gaussian noise on what is released, whose ε is one user's: all its
    records in all silos.
    """
    epsilon: Positive | None = None
    """ε that the noise is calibrated to, given the planned updates (add or remove a user, against
    whom `against` says); or else `multiplier`."""
    multiplier: Positive | None = None
    """Noise multiplier σ: the noise on a released sum has deviation σC in all."""
    delta: Fraction | None = None
    """δ; best below 1/U."""
    clip: Positive | None = None
    """Norm C that each user's vector in a silo is clipped to (each silo's with uldp_naive, each
    record's with uldp_group); without noise too, since sums are of whole numbers in units of it."""
    against: Literal["external", "client", "server"] | None = None
    """Whose ε `epsilon` and budget.epsilon speak of: anyone who sees the released models (left out:
    this), one silo, or the server."""
    trust: Trusted | None = None
    """Your own code that you state the proof's premise of (docs/own.md). No ε is proved until you
    state each.
    """
    noise: Literal["system", "seeded"] = "system"
    """Noise from the operating system, or from the run's seed (reproducible, NOT PRIVATE)."""


class HorizontalResourcesSection(Section):
    """Who computes. Clients live in hosts: processes on Ray, threads under the wall clock without
    it.
    """

    hosts: Annotated[int, Field(ge=1, le=1000)] | Literal["auto"] = "auto"
    """Hosts on Ray: as many actors; "auto": one per CPU, or per GPU where hosts get a GPU share."""
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """Threads per host; they move no bits."""
    host_cpus: NotNegative | Literal["auto"] = "auto"
    """CPU share of a host actor."""
    host_gpus: NotNegative = 0.0
    """GPU share of a host actor. Without Ray: 0 is the CPU, anything else the GPU if there is
    one.
    """
    server_cpus: NotNegative | Literal["auto"] = "auto"
    """CPU share of the server actor, which also watches over the hosts."""
    placement: Literal["pack", "spread", "strict_pack", "strict_spread"] = "pack"
    """How actors lie on the machines of a cluster: on as few as can be, or on as many; strict_pack:
    all on one;
    strict_spread: each on its own."""
    labels: HorizontalSelectors | None = None
    """Labels of the machines that actors go to, in Ray's words: labels.server = {zone = "a"},
    labels.hosts = {"ray.io/accelerator-type" = "in(H100, A100)"}, "!a" for any other."""
    placement_timeout: NotNegative = 0.0
    """Seconds to wait until a cluster that grows has what is asked; "auto" shares are of what is
    there at the start.
    """
    timeout: Positive = 300.0
    """Seconds to wait for one piece of work; who has not answered by then is given up, as if lost
    (see `restarts`).
    """
    restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    """Actors that may be lost and made again before the run fails; 0: none. Hosts are replaced;
    after a loss of server or ledger a run continues from its last checkpoint, under the wall clock
    as a new leg."""


class HorizontalBudgetSection(Section):
    """What ends the run; whichever comes first."""

    updates: Count | None = None
    """Updates of the model: rounds, or single clients' updates if asynchronous."""
    seconds: Positive | None = None
    """Seconds of the run's clock."""
    bytes: Count | None = None
    """Bytes both ways; the run ends with the update that passes them."""
    epsilon: Positive | None = None
    """Stop before the round, or release, that would pass this ε against whom privacy.against
    names.
    """


class HorizontalRecordSection(Section):
    """What is written down."""

    flush: Positive = 5.0
    """Seconds between writes of the rows to the run folder."""
    checkpoint: Positive | None = None
    """Seconds between checkpoints, from which `raydpzv resume` continues; left out: so often that
    at most 1/100 of what was computed is lost, and at least twice a second. To take and write them
    is at most 1/40 of a run's time.
    Rounds that release something about users end with one each."""
    checkpoint_updates: Count | None = None
    """Updates between checkpoints, in place of seconds."""
    snapshots: Count | None = None
    """Updates between snapshots of the model beside the ledger; they make rebuilding faster. Left
    out: none.
    """
    fsync: bool = False
    """Every ledger entry survives a power cut, not only the death of the process."""


class HorizontalSections(CommonSections):
    """A scenario of horizontal learning without its method."""

    split: HorizontalSplitSection = HorizontalSplitSection()
    users: UsersSection | None = None
    model: WholeModelSection = WholeModelSection()
    privacy: HorizontalPrivacySection | None = None
    resources: HorizontalResourcesSection = HorizontalResourcesSection()
    budget: HorizontalBudgetSection = HorizontalBudgetSection()
    record: HorizontalRecordSection = HorizontalRecordSection()
