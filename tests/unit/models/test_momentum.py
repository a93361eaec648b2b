import numpy as np
import pytest
import torch
from torch import nn

from raydpzv.keys import Key
from raydpzv.models.flat import FlatModel
from raydpzv.models.momentum import MomentumDescent


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_those_of_torchs_sgd(momentum: float) -> None:
    model = FlatModel(lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), Key(0))
    copies = [nn.Parameter(p.detach().clone()) for p in model.module.parameters()]
    ours = MomentumDescent(model.flat, 0.1, momentum)
    theirs = torch.optim.SGD(copies, 0.1, momentum)
    generator = Key(1).generator()
    for _ in range(5):
        gradients = [
            torch.from_numpy(generator.standard_normal(p.shape).astype(np.float32)) for p in copies
        ]
        ours.step(gradients)
        for p, g in zip(copies, gradients, strict=True):
            p.grad = g.clone()
        theirs.step()
    for p, copy in zip(model.module.parameters(), copies, strict=True):
        assert torch.allclose(p, copy, rtol=0, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_gradients_in_pieces_give_the_bits_of_one_vector(momentum: float) -> None:
    shapes = [(7, 5), (7,), (301, 7), (1,), (3, 1000)]
    random = torch.Generator().manual_seed(4)
    found = [torch.randn(shape, generator=random) for shape in shapes]
    pieces, whole = (
        torch.zeros(sum(g.numel() for g in found)),
        torch.zeros(sum(g.numel() for g in found)),
    )
    one, other = MomentumDescent(pieces, 0.1, momentum), MomentumDescent(whole, 0.1, momentum)
    for n in range(3):
        gradients = [g * (n - 1.7) for g in found]
        one.step(gradients, 0.3)
        other.step([torch.cat([g.reshape(-1) for g in gradients])], 0.3)
    assert torch.equal(pieces, whole)
    assert all(torch.equal(a, b) for a, b in zip(one.kept, other.kept, strict=True))
    assert pieces.abs().min() > 0
