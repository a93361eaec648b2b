"""Whole models under compiled kernels, against autograd in float64, torch's objective, and
themselves.
"""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.nn import functional

from raydpzv.engine.compiled_objective import CompiledObjective
from raydpzv.engine.dense import dense_whole
from raydpzv.engine.row_readers import KeptRows
from raydpzv.engine.torch_objective import TorchObjective
from raydpzv.errors import InputError
from raydpzv.keys import Key
from raydpzv.models.whole import whole
from raydpzv.zo.directions import LAWS, Direction, Law
from raydpzv.zo.vectors import as_array
from tests.helpers.vertical_parties import in_double

KEY = Key(29)
ROWS, SHAPE, CLASSES = 300, (2, 5), 4
GENERATOR = (KEY / "data").generator()
X = torch.from_numpy(GENERATOR.standard_normal((ROWS, *SHAPE)).astype(np.float32))
Y = torch.from_numpy(GENERATOR.integers(0, CLASSES, ROWS))
KINDS = [("logistic", ()), ("mlp", (7,)), ("mlp", (9, 6))]


def objectives(
    kind: str = "mlp",
    hidden: tuple[int, ...] = (7,),
    x: torch.Tensor = X,
    y: torch.Tensor = Y,
    outputs: int = CLASSES,
) -> tuple[CompiledObjective, TorchObjective]:
    network = dense_whole(kind, x.shape[1:], hidden, outputs)
    assert network is not None
    rows = KeptRows(x, y)
    return CompiledObjective(network, rows), TorchObjective(
        lambda: whole(kind, x.shape[1:], hidden, outputs), rows
    )


def start(theirs: TorchObjective) -> torch.Tensor:
    return theirs.initial(KEY / "initial")


def along(size: int, count: int, law: Law = "gaussian") -> list[Direction]:
    return [Direction(70 + p, size, law) for p in range(count)]


def batches(*sizes: int) -> list[np.ndarray]:
    return [(KEY / n).generator().choice(ROWS, size, replace=False) for n, size in enumerate(sizes)]


@pytest.mark.parametrize("case", range(12))
def test_losses_and_gradients_are_autograds_over_random_shapes(case: int) -> None:
    draw = (KEY / "shapes" / case).generator()
    rows, inputs, outputs = draw.integers((1, 1, 2), (70, 90, 12)).tolist()
    hidden = tuple(draw.integers(1, 40, draw.integers(0, 3)).tolist())
    x = torch.from_numpy(draw.standard_normal((rows, inputs)).astype(np.float32))
    y = torch.from_numpy(draw.integers(0, outputs, rows))
    ours, theirs = objectives("mlp" if hidden else "logistic", hidden, x, y, outputs)
    at, ids = start(theirs), draw.permutation(rows)[: max(1, rows // 2)]
    module = in_double(lambda: whole("mlp", (inputs,), hidden, outputs), at)
    loss = functional.cross_entropy(module(x[ids].double()), y[ids])
    wanted = torch.cat(
        [g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))]
    )
    found, gradient_d = ours.gradient(at, ids)
    gradient = torch.from_numpy(gradient_d)
    assert found == pytest.approx(float(loss.detach()), rel=1e-6)
    assert ours.loss(at, ids) == found
    assert (gradient - wanted).norm() <= 1e-6 * wanted.norm()
    assert (1.00001 * gradient - wanted).norm() > 1e-6 * wanted.norm(), "control"


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("kind", "hidden"), KINDS)
def test_perturbed_losses_are_those_of_the_perturbed_vector(
    kind: str, hidden: tuple[int, ...], law: Law
) -> None:
    ours, theirs = objectives(kind, hidden)
    at, us, rows = start(theirs), along(ours.size, 3, law), batches(7, 1, 20)
    before = at.clone()
    found = ours.losses(at, us, -0.05, rows)
    assert (found.shape, found.dtype) == ((3, 3), np.dtype(np.float64))
    np.testing.assert_allclose(found, theirs.losses(at, us, -0.05, rows), rtol=1e-6)
    for p, u in enumerate(us):
        there = torch.empty_like(at)
        u.add_to(at, -0.05, out=there)
        assert [ours.loss(there, batch) for batch in rows] == found[:, p].tolist()
        assert ours.loss(at, rows[0]) != found[0, p]
    assert torch.equal(at, before)
    both = ours.central_losses(at, us, 0.05, rows)
    np.testing.assert_array_equal(
        both, [ours.losses(at, us, amount, rows) for amount in (0.05, -0.05)]
    )


