"""The compiled engine against torch's, against autograd in float64, and against itself."""

import hashlib
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from raydpzv.engine.compiled import CompiledBottom, CompiledTop
from raydpzv.engine.dense import dense_bottom, dense_head
from raydpzv.engine.head import Head
from raydpzv.engine.split_model import (
    AGE_BINS,
    COUNTED,
    BottomTraining,
    FirstOrder,
    HeadSettings,
    TopRows,
)
from raydpzv.engine.torch_engine import TorchBottom, TorchTop
from raydpzv.keys import Key
from raydpzv.models.flat import FlatModel
from raydpzv.registry import BOTTOMS, HEADS
from raydpzv.wire.messages import PerturbedEmbeddings
from raydpzv.zo.directions import LAWS, Direction, Law
from raydpzv.zo.update import Rule, Step, Steps
from tests.helpers.vertical_parties import in_double

KEY = Key(17)
M, D, N, F, E, K, B = 3, 40, 30, 7, 4, 4, 9
GENERATOR = (KEY / "data").generator()
X, X_TEST = (GENERATOR.standard_normal((rows, F)).astype(np.float32) for rows in (D, N))
Y, Y_TEST = GENERATOR.integers(0, K, D), GENERATOR.integers(0, K, N)
IDS = GENERATOR.choice(D, B, replace=False).astype(np.int32)
GRADIENT = GENERATOR.standard_normal((B, E)).astype(np.float32)
DEPTHS = [("linear", ()), ("mlp", (6,)), ("mlp", (6, 5, 3))]
SEVERAL_BLOCKS = ("mlp", (300, 300))
"""More weights in a layer than a step takes at a time."""
ALL_HEADS = ["mlp", "linear", "sum"]


def bottoms(
    name: str, hidden: tuple[int, ...], **training: Any
) -> tuple[CompiledBottom, TorchBottom]:
    network, how = dense_bottom(name, (F,), hidden, E), BottomTraining(**training)
    assert network is not None
    model = FlatModel(lambda: BOTTOMS[name]((F,), hidden, E), KEY / "client")
    return (
        CompiledBottom(network, X, X_TEST, how, KEY / "client"),
        TorchBottom(model, torch.tensor(X), torch.tensor(X_TEST), how),
    )


def tops(name: str, settings: HeadSettings) -> tuple[CompiledTop, TorchTop]:
    network = dense_head(name, M, E, (6, 5), K)
    assert network is not None
    head = Head(FlatModel(lambda: HEADS[name](M, E, (6, 5), K), KEY / "server"), settings, KEY)
    return (
        CompiledTop(network, settings, KEY, TopRows(Y, Y_TEST, M, E)),
        TorchTop(head, TopRows(Y, Y_TEST, M, E)),
    )


def filled(name: str, settings: HeadSettings) -> tuple[CompiledTop, TorchTop]:
    """Both tops after uploads of all clients but the last, some rows twice."""
    both, generator = tops(name, settings), (KEY / "uploads").generator()
    for round, client in enumerate([0, 1, 0], 1):
        ids = generator.choice(D, 20, replace=False).astype(np.int32)
        values = generator.standard_normal((20, E)).astype(np.float32)
        for top in both:
            top.put(client, ids, values, round)
    return both


@pytest.mark.parametrize(("name", "hidden"), DEPTHS)
@pytest.mark.parametrize("clip", [None, 0.3])
def test_embeddings_are_torchs(name: str, hidden: tuple[int, ...], clip: float | None) -> None:
    ours, theirs = bottoms(name, hidden, rule=Rule("sphere", 0.9), clip=clip)
    assert ours.embed(IDS) == pytest.approx(theirs.embed(IDS), abs=1e-6)
    assert ours.embed_held_out() == pytest.approx(theirs.embed_held_out(), abs=1e-6)
    if clip:
        assert np.linalg.norm(ours.embed(IDS), axis=1).max() <= clip * (1 + 1e-6)
    for law in LAWS:
        ours, theirs = bottoms(name, hidden, rule=Rule(law), clip=clip)
        found = ours.embed_along(IDS, [5, 6, 7], (0.1, 0.0, -0.1))
        assert found.shape == (3, 3, B, E)
        assert found == pytest.approx(
            theirs.embed_along(IDS, [5, 6, 7], (0.1, 0.0, -0.1)), abs=2e-6
        )
        assert np.array_equal(found[1, 0], ours.embed(IDS))
    assert (ours.size, ours.layout) == (theirs.size, theirs.layout)


