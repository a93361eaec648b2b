import hashlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from raydpzv.errors import InputError
from raydpzv.keys import Key, direction_seed
from raydpzv.models.bottoms import cnn, mlp
from raydpzv.models.flat import FlatModel
from raydpzv.models.heads import mlp as mlp_head
from raydpzv.zo import perturbation as under_test
from raydpzv.zo.directions import LAWS, Direction, Law
from raydpzv.zo.perturbation import LayerwisePerturbation, WholePerturbation, perturbation, slope


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 5, num_layers=2, batch_first=True)
        self.out = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0][:, -1])


class Wrapped(nn.Linear):
    """Owns parameters and contains owners: the outer weights are in use after the inner modules
    have run.
    """

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + super().forward(self.inner(x))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layer(torch.relu(self.layer(x))))


class Attention(nn.Module):
    """Attention reads its output layer's weights without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.out = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.attend(x, x, x, need_weights=False)[0].mean(1))


class Tied(nn.Module):
    """One weight of an outer and an inner layer, and a frozen layer between."""

    def __init__(self) -> None:
        super().__init__()
        self.outer, self.frozen, self.last = Wrapped(), nn.Linear(4, 4), nn.Linear(4, 4)
        self.outer.inner[0].weight = self.outer.weight
        self.last.weight = self.outer.weight
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.frozen(self.outer(x)))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: mlp((3, 4), (6, 5), 2), (7, 3, 4)),
    "cnn": (lambda: cnn((2, 7, 6), (3, 4), 2), (5, 2, 7, 6)),
    "lstm": (Recurrent, (5, 6, 3)),
    "head": (lambda: mlp_head(2, 3, (8,), 4), (9, 6)),
    "nested": (Wrapped, (6, 4)),
    "twice": (Twice, (6, 4)),
    "attention": (Attention, (5, 3, 4)),
    "encoder": (lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (5, 3, 4)),
    "tied": (Tied, (6, 4)),
}


class Setup:
    def __init__(self, name: str) -> None:
        make, shape = MODELS[name]
        self.model = FlatModel(make, Key(0) / name)
        self.perturb = LayerwisePerturbation(self.model.module, self.model.offsets)
        self.x = torch.from_numpy(
            (Key(1) / name).generator().standard_normal(shape).astype(np.float32)
        )

    def direction(self, seed: int = 3, law: Law = "sphere") -> Direction:
        return Direction(seed, self.model.size, law)

    def copied(self, direction: Direction, amount: float) -> torch.Tensor:
        """The second opinion: a whole copy of w + amount · u, called functionally."""
        moved = self.model.flat.clone()
        direction.add_to(moved, amount)
        places = self.model.offsets
        parameters = {
            name: moved[places[name] : places[name] + p.numel()].view(p.shape)
            for name, p in self.model.trained.items()
        }
        with torch.no_grad():
            return functional_call(self.model.module, parameters, (self.x,))

    def forward(self, direction: Direction, amount: float) -> torch.Tensor:
        with torch.no_grad(), self.perturb.at(direction, amount):
            return self.model.module(self.x)

    def plain(self) -> torch.Tensor:
        with torch.no_grad():
            return self.model.module(self.x)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("law", LAWS)
def test_the_forward_pass_sees_w_plus_lambda_u(name: str, law: Law) -> None:
    setup = Setup(name)
    plain = setup.plain()
    for seed, amount in ((1, 0.1), (2, -0.1), (3, 1e-3)):
        direction = setup.direction(seed, law)
        seen = setup.forward(direction, amount)
        assert torch.equal(seen, setup.copied(direction, amount))
        assert not torch.equal(seen, plain)
    assert torch.equal(setup.plain(), plain)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("law", LAWS)
def test_all_parameters_at_once_give_the_bits_of_one_layer_after_the_other(
    name: str, law: Law
) -> None:
    setup = Setup(name)
    model, before, plain = setup.model, digest(setup.model.flat), setup.plain()
    whole = perturbation(model.module, model.flat, model.offsets)
    assert isinstance(whole, WholePerturbation)
    for seed, amount in ((1, 0.1), (2, -0.1), (3, 1e-3)):
        direction = setup.direction(seed, law)
        with torch.no_grad(), whole.at(direction, amount):
            seen = model.module(setup.x)
            assert digest(model.flat) == before
        assert torch.equal(seen, setup.copied(direction, amount))
        assert not torch.equal(seen, plain)
    with pytest.raises(FloatingPointError), whole.at(setup.direction(), 0.1):
        raise FloatingPointError
    assert torch.equal(setup.plain(), plain)
    assert torch.equal(setup.forward(setup.direction(), 0.5), setup.copied(setup.direction(), 0.5))


def test_a_large_model_is_perturbed_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FlatModel(lambda: nn.Linear(1 << 10, 16), Key(0))
    assert isinstance(perturbation(model.module, model.flat, model.offsets), WholePerturbation)
    monkeypatch.setattr(under_test, "_SMALL", 1 << 14)
    assert isinstance(perturbation(model.module, model.flat, model.offsets), LayerwisePerturbation)


def test_a_model_with_many_token_embeddings_is_perturbed_layer_by_layer() -> None:
    for tokens, kind in ((1 << 9, WholePerturbation), (1 << 10, LayerwisePerturbation)):
        model = FlatModel(lambda tokens=tokens: nn.Embedding(tokens, 17), Key(0))
        assert isinstance(perturbation(model.module, model.flat, model.offsets), kind)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_stay_views_of_the_flat_vector(name: str) -> None:
    setup = Setup(name)
    setup.forward(setup.direction(), 0.1)
    for key, p in setup.model.trained.items():
        start = setup.model.offsets[key]
        assert p.data_ptr() == setup.model.flat[start:].data_ptr()


def digest(x: torch.Tensor) -> str:
    return hashlib.sha256(x.numpy().tobytes()).hexdigest()


@pytest.mark.slow
def test_ten_thousand_evaluations_leave_every_bit_in_place() -> None:
    model = FlatModel(lambda: nn.Linear(8, 4), Key(0))
    perturb = LayerwisePerturbation(model.module, model.offsets)
    x, before = torch.ones(1, 8), digest(model.flat)
    with torch.no_grad():
        for step in range(5000):
            direction = Direction(step, model.size)
            for amount in (1e-3, -1e-3):
                with perturb.at(direction, amount):
                    model.module(x)
    assert digest(model.flat) == before


def test_control_perturbing_in_place_drifts() -> None:
    model = FlatModel(lambda: nn.Linear(8, 4), Key(0))
    before = digest(model.flat)
    for step in range(6):
        direction = Direction(step, model.size)
        for amount in (1e-3, -2e-3, 1e-3):
            direction.add_to(model.flat, amount)
    assert digest(model.flat) != before


@pytest.mark.parametrize("name", ["mlp", "nested"])
def test_an_error_inside_the_forward_pass_restores_everything(name: str) -> None:
    setup = Setup(name)
    before, plain = digest(setup.model.flat), setup.plain()
    # every layer in turn fails while the layers around it are perturbed
    for layer in setup.model.module.modules():

        def fail(module: nn.Module, inputs: object) -> None:
            raise FloatingPointError("inside")

        handle = layer.register_forward_pre_hook(fail)
        with pytest.raises(FloatingPointError, match="inside"):
            setup.forward(setup.direction(), 0.5)
        handle.remove()
        assert digest(setup.model.flat) == before
        assert torch.equal(setup.plain(), plain)
        assert torch.equal(
            setup.forward(setup.direction(), 0.5), setup.copied(setup.direction(), 0.5)
        )


class ReadsWeights(nn.Module):
    """Uses a layer's weights without calling the layer, so that no hook runs."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.read = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.called(x) @ self.read.weight + self.read.bias


