"""A perturbed forward pass against that of a perturbed copy."""

import torch
from torch.func import functional_call

from raydpzv.zo.directions import Direction
from raydpzv.zo.perturbation import LayerwisePerturbation


def check_perturbed(model, x, law, modes=(True,)):
    """Hold the pass at w + a u against that of a copy with these parameters; return the
    perturbation.

    modes: whether the module trains, each in turn.
    """
    perturb, direction = (
        LayerwisePerturbation(model.module, model.offsets),
        Direction(5, model.size, law),
    )
    before = model.flat.clone()
    for amount in (0.1, -1e-3):
        moved = model.flat.clone()
        direction.add_to(moved, amount)
        copies = {
            name: moved[model.offsets[name] :][: p.numel()].view(p.shape)
            for name, p in model.module.named_parameters()
        }
        for training in modes:
            model.module.train(training)
            with torch.no_grad(), perturb.at(direction, amount):
                seen = model.module(x)
            with torch.no_grad():
                assert torch.equal(seen, functional_call(model.module, copies, (x,)))
                assert not torch.equal(seen, model.module(x))
    assert torch.equal(model.flat, before)
    return perturb
