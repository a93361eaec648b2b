"""First weights are named by the shortest source that gives their bits, and no other weights pass
for them.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from raydpzv.errors import InputError
from raydpzv.files import sha256
from raydpzv.keys import Key
from raydpzv.models.flat import FlatModel
from raydpzv.seed_file.first_weights import first_tensors, initial_vector
from raydpzv.seed_file.seed_format import SeededModel, SeedTensor, StepPhase
from raydpzv.seed_file.tensor_file import RawTensor

KEY = Key(11) / "model"


class Every(nn.Module):
    """Layers of each kind that `FlatModel` draws, and a parameter that draws itself."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.convolution = nn.Embedding(7, 5), nn.Conv2d(2, 3, (3, 2), groups=1)
        self.memory, self.linear, self.norm = nn.LSTM(5, 4), nn.Linear(4, 3), nn.LayerNorm(3)
        self.own = nn.Parameter(torch.randn(4))


def as_model(tensors, x) -> SeededModel:
    phases = (StepPhase(1, 1, 1, 0.1),)
    digest = bytes.fromhex(sha256(x))
    one = np.zeros(1, np.uint64), np.zeros(1, np.float32)
    return SeededModel("shared", tensors, digest, digest, phases, *one)


def test_drawn_layers_follow_from_their_keys():
    model = FlatModel(Every, KEY)
    x = model.flat.numpy()
    tensors = first_tensors(model.shapes, x, KEY, {})
    starts = {tensor.name: tensor.start for tensor in tensors}
    assert starts.pop("own") == "stored"
    assert starts.pop("norm.weight") == starts.pop("norm.bias") == "constant"
    assert set(starts.values()) == {"uniform"}
    assert {name.split(".")[0] for name in starts} == {"words", "convolution", "memory", "linear"}
    assert initial_vector(as_model(tensors, x), None).tobytes() == x.tobytes()


def test_another_key_or_one_other_bit_is_no_draw():
    model = FlatModel(lambda: nn.Linear(30, 20), KEY)
    x = model.flat.numpy().copy()
    assert [t.start for t in first_tensors(model.shapes, x, KEY, {})] == ["uniform"] * 2
    assert [t.start for t in first_tensors(model.shapes, x, KEY / "x", {})] == ["stored"] * 2
    assert [t.start for t in first_tensors(model.shapes, x, None, {})] == ["stored"] * 2
    x[17] = np.nextafter(x[17], np.float32(1))
    tensors = first_tensors(model.shapes, x, KEY, {})
    assert [t.start for t in tensors] == ["stored", "uniform"]
    assert initial_vector(as_model(tensors, x), None).tobytes() == x.tobytes()


def test_a_readers_weights_come_first_if_their_bits_and_shapes_fit():
    shapes, x = [("a", (2, 2)), ("b", (3,))], np.arange(7, dtype=np.float32)
    base = {"a": RawTensor.of(x[:4].reshape(2, 2)), "b": RawTensor.of(x[4:] + 1)}
    assert [t.start for t in first_tensors(shapes, x, None, base)] == ["weights", "stored"]
    base["a"] = RawTensor.of(x[:4])
    assert [t.start for t in first_tensors(shapes, x, None, base)] == ["stored", "stored"]
    half = RawTensor("F16", (2, 2), x[:4].astype("<f2").tobytes())
    tensors = first_tensors(shapes, x, None, {"a": half})
    assert tensors[0].start == "weights"
    assert initial_vector(as_model(tensors, x), {"a": half}).tobytes() == x.tobytes()


def test_adapters_names_find_the_tensor_of_the_plain_module():
    x = np.arange(3, dtype=np.float32)
    base = {"weight": RawTensor.of(x + 1), "head.weight": RawTensor.of(x)}
    (tensor,) = first_tensors([("base_model.model.head.weight", (3,))], x, None, base)
    assert (tensor.name, tensor.given) == ("base_model.model.head.weight", "head.weight")
    assert initial_vector(as_model((tensor,), x), base).tobytes() == x.tobytes()


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1e-30])
def test_a_constant_keeps_its_bits(value):
    x = np.full(6, value, np.float32)
    (tensor,) = first_tensors([("a", (6,))], x, None, {})
    assert tensor.start == "constant"
    assert initial_vector(as_model((tensor,), x), None).tobytes() == x.tobytes()
    x[3] = -x[3]
    (tensor,) = first_tensors([("a", (6,))], x, None, {})
    assert tensor.start == "stored", "0 and -0 are equal, but other bits"


def test_an_empty_tensor_has_a_place():
    tensors = first_tensors([("none", (0, 3)), ("one", (1,))], np.ones(1, np.float32), KEY, {})
    assert [tensor.start for tensor in tensors] == ["stored", "constant"]
    assert initial_vector(as_model(tensors, np.ones(1, np.float32)), None).tolist() == [1.0]


def test_other_weights_are_refused():
    x = np.arange(3, dtype=np.float32)
    model = as_model((SeedTensor("a", (3,), "weights", given="a"),), x)
    assert initial_vector(model, {"a": RawTensor.of(x)}).tolist() == [0, 1, 2]
    for weights, said in (
        ({"a": RawTensor.of(x + 1)}, f"other first weights: sha256 .* wants {sha256(x)}"),
        (
            {"a": RawTensor("I64", (3,), bytes(24))},
            r"a: wanted F32, F16 or BF16 of the shape \[3\], got I64 \[3\]",
        ),
        ({"b": RawTensor.of(x)}, "the weights in base lack a"),
        (None, f"give --weights with a; .*{sha256(x)}"),
    ):
        with pytest.raises(InputError, match=said):
            initial_vector(model, weights, "base")
    with pytest.raises(InputError, match="other first weights"):
        initial_vector(replace(model, initial=bytes(32)), {"a": RawTensor.of(x)})
