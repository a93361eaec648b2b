"""Lists of seeds and scalars become seed files: MeZO's, against its own update, and those of other
programs.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from raydpzv.errors import InputError
from raydpzv.files import sha256
from raydpzv.seed_file.seed_conversion import write_pairs
from raydpzv.seed_file.seed_replay import read_seed_file, replay_seed_file
from raydpzv.zo.philox import normals
from tests.helpers.commands import call, complaint
from tests.helpers.programs import Forked, said

EXAMPLE = Path(__file__).parents[3] / "examples" / "mezo_seeds.py"
LR, EPS = 1e-2, 1e-3


class Mezo:
    """MeZO's trainer, its lines as in the authors' repository (zo_perturb_parameters, zo_step,
    zo_update).
    """

    def __init__(
        self, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, *, perturbs: bool
    ) -> None:
        self.model, self.x, self.y, self.perturbs = model, x, y, perturbs
        self.recorded: list[tuple[int, float]] = []

    def _each(self, seed, change):
        torch.default_generator.manual_seed(seed)
        for _, param in self.model.named_parameters():
            z = torch.normal(mean=0, std=1, size=param.data.size(), dtype=param.data.dtype)
            change(param, z)

    def _perturb(self, seed, scaling_factor):
        def change(param, z):
            param.data = param.data + scaling_factor * z * EPS

        self._each(seed, change)

    def _loss(self):
        return torch.nn.functional.cross_entropy(self.model(self.x), self.y)

    @torch.no_grad()
    def step(self, seed):
        kept = [param.data.clone() for param in self.model.parameters()]
        self._perturb(seed, 1)
        loss1 = self._loss()
        self._perturb(seed, -2)
        loss2 = self._loss()
        projected_grad = ((loss1 - loss2) / (2 * EPS)).item()
        self._perturb(seed, 1)
        if (
            not self.perturbs
        ):  # the weights as they were, in place of what adding back leaves of them
            for param, value in zip(self.model.parameters(), kept, strict=True):
                param.data = value

        def change(param, z):
            param.data = param.data - LR * (projected_grad * z)

        self._each(seed, change)
        self.recorded.append((seed, projected_grad))


def trained(perturbs: bool):
    """First weights by name, a run of MeZO, and its last weights, flat."""
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        x, y = torch.randn(20, 8), torch.arange(20) % 3
        first = {name: p.detach().clone() for name, p in model.named_parameters()}
        mezo = Mezo(model, x, y, perturbs=perturbs)
        for step in range(40):
            mezo.step(10**9 - step)
        last = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
    return first, mezo.recorded, last


def arrays(first):
    return {name: tensor.numpy() for name, tensor in first.items()}


def test_mezos_updates_are_rebuilt_bit_for_bit(tmp_path):
    first, pairs, last = trained(perturbs=False)
    x = write_pairs(tmp_path / "run.seeds", arrays(first), pairs, LR)
    assert x.tobytes() == last.tobytes()
    torch.save(first, tmp_path / "base.pt")
    found = replay_seed_file(tmp_path / "run.seeds", tmp_path / "base.pt")
    assert found["shared"][1].tobytes() == last.tobytes()
    moved = np.abs(last - np.concatenate([t.numpy().ravel() for t in first.values()])).max()
    assert moved > 0.01, "control: the run moved the weights"


def test_mezo_itself_drifts_from_its_updates(tmp_path):
    first, pairs, last = trained(perturbs=True)
    x = write_pairs(tmp_path / "run.seeds", arrays(first), pairs, LR)
    assert 0 < np.abs(x - last).max() < 1e-5


def test_the_example_writes_a_file_that_replay_reads(tmp_path, monkeypatch):
    first, pairs, last = trained(perturbs=False)
    torch.save(first, tmp_path / "base.pt")
    (tmp_path / "steps.csv").write_text("".join(f"{seed},{scalar}\n" for seed, scalar in pairs))
    monkeypatch.chdir(tmp_path)
    assert sha256(last) in said(
        Forked([str(EXAMPLE), "base.pt", "steps.csv", str(LR), "run.seeds"])
    )
    out = call("replay", tmp_path / "run.seeds", "--weights", tmp_path / "base.pt")
    assert f"sha256 {sha256(last)}" in out.stdout
    assert "give --weights with 0.weight" in complaint(call("replay", tmp_path / "run.seeds"))


def test_pairs_of_raydpzvs_generator_keep_steps_and_step_sizes(tmp_path):
    weights = {"w": np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)}
    pairs, lrs = [(7, 0.5), (8, -0.25), (9, 2.0)], [0.1, 0.1, 0.05]
    x = write_pairs(tmp_path / "run.seeds", weights, pairs, lrs, law="gaussian", shared=False)
    by_hand = weights["w"].ravel().copy()
    for (seed, scalar), lr in zip(pairs, lrs, strict=True):
        by_hand -= np.float32(lr * scalar) * normals(seed, 0, 6)
    assert x.tobytes() == by_hand.tobytes()
    assert [phase.updates for phase in read_seed_file(tmp_path / "run.seeds").models[0].phases] == [
        2,
        1,
    ]
    assert replay_seed_file(tmp_path / "run.seeds")["shared"][1].tobytes() == by_hand.tobytes()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"law": "normal"}, 'law: wanted gaussian, .*got "normal"'),
        ({"weights": {}}, "weights: wanted tensors by name"),
        ({"weights": {"w": np.zeros(3)}}, "weights: wanted tensors by name, each float32"),
        ({"pairs": []}, "one for each of 0 steps"),
        ({"lr": [0.1, 0.2, 0.3]}, "one for each of 2 steps; got 3"),
        ({"pairs": [(-1, 0.1), (2, 0.1)]}, "seeds in 0"),
        ({"pairs": [(1, float("nan")), (2, 0.1)]}, "wanted finite numbers"),
        ({"lr": float("inf")}, "wanted finite numbers"),
    ],
)
def test_lists_that_do_not_fit_are_refused(change, says, tmp_path):
    given = {"weights": {"w": np.zeros(3, np.float32)}, "pairs": [(1, 0.5), (2, 0.5)], "lr": 0.1}
    with pytest.raises(InputError, match=says):
        write_pairs(tmp_path / "run.seeds", **(given | change))
    assert not list(tmp_path.iterdir())