def test_held_out_rows_beyond_one_block_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = bottoms("mlp", (6,))
    whole = ours.embed_held_out()
    monkeypatch.setattr("raydpzv.engine.compiled.EVALUATED_ROWS", 7)
    assert np.array_equal(
        ours.embed_held_out(), whole
    )  # a row's bits do not hang on its neighbours


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_zeroth_order_steps_have_torchs_bits(law: Any, momentum: float) -> None:
    for name, hidden in (
        ("mlp", (6,)),
        ("mlp", (64, 40)),
    ):  # the second: more than one tile of the generator
        ours, theirs = bottoms(name, hidden, rule=Rule(law, momentum))
        before = ours.sha256()
        for n in range(5):
            steps = Steps.of(
                Step([n, n + 100], [0.3, -1.7], 0.01), Step([n + 50, 3], [0.1, 0.2], 0.02)
            )
            ours.descend(steps)
            theirs.descend(steps)
        assert ours.sha256() == theirs.sha256() != before
        assert np.array_equal(ours.parameters(), theirs.parameters())


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("count", [1, 3])
def test_kept_directions_give_the_bits_of_new_ones(
    law: Any, momentum: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stepped(kept: int) -> tuple[str, str]:
        monkeypatch.setattr("raydpzv.engine.kept_directions.KEPT_FLOATS", kept)
        bottom, _ = bottoms(
            "mlp", (64, 40), rule=Rule(law, momentum)
        )  # more than one tile of the generator
        seen = hashlib.sha256()
        for n in range(3):
            seeds = [n + 10 * p for p in range(count)]
            for _ in range(2):  # the second upload along the same directions finds them made
                seen.update(bottom.embed_along(IDS, seeds, (0.1, -0.1)).tobytes())
            bottom.descend(Steps.of(Step(seeds, [0.3 - p for p in range(count)], 0.01)))
        return seen.hexdigest(), bottom.sha256()

    new = stepped(0)
    made: list[int] = []
    monkeypatch.setattr("raydpzv.engine.compiled._zeroth_order_steps", lambda *_: made.append(1))
    assert stepped(1 << 22) == new
    assert made == []
    stepped(0)
    assert len(made) == 3, "control: without room steps make their directions"


def test_a_layer_of_several_blocks_embeds_as_the_moved_parameters_do() -> None:
    ours, _ = bottoms(*SEVERAL_BLOCKS, rule=Rule("sphere"))
    start, found = ours.parameters(), ours.embed_along(IDS, [5, 6], (0.1, -0.1))
    assert not np.array_equal(found[0], found[1])
    for a, amount in enumerate((0.1, -0.1)):
        for p, seed in enumerate((5, 6)):
            moved = torch.from_numpy(start.copy())
            Direction(seed, ours.size, "sphere").add_to(moved, amount)
            ours.restore(moved.numpy()[None])
            assert np.array_equal(found[a, p], ours.embed(IDS))


def test_a_step_along_other_directions_than_the_kept_ones_makes_its_own() -> None:
    ours, theirs = bottoms("mlp", (6,), rule=Rule("sphere", 0.9))
    ours.embed_along(IDS, [5], (0.1,))
    for bottom in (ours, theirs):
        bottom.descend(Steps.of(Step([6], [0.3], 0.01)))
    assert np.array_equal(ours.parameters(), theirs.parameters())


@pytest.mark.parametrize(("name", "hidden"), [*DEPTHS, SEVERAL_BLOCKS])
@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_a_step_from_embeddings_gradients_is_autograds(
    name: str, hidden: tuple[int, ...], clip: float | None, l2: float
) -> None:
    ours, theirs = bottoms(name, hidden, descent=FirstOrder(1.0, 0.0, l2), clip=clip)
    before = ours.parameters()
    module = in_double(lambda: BOTTOMS[name]((F,), hidden, E), torch.tensor(before))
    out = module(torch.tensor(X[IDS]).double())
    if clip is not None:
        assert (out.norm(dim=1) > clip).any()
        out = out * (clip / out.norm(dim=1, keepdim=True).clamp(min=clip))
    loss = (out * torch.tensor(GRADIENT)).sum() + l2 / 2 * sum(
        (p**2).sum() for p in module.parameters()
    )
    expected = torch.cat(
        [g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))]
    )
    for bottom in (ours, theirs):
        bottom.forward(IDS)
        bottom.backward(GRADIENT, 0.5)  # half a step of size 1
    gradient = 2 * (before - ours.parameters())
    np.testing.assert_allclose(gradient, expected.numpy(), rtol=1e-6, atol=3e-6)
    assert np.abs(gradient - 1.01 * expected.numpy()).max() > 1e-4, "control: a gradient 1 % longer"
    kept = ours.parameters()
    ours.backward(GRADIENT)  # nothing is left to go back through
    assert np.array_equal(ours.parameters(), kept)