def test_a_clients_bits_do_not_depend_on_the_others_on_blocks_or_on_the_number_of_directions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = objectives()
    # more than two blocks of rows
    at, us, rows = start(theirs), along(ours.size, 5), batches(100, 1, 60, 150, 3)
    together = ours.losses(at, us, 1e-3, rows)
    for m, batch in enumerate(rows):
        np.testing.assert_array_equal(ours.losses(at, us[:2], 1e-3, [batch])[0], together[m, :2])
    np.testing.assert_array_equal(ours.losses(at, us, 1e-3, rows[::-1])[::-1], together)
    assert ours.losses_at(at, rows).tolist() == [ours.loss(at, batch) for batch in rows]
    monkeypatch.setattr("raydpzv.engine.compiled_objective._DIRECTION_FLOATS", 2 * ours.size)
    np.testing.assert_array_equal(ours.losses(at, us, 1e-3, rows), together)


def test_threads_give_the_same_bits() -> None:
    ours, theirs = objectives()
    at, us, rows = start(theirs), along(ours.size, 4), batches(17, 20)
    losses, gradient = ours.losses(at, us, 1e-3, rows), ours.gradient(at, rows[0])[1]

    def work(_: int) -> tuple[np.ndarray, np.ndarray]:
        own = ours.twin()
        return own.losses(at, us, 1e-3, rows), own.gradient(at, rows[0])[1]

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(work, range(8)))
    assert all(
        np.array_equal(found, losses) and np.array_equal(other, gradient) for found, other in done
    )


