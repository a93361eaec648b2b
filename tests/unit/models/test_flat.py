import copy
import math
import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from raydpzv.errors import InputError
from raydpzv.foreign import handle
from raydpzv.keys import Key
from raydpzv.models.bottoms import mlp
from raydpzv.models.flat import FlatModel
from raydpzv.models.own_model import model

# layer, the bound 1/√fan_in of torch's own initialisation
LAYERS: list[tuple[Callable[[], nn.Module], float]] = [
    (lambda: nn.Linear(50, 80), 1 / math.sqrt(50)),
    (lambda: nn.Conv2d(6, 32, (3, 5)), 1 / math.sqrt(6 * 15)),
    (lambda: nn.Conv2d(6, 300, 3, groups=3), 1 / math.sqrt(2 * 9)),
    (lambda: nn.LSTM(10, 16, num_layers=2), 1 / math.sqrt(16)),
]


def test_parameters_are_views_of_one_vector_in_named_order() -> None:
    model = FlatModel(lambda: mlp((3, 4), (5,), 2), Key(0))
    assert model.size == model.flat.numel() == 12 * 5 + 5 + 5 * 2 + 2
    assert model.flat.dtype == torch.float32
    assert model.flat.is_contiguous()
    place = 0
    for name, p in model.module.named_parameters():
        assert model.offsets[name] == place
        assert p.data_ptr() == model.flat[place:].data_ptr()
        place += p.numel()
    model.flat.zero_()
    assert all(not p.any() for p in model.module.parameters())
    assert not model.module(torch.ones(1, 3, 4)).any()
    next(model.module.parameters()).data.fill_(2)
    assert model.flat.sum() == 2 * 60


def test_an_lstm_computes_with_the_vector() -> None:
    model = FlatModel(lambda: nn.LSTM(3, 4), Key(0))
    reference = nn.LSTM(3, 4)
    reference.load_state_dict(model.module.state_dict())
    x = torch.ones(2, 1, 3)
    before = model.module(x)[0]
    assert torch.equal(before, reference(x)[0])
    model.flat.mul_(0.5)
    assert not torch.equal(model.module(x)[0], before)


def fits_uniform(p: np.ndarray, bound: float) -> bool:
    within = bool(np.abs(p).max() <= bound)
    return within and stats.kstest(p, stats.uniform(-bound, 2 * bound).cdf).pvalue > 0.001


@pytest.mark.parametrize(("make", "bound"), LAYERS)
def test_the_initial_law_is_torchs_default(make: Callable[[], nn.Module], bound: float) -> None:
    model = FlatModel(make, Key(3))
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        default = torch.cat([p.detach().reshape(-1) for p in make().parameters()]).numpy()
    for drawn in (model.flat.numpy(), default):
        assert fits_uniform(drawn, bound)
        assert not fits_uniform(drawn, 1.1 * bound)
        assert not fits_uniform(drawn, 0.9 * bound)
    for p in model.module.parameters():
        values = p.detach().numpy().ravel()
        assert np.abs(values).max() <= bound
        assert values.size < 30 or fits_uniform(values, bound)


def test_the_initial_values_depend_on_the_key_alone() -> None:
    def make() -> nn.Module:
        return mlp((4,), (6,), 3)

    state = torch.random.get_rng_state()
    one = FlatModel(make, Key(1) / "client" / 0)
    np.testing.assert_array_equal(state, torch.random.get_rng_state())
    torch.rand(5)
    again, other = FlatModel(make, Key(1) / "client" / 0), FlatModel(make, Key(1) / "client" / 1)
    torch.random.set_rng_state(state)
    assert torch.equal(one.flat, again.flat)
    assert one.sha256() == again.sha256() != other.sha256()
    assert not (one.flat == other.flat).any()


def test_layers_of_one_model_are_drawn_apart() -> None:
    model = FlatModel(lambda: nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), Key(0))
    a, b = model.flat.view(2, -1)
    assert not (a == b).any()
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / math.sqrt(a.numel())


def test_the_digest_follows_every_bit() -> None:
    model = FlatModel(lambda: nn.Linear(3, 2), Key(0))
    before = model.sha256()
    model.flat[5] = model.flat[5].nextafter(torch.tensor(9.0))
    assert model.sha256() != before


