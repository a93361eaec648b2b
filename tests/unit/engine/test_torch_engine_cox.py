"""Cox's loss at the head of a vertical run: the risk sets are those of one batch, whatever is
stacked.
"""

# M clients, B batch, P perturbations

import numpy as np
import pytest
import torch

from raydpzv.engine.head import Head
from raydpzv.engine.split_model import HeadSettings, TopRows
from raydpzv.engine.torch_engine import TorchTop
from raydpzv.keys import Key
from raydpzv.models.flat import FlatModel
from raydpzv.models.heads import summed
from raydpzv.wire.messages import PerturbedEmbeddings

M, B, P, RADIUS, CLIENT = 2, 7, 3, 0.1, 1
DRAW = Key(5).generator()
TIMES = np.round(DRAW.exponential(size=B), 1)  # with ties
EVENTS = np.array([1, 0, 1, 1, 0, 1, 1.0])
OTHERS = DRAW.standard_normal((B, 1)).astype(np.float32)
PLUS, MINUS = DRAW.standard_normal((2, P, B, 1)).astype(np.float32)
IDS = np.arange(B)


def cox_mean(scores_B: np.ndarray, times_B: np.ndarray = TIMES) -> float:
    """Breslow's partial likelihood, term by term."""
    terms = [
        np.log(np.exp(scores_B[times_B >= times_B[i]]).sum()) - scores_B[i]
        for i in range(B)
        if EVENTS[i]
    ]
    return sum(terms) / B


def cox_top(loss: str = "cox", labels: np.ndarray | None = None) -> TorchTop:
    head = Head(
        FlatModel(lambda: summed(M, 1, (), 1), Key(0)), HeadSettings("frozen", 0.0), Key(0), loss
    )
    found = np.stack([TIMES, EVENTS], 1) if labels is None else labels
    top = TorchTop(head, TopRows(found, found, M, 1))
    for m in range(M):
        top.put(m, IDS, OTHERS if m != CLIENT else np.zeros_like(OTHERS), 0)
    return top


def test_a_scalar_is_the_slope_of_the_batchs_partial_likelihood():
    served = cox_top().two_point(
        CLIENT,
        PerturbedEmbeddings(IDS.astype(np.int32), PLUS, MINUS),
        1,
        smoothing=RADIUS,
        clip=np.inf,
    )
    for p, total in enumerate(served.sums):
        ahead, behind = (cox_mean((OTHERS + at[p])[:, 0].astype(float)) for at in (PLUS, MINUS))
        assert total / B == pytest.approx((ahead - behind) / (2 * RADIUS), abs=1e-5)


def test_differences_of_means_compare_one_batch_at_a_time():
    found_P = cox_top().mean_differences(CLIENT, IDS, PLUS)
    here = cox_mean(OTHERS[:, 0].astype(float))
    expected = [cox_mean((OTHERS + ahead)[:, 0].astype(float)) - here for ahead in PLUS]
    np.testing.assert_allclose(found_P, expected, atol=1e-6)


def test_a_gradient_holds_a_records_part_in_the_risk_sets_of_others():
    gradient_BE = cox_top().gradient(IDS)[:, CLIENT]
    scores, tiny = OTHERS[:, 0].astype(float), 1e-6
    steps = np.eye(B) * tiny
    expected = [(cox_mean(scores + step) - cox_mean(scores - step)) / (2 * tiny) for step in steps]
    np.testing.assert_allclose(gradient_BE[:, 0], expected, atol=1e-6)
    assert abs(gradient_BE[EVENTS == 0]).max() > 0.01  # of censored records, whose own terms are 0


def test_an_empty_batch_has_no_loss():
    nobody = IDS[:0]
    given = PerturbedEmbeddings(nobody.astype(np.int32), PLUS[:, :0], MINUS[:, :0])
    served = cox_top().two_point(CLIENT, given, 1, smoothing=RADIUS, clip=np.inf)
    assert list(served.sums) == [0.0] * P
    assert np.isnan(served.loss)


@pytest.mark.parametrize(("loss", "bounded"), [("binary", True), ("cox", False)])
def test_a_clip_bounds_one_records_part_but_in_coxs_loss(loss, bounded):
    """Why Cox's loss takes no noise: one label moves the sum of clipped slopes by more than twice
    the clip.
    """
    clip, given = 0.5, PerturbedEmbeddings(IDS.astype(np.int32), 20 * PLUS, -20 * PLUS)
    labels = EVENTS.astype(int) if loss == "binary" else np.stack([TIMES, EVENTS], 1)
    moved = []
    for i in range(B):
        other = labels.copy()
        if loss == "binary":
            other[i] = 1 - other[i]
        else:
            other[i, 0] = 0 if other[i, 0] > np.median(TIMES) else 100
        sums = [
            cox_top(loss, of).two_point(CLIENT, given, 1, smoothing=RADIUS, clip=clip).sums
            for of in (labels, other)
        ]
        moved.append(np.abs(np.subtract(*sums)).max())
    assert bool(max(moved) <= 2 * clip + 1e-9) is bounded


def test_losses_of_single_records_do_not_depend_on_the_stacking():
    top = cox_top("binary", EVENTS.astype(int))
    inputs = torch.from_numpy(np.stack([OTHERS, OTHERS], 1))
    labels = torch.from_numpy(EVENTS.astype(int))
    one = top.head.losses(inputs, labels)
    stacked = top.head.losses(inputs.repeat(3, 1, 1), labels, 3)
    # a row's place in a vector register may change the last bit of its softplus(s), s up to 6
    torch.testing.assert_close(stacked, one.repeat(3), rtol=0, atol=1e-6)
