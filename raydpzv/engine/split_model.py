"""The models of a vertical method under any engine: a client's `Bottom` and the server's `Top`.

Arrays are numpy's on both sides, so that a method's roles know neither torch nor compiled kernels.
"""

# M clients, D rows, N held-out rows, B batch, E embedding width, P perturbations, d parameters, R
# rows of a gradient

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from raydpzv.keys import Key
from raydpzv.wire.messages import PerturbedEmbeddings
from raydpzv.zo.directions import Law
from raydpzv.zo.update import Rule, Step, Steps

LayerNoise = Callable[[int, int], np.ndarray]
"""(inner layer, number of its outputs) to what is added to them before their activation, float32 of
that size.
"""

AGE_BINS = 24
"""Ages are binned by powers of two: bin 0 holds age 0, bin k holds ages 2^(k-1) .. 2^k - 1."""

HeadTraining = Literal["sgd", "zo", "frozen", "joint", "dp_sgd"]


@dataclass(frozen=True)
class FirstOrder:
    """A client's settings: step size η, momentum β, and l2 of the regulariser r(w) = l2 ‖w‖² /
    2.
    """

    lr: float
    momentum: float = 0.0
    l2: float = 0.0


@dataclass(frozen=True)
class BottomTraining:
    """Training of a bottom model: by a zeroth-order rule, by gradients of its embeddings, or
    (neither) not at all.

    clip: largest Euclidean norm of an embedding, a part of the model where it is set.
    """

    rule: Rule | None = None
    descent: FirstOrder | None = None
    clip: float | None = None


@dataclass(frozen=True)
class HeadSettings:
    """Training of w_0: step size and momentum; smoothing radius, law and key are those of its own
    zeroth-order step.

    "joint" and "dp_sgd" take steps by released values alone, when asked to (`Top.descend`,
    `Top.descend_by`).

    one_sided: that step takes (f(w_0+λu) - f(w_0)) / λ in place of (f(w_0+λu) - f(w_0-λu)) / 2λ.
    """

    training: HeadTraining
    lr: float
    momentum: float = 0.0
    smoothing: float = 1e-3
    law: Law = "sphere"
    one_sided: bool = False


@dataclass(frozen=True)
class Metrics:
    """Result of one evaluation of the test rows; validation: of the validation rows, where some are
    held out.

    roc_auc, pr_auc: areas under the ROC and the precision-recall curve of class 1 against class 0
    (`raydpzv.engine.ranking`), of models with two scores; None for others. balanced_accuracy: of
    these too.
    concordance: of survival times, which have no accuracy (NaN, as the share); None for others.
    measures: by name, those of numbers, which have no accuracy either, and those of the user
    (`raydpzv.engine.scores`).
    """

    accuracy: float
    loss: float
    top_share: float  # share of the most predicted class: 1.0 is a constant prediction
    roc_auc: float | None = None
    pr_auc: float | None = None
    balanced_accuracy: float | None = None
    concordance: float | None = None
    measures: Mapping[str, float] = field(default_factory=dict)
    validation: Metrics | None = None


def score_parts(score: Callable[[slice], Metrics], rows: int, validated: int) -> Metrics:
    """Score held-out rows: the test rows and, where there are any, the last `validated` ones as
    validation rows.
    """
    tested = rows - validated
    found = score(slice(0, tested))
    return replace(found, validation=score(slice(tested, rows))) if validated else found


AGE_COLUMNS = ("round", "client", "rows", "missing", "age_sum", "age_max")
"""How old one client's cached embeddings were when a batch was served in a round, before the bins:
rows used, of them never uploaded, and server rounds since each other row was refreshed, summed and
at most."""
COUNTED = len(AGE_COLUMNS)
Ages = np.ndarray
"""A row of ages for each client but the one that is served, int64 [M - 1, COUNTED + AGE_BINS]."""


