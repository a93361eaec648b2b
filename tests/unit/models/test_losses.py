"""The Cox loss: held against its definition pair by pair, and against autograd and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raydpzv.engine.objective import Objective
from raydpzv.engine.row_readers import KeptRows
from raydpzv.engine.torch_objective import TorchObjective
from raydpzv.keys import Key
from raydpzv.models.losses import cox
from raydpzv.models.whole import whole
from raydpzv.zo.directions import Direction

ROWS = st.lists(st.tuples(st.floats(-4, 4), st.integers(0, 5), st.integers(0, 1)), min_size=1, max_size=20)


def by_definition(scores, times, events):
    """(1/n) Σ_i E_i (log Σ_{j: t_j >= t_i} e^{s_j - s_i}), risk set by risk set."""
    total = 0.0
    for i in range(len(scores)):
        if events[i]:
            total += math.log(
                sum(math.exp(scores[j] - scores[i]) for j in range(len(scores)) if times[j] >= times[i])
            )
    return total / len(scores)


def gradient_by_definition(scores, times, events):
    """By the scores: event by event, the softmax over its risk set less 1 at itself."""
    found = np.zeros(len(scores))
    for i in np.flatnonzero(events):
        risk = times >= times[i]
        found += np.where(risk, np.exp(scores), 0) / np.exp(scores)[risk].sum()
        found[i] -= 1
    return found / len(scores)


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_the_loss_and_its_gradient_are_those_of_the_definition_with_ties(rows):
    scores, times, events = (np.array(column, float) for column in zip(*rows, strict=True))
    targets = torch.tensor(np.stack([times, events], 1))
    given = torch.tensor(scores[:, None], requires_grad=True)
    loss = cox.mean(given, targets)
    loss.backward()
    assert loss.item() == pytest.approx(by_definition(scores, times, events), abs=1e-12)
    assert given.grad[:, 0].numpy() == pytest.approx(gradient_by_definition(scores, times, events), abs=1e-12)
    several = torch.stack([given.detach(), given.detach() * 2])
    assert cox.at_points(several, targets).mean(-1)[0] == pytest.approx(loss.item(), abs=1e-12)


def test_large_scores_overflow_nothing_and_pairs_without_an_event_move_nothing():
    scores = torch.tensor([[900.0], [-900.0], [0.0]], requires_grad=True)
    targets = torch.tensor([[2.0, 1.0], [1.0, 1.0], [3.0, 0.0]], dtype=torch.float64)
    loss = cox.mean(scores, targets)
    assert loss.item() == pytest.approx(1800 / 3)
    quiet = cox.mean(scores, targets * torch.tensor([1.0, 0.0]))
    quiet.backward()
    assert (quiet.item(), scores.grad.abs().max()) == (0.0, 0.0)


def objective() -> Objective:
    draw = (Key(3) / "rows").generator()
    x = draw.standard_normal((30, 4)).astype(np.float32)
    targets = np.stack([draw.integers(0, 9, 30), draw.integers(0, 2, 30)], 1).astype(float)
    rows = KeptRows(torch.from_numpy(x), torch.from_numpy(targets))
    return TorchObjective(lambda: whole("logistic", (4,), (), 1), rows, "cox")


def test_an_objective_differentiates_it():
    f = objective()
    draw, batch = (Key(4) / "x").generator(), np.arange(3, 25)
    x = torch.tensor(draw.standard_normal(5), dtype=torch.float32)
    loss, gradient = f.gradient(x, batch)
    u = Direction(7, 5, "gaussian")
    along = [float(f.losses(x, [u], amount, [batch])[0, 0]) for amount in (1e-3, -1e-3)]
    assert (along[0] - along[1]) / 2e-3 == pytest.approx(float(gradient.numpy() @ u.values(0, 5)), rel=1e-3)
    assert loss == pytest.approx(f.loss(x, batch), rel=1e-6)
    assert f.twin().loss(x, batch) == f.loss(x, batch)
    assert np.array_equal(f.gradients(x, [batch])[0], gradient.numpy())
    alone = f.gradient(x, np.array([4]))[1]
    assert not alone.any(), "a record alone compares with nobody"


def test_an_evaluation_of_several_blocks_is_of_all_rows_together():
    f = objective()
    draw = (Key(5) / "x").generator()
    x = torch.tensor(draw.standard_normal((1100, 4)), dtype=torch.float32)
    targets = torch.tensor(np.stack([draw.permutation(1100), draw.integers(0, 2, 1100)], 1).astype(float))
    at = torch.tensor([1.0, -1.0, 0.5, 0.0, 0.0])
    found = f.evaluate(at, x, targets)
    scores = (x @ at[:4]).numpy().astype(float)
    assert found.loss == pytest.approx(by_definition(scores, *targets.numpy().T), rel=1e-5)
    assert math.isnan(found.accuracy)
    assert 0.4 < found.concordance < 0.6