def test_momentum_moves_a_layer_of_several_blocks_as_torch_does() -> None:
    ours, theirs = bottoms(*SEVERAL_BLOCKS, descent=FirstOrder(1e-3, 0.9))
    before = ours.parameters()
    for bottom in (ours, theirs):
        for _ in range(3):
            bottom.forward(IDS)
            bottom.backward(GRADIENT)
    moved, expected = ours.parameters() - before, theirs.parameters() - before
    scale = np.abs(expected).max()
    assert np.abs(moved - expected).max() < 1e-3 * scale
    assert np.abs(moved - 1.1 * expected).max() > 1e-2 * scale, "control: a step 10 % longer"


def test_momentum_and_noise_inside_the_layers_are_torchs() -> None:
    ours, theirs = bottoms("mlp", (6, 5), descent=FirstOrder(0.1, 0.9))

    def noise(layer: int, count: int) -> np.ndarray:
        return (KEY / layer).generator().standard_normal(count).astype(np.float32)

    plain = ours.embed(IDS)
    for _ in range(4):
        found = ours.forward(IDS, noise)
        assert found == pytest.approx(theirs.forward(IDS, noise), abs=1e-5)
        assert np.abs(found - plain).max() > 0.1
        for bottom in (ours, theirs):
            bottom.backward(GRADIENT)
    assert ours.parameters() == pytest.approx(theirs.parameters(), abs=1e-5)


@pytest.mark.parametrize("name", ALL_HEADS)
def test_the_heads_gradients_are_autograds(name: str) -> None:
    ours, theirs = filled(name, HeadSettings("sgd", 1.0))
    before = ours.parameters()
    module = in_double(lambda: HEADS[name](M, E, (6, 5), K), torch.tensor(before))
    inputs = theirs.table.get(IDS).double().requires_grad_()
    loss = functional.cross_entropy(module(inputs.flatten(1)), torch.tensor(Y[IDS]))
    expected = torch.autograd.grad(loss, [inputs, *module.parameters()])
    found_loss, found = ours.backward(IDS, 0.5)  # half a step of size 1
    assert found_loss == pytest.approx(float(loss.detach()), abs=1e-6)
    assert found == pytest.approx(expected[0].numpy(), abs=1e-6)
    flat = torch.cat([g.reshape(-1) for g in expected[1:]]).numpy()
    assert 2 * (before - ours.parameters()) == pytest.approx(flat, abs=1e-6)
    assert np.abs(1.01 * found - expected[0].numpy()).max() > 1e-5, "control"