def test_a_layer_that_is_never_called_is_an_error() -> None:
    model = FlatModel(ReadsWeights, Key(0))
    perturb = LayerwisePerturbation(model.module, model.offsets)
    with (
        pytest.raises(InputError, match="'read'"),
        torch.no_grad(),
        perturb.at(Direction(0, model.size), 0.1),
    ):
        model.module(torch.ones(2, 4))


def test_a_layer_that_is_skipped_later_is_an_error_although_it_was_called_before() -> None:
    model = FlatModel(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), Key(0))
    perturb = LayerwisePerturbation(model.module, model.offsets)
    direction, x = Direction(0, model.size), torch.ones(2, 4)
    with torch.no_grad(), perturb.at(direction, 0.1):
        model.module(x)
    with pytest.raises(InputError, match="'1'"), torch.no_grad(), perturb.at(direction, -0.1):
        model.module.get_submodule("0")(x)


def test_a_model_without_parameters_is_an_error() -> None:
    with pytest.raises(InputError, match="without parameters"):
        LayerwisePerturbation(nn.ReLU(), {})


@pytest.mark.parametrize(
    ("name", "largest"),
    [("mlp", 12 * 6 + 6), ("head", 6 * 8 + 8), ("twice", 4 * 4 + 4), ("nested", 2 * (4 * 4 + 4))],
)
def test_the_buffer_is_as_large_as_the_largest_chain_of_owners(name: str, largest: int) -> None:
    setup = Setup(name)
    assert setup.perturb._buffer.numel() == largest < setup.model.size