@dataclass(frozen=True, eq=False)
class TopRows:
    """The rows that a top model serves: labels [D] and [N], and the shape [M, E] of a row's
    embeddings.

    validated: how many of the N held-out rows, the last ones, are for validation. metrics: the name
    of the user's.
    """

    labels_train: np.ndarray
    labels_test: np.ndarray
    clients: int
    width: int
    validated: int = 0
    metrics: str = ""


class TwoPointService(NamedTuple):
    """The result of serving one upload of embeddings at w ± λu_p.

    sums: of the clipped slopes along each direction, float64 [P]; nonfinite: slopes that counted as
    0, int [P]; loss: the batch's mean loss before the head's step, NaN for an empty batch.
    """

    sums: Sequence[float]
    nonfinite: Sequence[int]
    cache: Ages
    loss: float


class Bottom(Protocol):
    """A client's model from its own features to embeddings, and the client's features."""

    @property
    def size(self) -> int:
        """Number of parameters, d."""
        ...

    @property
    def layout(self) -> str:
        """Return the digest of the parameters' names and shapes, the same under every engine."""
        ...

    def embed(self, ids: np.ndarray, noise: LayerNoise | None = None) -> np.ndarray:
        """Return the embeddings of these training rows, float32 [B, E]."""
        ...

    def embed_held_out(self, at: np.ndarray | None = None) -> np.ndarray:
        """Return the embeddings of the held-out rows, float32 [N, E]; at: by these parameters,
        float32 [d].
        """
        ...

    def embed_along(
        self, ids: np.ndarray, seeds: Sequence[int] | np.ndarray, amounts: Sequence[float]
    ) -> np.ndarray:
        """Return embeddings at w + amount · u of every seed's direction, float32 [A, P, B, E]; 0 is
        w itself.
        """
        ...

    def forward(self, ids: np.ndarray, noise: LayerNoise | None = None) -> np.ndarray:
        """Return what `embed` does, and remember what `backward` needs."""
        ...

    def step_size(self, lr: float) -> None:
        """Take steps of this size by gradients from now on."""
        ...

    def backward(self, gradient_BE: np.ndarray, scale: float = 1.0) -> None:
        """Take a step, `scale` times the step size, along the gradient of the last `forward`'s
        embeddings, if any.
        """
        ...

    def descend(self, steps: Steps) -> None:
        """Take zeroth-order steps in order, with the bits of `raydpzv.zo.update.Descent`."""
        ...

    def state(self) -> np.ndarray:
        """Return a copy of the parameters and of the V vectors that their training keeps: float32
        [1 + V, d].

        What `forward` remembers is no part of it: the same `forward` restores it.
        """
        ...

    def restore(self, state: np.ndarray) -> None:
        """Take over another model's state."""
        ...

    def parameters(self) -> np.ndarray:
        """Return a copy of the parameters, float32 [d]."""
        ...

    def sha256(self) -> str:
        """Return the digest of the parameters' bytes."""
        ...