@pytest.mark.parametrize("name", ALL_HEADS)
@pytest.mark.parametrize("training", ["sgd", "zo", "frozen"])
def test_a_two_point_service_is_torchs(name: str, training: Any) -> None:
    ours, theirs = filled(name, HeadSettings(training, 0.05, 0.9, 0.1))
    generator = (KEY / "served").generator()
    for round in range(4, 12):
        ids = generator.choice(D, B, replace=False).astype(np.int32)
        plus = generator.standard_normal((2, B, E)).astype(np.float32)
        minus = (plus + generator.normal(0, 0.1, (2, B, E))).astype(np.float32)
        a, b = (
            top.two_point(
                round % M, PerturbedEmbeddings(ids, plus, minus), round, smoothing=0.1, clip=0.4
            )
            for top in (ours, theirs)
        )
        assert np.array_equal(a.cache, b.cache)
        assert a.sums == pytest.approx(b.sums, abs=1e-4)
        assert a.nonfinite == b.nonfinite == [0, 0]
        assert a.loss == pytest.approx(b.loss, abs=1e-5)
    assert ours.parameters() == pytest.approx(theirs.parameters(), abs=1e-5)
    assert ours.train(IDS) == pytest.approx(theirs.train(IDS), abs=1e-5)
    assert (ours.sha256() == tops(name, HeadSettings("frozen", 1.0))[0].sha256()) == (
        training == "frozen"
    )


@pytest.mark.parametrize("name", ALL_HEADS)
def test_a_heads_one_sided_step_is_torchs(name: str) -> None:
    settings = HeadSettings("zo", 0.05, 0.9, 0.5, one_sided=True)
    ours, theirs = filled(name, settings)
    two_sided, _ = filled(name, replace(settings, one_sided=False))
    for _ in range(3):
        assert ours.train(IDS) == pytest.approx(theirs.train(IDS), abs=1e-5)
        two_sided.train(IDS)
    assert ours.parameters() == pytest.approx(theirs.parameters(), abs=1e-5)
    assert np.abs(ours.parameters() - two_sided.parameters()).max() > 1e-3, "control"


def test_slopes_that_are_not_finite_count_as_zero() -> None:
    ours, _ = filled("mlp", HeadSettings("frozen", 1.0))
    plus = np.zeros((1, B, E), np.float32)
    plus[0, 2], plus[0, 5] = np.nan, np.inf
    served = ours.two_point(
        1, PerturbedEmbeddings(IDS, plus, np.zeros_like(plus)), 4, smoothing=0.1, clip=math.inf
    )
    assert served.nonfinite == [2]
    assert served.sums == [pytest.approx(0.0, abs=1e-9)]


@pytest.mark.parametrize("name", ALL_HEADS)
def test_differences_estimates_and_evaluation_are_torchs(name: str) -> None:
    ours, theirs = filled(name, HeadSettings("sgd", 0.1))
    ahead = GRADIENT + np.float32(0.5)
    found = ours.mean_differences(1, IDS, np.stack([ahead, -ahead]))
    assert found == pytest.approx(
        theirs.mean_differences(1, IDS, np.stack([ahead, -ahead])), abs=1e-6
    )
    assert found[:1] == ours.mean_differences(1, IDS, ahead[None]), "alone it is the same"
    assert np.abs(found).min() > 1e-3
    assert abs(found[0] - found[1]) > 1e-3
    slopes = ours.row_slopes(1, IDS, ahead, -ahead, 0.5)
    assert slopes == pytest.approx(theirs.row_slopes(1, IDS, ahead, -ahead, 0.5), abs=1e-5)
    assert slopes.mean() == pytest.approx(found[0] - found[1], abs=1e-6)
    parts = [
        (KEY / "held out" / m).generator().standard_normal((N, E)).astype(np.float32)
        for m in range(M)
    ]
    a, b = ours.evaluate(parts), theirs.evaluate(parts)
    assert (a.accuracy, a.top_share) == pytest.approx((b.accuracy, b.top_share))
    assert a.loss == pytest.approx(b.loss, abs=1e-6)
    # directions of their own, so the estimates agree as n grows
    estimates = [top.row_gradients(1, IDS, 20_000, 1e-2, KEY) for top in (ours, theirs)]
    assert np.linalg.norm(estimates[0] - estimates[1]) < 0.06 * np.linalg.norm(estimates[1])
    assert np.linalg.norm(estimates[0] - 1.1 * estimates[1]) > 0.06 * np.linalg.norm(estimates[1])