def test_the_layout_follows_names_and_shapes_in_order_and_nothing_else() -> None:
    def layout(*layers: tuple[str, nn.Module], seed: int = 0) -> str:
        return FlatModel(lambda: nn.Sequential(OrderedDict(layers)), Key(seed)).layout

    one = layout(("a", nn.Linear(3, 2)), ("b", nn.Linear(2, 3)))
    assert one == layout(("a", nn.Linear(3, 2)), ("b", nn.Linear(2, 3)), seed=1)
    assert one == layout(("a", nn.Linear(3, 2)), ("r", nn.ReLU()), ("b", nn.Linear(2, 3)))
    others = [
        layout(("a", nn.Linear(3, 2)), ("c", nn.Linear(2, 3))),
        layout(("b", nn.Linear(3, 2)), ("a", nn.Linear(2, 3))),
        layout(("a", nn.Linear(2, 3)), ("b", nn.Linear(3, 2))),
        layout(("a", nn.Linear(3, 2)), ("b", nn.Linear(2, 3, bias=False))),
    ]
    assert len({one, *others}) == 5
    wide, tall = (nn.Linear(*sides, bias=False) for sides in ((3, 2), (2, 3)))
    assert layout(("a", wide)) != layout(("a", tall)), "as many elements in another shape"


@pytest.mark.parametrize("norm", [lambda: nn.GroupNorm(2, 4), lambda: nn.LayerNorm(4)])
def test_norms_start_as_the_identity(norm: Callable[[], nn.Module]) -> None:
    model = FlatModel(lambda: nn.Sequential(norm(), nn.Linear(4, 2)), Key(0))
    assert model.flat[:8].tolist() == [1.0] * 4 + [0.0] * 4


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_without_statistics_is_refused(kind, affine):
    with pytest.raises(InputError, match=r'"1" is a BatchNorm without statistics'):
        FlatModel(
            lambda: nn.Sequential(
                nn.Linear(4, 4), kind(4, affine=affine, track_running_stats=False)
            ),
            Key(0),
        )


