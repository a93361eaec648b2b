import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from raydpzv.engine import torch_objective as under_test
from raydpzv.engine.row_readers import KeptRows
from raydpzv.engine.torch_objective import TorchObjective
from raydpzv.errors import InputError
from raydpzv.keys import Key
from raydpzv.methods.horizontal.seeded_clients import central_differences
from raydpzv.models.flat import FlatModel
from raydpzv.models.whole import whole
from raydpzv.zo import kernels
from raydpzv.zo.directions import Direction, Law

Make = Callable[[], nn.Module]
SHAPE, CLASSES, ROWS = (1, 8, 8), 4, 60

MODELS: dict[str, Make] = {
    "mlp": lambda: whole("mlp", SHAPE, (16, 8), CLASSES),
    "logistic": lambda: whole("logistic", SHAPE, (), CLASSES),
    "cnn_mnist": lambda: whole("cnn_mnist", SHAPE, (), CLASSES),
    "cnn_fashion": lambda: whole("cnn_fashion", SHAPE, (), CLASSES),
}
PLAIN = ("cnn_mnist", "cnn_fashion")


def table() -> tuple[torch.Tensor, torch.Tensor]:
    generator = Key(11).generator()
    x = torch.from_numpy(generator.standard_normal((ROWS, *SHAPE)).astype(np.float32))
    return x, torch.from_numpy(generator.integers(0, CLASSES, ROWS))


def objective(name: str) -> TorchObjective:
    return TorchObjective(MODELS[name], KeptRows(*table()))


class Halved(nn.Module):
    """Flat, but not only that."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) / 2


def batches(*sizes: int) -> list[np.ndarray]:
    return [
        (Key(3) / i).generator().choice(ROWS, size, replace=False) for i, size in enumerate(sizes)
    ]


def directions(size: int, count: int, law: Law = "gaussian") -> list[Direction]:
    return [Direction(1000 + p, size, law) for p in range(count)]


def reference_loss(name: str, at: torch.Tensor, rows: np.ndarray) -> float:
    """torch's own cross-entropy of a module in float64, at parameters of either precision."""
    module = MODELS[name]().double()
    nn.utils.vector_to_parameters(at.double(), module.parameters())
    x, y = table()
    with torch.no_grad():
        return float(functional.cross_entropy(module(x[rows].double()), y[rows]))


@pytest.mark.parametrize("law", ["gaussian", "sphere", "rademacher"])
@pytest.mark.parametrize("name", MODELS)
def test_losses_are_those_of_a_torch_model_at_the_perturbed_parameters(name: str, law: Law) -> None:
    f = objective(name)
    at, us, rows = f.initial(Key(0)), directions(f.size, 3, law), batches(7, 1, 20)
    before = at.clone()
    losses = f.losses(at, us, -0.05, rows)
    assert losses.shape == (3, 3)
    assert losses.dtype == np.float64
    for i, batch in enumerate(rows):
        for p, u in enumerate(us):
            there = before - 0.05 * torch.from_numpy(u.values())
            assert losses[i, p] == pytest.approx(reference_loss(name, there, batch), rel=2e-6)
            assert losses[i, p] != pytest.approx(reference_loss(name, before, batch), rel=2e-6)
    assert torch.equal(at, before), "the caller's parameters are left alone"


@pytest.mark.parametrize("name", PLAIN)
def test_convolutions_get_images_with_channels_next_to_one_another(name: str) -> None:
    f, seen = objective(name), []
    f._pooled = None  # layer by layer, as networks are of which two pooled convolutions are not all
    f._model.module[0].register_forward_hook(lambda layer, given, made: seen.append(made))
    at, (rows,) = f.initial(Key(0)), batches(5)
    f.loss(at, rows)
    f.losses(at, directions(f.size, 1), 1e-3, [rows])
    f.gradient(at, rows)
    f.evaluate(at, *table())
    assert len(seen) == 4
    assert all(made.is_contiguous(memory_format=torch.channels_last) for made in seen)
    assert not any(made.is_contiguous() for made in seen)


