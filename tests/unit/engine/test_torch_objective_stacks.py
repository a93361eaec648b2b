import pytest
import torch
from torch import nn
from torch.nn import functional

from raydpzv.engine.row_readers import KeptRows
from raydpzv.engine.torch_objective import StackGradient, TorchObjective
from raydpzv.keys import Key
from raydpzv.models.flat import FlatModel
from raydpzv.models.whole import whole


def records(count: int, shape: tuple[int, ...], classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = (Key(count) / "records").generator()
    x = torch.from_numpy(generator.standard_normal((count, *shape)).astype("float32"))
    return x, torch.from_numpy(generator.integers(0, classes, count))


def by_autograd(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, torch.Tensor]:
    loss = functional.cross_entropy(module(x), y)
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    return float(loss.detach()), torch.cat([gradient.reshape(-1) for gradient in gradients])


@pytest.mark.parametrize("count", [2, 5, 32, 60, 512])
@pytest.mark.parametrize("shape", [(1, 28, 28), (64,), (1,)])
@pytest.mark.parametrize("hidden", [(), (32,), (200, 100), (7, 5, 3), (1,)])
def test_loss_and_gradient_have_autograds_bits(
    hidden: tuple[int, ...], shape: tuple[int, ...], count: int
) -> None:
    model = FlatModel(lambda: whole("mlp", shape, hidden, 10), Key(1))
    (x, y), by_hand = records(count, shape, 10), StackGradient(model.module)
    loss, gradient = by_autograd(model.module, x, y)
    found = by_hand.at(x, y)
    assert found[0] == loss
    assert torch.equal(found[1], gradient)
    before = found[1].clone()
    model.flat.mul_(1.5)  # it looks at the parameters as they are when it is asked
    loss, gradient = by_autograd(model.module, x, y)
    assert not torch.equal(gradient, before)
    assert torch.equal(by_hand.at(x, y)[1], gradient)
    assert torch.equal(found[1], before), "the caller's own"


def test_relu_may_stand_anywhere() -> None:
    def make() -> nn.Module:
        layers = (
            nn.ReLU(),
            nn.Linear(6, 5),
            nn.ReLU(),
            nn.ReLU(),
            nn.Linear(5, 4),
            nn.Linear(4, 3),
            nn.ReLU(),
        )
        return nn.Sequential(nn.Flatten(), *layers)

    model, (x, y) = FlatModel(make, Key(2)), records(9, (2, 3), 3)
    found, wanted = StackGradient(model.module).at(x, y), by_autograd(model.module, x, y)
    assert found[0] == wanted[0]
    assert torch.equal(found[1], wanted[1])


def test_an_objective_goes_by_it_where_it_fits_and_has_the_same_bits_where_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (x, y), seen = records(40, (1, 8, 8), 4), []
    by_hand = StackGradient.at
    monkeypatch.setattr(
        StackGradient, "at", lambda *given: (seen.append(len(given[2])), by_hand(*given))[1]
    )

    def objective(name: str, loss: str = "cross_entropy") -> TorchObjective:
        return TorchObjective(lambda: whole(name, (1, 8, 8), (6,), 4), KeptRows(x, y), loss)

    f = objective("mlp")
    at = f.initial(Key(3))
    batches = [
        Key(i).generator().choice(40, size, replace=False) for i, size in enumerate((1, 2, 32))
    ]
    found = [f.gradient(at, batch) for batch in batches]
    assert seen == [2, 32], "of one record autograd transposes some products"
    for batch, (loss, gradient) in zip(batches, found, strict=True):
        f._model.flat.copy_(at)
        wanted = by_autograd(f._model.module, x[batch], y[batch])
        assert loss == wanted[0]
        assert torch.equal(gradient, wanted[1])
    others = [objective("cnn_mnist"), objective("mlp_normed"), objective("mlp", "cox")]
    assert [other._stack_gradient for other in others] == [None] * 3
