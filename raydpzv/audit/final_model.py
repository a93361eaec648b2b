"""The likelihood of both versions of a canary under a run's final model, which an outsider has."""

# n records, C classes

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from raydpzv.audit.canaries import ABSENT, Canary
from raydpzv.experiment.initial_model import bottom_module
from raydpzv.experiment.vertical import PreparedVertical
from raydpzv.keys import Key
from raydpzv.models.flat import FlatModel
from raydpzv.models.losses import Loss
from raydpzv.registry import LOSSES


def evidence(
    as_read: PreparedVertical,
    changed: PreparedVertical,
    canaries: Sequence[Canary],
    models: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Return, for each canary, log p of the record as read less log p of the changed one, float64 [n].

    as_read, changed: the run's data without and with all canaries; models: parameters by party that a run ended with.
    An absent record has no log p. A changed record that is no training row any more keeps the features as read.
    """
    rows = np.array([canary.row for canary in canaries])
    places = {int(number): row for row, number in enumerate(changed.numbers)}
    other_rows = [places.get(canary.number) for canary in canaries]
    known, count = as_read.server.y_train[rows], as_read.server.classes
    found = _log_likelihoods(as_read, models, [c.x_train[rows] for c in as_read.clients], known)
    features, labels = [c.x_train[rows].copy() for c in as_read.clients], known.copy()
    for n, (canary, row) in enumerate(zip(canaries, other_rows, strict=True)):
        labels[n] = canary.label(known[n], count)
        if row is not None and canary.kind != ABSENT:
            for x, client in zip(features, changed.clients, strict=True):
                x[n] = client.x_train[row]
    other = _log_likelihoods(as_read, models, features, labels)
    return found - np.where([canary.kind == ABSENT for canary in canaries], 0.0, other)


def _log_likelihoods(
    prepared: PreparedVertical,
    models: Mapping[str, np.ndarray],
    features: Sequence[np.ndarray],
    labels: np.ndarray,
) -> np.ndarray:
    """Return log p(label | features) under the composed model, float64 [n]: less the loss, but for a constant.

    features: each client's, [n, ...].
    """
    loss: Loss = LOSSES[prepared.spec.loss]
    return -loss.at_points(scores(prepared, models, features), torch.tensor(labels)).numpy()


def scores(
    prepared: PreparedVertical, models: Mapping[str, np.ndarray], features: Sequence[np.ndarray]
) -> torch.Tensor:
    """Return the composed model's scores, float32 [n, K]."""
    spec = prepared.spec

    def bottom(client: int, shape: tuple[int, ...]) -> Callable[[], torch.nn.Module]:
        return lambda: bottom_module(spec, client, shape)

    with torch.no_grad():
        embedded = [
            _with(bottom(m, x.shape[1:]), models[f"client {m}"])(torch.tensor(x))
            for m, x in enumerate(features)
        ]
        found: torch.Tensor = _with(prepared.server.head, models["server"])(torch.cat(embedded, dim=1))
        return found


def _with(make: Callable[[], torch.nn.Module], flat: np.ndarray) -> torch.nn.Module:
    """Return a module in evaluation with these parameters, float32 [d] in the order of its names."""
    model = FlatModel(make, Key(0))
    with torch.no_grad():
        model.flat.copy_(torch.tensor(flat))
    return model.module.eval()