class Aside(nn.Module):
    """Calls a layer that is registered elsewhere while its own weights are perturbed."""

    def __init__(self, other: list[nn.Module]) -> None:
        super().__init__()
        self.weight = nn.Linear(4, 4).weight
        self.other = other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other[0](x @ self.weight)


def test_a_call_across_the_module_tree_is_refused_before_it_overflows_the_buffer() -> None:
    class Crossing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.is_query = Aside([self.layer])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.is_query(x)

    module = Crossing()
    place, offsets = 0, {}
    for name, p in module.named_parameters():
        offsets[name], place = place, place + p.numel()
    perturb = LayerwisePerturbation(module, offsets)
    before = [p.clone() for p in module.parameters()]
    with (
        pytest.raises(InputError, match="'layer'"),
        torch.no_grad(),
        perturb.at(Direction(0, place), 0.1),
    ):
        module(torch.ones(2, 4))
    assert all(torch.equal(p, b) for p, b in zip(module.parameters(), before, strict=True))


class Words(nn.Module):
    """Embeddings that are called in several ways, one of them with a row of padding."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        settings = {"padded": {"padding_idx": 9}, "normed": {"max_norm": 0.5}}.get(how, {})
        self.words, self.out = nn.Embedding(12, 3, **settings), nn.Linear(3, 2)
        if how == "tied":
            self.back = nn.Linear(3, 12, bias=False)
            self.back.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.words(input=x) if self.how == "named" else self.words(x)
        if self.how == "twice":
            found = found + self.words(x.flip(1))
        return self.back(found) if self.how == "tied" else self.out(found)


IDS = torch.tensor([[3, 3, 0], [11, 9, 3]])


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("how", ["plain", "padded", "named", "twice", "tied"])
def test_the_rows_of_an_embedding_have_the_bits_of_the_whole(how, law):
    model = FlatModel(lambda: Words(how), Key(0))
    if how == "tied":
        del model.module.out
        model = FlatModel(lambda: model.module, Key(0))
    whole = WholePerturbation(model.module, model.flat, model.offsets)
    before = model.flat.clone()
    with torch.no_grad(), whole.at(Direction(4, model.size, law), 0.1):
        wanted = model.module(IDS)
    layerwise = LayerwisePerturbation(model.module, model.offsets)
    with torch.no_grad(), layerwise.at(Direction(4, model.size, law), 0.1):
        found = model.module(IDS)
    assert torch.equal(found, wanted)
    assert not torch.equal(found, model.module(IDS))
    assert torch.equal(model.flat, before)
    with pytest.raises(IndexError), layerwise.at(Direction(4, model.size, law), 0.1):
        model.module(IDS + 1)


def test_an_embedding_needs_no_buffer_of_its_size():
    model = FlatModel(lambda: Words("plain"), Key(0))
    assert LayerwisePerturbation(model.module, model.offsets)._buffer.numel() == 3 * 2 + 2
    normed = FlatModel(
        lambda: Words("normed"), Key(0)
    )  # torch changes its rows, so that all are copied
    assert LayerwisePerturbation(normed.module, normed.offsets)._buffer.numel() == 12 * 3


def smooth_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


class Problem:
    """A small smooth classification loss of a flat parameter vector."""

    def __init__(self) -> None:
        self.model = FlatModel(smooth_net, Key(0) / "problem")
        generator = (Key(0) / "data").generator()
        self.x = torch.from_numpy(generator.standard_normal((16, 3)).astype(np.float32))
        self.y = torch.from_numpy(generator.integers(0, 2, 16))
        self.perturb = LayerwisePerturbation(self.model.module, self.model.offsets)

    def loss(self) -> torch.Tensor:
        return functional.cross_entropy(self.model.module(self.x).double(), self.y)

    def gradient(self) -> torch.Tensor:
        parts = torch.autograd.grad(self.loss(), list(self.model.module.parameters()))
        return torch.cat([p.reshape(-1) for p in parts]).double()

    def slope(self, direction: Direction, radius: float) -> float:
        with torch.no_grad():
            with self.perturb.at(direction, radius):
                plus = self.loss()
            with self.perturb.at(direction, -radius):
                minus = self.loss()
        return float(slope(plus, minus, radius))


@pytest.fixture(scope="module")
def problem() -> Iterator[Problem]:
    # thousands of tiny forward passes: a second torch thread makes them up to thirty times slower
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Problem()
    torch.set_num_threads(threads)


def test_the_slope_is_elementwise_and_divides_by_two_lambda() -> None:
    plus, minus = torch.tensor([3.0, 1.0]), torch.tensor([1.0, 2.0])
    assert slope(plus, minus, 0.25).tolist() == [4.0, -2.0]


@pytest.mark.parametrize("law", LAWS)
def test_the_slope_becomes_autograds_directional_derivative(problem: Problem, law: Law) -> None:
    """The error falls with λ² until float32's round-off (about 1e-7 / λ) takes over."""
    gradient = problem.gradient()
    errors = []
    for radius in (0.2, 0.02, 0.002):
        error = 0.0
        for seed in range(5):
            direction = Direction(seed, problem.model.size, law)
            exact = float(gradient @ torch.from_numpy(direction.values()).double())
            error = max(error, abs(problem.slope(direction, radius) - exact))
        errors.append(error)
    assert errors[0] > 1e-3, "the largest λ must leave an error to see"
    assert errors[1] < errors[0] / 50, "a tenth of λ, about a hundredth of the error"
    assert errors[2] < 2e-4