@pytest.mark.parametrize("name", MODELS)
def test_one_direction_gives_the_bits_of_the_loss_at_the_perturbed_vector(name: str) -> None:
    f = objective(name)
    at, (u,) = f.initial(Key(0)), directions(f.size, 1)
    there = torch.empty_like(at)
    u.add_to(at, 0.01, out=there)
    for batch in batches(1, 2, 5, 32):
        assert f.loss(there, batch) == f.losses(at, [u], 0.01, [batch])[0, 0]
        assert f.loss(at, batch) == f.losses(at, [u], 0.0, [batch])[0, 0]
        assert f.loss(at, batch) == pytest.approx(reference_loss(name, at, batch), rel=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_a_clients_bits_do_not_depend_on_the_other_clients_or_on_earlier_calls(name: str) -> None:
    f = objective(name)
    at, us, rows = f.initial(Key(0)), directions(f.size, 5), batches(7, 1, 20, 20, 2)
    together = f.losses(at, us, 1e-3, rows)
    alone = [objective(name).losses(at, us, 1e-3, [batch])[0] for batch in rows]
    np.testing.assert_array_equal(together, alone)
    f.loss(at + 1, rows[0])
    f.gradient(at - 1, rows[1])
    f.initial(Key(9))
    f.evaluate(at * 2, *table())
    f.losses(at, directions(f.size, 9), 0.5, rows)
    np.testing.assert_array_equal(f.losses(at, us, 1e-3, rows[::-1])[::-1], together)


@pytest.mark.parametrize("name", MODELS)
def test_objectives_in_several_threads_give_the_same_bits(name: str) -> None:
    f = objective(name)
    at, us, rows = f.initial(Key(0)), directions(f.size, 4), batches(7, 20, 3)
    together = f.losses(at, us, 1e-3, rows)
    gradient = f.gradient(at, rows[0])[1]

    def work(_: int) -> tuple[np.ndarray, torch.Tensor]:
        torch.set_num_threads(1)  # a new thread starts with the process's default
        own = objective(name)
        return own.losses(at, us, 1e-3, rows), own.gradient(at, rows[0])[1]

    with ThreadPoolExecutor(4) as pool:
        for losses, other in pool.map(work, range(8)):
            np.testing.assert_array_equal(losses, together)
            assert torch.equal(other, gradient)


@pytest.mark.parametrize("name", MODELS)
def test_stacks_and_pooled_convolutions_take_their_own_paths_and_agree_with_the_plain_one(
    name: str,
) -> None:
    f, plain = objective(name), objective(name)
    assert f._stacks == (name not in PLAIN)
    assert (f._pooled is not None) == (name == "cnn_mnist")
    plain._stacks, plain._pooled = False, None
    at, us, rows = f.initial(Key(0)), directions(f.size, 6), batches(7, 1, 20)
    np.testing.assert_allclose(
        f.losses(at, us, 0.1, rows), plain.losses(at, us, 0.1, rows), rtol=2e-6
    )


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Flatten, lambda: nn.Linear(64, 5), nn.Tanh, lambda: nn.Linear(5, CLASSES)],
        [nn.Flatten, lambda: nn.Linear(64, 5, bias=False), nn.ReLU, lambda: nn.Linear(5, CLASSES)],
        [nn.Flatten, lambda: nn.LayerNorm(64), lambda: nn.Linear(64, CLASSES)],
        [Halved, lambda: nn.Linear(64, CLASSES)],
    ],
)
def test_other_models_take_the_plain_path_and_are_right(
    layers: list[Callable[[], nn.Module]],
) -> None:
    def make() -> nn.Module:
        return nn.Sequential(*(layer() for layer in layers))

    f = TorchObjective(make, KeptRows(*table()))
    assert not f._stacks
    rows, (x, y) = batches(9)[0], table()
    with torch.no_grad():
        wanted = float(functional.cross_entropy(FlatModel(make, Key(0)).module(x[rows]), y[rows]))
    assert f.loss(f.initial(Key(0)), rows) == pytest.approx(wanted, rel=1e-6)


def test_more_points_than_fit_the_buffer_are_taken_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    f = objective("mlp")
    at, us, rows = f.initial(Key(0)), directions(f.size, 7), batches(7, 20)
    start_immediately = f.losses(at, us, 0.1, rows)
    for room, points in ((3 * f.size, 3), (1, 1)):
        monkeypatch.setattr(under_test, "_STACK_FLOATS", room)
        small = objective("mlp")
        np.testing.assert_allclose(small.losses(at, us, 0.1, rows), start_immediately, rtol=2e-6)
        assert len(small._points_Pd) == points


