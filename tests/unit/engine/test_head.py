import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss
from torch.nn import functional

from raydpzv.engine.split_model import HeadTraining
from raydpzv.keys import SERVER_PARTY, Key, direction_seed
from raydpzv.zo.directions import Direction
from tests.helpers.vertical_parties import (
    CLASSES,
    CLIENTS,
    KEY,
    WIDTH,
    flat_of,
    in_double,
    make_head,
    top,
)

B = 6
EMBEDDINGS = torch.from_numpy(
    Key(2).generator().standard_normal((B, CLIENTS, WIDTH)).astype(np.float32)
)
LABELS = torch.from_numpy(Key(3).generator().integers(0, CLASSES, B))


def test_losses_are_the_rows_cross_entropies() -> None:
    head = make_head("frozen")
    scores = in_double(top, head.model.flat)(EMBEDDINGS.double().flatten(1)).detach()
    expected = -torch.log_softmax(scores, 1)[torch.arange(B), LABELS]
    losses = head.losses(EMBEDDINGS, LABELS)
    assert losses.shape == (B,)
    assert not losses.requires_grad
    assert torch.allclose(losses.double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_autograds(momentum: float) -> None:
    head = make_head("sgd", lr=0.1, momentum=momentum)
    reference = in_double(top, head.model.flat)
    optimiser = torch.optim.SGD(reference.parameters(), 0.1, momentum)
    for _ in range(8):
        loss = functional.cross_entropy(reference(EMBEDDINGS.double().flatten(1)), LABELS)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        assert head.train(EMBEDDINGS, LABELS) == pytest.approx(float(loss.detach()), abs=1e-6)
    assert np.abs(head.model.flat.numpy() - flat_of(reference)).max() < 1e-5


def test_the_gradient_by_the_embeddings_is_autograds_and_of_the_parameters_before_the_step() -> (
    None
):
    head = make_head("sgd")
    reference = in_double(top, head.model.flat)
    inputs = EMBEDDINGS.double().requires_grad_()
    functional.cross_entropy(reference(inputs.flatten(1)), LABELS).backward()
    _, gradient = head.backward(EMBEDDINGS, LABELS, for_embeddings=True)
    assert inputs.grad is not None
    assert torch.allclose(gradient.double(), inputs.grad, rtol=0, atol=1e-7)
    assert not EMBEDDINGS.requires_grad
    assert head.backward(EMBEDDINGS, LABELS)[1] is None


def test_a_zeroth_order_step_uses_a_new_direction_each_time() -> None:
    head = make_head("zo", lr=0.01)
    moves = []
    for _ in range(2):
        before = head.model.flat.clone()
        head.train(EMBEDDINGS, LABELS)
        moves.append(functional.normalize(head.model.flat - before, dim=0))
    assert abs(float(moves[0] @ moves[1])) < 0.9


@pytest.mark.parametrize("one_sided", [False, True])
def test_a_zeroth_order_step_is_the_difference_of_losses_along_its_direction(
    one_sided: bool,
) -> None:
    """From w_0 + λu to w_0 - λu, or to w_0 itself, at a radius where the two differ."""
    head = make_head("zo", lr=0.01, smoothing=0.5, one_sided=one_sided)
    before = head.model.flat.numpy().copy()
    u = (
        Direction(direction_seed(KEY, SERVER_PARTY, 0), before.size, "sphere")
        .values()
        .astype(np.float64)
    )

    def loss(amount: float) -> float:
        module = in_double(top, torch.from_numpy(before + amount * u))
        return float(
            functional.cross_entropy(module(EMBEDDINGS.double().flatten(1)), LABELS).detach()
        )

    ends = {True: (loss(0.5) - loss(0)) / 0.5, False: (loss(0.5) - loss(-0.5)) / 1.0}
    assert abs(ends[True] - ends[False]) > 0.1
    assert head.train(EMBEDDINGS, LABELS) == pytest.approx(loss(0), abs=1e-6)
    assert head.model.flat.numpy() == pytest.approx(before - 0.01 * ends[one_sided] * u, abs=1e-6)


@pytest.mark.parametrize("training", ["sgd", "zo", "frozen"])
def test_training_reports_the_loss_before_the_step_and_an_empty_batch_is_none(
    training: HeadTraining,
) -> None:
    head = make_head(training)
    before = float(head.losses(EMBEDDINGS, LABELS).mean())
    digest = head.model.sha256()
    assert math.isnan(head.train(EMBEDDINGS[:0], LABELS[:0]))
    assert head.model.sha256() == digest
    assert head.train(EMBEDDINGS, LABELS) == pytest.approx(before, abs=1e-6)
    assert (head.model.sha256() == digest) == (training == "frozen")


def test_no_client_can_have_the_servers_party_number() -> None:
    assert SERVER_PARTY == 2**22 - 1


@pytest.mark.parametrize("rows", [1, 40])
def test_evaluation_agrees_with_scikit_learn(rows: int) -> None:
    generator = Key(4).generator()
    parts = [
        3 * generator.standard_normal((rows, WIDTH)).astype(np.float32) for _ in range(CLIENTS)
    ]
    labels = generator.integers(0, CLASSES, rows)
    head = make_head("frozen")
    metrics = head.evaluate(parts, torch.from_numpy(labels))
    with torch.no_grad():
        scores = in_double(top, head.model.flat)(
            torch.from_numpy(np.concatenate(parts, 1)).double()
        )
    chances = torch.softmax(scores, 1).numpy()
    predicted = chances.argmax(1)
    assert metrics.accuracy == pytest.approx(accuracy_score(labels, predicted))
    assert metrics.loss == pytest.approx(log_loss(labels, chances, labels=range(CLASSES)), abs=1e-6)
    assert metrics.top_share == np.unique(predicted, return_counts=True)[1].max() / rows