@pytest.mark.parametrize("law", LAWS)
def test_slopes_are_inner_products_with_the_directions(law: Law) -> None:
    ours, theirs = objectives()
    at, us, (ids,) = start(theirs), along(ours.size, 3, law), batches(20)
    loss, slopes = ours.slopes(at, us, ids)
    assert (loss, slopes.dtype) == (ours.loss(at, ids), np.dtype(np.float64))
    gradient = ours.gradient(at, ids)[1].astype(np.float64)
    assert slopes == pytest.approx(
        [gradient @ u.values().astype(np.float64) for u in us], rel=1e-12, abs=1e-12
    )
    assert slopes == pytest.approx(theirs.slopes(at, us, ids)[1], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("which", [0, 1], ids=["compiled", "torch"])
def test_many_gradients_and_descents_are_the_single_ones_to_the_last_bit(which: int) -> None:
    objective, theirs = objectives()[which], objectives()[1]
    at, rows, lr = start(theirs), batches(100, 1, 60, 3), 0.3
    before = at.clone()
    gradients = objective.gradients(at, rows)
    assert all(
        np.array_equal(g, as_array(objective.gradient(at, b)[1]))
        for g, b in zip(gradients, rows, strict=True)
    )
    sequences = [rows[:2], rows[1:2], rows]
    changes = objective.descents(at, sequences, lr)
    for change, sequence in zip(changes, sequences, strict=True):
        x = at.clone()
        descent = objective.descent(x, lr)
        for batch in sequence:
            descent.step([objective.gradient(x, batch)[1]])
        assert np.array_equal(change, (x - at).numpy())
    assert np.array_equal(objective.descents(at, sequences[::-1], lr), changes[::-1])
    assert torch.equal(at, before)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_descent_rounds_each_product_and_sum_once(momentum: float) -> None:
    ours, theirs = objectives()
    start_d, lr = start(theirs), 0.3
    x, v, expected = start_d.clone(), np.zeros(ours.size, np.float32), start_d.numpy().copy()
    other = start_d.clone()
    descent, torchs = ours.descent(x, lr, momentum), theirs.descent(other, lr, momentum)
    for n in range(4):
        gradient = (KEY / "gradient" / n).generator().standard_normal(ours.size).astype(np.float32)
        pieces = [torch.from_numpy(piece.copy()) for piece in np.split(gradient, [n])]
        descent.step(pieces)
        torchs.step(pieces)
        v = v * np.float32(momentum) + gradient
        expected = expected + np.float32(-lr) * v
    assert np.array_equal(x.numpy(), expected)
    assert x.numpy() == pytest.approx(other.numpy(), abs=1e-6)


@pytest.mark.parametrize("rows", [1, 511, 512, 513, 1100])
def test_scores_are_torchs(rows: int) -> None:
    ours, theirs = objectives()
    picks = (KEY / "picks").generator().integers(0, ROWS, rows)
    at, x, y = 4 * start(theirs), X[picks], Y[picks]
    found, wanted = ours.evaluate(at, x, y), theirs.evaluate(at, x, y)
    assert (found.accuracy, found.top_share) == (wanted.accuracy, wanted.top_share)
    assert found.loss == pytest.approx(wanted.loss, rel=1e-6)


def test_losses_that_are_not_finite_come_back_as_such() -> None:
    ours, _ = objectives()
    for at in (torch.full((ours.size,), value) for value in (math.nan, math.inf, 3e38)):
        assert not math.isfinite(ours.loss(at, batches(5)[0]))
        assert not np.isfinite(ours.losses(at, along(ours.size, 2), 1e-3, batches(5, 4))).any()
        assert not math.isfinite(ours.evaluate(at, X, Y).loss)
        assert not math.isfinite(ours.gradient(at, batches(5)[0])[0])


def test_the_table_is_shared_and_what_is_read_only_has_the_same_kernels() -> None:
    x, y = X.numpy().copy(), Y.numpy().copy()
    for array in (x, y):
        array.flags.writeable = False
    rows = batches(6)[0].astype(np.int32)
    rows.flags.writeable = False
    network = dense_whole("mlp", x.shape[1:], (7,), CLASSES)
    assert network is not None
    ours, (theirs, torchs) = CompiledObjective(network, KeptRows(x, y)), objectives()
    features, (labels, _) = ours._located(rows)
    for found, given in zip((features, labels), (x, y), strict=True):
        assert np.shares_memory(found, given)
        assert found.flags.writeable
    at = start(torchs)
    assert ours.loss(at, rows) == theirs.loss(at, rows)
    assert ours.evaluate(at, x, y) == theirs.evaluate(at, X, Y)


def test_what_does_not_fit_is_refused() -> None:
    ours, theirs = objectives("logistic", ())
    at, rows = start(theirs), batches(3)
    for wrong in (torch.zeros(7), at.double(), torch.zeros(2 * ours.size)[::2]):
        for call in (
            lambda x: ours.loss(x, rows[0]),
            lambda x: ours.gradient(x, rows[0]),
            lambda x: ours.evaluate(x, X, Y),
            lambda x: ours.gradients(x, rows),
            lambda x: ours.descents(x, [rows], 0.1),
            lambda x: ours.losses(x, along(ours.size, 1), 1e-3, rows),
            lambda x: ours.slopes(x, along(ours.size, 1), rows[0]),
        ):
            with pytest.raises(InputError, match=f"wants {ours.size} contiguous float32"):
                call(wrong)
    with pytest.raises(InputError, match="but a direction has 3"):
        ours.losses(at, along(3, 1), 1e-3, rows)
    with pytest.raises(InputError, match="300 rows of features and 299 labels"):
        objectives(y=Y[1:])
