"""A small problem whose records belong to users with several silos, and its methods' parties."""

import dataclasses
from typing import Any

import numpy as np
import torch

from raydpzv.data.users import Known, UserParts, share_users
from raydpzv.engine.compiled_objective import CompiledObjective
from raydpzv.engine.dense import dense_whole
from raydpzv.engine.objective import Objective
from raydpzv.engine.row_readers import KeptRows
from raydpzv.engine.torch_objective import TorchObjective
from raydpzv.keys import Key
from raydpzv.methods.descriptor import ClientGroupParts, HorizontalMethod, HorizontalServerParts
from raydpzv.methods.roles import Upload
from raydpzv.models.whole import whole
from raydpzv.privacy.user_release import UserNoiseParts, UserRelease
from raydpzv.settings.sections_horizontal import UsersSection

KEY = Key(31)
SILOS, USERS, ROWS, FEATURES, CLASSES = 3, 12, 150, 6, 3
SIZE = (FEATURES + 1) * CLASSES
"""Parameters of the softmax regression."""


def _make_data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = (KEY / "data").generator()
    y = generator.integers(0, CLASSES, ROWS)
    centres = generator.standard_normal((CLASSES, FEATURES)) * 2
    x = (centres[y] + generator.standard_normal((ROWS, FEATURES))).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(y)


X, Y = _make_data()
START = (0.3 * (KEY / "start").generator().standard_normal(SIZE)).astype(np.float32)


def parts() -> UserParts:
    return share_users(
        Known(Y.numpy()), SILOS, UsersSection(count=USERS, silo_alpha=1.0), KEY / "parts"
    )


def objective(
    engine: str = "compiled", x: torch.Tensor = X, y: torch.Tensor = Y, kind: str = "logistic"
) -> Objective:
    """Return losses and gradients of a softmax regression, or of an mlp with 7 hidden units."""
    rows = KeptRows(x, y)
    if engine == "torch":
        return TorchObjective(lambda: whole(kind, (FEATURES,), (7,), CLASSES), rows)
    network = dense_whole(kind, (FEATURES,), (7,), CLASSES)
    assert network is not None
    return CompiledObjective(network, rows)


def noise(
    weights: str, multiplier: float = 0.0, clip: float = 0.5, bits: int = 16
) -> UserNoiseParts:
    """Return how releases are made, seeded: reach S for plain sums, 1 for weights that add up to
    1.
    """
    release = UserRelease(clip, bits, multiplier, SILOS if weights == "uniform" else 1)
    return UserNoiseParts(release, USERS, KEY, KEY / "coins", seeded=True)


class Round:
    """One round of a method from `START`: the silos' uploads and the model that the server makes of
    them.
    """

    def __init__(
        self,
        method: HorizontalMethod[Any],
        given: UserNoiseParts,
        at: UserParts | None = None,
        of: Objective | None = None,
        **settings: Any,
    ) -> None:
        held = at or parts()
        config = method.config(**settings)
        server = method.server(
            HorizontalServerParts(
                rows=held.sizes, key=KEY, initial=lambda: START, replica=_no_replica, users=given
            ),
            config,
        )
        group = method.clients(
            ClientGroupParts([of or objective()], held, KEY, users=given), config
        )
        self.uploads: list[Upload] = []
        orders = server.first_orders()
        for upload in group.process(orders):
            self.uploads.append(upload)
            server.receive(upload)
        self.model: np.ndarray = server.parameters()
        assert [u.body.wire_bytes for u in self.uploads] == [o.upload_bytes for o in orders]

    @property
    def total(self) -> np.ndarray:
        """The sum of the silos' sums, int64 [D]."""
        return np.sum([u.body.values for u in self.uploads], axis=0)


def _no_replica() -> Any:
    raise AssertionError("weights travel: nobody follows a ledger")


def gradient(
    x_d: np.ndarray, rows: np.ndarray, x: np.ndarray | None = None, y: np.ndarray | None = None
) -> np.ndarray:
    """The gradient of the mean cross-entropy of the softmax regression, written out in float64."""
    features = (X.numpy() if x is None else x)[rows].astype(np.float64)
    labels = (Y.numpy() if y is None else y)[rows]
    weights, bias = x_d[:-CLASSES].reshape(CLASSES, FEATURES), x_d[-CLASSES:]
    scores = features @ weights.T + bias
    scores = np.exp(scores - scores.max(1, keepdims=True))
    errors = scores / scores.sum(1, keepdims=True) - np.eye(CLASSES)[labels]
    return np.concatenate([(errors.T @ features).ravel(), errors.sum(0)]) / len(rows)


def clipped(vector: np.ndarray, clip: float) -> np.ndarray:
    return vector * min(1.0, clip / np.linalg.norm(vector))


def without(held: UserParts, user: int, but: int | None = None) -> UserParts:
    """The same with all records of a user gone from all silos, but one if given; U and all others'
    records stay.
    """
    counts = np.diff(held.offsets)
    silos = np.repeat(np.arange(held.clients), np.diff(held.starts))
    kept = (held.owners != user) | (silos == (-1 if but is None else but))
    return dataclasses.replace(
        held,
        ids=held.ids[np.repeat(kept, counts)],
        starts=np.searchsorted(silos[kept], np.arange(held.clients + 1)),
        owners=held.owners[kept],
        offsets=np.concatenate(([0], np.cumsum(counts[kept]))),
    )