class Pretrained(nn.Module):
    """Layers of every kind a user's module may have beside linear ones."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.norm.running_mean.copy_(torch.arange(4.0))
        self.drop = nn.Dropout(0.5)
        self.bilinear = nn.Bilinear(4, 4, 3)
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.register_buffer("shift", torch.tensor([1, 2, 3]))

    def forward(self, x):
        h = self.frozen(self.drop(self.norm(self.first(x))))
        return self.bilinear(h, h) + self.shift


def test_a_record_is_scored_alone_with_frozen_statistics_and_no_dropout():
    model = FlatModel(Pretrained, Key(0))
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    together = model.module(x)
    assert torch.equal(together, model.module(x))
    torch.testing.assert_close(together, torch.cat([model.module(row[None]) for row in x]))
    mixed = model.module.train()(x)
    assert not torch.allclose(mixed, together), "the control: in training mode records mix"


def test_frozen_parameters_and_buffers_are_no_part_of_the_vector():
    model = FlatModel(Pretrained, Key(0))
    assert sorted({name.partition(".")[0] for name in model.trained}) == [
        "bilinear",
        "first",
        "norm",
    ]
    assert model.size == sum(p.numel() for p in model.parameters)
    assert model.constant["norm.running_mean"].tolist() == [0, 1, 2, 3]
    assert model.module.shift.tolist() == [1, 2, 3]
    before = model.constant["frozen.weight"].clone()
    model.flat.zero_()
    assert torch.equal(model.module.frozen.weight, before)
    assert not model.module.bilinear.weight.any()


def test_models_of_one_process_keep_one_copy_of_constants():
    one, other = FlatModel(Pretrained, Key(0)), FlatModel(Pretrained, Key(1))
    assert not torch.equal(one.flat, other.flat)
    assert one.constant["frozen.weight"].data_ptr() == other.constant["frozen.weight"].data_ptr()
    assert one.module.frozen.weight.data_ptr() == other.module.frozen.weight.data_ptr()


def test_an_unknown_layer_starts_from_its_own_law_under_the_key():
    state = torch.random.get_rng_state()
    one, again, other = (FlatModel(lambda: nn.Bilinear(3, 3, 2), Key(n)) for n in (0, 0, 1))
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(one.flat, again.flat)
    assert not (one.flat == other.flat).any()
    assert one.flat.abs().max() <= 1 / math.sqrt(3)
    other.draw(Key(0))
    assert torch.equal(one.flat, other.flat)


def test_a_module_with_weights_starts_from_them():
    given = nn.Sequential(nn.Linear(3, 3), nn.Bilinear(3, 3, 2))
    before = {name: p.detach().clone() for name, p in given.named_parameters()}
    model = FlatModel(lambda: copy.deepcopy(given), Key(5))
    assert all(torch.equal(model.trained[name], value) for name, value in before.items())
    model.flat.zero_()
    assert all(torch.equal(p, before[name]) for name, p in given.named_parameters())


def test_a_tied_parameter_is_one_slice():
    def tied() -> nn.Module:
        first, second = nn.Linear(3, 3), nn.Linear(3, 3)
        second.weight = first.weight
        return nn.Sequential(first, second)

    model = FlatModel(tied, Key(1))
    assert list(model.trained) == ["0.weight", "0.bias", "1.bias"]
    assert model.size == 9 + 3 + 3
    model.flat[:9] = torch.arange(9.0)
    assert model.module[0].weight is model.module[1].weight
    assert torch.equal(model.module[1].weight.view(-1), torch.arange(9.0))


class OfNumbers(nn.Module):
    """A module whose tensors are made of twelve numbers in one place."""

    def __init__(self, how: str) -> None:
        super().__init__()
        numbers = torch.arange(12.0)
        a, b = {
            "overlap": (numbers[:8], numbers[6:]),
            "the same": (numbers, numbers),
            "the same, turned": (numbers.view(3, 4), numbers.view(3, 4).t()),
            "expanded": (numbers[:1].expand(5), numbers[3:]),
            "side by side": (numbers[:6], numbers[6:]),
            "in turn": (numbers[::2], numbers[1::2]),
            "a buffer": (numbers, numbers[2:4]),
        }[how]
        self.a = nn.Parameter(a)
        if how == "a buffer":
            self.register_buffer("b", b)
        else:
            self.b = nn.Parameter(b)


@pytest.mark.parametrize("given", [False, True], ids=["made", "given"])
@pytest.mark.parametrize("how", ["overlap", "the same", "the same, turned", "expanded", "a buffer"])
def test_trained_parameters_that_overlap_in_memory_are_refused(how, given):
    module = OfNumbers(how)
    make = model(handle(module)) if given else lambda *offered: OfNumbers(how)
    with pytest.raises(InputError, match=r'the memory of "a"(?: and "b")? overlaps'):
        FlatModel(lambda: make({}, {}), Key(0))


@pytest.mark.parametrize("how", ["side by side", "in turn"])
def test_parameters_that_lie_in_one_storage_apart_are_two(how):
    assert FlatModel(lambda: OfNumbers(how), Key(0)).size == 12


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: nn.ReLU(), "no trained parameter"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), "no trained parameter"),
        (lambda: nn.LazyLinear(2), r'"weight" is of a lazy layer and has no shape yet'),
        (lambda: nn.Linear(2, 2).half(), "float16: use float32"),
        (lambda: nn.Linear(2, 2).to(torch.bfloat16), "bfloat16: use float32"),
        (lambda: nn.Linear(2, 2).to(torch.complex64), "complex64: use float32"),
    ],
)
def test_a_module_that_cannot_be_one_vector_is_refused(make, complaint):
    with pytest.raises(InputError, match=complaint):
        FlatModel(make, Key(0))


def test_a_function_that_loads_weights_is_refused():
    saved = nn.Linear(4, 3).state_dict()

    def loaded():
        module = nn.Linear(4, 3)
        module.load_state_dict(saved)
        return module

    with pytest.raises(InputError, match="hand over the module that it returns"):
        FlatModel(loaded, Key(0))


class Stepped(nn.Module):
    """A module whose constructor reads numbers off a tensor, as drop paths of pretrained models
    do.
    """

    def __init__(self) -> None:
        super().__init__()
        rates = [rate.item() for rate in torch.linspace(0, 1, 3)]
        self.register_buffer("rates", torch.tensor(rates))
        self.line = nn.Linear(4, 3)
        nn.init.normal_(self.line.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x) * self.rates


def test_a_module_whose_constructor_reads_numbers_is_built_for_real():
    one, same, other = (
        FlatModel(Stepped, Key(0)),
        FlatModel(Stepped, Key(0)),
        FlatModel(Stepped, Key(1)),
    )
    assert torch.equal(one.constant["rates"], torch.linspace(0, 1, 3))
    assert torch.equal(one.flat, same.flat)
    assert not torch.equal(one.flat, other.flat)
    assert one.trained["line.weight"].abs().max() < 0.2  # by its own law, not U(-1/2, 1/2)


def test_what_a_constructor_raises_by_itself_is_not_built_twice():
    built = []

    def fails():
        built.append(1)
        raise ValueError("no such width")

    with pytest.raises(ValueError, match="no such width"):
        FlatModel(fails, Key(0))
    assert built == [1]


def test_models_of_a_function_that_returns_one_layer_again_are_apart() -> None:
    shared = nn.Linear(3, 2)
    start = torch.cat([p.detach().flatten() for p in shared.parameters()])
    first, second = (FlatModel(lambda: nn.Sequential(shared, nn.ReLU()), Key(0)) for _ in range(2))
    first.flat.zero_()
    x = torch.ones(1, 3)
    assert not first.module(x).any()
    assert torch.equal(second.flat, start)
    assert torch.equal(torch.cat([p.detach().flatten() for p in shared.parameters()]), start)
    second.flat.fill_(1.0)
    assert torch.equal(second.module(x), torch.full((1, 2), 4.0))


def test_a_model_with_weights_that_cannot_be_copied_is_refused() -> None:
    layer = nn.Linear(3, 2)
    layer.lock = threading.Lock()
    with pytest.raises(InputError, match=r"cannot be copied .*lock"):
        FlatModel(lambda: layer, Key(0))