@pytest.mark.parametrize("name", ALL_HEADS)
@pytest.mark.parametrize("law", LAWS)
def test_slopes_along_a_direction_of_the_head_are_differences_of_losses_there(
    name: str, law: Law
) -> None:
    """By a third way: the head moved for good to either side, its losses in float64."""
    settings = HeadSettings("joint", 0.1, 0.9, law=law)
    both, seed, radius = filled(name, settings), 77, 0.5
    found = [top.row_slopes(1, IDS, GRADIENT, -GRADIENT, radius, seed) for top in both]
    assert found[0] == pytest.approx(found[1], abs=2e-5)
    theirs = both[1]
    u = torch.tensor(Direction(seed, len(theirs.parameters()), law).values()).double()
    losses = []
    for values, amount in ((GRADIENT, radius), (-GRADIENT, -radius)):
        inputs = theirs.table.get(IDS).double()
        inputs[:, 1] = torch.tensor(values).double()
        moved = theirs.head.model.flat.detach().double() + amount * u
        scores = in_double(lambda: HEADS[name](M, E, (6, 5), K), moved)(inputs.flatten(1))
        losses.append(
            functional.cross_entropy(scores, torch.tensor(Y[IDS]), reduction="none").detach()
        )
    expected = ((losses[0] - losses[1]) / (2 * radius)).numpy()
    assert found[0] == pytest.approx(expected, abs=2e-5)
    unmoved = both[0].row_slopes(1, IDS, GRADIENT, -GRADIENT, radius)
    assert np.abs(found[0] - unmoved).max() > 1e-2, "control"


@pytest.mark.parametrize("name", ALL_HEADS)
def test_steps_of_the_head_by_released_values_are_torchs(name: str) -> None:
    joint = filled(name, HeadSettings("joint", 0.1, 0.9))
    private = filled(name, HeadSettings("dp_sgd", 0.1, 0.9))
    gradient = (
        (KEY / "gradient")
        .generator()
        .standard_normal(len(joint[0].parameters()))
        .astype(np.float32)
    )
    before = joint[0].parameters()
    for _ in range(3):
        for top in joint:
            top.descend(Step([5, 6], [300.0, -200.0], 1e-3))
        for top in private:
            top.descend_by(gradient)
    assert joint[0].sha256() == joint[1].sha256(), "zeroth-order steps have the same bits"
    assert private[0].parameters() == pytest.approx(private[1].parameters(), abs=1e-6)
    assert np.abs(joint[0].parameters() - before).max() > 1e-2
    assert np.abs(private[0].parameters() - before).max() > 1e-2