@pytest.mark.parametrize("law", ["gaussian", "sphere", "rademacher"])
@pytest.mark.parametrize("name", MODELS)
def test_central_losses_are_those_of_both_amounts(
    name: str, law: Law, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = objective(name), objective(name)
    at, rows = ours.initial(Key(2)), batches(5, 1)
    along = directions(ours.size, 3, law)
    wanted = [theirs.losses(at, along, amount, rows) for amount in (1e-2, -1e-2)]
    made: list[object] = []
    plain = kernels.add_both_ways
    monkeypatch.setattr(
        kernels, "add_both_ways", lambda *given: made.append(given[3]) or plain(*given)
    )
    found = ours.central_losses(at, along, 1e-2, rows)
    assert [len(made), len(found)] == [0 if law == "rademacher" else 3, 2]
    for losses, expected in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(losses, expected)
    assert not np.array_equal(*found)
    np.testing.assert_array_equal(
        ours.losses(at, along, 1e-2, rows), wanted[0]
    )  # scratch is as before
    ours._on_gpu = True  # a stack's sides are taken together there
    np.testing.assert_allclose(ours.central_losses(at, along, 1e-2, rows), wanted, rtol=2e-6)


@pytest.mark.parametrize("large", [False, True])
def test_a_mean_of_central_losses_has_the_same_bits_whichever_clients_are_here(
    monkeypatch: pytest.MonkeyPatch, *, large: bool
) -> None:
    """From eight directions on, numpy adds a row in another order than a column."""
    if large:
        monkeypatch.setattr(under_test, "_LARGE", 0)
    f, rows = objective("mlp"), batches(5, 4, 6, 5, 3)
    at, along = f.initial(Key(2)), directions(f.size, 16)
    together = central_differences(f, at, along, 1e-2, rows)[0]
    assert together == [central_differences(f, at, along, 1e-2, [batch])[0][0] for batch in rows]


def test_losses_keep_float64_of_the_float32_scores() -> None:
    f, (x, y), rows = objective("cnn_fashion"), table(), batches(31)[0]
    images = x[rows].to(memory_format=torch.channels_last)
    scores = FlatModel(MODELS["cnn_fashion"], Key(0)).module(images).detach().double().numpy()
    wanted = (np.log(np.exp(scores).sum(1)) - scores[np.arange(31), y[rows].numpy()]).mean()
    assert f.loss(f.initial(Key(0)), rows) == pytest.approx(wanted, rel=1e-13)


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_torchs(name: str) -> None:
    f, (x, y) = objective(name), table()
    at, rows = f.initial(Key(0)), batches(13)[0]
    before, _ = at.clone(), f.initial(Key(1))
    loss, gradient = f.gradient(at, rows)
    module = MODELS[name]().double()
    nn.utils.vector_to_parameters(at.double(), module.parameters())
    functional.cross_entropy(module(x[rows].double()), y[rows]).backward()
    wanted = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
    assert gradient.dtype == torch.float32
    assert gradient.shape == (f.size,)
    torch.testing.assert_close(gradient.double(), wanted, rtol=1e-4, atol=1e-6)
    assert loss == pytest.approx(f.loss(at, rows), rel=1e-6)
    assert torch.equal(at, before)
    assert not gradient.requires_grad


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_the_slope_in_float64(name: str) -> None:
    f = objective(name)
    at, rows, step = f.initial(Key(0)), batches(13)[0], 1e-6
    gradient = f.gradient(at, rows)[1].double().numpy()
    for u in directions(f.size, 4):
        way = step * torch.from_numpy(u.values()).double()
        plus, minus = (reference_loss(name, at.double() + s * way, rows) for s in (1, -1))
        slope = float(gradient @ u.values().astype(np.float64))
        assert (plus - minus) / (2 * step) == pytest.approx(slope, rel=1e-3, abs=1e-4)
        assert abs(slope) > 1e-3


def test_finite_differences_of_a_smooth_loss_keep_three_digits_at_a_small_step() -> None:
    f = objective("logistic")
    at, rows, us, step = f.initial(Key(0)), batches(13), directions(f.size, 4), 1e-3
    slopes = (f.losses(at, us, step, rows) - f.losses(at, us, -step, rows))[0] / (2 * step)
    gradient = f.gradient(at, rows[0])[1].numpy()
    np.testing.assert_allclose(slopes, [gradient @ u.values() for u in us], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", MODELS)
def test_initial_parameters_are_those_of_the_flat_model(name: str) -> None:
    f = objective(name)
    model = FlatModel(MODELS[name], Key(4) / "x")
    assert torch.equal(f.initial(Key(4) / "x"), model.flat)
    assert (f.size, f.layout) == (model.size, model.layout)
    first = f.initial(Key(4))
    assert not torch.equal(first, f.initial(Key(5))), "the caller's own"


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("rows", [1, 511, 512, 513, 1100])
def test_evaluation_in_blocks_is_the_evaluation_at_once(rows: int, name: str) -> None:
    f, picks = objective(name), Key(6).generator().integers(0, ROWS, rows)
    x, y = (part[picks] for part in table())
    at, model = 3 * f.initial(Key(7)), FlatModel(MODELS[name], Key(0))
    model.flat.copy_(at)
    with torch.no_grad():
        scores = model.module(x)
    blocks: list[int] = []
    scored = f._scores
    f._scores = lambda x_BF: (blocks.append(len(x_BF)), scored(x_BF))[1]  # type: ignore[func-returns-value,method-assign]
    found, predicted = f.evaluate(at, x, y), scores.argmax(1).numpy()
    assert (sum(blocks), max(blocks)) == (rows, min(rows, 512))
    assert found.accuracy == pytest.approx((predicted == y.numpy()).mean())
    assert found.loss == pytest.approx(float(functional.cross_entropy(scores, y)), rel=1e-5)
    assert found.top_share == pytest.approx(np.bincount(predicted).max() / rows)


def test_a_constant_prediction_shows() -> None:
    f, (x, y) = objective("logistic"), table()
    found = f.evaluate(
        functional.one_hot(torch.tensor(f.size - 1)).float(), x, y
    )  # the last class's bias
    assert (found.top_share, found.accuracy) == (1.0, float((y == CLASSES - 1).double().mean()))


@pytest.mark.parametrize("name", ["mlp", "cnn_mnist"])
def test_losses_that_are_not_finite_come_back_as_such(name: str) -> None:
    f = objective(name)
    for at in (torch.full((f.size,), value) for value in (math.nan, math.inf, 3e38)):
        assert not math.isfinite(f.loss(at, batches(5)[0]))
        assert not np.isfinite(f.losses(at, directions(f.size, 2), 1e-3, batches(5, 4))).any()
        assert not math.isfinite(f.evaluate(at, *table()).loss)
        assert not math.isfinite(f.gradient(at, batches(5)[0])[0])


def test_the_table_is_shared_and_rows_may_be_int32() -> None:
    x, y = table()
    f = TorchObjective(MODELS["mlp"], KeptRows(x, y))
    at, rows = f.initial(Key(0)), batches(6)[0]
    wide, narrow = f.loss(at, rows), rows.astype(np.int32)
    narrow.flags.writeable = False  # as the views of a split are
    assert f.loss(at, narrow) == wide
    x.zero_()
    assert f.loss(at, rows) != wide


@pytest.mark.parametrize(
    "at",
    [
        torch.zeros(7),
        torch.zeros(260, dtype=torch.float64),
        torch.zeros(520)[::2],
        torch.zeros(1, 260),
    ],
)
def test_parameters_that_do_not_fit_are_refused(at: torch.Tensor) -> None:
    f = objective("logistic")
    assert f.size == 260
    for call in (
        lambda: f.loss(at, batches(3)[0]),
        lambda: f.gradient(at, batches(3)[0]),
        lambda: f.evaluate(at, *table()),
        lambda: f.losses(at, directions(260, 1), 1e-3, batches(3)),
    ):
        with pytest.raises(InputError, match="wants 260 contiguous float32"):
            call()


def test_directions_of_another_size_and_unpaired_labels_are_refused() -> None:
    f, (x, y) = objective("logistic"), table()
    with pytest.raises(InputError, match="has 260 parameters, but a direction has 259"):
        f.losses(f.initial(Key(0)), [*directions(260, 1), *directions(259, 1)], 1e-3, batches(3))
    with pytest.raises(InputError, match="60 rows of features and 59 labels"):
        KeptRows(x, y[1:])
