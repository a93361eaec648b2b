"""The residual network: its known sizes, a written-out forward pass, and an explicitly perturbed
copy.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from raydpzv.errors import SpecError
from raydpzv.keys import Key
from raydpzv.models.flat import FlatModel
from raydpzv.models.resnet import resnet18
from raydpzv.registry import BOTTOMS
from raydpzv.zo.directions import LAWS
from tests.helpers.perturbed import check_perturbed

FULL = (64, 128, 256, 512)
TINY = (4, 6, 16, 32)


def images(*shape: int) -> torch.Tensor:
    return torch.from_numpy(
        (Key(1) / "images").generator().standard_normal(shape).astype(np.float32)
    )


def tiny(shape=(3, 16, 16)) -> FlatModel:
    return FlatModel(lambda: resnet18(shape, TINY, 5), Key(2))


def closed_form(inputs: int, stem: int, channels: tuple[int, ...], width: int) -> int:
    total, before = inputs * channels[0] * stem**2 + 2 * channels[0], channels[0]
    for stage, c in enumerate(channels):
        total += 9 * before * c + 3 * 9 * c * c + 4 * 2 * c
        total += before * c + 2 * c if stage and before != c else 0
        before = c
    return total + (before + 1) * width


@pytest.mark.parametrize(
    ("shape", "width", "known"),
    [((3, 32, 32), 10, 11_173_962), ((3, 224, 224), 1000, 11_689_512), ((12, 1, 48, 64), 7, None)],
)
def test_its_parameters_are_those_of_the_published_networks(shape, width, known) -> None:
    """CIFAR's and ImageNet's ResNet-18 with batch normalisation: that of groups has as many."""
    with torch.device("meta"):
        count = sum(p.numel() for p in resnet18(shape, FULL, width).parameters())
    inputs, stem = int(np.prod(shape[:-2])), 3 if min(shape[-2:]) <= 64 else 7
    assert count == closed_form(inputs, stem, FULL, width)
    assert known is None or count == known


def written_out(model: FlatModel, x: torch.Tensor) -> torch.Tensor:
    """The same network from its parameters in order, without modules."""
    values = iter(p.detach() for p in model.module.parameters())

    def convolved(x: torch.Tensor, stride: int) -> torch.Tensor:
        weight, gain, shift = next(values), next(values), next(values)
        out = functional.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        groups = out.shape[1] // 16 if out.shape[1] % 16 == 0 else 1
        grouped = out.reshape(len(out), groups, -1)
        centred = grouped - grouped.mean(2, keepdim=True)
        normal = centred / torch.sqrt(centred.square().mean(2, keepdim=True) + 1e-5)
        return normal.view(out.shape) * gain[:, None, None] + shift[:, None, None]

    x = convolved(x, 1).relu()
    for stage in range(4):
        for first in (True, False):
            stride = 2 if stage and first else 1
            inner = convolved(convolved(x, stride).relu(), 1)
            x = (inner + (convolved(x, stride) if stage and first else x)).relu()
    weight, bias = next(values), next(values)
    assert next(values, None) is None
    return x.mean((2, 3)) @ weight.T + bias


def test_it_computes_the_residual_network() -> None:
    model, x = tiny(), images(3, 3, 16, 16)
    for scale in (1.0, 1.3):  # also where the norms are no longer the identity
        model.flat.mul_(scale)
        assert torch.allclose(model.module(x), written_out(model, x), atol=1e-5)


def test_large_images_begin_with_the_papers_stem() -> None:
    small, large = resnet18((3, 64, 80), TINY, 5), resnet18((3, 65, 80), TINY, 5)
    assert [layer.kernel_size for layer in small if isinstance(layer, nn.Conv2d)] == [(3, 3)]
    assert [layer.kernel_size for layer in large if isinstance(layer, nn.Conv2d)] == [(7, 7)]
    seen: list[torch.Size] = []
    large[-3].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape))
    assert large(images(2, 3, 65, 80)).shape == (2, 5)
    assert seen == [torch.Size((2, TINY[-1], 3, 3))], "65 x 80 halved five times, rounded up"


def test_rows_do_not_mix_and_views_are_folded() -> None:
    model, x = tiny(), images(4, 3, 8, 8)
    out = model.module(x)
    assert torch.allclose(torch.cat([model.module(row[None]) for row in x]), out, atol=1e-5)
    other = x.clone()
    other[1:] *= 9
    assert torch.allclose(model.module(other)[0], out[0], atol=1e-5)
    assert model.module(x[:0]).shape == (0, 5), "an empty batch of Poisson sampling"
    views = FlatModel(lambda: BOTTOMS["resnet18"]((3, 1, 8, 8), TINY, 5), Key(2))
    views.flat.copy_(model.flat)
    assert torch.equal(views.module(x.view(4, 3, 1, 8, 8)), out)


@pytest.mark.parametrize("law", LAWS)
def test_the_perturbed_forward_pass_is_that_of_a_perturbed_copy(law) -> None:
    perturb = check_perturbed(tiny(), images(2, 3, 16, 16), law)
    assert perturb._buffer.numel() == 9 * TINY[-1] ** 2, "one layer, not the model"


def test_what_it_needs() -> None:
    for shape, channels in (
        ((5, 5), TINY),
        ((3, 8, 8), (4, 8, 16)),
        ((3, 8, 8), (1, 4, 4, 4)),
        ((3, 8, 8), ()),
    ):
        with pytest.raises(
            SpecError, match=r"a resnet18 needs image parts .*\[64, 128, 256, 512\]"
        ):
            resnet18(shape, channels, 2)