@pytest.mark.parametrize("name", ALL_HEADS)
def test_gradients_are_clipped_row_by_row(name: str) -> None:
    """Against autograd, one row at a time, in float64."""
    both, total, norms = filled(name, HeadSettings("dp_sgd", 0.1)), 0.0, []
    module = in_double(lambda: HEADS[name](M, E, (6, 5), K), both[1].head.model.flat)
    inputs = both[1].table.get(IDS).double().flatten(1)
    rows = []
    for b in range(B):
        loss = functional.cross_entropy(module(inputs[b : b + 1]), torch.tensor(Y[IDS[b : b + 1]]))
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        rows.append(torch.cat([g.reshape(-1) for g in gradients]).numpy())
        norms.append(float(np.linalg.norm(rows[-1])))
    clip = sorted(norms)[B // 2] * 1.0001
    total = sum(row * min(1.0, clip / norm) for row, norm in zip(rows, norms, strict=True))
    for top in both:
        assert top.clipped_gradient(IDS, clip) == pytest.approx(total, abs=2e-6)
        assert top.clipped_gradient(IDS, 1e6) == pytest.approx(sum(rows), abs=2e-6)
        assert top.clipped_gradient(IDS[:0], clip) == pytest.approx(0 * total)
    for b in range(B):
        assert np.linalg.norm(both[0].clipped_gradient(IDS[b : b + 1], clip)) <= clip
        assert np.linalg.norm(both[1].clipped_gradient(IDS[b : b + 1], clip)) <= clip
    for top in both:
        top.put(0, IDS[:1], np.full((1, E), np.nan, np.float32), 5)
        assert np.isfinite(top.clipped_gradient(IDS, clip)).all(), "what is not finite counts as 0"


def test_what_is_old_and_how_old_is_torchs() -> None:
    ours, theirs = filled("mlp", HeadSettings("sgd", 0.1))
    everything = np.arange(D, dtype=np.int32)
    for round in (3, 4, 200, 10**9):
        for serving in range(M):
            ages = [top.ages(everything, round, serving) for top in (ours, theirs)]
            assert np.array_equal(*ages)
            assert ages[0].shape == (M - 1, COUNTED + AGE_BINS)
        a, b = (top.older(everything, round, 1, 1) for top in (ours, theirs))
        assert a.keys() == b.keys()
        assert all(np.array_equal(a[m], b[m]) for m in a)


def test_given_embeddings_are_served_without_the_cache() -> None:
    ours, theirs = tops("mlp", HeadSettings("sgd", 0.1, 0.9))
    values = (KEY / "given").generator().standard_normal((B, M, E)).astype(np.float32)
    for _ in range(3):
        (loss, gradient), (expected, by_torch) = (
            top.backward_on(values, IDS) for top in (ours, theirs)
        )
        assert loss == pytest.approx(expected, abs=1e-6)
        assert gradient == pytest.approx(by_torch, abs=1e-6)
    assert ours.parameters() == pytest.approx(theirs.parameters(), abs=1e-6)


def test_a_gradient_without_a_step_is_that_of_the_step() -> None:
    both = filled("mlp", HeadSettings("sgd", 0.1, 0.9))
    for top in both:
        top.train(IDS)  # there is momentum
        before = top.sha256()
        alone = top.gradient(IDS)
        assert top.sha256() == before
        assert top.gradient(IDS[:0]).shape == (0, M, E)
        assert alone == pytest.approx(top.backward(IDS)[1], abs=1e-7)
        assert np.abs(alone - top.gradient(IDS)).max() > 1e-4
    assert both[0].parameters() == pytest.approx(both[1].parameters(), abs=1e-6)


def test_an_empty_batch_is_served() -> None:
    ours, _ = filled("mlp", HeadSettings("sgd", 0.1, 0.9))
    ours.train(IDS)  # from now on momentum alone would move it
    before, none = ours.sha256(), IDS[:0]
    assert math.isnan(ours.train(none))
    assert ours.mean_differences(0, none, np.zeros((2, 0, E), np.float32)).tolist() == [0.0, 0.0]
    assert ours.row_slopes(0, none, GRADIENT[:0], GRADIENT[:0], 0.1).shape == (0,)
    loss, gradient = ours.backward(none)
    assert math.isnan(loss)
    assert gradient.shape == (0, M, E)
    assert ours.row_gradients(0, none, 3, 0.1, KEY).shape == (0, E)
    served = ours.two_point(
        0,
        PerturbedEmbeddings(none, *np.zeros((2, 2, 0, E), np.float32)),
        4,
        smoothing=0.1,
        clip=1.0,
    )
    assert (served.sums, served.nonfinite) == ([0.0, 0.0], [0, 0])
    assert math.isnan(served.loss)
    assert ours.sha256() == before
    bottom, _ = bottoms("mlp", (6,), rule=Rule("sphere", 0.9))
    assert bottom.embed_along(none, [1], (0.1, -0.1)).shape == (2, 1, 0, E)


@pytest.mark.parametrize("name", ALL_HEADS)
def test_an_empty_batch_of_given_embeddings_is_served_as_by_torch(name: str) -> None:
    both, none = tops(name, HeadSettings("sgd", 0.1, 0.9)), IDS[:0]
    values = (KEY / "given").generator().standard_normal((B, M, E)).astype(np.float32)
    for top in both:
        top.backward_on(values, IDS)
        loss, gradient = top.backward_on(values[:0], none)
        assert math.isnan(loss)
        assert gradient.shape == (0, M, E)
    assert both[0].parameters() == pytest.approx(both[1].parameters(), abs=1e-6)


def test_read_only_arrays_from_a_message_are_taken() -> None:
    ours, _ = filled("mlp", HeadSettings("sgd", 0.1))
    ids = np.frombuffer(IDS.tobytes(), np.int32)
    plus = np.frombuffer(GRADIENT.tobytes(), np.float32).reshape(1, B, E)
    again, _ = filled("mlp", HeadSettings("sgd", 0.1))
    a = ours.two_point(1, PerturbedEmbeddings(ids, plus, -plus), 4, smoothing=0.1, clip=1.0)
    b = again.two_point(1, PerturbedEmbeddings(IDS, plus.copy(), -plus), 4, smoothing=0.1, clip=1.0)
    assert (a.sums, a.nonfinite, a.loss) == (b.sums, b.nonfinite, b.loss)
    assert np.array_equal(a.cache, b.cache)
    assert ours.sha256() == again.sha256()


OUTSIDE = [np.array([0, D], np.int32), np.array([0, -1], np.int32)]


@pytest.mark.parametrize("ids", OUTSIDE)
def test_rows_that_are_not_there_are_refused_before_any_memory_is_touched(ids: np.ndarray) -> None:
    values = np.ones((2, E), np.float32)
    bottom = bottoms("mlp", (6,), rule=Rule("sphere"))[0]
    top = filled("mlp", HeadSettings("sgd", 0.1))[0]
    before = top.sha256(), top.older(np.arange(D), 9, 0, 0), top.train(IDS[:0])
    asked = [
        lambda: bottom.embed(ids),
        lambda: bottom.embed_along(ids, [1], (0.1,)),
        lambda: top.put(0, ids, values, 4),
        lambda: top.ages(ids, 4, 0),
        lambda: top.train(ids),
        lambda: top.backward(ids),
        lambda: top.backward_on(np.ones((2, M, E), np.float32), ids),
        lambda: top.mean_differences(0, ids, values[None]),
        lambda: top.row_slopes(0, ids, values, values, 0.1),
        lambda: top.row_gradients(0, ids, 2, 0.1, KEY),
        lambda: top.two_point(
            0, PerturbedEmbeddings(ids, values[None], values[None]), 4, smoothing=0.1, clip=1.0
        ),
    ]
    for ask in asked:
        with pytest.raises(IndexError, match="outside the data"):
            ask()
    after = top.sha256(), top.older(np.arange(D), 9, 0, 0), top.train(IDS[:0])
    assert str(after) == str(before)


def test_uploads_of_another_shape_are_refused() -> None:
    ids, fit = IDS[:2], np.ones((2, E), np.float32)
    bottom = bottoms("mlp", (6,), descent=FirstOrder(0.1))[0]
    top = filled("mlp", HeadSettings("sgd", 0.1))[0]
    bottom.forward(ids)
    for wrong in (fit[:1], fit[:, :2], np.ones((3, E), np.float32)):
        for ask in (
            lambda wrong=wrong: top.put(0, ids, wrong, 4),
            lambda wrong=wrong: top.mean_differences(0, ids, wrong[None]),
            lambda wrong=wrong: top.row_slopes(0, ids, fit, wrong, 0.1),
            lambda wrong=wrong: top.two_point(
                0, PerturbedEmbeddings(ids, wrong[None], wrong[None]), 4, smoothing=0.1, clip=1.0
            ),
            lambda wrong=wrong: bottom.backward(wrong),
        ):
            with pytest.raises(ValueError, match="wanted"):
                ask()
    with pytest.raises(ValueError, match="equal shapes"):
        top.two_point(
            0, PerturbedEmbeddings(ids, fit[None], np.stack([fit, fit])), 4, smoothing=0.1, clip=1.0
        )
    for client in (-1, M):
        with pytest.raises(ValueError, match="client below"):
            top.put(client, ids, fit, 4)
