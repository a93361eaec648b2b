"""Losses against their formulas, the Cox loss against its definition pair by pair; what an own loss
may be.
"""

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raydpzv.engine.objective import Objective
from raydpzv.engine.row_readers import KeptRows
from raydpzv.engine.torch_objective import TorchObjective
from raydpzv.errors import InputError, SpecError
from raydpzv.foreign import handle
from raydpzv.keys import Key
from raydpzv.models.losses import check_loss, cox, records_checked, squared_error
from raydpzv.models.whole import whole
from raydpzv.registry import LOSSES
from raydpzv.zo.directions import Direction

ROWS = st.lists(
    st.tuples(st.floats(-4, 4), st.integers(0, 5), st.integers(0, 1)), min_size=1, max_size=20
)


def by_definition(scores, times, events):
    """(1/n) Σ_i E_i (log Σ_{j: t_j >= t_i} e^{s_j - s_i}), risk set by risk set."""
    total = 0.0
    for i in range(len(scores)):
        if events[i]:
            total += math.log(
                sum(
                    math.exp(scores[j] - scores[i])
                    for j in range(len(scores))
                    if times[j] >= times[i]
                )
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
    assert given.grad[:, 0].numpy() == pytest.approx(
        gradient_by_definition(scores, times, events), abs=1e-12
    )
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
    assert (along[0] - along[1]) / 2e-3 == pytest.approx(
        float(gradient.numpy() @ u.values(0, 5)), rel=1e-3
    )
    assert loss == pytest.approx(f.loss(x, batch), rel=1e-6)
    assert f.twin().loss(x, batch) == f.loss(x, batch)
    assert np.array_equal(f.gradients(x, [batch])[0], gradient.numpy())
    alone = f.gradient(x, np.array([4]))[1]
    assert not alone.any(), "a record alone compares with nobody"


def test_an_evaluation_of_several_blocks_is_of_all_rows_together():
    f = objective()
    draw = (Key(5) / "x").generator()
    x = torch.tensor(draw.standard_normal((1100, 4)), dtype=torch.float32)
    targets = torch.tensor(
        np.stack([draw.permutation(1100), draw.integers(0, 2, 1100)], 1).astype(float)
    )
    at = torch.tensor([1.0, -1.0, 0.5, 0.0, 0.0])
    found = f.evaluate(at, x, targets)
    scores = (x @ at[:4]).numpy().astype(float)
    assert found.loss == pytest.approx(by_definition(scores, *targets.numpy().T), rel=1e-5)
    assert math.isnan(found.accuracy)
    assert 0.4 < found.concordance < 0.6


SCORES = torch.randn(7, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
NUMBERS = torch.randn(7, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
BITS = (NUMBERS > 0).double()


def by_formula(name, scores, labels):
    p = 1 / (1 + np.exp(-scores))
    if name == "squared_error":
        return ((scores - labels) ** 2).mean(-1)
    terms = -(labels * np.log(p) + (1 - labels) * np.log(1 - p))
    return terms[..., 0] if name == "binary" else terms.mean(-1)


@pytest.mark.parametrize(
    ("name", "scores", "labels"),
    [
        ("binary", SCORES[:, :1], BITS[:, 0].long()),
        ("multi_label", SCORES, BITS),
        ("squared_error", SCORES, NUMBERS),
    ],
)
def test_losses_of_a_record_are_those_of_the_formula(name, scores, labels):
    loss = LOSSES[name]
    wanted = by_formula(
        name, scores.numpy(), BITS[:, :1].numpy() if name == "binary" else labels.numpy()
    )
    assert loss.rows(scores, labels).numpy() == pytest.approx(wanted, rel=1e-12)
    assert float(loss.mean(scores, labels)) == pytest.approx(wanted.mean(), rel=1e-12)
    points = torch.stack([scores, 2 * scores]).float()
    found = loss.at_points(points, labels)
    assert found.dtype == torch.float64
    assert found[0].numpy() == pytest.approx(wanted, rel=1e-5)
    assert torch.equal(found[1], loss.at_points(points[1], labels))
    assert loss.outputs == (1 if name == "binary" else None)


def test_large_labels_keep_their_digits_in_finite_differences():
    label = torch.tensor([[1e9 + 0.25]], dtype=torch.float64)
    assert float(squared_error.at_points(torch.tensor([[1e9]]), label)) == pytest.approx(0.0625)


OWN = {
    "a mean": (lambda s, y: ((s - y) ** 2).mean(), "seems to return their mean"),
    "a number": (lambda s, y: 1.0, "got float; it seems to return their mean"),
    "a column": (lambda s, y: (s - y) ** 2, r"one value a record, \[8\], got \[8, 3\]"),
    "an array": (lambda s, y: ((s - y) ** 2).numpy().mean(1), "got ndarray"),
    "others": (lambda s, y: ((s - s.mean(0) - y) ** 2).mean(1), "depends on the other records"),
    "other labels": (
        lambda s, y: ((s - y + y.roll(1, 0)) ** 2).mean(1),
        "depends on the other records",
    ),
    "chance": (
        lambda s, y: ((s - y + torch.randn(1)) ** 2).mean(1),
        "two calls on the same scores differ",
    ),
    "changes": (lambda s, y: (s.sub_(y) ** 2).mean(1), "changes the scores or labels"),
    "an error": (lambda s, y: s @ y, "your loss fails on scores"),
    "an exit": (lambda s, y: sys.exit("gone"), "your loss fails on scores.*SystemExit: gone"),
}


@pytest.mark.parametrize("kind", OWN)
def test_own_losses_that_are_no_function_of_a_record_are_refused(kind):
    function, complaint = OWN[kind]
    with pytest.raises(InputError, match=complaint):
        check_loss(LOSSES[handle(function)], NUMBERS, 3)


@pytest.mark.parametrize(
    ("batch", "records"), [(1, 8), (20, 40), (1000, 256), ("all", 256), (None, 256)]
)
def test_as_many_records_are_checked_as_two_batches_have(batch, records):
    assert records_checked(batch) == records


def test_a_loss_that_mixes_records_of_large_batches_alone_is_refused():
    found = LOSSES[handle(lambda s, y: ((s - y) ** 2).mean(1) + (s.sum() if len(s) > 8 else 0))]
    check_loss(found, NUMBERS, 3)
    with pytest.raises(InputError, match="depends on the other records"):
        check_loss(found, NUMBERS, 3, records_checked(8))


def test_an_own_loss_gets_labels_in_the_scores_precision_and_classes_as_they_are():
    seen = []

    def loss(scores, y):
        seen.append((scores.dtype, y.dtype, tuple(y.shape)))
        return scores.sum(1)

    found = LOSSES[handle(loss)]
    check_loss(found, NUMBERS, 3)
    found.at_points(torch.zeros(2, 7, 3), NUMBERS)
    check_loss(found, torch.arange(3), 3)
    assert set(seen) == {
        (torch.float32, torch.float32, (8, 3)),
        (torch.float64, torch.float64, (7, 3)),
        (torch.float32, torch.int64, (8,)),
    }


def test_an_own_loss_without_a_gradient_is_refused_where_one_is_taken():
    found = LOSSES[handle(lambda s, y: torch.tensor(s.detach().numpy()).abs().sum(1))]
    check_loss(found, NUMBERS, 3)
    scores = torch.zeros(2, 3, requires_grad=True)
    with pytest.raises(InputError, match="no gradient by the scores"):
        found.mean(scores, NUMBERS[:2])


def test_what_is_no_function_is_no_loss():
    with pytest.raises(SpecError, match=r"model\.loss: wanted a function of scores and labels"):
        LOSSES[handle(3)]
