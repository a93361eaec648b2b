"""Scenarios of horizontal learning: rows are shared out among the clients, all train one model.

As in `spec`, the docstring under each field is its line in the settings page.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from raydpzv.config.scenario import Scenario
from raydpzv.settings.fields import Count, Fraction, Momentum, NotNegative, Positive, Section, Width, Widths


class HorizontalSplit(Section):
    """Which rows each client holds."""

    how: Literal["iid", "dirichlet"] = "dirichlet"
    """Equal random parts, or class mixtures that differ by client."""
    clients: Annotated[int, Field(ge=1, le=4_000_000)] = 100
    """Number of clients, M."""
    alpha: Positive = 1.0
    """Concentration of the Dirichlet law; smaller: clients differ more."""
    sizes: Literal["equal", "drawn"] = "equal"
    """Each client's class mixture is drawn, all hold equally many rows; or each class is shared out by a draw."""
    least: Count = 1
    """Rows that every client holds at the least (sizes = "drawn")."""


class WholeModel(Section):
    """The model that all clients train."""

    kind: Literal["mlp", "logistic", "cnn_mnist", "cnn_fashion"] = "mlp"
    """Multilayer perceptron, logistic regression, or the networks of the DeComFL paper."""
    hidden: Widths = (32,)
    """Hidden widths of the mlp."""
    outputs: Width | None = None
    """Scores; left out: one per class. (The paper's Fashion network has 62 for 10 classes.)"""


class _Sampled(Section):
    cohort: Count = 10
    """Clients sampled per round, m."""
    batch: Count = 32
    """Rows per local step, B; a client with fewer uses all of them."""
    local_steps: Annotated[int, Field(ge=1, le=1000)] = 1
    """Local steps per round, K."""
    weights: Literal["uniform", "rows"] = "uniform"
    """Clients of a cohort count alike, or by their numbers of rows."""


class _Directions(Section):
    perturbations: Annotated[int, Field(ge=1, le=1024)] = 10
    """Directions per local step, P."""
    smoothing: Positive = 1e-3
    """Smoothing radius μ."""
    direction: Literal["gaussian", "sphere", "rademacher"] = "gaussian"
    """Law of the directions: standard normal, uniform on the sphere of radius √d, or independent signs (fastest)."""


_LrAt = Annotated[tuple[Count, Positive], Field(strict=False)]
_PerturbationsAt = Annotated[tuple[Count, Annotated[int, Field(ge=1, le=1024)]], Field(strict=False)]


class Decomfl(_Directions, _Sampled):
    """DeComFL: seeds and scalars in place of models, both ways (DeComFL Algorithms 1 to 5)."""

    name: Literal["decomfl"] = "decomfl"
    """The method."""
    asynchronous: bool = False
    """No rounds: a client wakes by its clock, pulls what it missed, and its scalars become the next update."""
    lr: Positive = 1e-3
    """Step size η of the update (η/P) Σ g_p z_p."""
    lr_at: Annotated[tuple[_LrAt, ...], Field(strict=False)] = ()
    """Step sizes from later rounds on: [[round, lr], ...]."""
    perturbations_at: Annotated[tuple[_PerturbationsAt, ...], Field(strict=False)] = ()
    """P from later rounds on: [[round, P], ...]."""
    momentum: Momentum = 0.0
    """Momentum β of DeComFL Eq. (8): m <- βm + (1-β)g."""
    estimate: Literal["forward", "central", "projection"] = "forward"
    """(f(x+μz) - f(x)) / μ, (f(x+μz) - f(x-μz)) / 2μ, or the first-order projection <∇f, z> (Algorithm 5)."""
    replicas: Literal["shared", "per_client"] = "shared"
    """One model per process that all its clients share, or literally one per client: the same bits, more memory."""
    revert: Literal["restore", "add_back"] = "restore"
    """After the local steps: restore the model exactly, or the paper's snapshot-free Eq. (10), whose drift is shown."""
    server_model: bool = False
    """The server keeps a model, as pulling needs it."""
    pull_after: Count | None = None
    """A client that lags more updates than this takes the whole model, if that is fewer bytes."""
    private_seed_shift: bool = False
    """Clients move every seed by a secret of theirs: the server cannot rebuild the model (A.3). No ε follows."""