def test_control_a_one_sided_difference_is_only_first_order(problem: Problem) -> None:
    direction = Direction(0, problem.model.size)
    exact = float(problem.gradient() @ torch.from_numpy(direction.values()).double())
    errors = []
    for radius in (0.2, 0.02):
        with torch.no_grad(), problem.perturb.at(direction, radius):
            plus = float(problem.loss())
        errors.append(abs((plus - float(problem.loss().detach())) / radius - exact))
    assert errors[1] > errors[0] / 50


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_the_mean_over_directions_is_the_gradient(problem: Problem, law: Law) -> None:
    """E‖g - ∇f‖² <= (d + 1) ‖∇f‖² / N for both laws; the bound is twice its root."""
    count, size, gradient = 1500, problem.model.size, problem.gradient()
    mean = torch.zeros(size, dtype=torch.float64)
    for step in range(count):
        direction = Direction(direction_seed(Key(5), 0, step), size, law)
        mean += (
            problem.slope(direction, 0.02) * torch.from_numpy(direction.values()).double() / count
        )
    bound = 2 * gradient.norm() * np.sqrt((size + 1) / count)
    assert (mean - gradient).norm() < bound
    assert (2 * mean - gradient).norm() > bound, "control: λ in place of 2λ"
    assert (mean.roll(1) - gradient).norm() > bound, "control: misplaced elements"
