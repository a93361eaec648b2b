from contextlib import nullcontext
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

import raydpzv
from raydpzv.errors import InputError, SpecError
from raydpzv.keys import Key
from raydpzv.models.flat import FlatModel
from raydpzv.models.lora import LoraLinear, LoraModel
from raydpzv.models.own_model import check_model, constants_sha256
from raydpzv.settings.sections import LoraSection
from raydpzv.zo.directions import Direction
from raydpzv.zo.perturbation import LayerwisePerturbation, WholePerturbation

DRAW = (Key(0) / "adapters").generator()
X = torch.tensor(DRAW.standard_normal((8, 5)), dtype=torch.float32)


class Block(nn.Module):
    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__()
        self.query, self.value, self.out = (nn.Linear(width, width, bias) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.out(torch.tanh(self.query(x)) * self.value(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(5), Block(5, bias=False))
        self.norm = nn.LayerNorm(5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(x)))


def section(**given: object) -> LoraSection:
    return LoraSection(**{"rank": 2, "alpha": 6.0, "targets": ("query", "value"), **given})


def given_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(3)
        return Net()


def fit(lora: LoraSection | None = None, make=given_net, seed: int = 0) -> FlatModel:
    """A module whose numbers are there, as a user hands one over, with adapters."""
    base = make()
    return FlatModel(lambda: LoraModel(deepcopy(base), lora or section(), "the model"), Key(seed))


def moved(model: FlatModel) -> np.ndarray:
    draw = (Key(1) / "moved").generator().standard_normal(model.size, dtype=np.float32)
    return model.flat.numpy() + 0.3 * draw


def test_names_and_shapes_are_those_of_peft():
    found = {
        name: tuple(p.shape) for name, p in fit(section(modules_to_save=("head",))).trained.items()
    }
    layers = [f"base_model.model.blocks.{i}.{name}" for i in (0, 1) for name in ("query", "value")]
    adapters = {
        f"{layer}.lora_{m}.weight": (2, 5) if m == "A" else (5, 2) for layer in layers for m in "AB"
    }
    assert found == adapters | {
        "base_model.model.head.weight": (3, 5),
        "base_model.model.head.bias": (3,),
    }


def test_the_first_model_is_the_base_and_a_moved_one_is_another():
    model, base = fit(), given_net()
    with torch.no_grad():
        assert torch.equal(model.module(X), base(X))
        with model.at(moved(model)):
            assert not torch.allclose(model.module(X), base(X), atol=0.01)


def test_a_layer_computes_what_the_paper_says():
    layer = LoraLinear(nn.Linear(5, 4), rank=2, alpha=6.0)
    nn.init.normal_(layer.lora_B.weight, generator=torch.Generator().manual_seed(1))
    w, a, b = (
        p.detach().double()
        for p in (layer.base_layer.weight, layer.lora_A.weight, layer.lora_B.weight)
    )
    wanted = X.double() @ (w + 6.0 / 2 * b @ a).T + layer.base_layer.bias.detach().double()
    torch.testing.assert_close(layer(X).double(), wanted, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(
        layer(X).double(), X.double() @ (w + 6.0 * b @ a).T, atol=0.1
    )  # the control


def test_adapters_are_drawn_from_the_key_within_torchs_bounds():
    one, same, other = (fit(seed=seed).trained for seed in (0, 0, 1))
    a = "base_model.model.blocks.0.query.lora_A.weight"
    assert torch.equal(one[a], same[a])
    assert not torch.equal(one[a], other[a])
    assert 0 < one[a].abs().max() <= 5**-0.5
    assert all(not p.any() for name, p in one.items() if "lora_B" in name)


def test_adapters_of_a_model_that_is_built_without_numbers_start_alike():
    drawn = FlatModel(lambda: LoraModel(Net(), section(), "the model"), Key(0))
    given = fit()
    assert drawn.trained.keys() == given.trained.keys()
    assert torch.equal(drawn.flat, given.flat)


def test_merged_weights_have_the_plain_names_and_compute_the_same():
    model = fit(section(modules_to_save=("head",)))
    there = Net()
    there.load_state_dict(model.state_dict(moved(model)), strict=True)
    with torch.no_grad(), model.at(moved(model)):
        torch.testing.assert_close(there(X), model.module(X), atol=1e-5, rtol=1e-5)
    assert torch.equal(there.blocks[0].out.weight, given_net().blocks[0].out.weight)


def test_models_of_a_process_share_one_frozen_base():
    one, two = fit(), fit(seed=1)
    name = "base_model.model.blocks.0.query.base_layer.weight"
    assert one.constant[name].data_ptr() == two.constant[name].data_ptr()
    assert one.flat.data_ptr() != two.flat.data_ptr()


def test_training_leaves_the_digest_of_the_base():
    model = fit(section(modules_to_save=("head",)))
    before = constants_sha256(model)
    for _ in range(3):
        model.module(X).square().mean().backward()
        with torch.no_grad():
            for p in model.parameters:
                p -= 0.1 * p.grad
                p.grad = None
    assert constants_sha256(model) == before
    model.constant["base_model.model.blocks.0.query.base_layer.weight"][0, 0] += 1  # the control
    assert constants_sha256(model) != before


def test_perturbing_layer_by_layer_has_the_bits_of_the_whole_vector():
    model = fit(section(modules_to_save=("norm", "head")))
    check_model(model, X.numpy(), 3, "the model")
    found = []
    for kind in (
        WholePerturbation(model.module, model.flat, model.offsets),
        LayerwisePerturbation(model.module, model.offsets),
    ):
        with torch.no_grad(), kind.at(Direction(3, model.size), 0.5):
            found.append(model.module(X))
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("targets", "layers"),
    [
        (("query",), ["blocks.0.query", "blocks.1.query"]),
        (("0.query",), ["blocks.0.query"]),
        (("blocks.1.out", "query"), ["blocks.1.out", "blocks.0.query", "blocks.1.query"]),
        (("blocks.1.*",), ["blocks.1.query", "blocks.1.value", "blocks.1.out"]),
        (("*.[qv]*",), ["blocks.0.query", "blocks.0.value", "blocks.1.query", "blocks.1.value"]),
    ],
)
def test_targets_are_names_ends_of_names_or_patterns(targets, layers):
    assert list(LoraModel(Net(), section(targets=targets), "the model").adapters) == layers


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.inner, self.head = (
            nn.Embedding(7, 5),
            nn.Linear(5, 5),
            nn.Linear(5, 7, bias=False),
        )
        self.head.weight = self.embedding.weight


class TiedReader(Tied):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(self.embedding(ids)).mean(1))