class Mezo(_Directions):
    """MeZO: one agent with all rows, central two-point estimates, no network."""

    name: Literal["mezo"] = "mezo"
    """The method."""
    batch: Count = 32
    """Rows per step, B."""
    lr: Positive = 1e-3
    """Step size."""


class _FirstOrder(_Sampled):
    lr: Positive = 0.1
    """Step size of the clients."""
    momentum: Momentum = 0.0
    """Momentum of the clients' local steps; starts anew each round."""
    server_lr: Positive = 1.0
    """Step size of the server on the averaged update."""


class Fedavg(_FirstOrder):
    """FedAvg: weights both ways, local SGD (McMahan et al. 2017)."""

    name: Literal["fedavg"] = "fedavg"
    """The method."""


class Fedcom(_FirstOrder):
    """FedCom: FedAvg with updates quantised to 8 bits (Haddadpour et al. 2021)."""

    name: Literal["fedcom"] = "fedcom"
    """The method."""


class Topk(_FirstOrder):
    """FedAvg whose clients send the largest entries of their update alone."""

    name: Literal["topk"] = "topk"
    """The method."""
    share: Fraction = 0.1
    """Share of the entries that is sent."""


class Fedzo(_Directions, _Sampled):
    """FedZO: weights both ways, zeroth-order local steps along each client's own directions (Fang et al. 2022)."""

    name: Literal["fedzo"] = "fedzo"
    """The method."""
    lr: Positive = 1e-3
    """Step size of the clients."""
    server_lr: Positive = 1.0
    """Step size of the server on the averaged update."""
    estimate: Literal["forward", "central"] = "forward"
    """One- or two-sided differences."""


HorizontalMethod = Annotated[Decomfl | Mezo | Fedavg | Fedcom | Topk | Fedzo, Field(discriminator="name")]
HORIZONTAL_METHODS: dict[str, type[Section]] = {
    "decomfl": Decomfl,
    "mezo": Mezo,
    "fedavg": Fedavg,
    "fedcom": Fedcom,
    "topk": Topk,
    "fedzo": Fedzo,
}


class HorizontalResources(Section):
    """Who computes. Clients live in hosts: processes on Ray, threads under the wall clock without it."""

    hosts: Annotated[int, Field(ge=1, le=1000)] | Literal["auto"] = "auto"
    """Hosts on Ray: as many actors; "auto": one per CPU, or per GPU where hosts get a GPU share."""
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """Threads per host; they move no bits."""
    host_cpus: NotNegative | Literal["auto"] = "auto"
    """CPU share of a host actor."""
    host_gpus: NotNegative = 0.0
    """GPU share of a host actor. Without Ray: 0 is the CPU, anything else the GPU if there is one."""
    server_cpus: NotNegative | Literal["auto"] = "auto"
    """CPU share of the server actor, which also watches over the hosts."""
    timeout: Positive = 300.0
    """Seconds to wait for one piece of work before the run counts as stalled."""
    restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    """Hosts lost in one run that are replaced and brought up to date from the ledger."""


class HorizontalBudget(Section):
    """What ends the run; whichever comes first."""

    updates: Count | None = None
    """Updates of the model: rounds, or single clients' updates if asynchronous."""
    seconds: Positive | None = None
    """Seconds of the run's clock."""
    bytes: Count | None = None
    """Bytes both ways; the run ends with the update that passes them."""


class HorizontalRecord(Section):
    """What is written down."""

    flush: Positive = 5.0
    """Seconds between writes of the rows to the run folder."""
    snapshots: Count | None = None
    """Updates between snapshots of the model beside the ledger; they make rebuilding faster. Left out: none."""
    fsync: bool = False
    """Every ledger entry survives a power cut, not only the death of the process."""


class HorizontalScenario(Scenario):
    """A whole scenario of horizontal learning."""

    split: HorizontalSplit = HorizontalSplit()
    model: WholeModel = WholeModel()
    method: HorizontalMethod = Decomfl()
    resources: HorizontalResources = HorizontalResources()
    budget: HorizontalBudget = HorizontalBudget()
    record: HorizontalRecord = HorizontalRecord()