class Top(Protocol):
    """The server's model w_0 from all embeddings to scores, with the labels and the cache of newest
    embeddings.
    """

    def step_size(self, lr: float) -> None:
        """Take steps of this size from now on, but for those of `descend`, which say their own."""
        ...

    def put(self, client: int, ids: np.ndarray, values_BE: np.ndarray, round: int) -> None:
        """Store what a client uploaded in this server round (counted from 1)."""
        ...

    def ages(self, ids: np.ndarray, round: int, serving: int) -> Ages:
        """Return how old the other clients' entries for these rows are, in server rounds."""
        ...

    def older(self, ids: np.ndarray, round: int, limit: int, serving: int) -> dict[int, np.ndarray]:
        """Return, for each other client with any, the rows it refreshed more than `limit` rounds
        ago, or never.
        """
        ...

    def two_point(
        self, client: int, body: PerturbedEmbeddings, round: int, *, smoothing: float, clip: float
    ) -> TwoPointService:
        """Serve embeddings at w ± λu_p: slopes clipped to [-clip, clip], the cache refreshed, the
        head trained.
        """
        ...

    def train(self, ids: np.ndarray) -> float:
        """Take the head's step on cached embeddings; return the mean loss before it (NaN for an
        empty batch).
        """
        ...

    def backward(self, ids: np.ndarray, scale: float = 1.0) -> tuple[float, np.ndarray]:
        """Do the same by backpropagation, and return the mean loss's gradient by the embeddings,
        [R, M, E], as well.

        scale: of the step size.
        """
        ...

    def gradient(self, ids: np.ndarray) -> np.ndarray:
        """Return that gradient, [R, M, E], and take no step."""
        ...

    def backward_on(self, values_BME: np.ndarray, ids: np.ndarray) -> tuple[float, np.ndarray]:
        """Do the same on embeddings that are given in place of the cached ones."""
        ...

    def mean_differences(self, client: int, ids: np.ndarray, ahead_nBE: np.ndarray) -> np.ndarray:
        """Return the mean over the rows of ℓ(with `ahead` as the client's embeddings) - ℓ(as
        cached), float64 [n].

        Zeros for an empty batch.
        """
        ...

    def row_slopes(
        self,
        client: int,
        ids: np.ndarray,
        plus_BE: np.ndarray,
        minus_BE: np.ndarray,
        smoothing: float,
        along: int | None = None,
    ) -> np.ndarray:
        """Return (ℓ(with `plus` as the client's embeddings) - ℓ(with `minus`)) / 2λ of every row,
        float32 [B].

        along: seed of a direction v of the head's parameters, which are w_0 + λv and w_0 - λv on
        the two sides.
        """
        ...

    def descend(self, step: Step) -> None:
        """Take a zeroth-order step by released scalars, with the head's momentum."""
        ...

    def clipped_gradient(self, ids: np.ndarray, clip: float) -> np.ndarray:
        """Return the sum over cached rows of each row's gradient by w_0, cut to norm `clip`,
        float64 [d_0].

        A gradient that is not finite counts as 0.
        """
        ...

    def descend_by(self, gradient: np.ndarray) -> None:
        """Take a step along a released gradient [d_0], with the head's step size and momentum."""
        ...

    def row_gradients(
        self, client: int, ids: np.ndarray, count: int, smoothing: float, key: Key
    ) -> np.ndarray:
        """Return (E/λ) mean_n (ℓ(h + λv_n) - ℓ(h)) v_n of every row's own loss, float32 [B, E].

        The `count` unit vectors v_n of every row are drawn at the key.
        """
        ...

    def fit(self, variance: float) -> None:
        """Set a linear head to the discriminant of the rows that all clients sent
        (`raydpzv.engine.discriminant`).

        variance: σ² of the noise on each coordinate. If classes cannot be separated the head stays
        as it is.
        """
        ...

    def evaluate(
        self, embeddings_MNE: Sequence[np.ndarray], at: np.ndarray | None = None
    ) -> Metrics:
        """Score held-out rows by all clients' embeddings [N, E]; at: by these parameters, float32
        [d_0].
        """
        ...

    def state(self) -> dict[str, Any]:
        """Return copies of parameters, of what their training keeps, and of the cache: arrays and
        numbers by name.
        """
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over another model's state."""
        ...

    def parameters(self) -> np.ndarray:
        """Return a copy of the parameters, float32 [d_0]."""
        ...

    def sha256(self) -> str:
        """Return the digest of the parameters' bytes."""
        ...


def older_rows(
    refreshed_DM: np.ndarray, ids: np.ndarray, round: int, limit: int, serving: int
) -> dict[int, np.ndarray]:
    """Return, for each other client with any, the rows among these it refreshed more than `limit`
    rounds ago.

    Rows never uploaded count among them: their zeros are the embedding of no model.
    """
    refreshed_BM = refreshed_DM[ids]
    old_BM = (refreshed_BM == 0) | (round - refreshed_BM > limit)
    old_BM[:, serving] = False
    return {int(m): ids[old_BM[:, m]] for m in np.flatnonzero(old_BM.any(0))}