class Shared(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = nn.Linear(5, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x)))


class ReadOutside(nn.Module):
    """Its forward call reads the weight of a layer that it also calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(x) @ self.inner.weight)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixed, self.conv = nn.MultiheadAttention(4, 2), nn.Conv1d(1, 1, 1)


@pytest.mark.parametrize(
    ("make", "given", "complaint"),
    [
        (
            Net,
            {"targets": ("qeury",)},
            r'targets: no layer of the model is named "qeury". Did you mean "query"\?',
        ),
        (
            Net,
            {"targets": ("query", "nothing.*")},
            'no layer of the model is named "nothing.*".*: blocks.0.query, ',
        ),
        (Net, {"targets": ("norm",)}, '"norm" is LayerNorm: adapters go beside nn.Linear alone'),
        (Net, {"targets": ("blocks",)}, '"blocks" is Sequential'),
        (Net, {"targets": ("head",), "modules_to_save": ("head",)}, '"head" is in modules_to_save'),
        (
            Net,
            {"modules_to_save": ("haed",)},
            r'modules_to_save: no layer .* "haed". Did you mean "head"\?',
        ),
        (
            Tied,
            {"targets": ("head",)},
            r'"head" shares a weight with another layer \(tied\). Layers that fit: inner$',
        ),
        (Shared, {"targets": ("first",)}, '"first" shares a weight with another layer .tied.'),
        (
            Tied,
            {"targets": ("inner",), "modules_to_save": ("embedding",)},
            '"embedding" shares a weight',
        ),
        (
            Attending,
            {"targets": ("out_proj",)},
            "NonDynamicallyQuantizableLinear.*Layers that fit: none",
        ),
        (lambda: nn.Linear(5, 3), {"targets": ("weight",)}, "Layers that fit: none"),
    ],
)
def test_layers_that_do_not_fit_are_refused_with_the_nearest(make, given, complaint):
    with pytest.raises(SpecError, match=f"model.lora.*{complaint}"):
        LoraModel(make(), section(**given), "the model")


def test_a_weight_that_is_read_outside_its_layer_gets_no_adapter():
    x = np.asarray(X)
    for targets, complaint in (("head", None), ("inner", "AttributeError.*weight")):
        model = fit(section(targets=(targets,)), ReadOutside)
        with pytest.raises(InputError, match=complaint) if complaint else nullcontext():
            check_model(model, x, 3, "the model")


@pytest.mark.parametrize("targets", [["head"], ["inner", "head"], ["*head*"]])
def test_a_scenario_with_adapters_on_a_tied_weight_is_refused(targets):
    scenario = raydpzv.horizontal(
        TiedReader,
        (np.arange(140).reshape(70, 2) % 7, np.arange(70) % 7),
        clients=2,
        updates=1,
        lora={"targets": targets},
    )
    with pytest.raises(SpecError, match=r"model\.lora\.targets: .*\(tied\)"):
        raydpzv.run(scenario)


def test_adapters_beside_a_tied_weight_leave_it_as_it_was():
    model = fit(section(targets=("inner",)), TiedReader)
    model.flat.copy_(torch.tensor(moved(model)))
    merged, plain = model.module.merged(), TiedReader()
    assert torch.equal(merged["head.weight"], merged["embedding.weight"])
    plain.load_state_dict(merged)
    ids = torch.arange(6).reshape(3, 2)
    assert torch.allclose(plain(ids), model.module(ids), atol=1e-5)
    assert plain.head.weight is plain.embedding.weight


class OptAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(width, width) for _ in range(4)
        )


class OptLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.self_attn = OptAttention(width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)


@pytest.mark.parametrize(
    ("layers", "width", "numbers"), [(12, 768, 294_912), (24, 2048, 1_572_864)]
)
def test_rank_8_on_query_and_value_has_the_papers_parameters(layers, width, numbers):
    with torch.device("meta"):  # OPT-125M and OPT-1.3B by their configurations: nothing is drawn
        opt = nn.ModuleDict({"layers": nn.ModuleList(OptLayer(width) for _ in range(layers))})
        model = LoraModel(opt, section(rank=8, targets=("q_proj", "v_proj")), "the model")
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == numbers
    assert all(p.is_meta for p in model.parameters() if not p.requires_grad)
