import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import raydpzv
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import DataError, InputError, SpecError
from raydpzv.experiment.rebuild import rebuild
from raydpzv.experiment.resuming import continued
from raydpzv.keys import Key
from raydpzv.records.run_folder import INITIAL
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import stop_after

DRAW = (Key(0) / "first models").generator()
X = DRAW.standard_normal((80, 4)).astype(np.float32)
Y = np.arange(80) % 3


def net(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs))


def part(embedding: int) -> nn.Module:
    return nn.Linear(2, embedding)


def scenario(kind: str) -> AnyScenario:
    if kind == "horizontal":
        return raydpzv.horizontal(net, (X, Y), clients=3, updates=6)
    return raydpzv.vertical(part, [X[:, :2], X[:, 2:]], Y, updates=6, batch=8, embedding=2)


def lose(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize("kind", ["horizontal", "vertical"])
@pytest.mark.parametrize("harm", [lose, cut])
def test_a_resumed_run_writes_its_first_models_again(tmp_path, kind, harm):
    whole = raydpzv.run(scenario(kind), out=tmp_path / "whole")
    folder = tmp_path / "run"
    raydpzv.run(scenario(kind), folder, **stop_after(2))
    harm(folder / INITIAL)
    prepared, opened, _ = continued(folder)
    resumed = run_prepared(prepared, opened, runner="local")
    for name, model in whole.models.items():
        np.testing.assert_array_equal(resumed.models[name], model)
    assert (folder / INITIAL).read_bytes() == (tmp_path / "whole" / INITIAL).read_bytes()


@pytest.mark.parametrize("kind", ["horizontal", "vertical"])
def test_a_replay_builds_missing_first_models_from_their_class(tmp_path, kind):
    run = raydpzv.run(scenario(kind), out=tmp_path / "run")
    cut(run.path / INITIAL)
    with pytest.raises(DataError, match=r"initial\.npz"):
        rebuilt(kind, run.path)
    (run.path / INITIAL).unlink()
    with pytest.warns(RuntimeWarning, match="initial.npz is missing"):
        assert rebuilt(kind, run.path).verified


def rebuilt(kind: str, path: Path):
    return rebuild(path) if kind == "horizontal" else rebuild(path, client=0)


def test_a_replay_names_what_it_lacks(tmp_path, monkeypatch):
    (tmp_path / "own_net.py").write_text(
        "from torch import nn\ndef made(outputs: int, bias: bool = True):\n    return nn.Linear(4, "
        "outputs, bias)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    run = raydpzv.run(
        raydpzv.horizontal("own_net:made", (X, Y), clients=3, updates=3), out=tmp_path / "run"
    )
    (run.path / INITIAL).unlink()
    (tmp_path / "own_net.py").write_text(
        (tmp_path / "own_net.py").read_text().replace("= True", "= False")
    )
    for complaint, error in (
        ("the ledger of another model: .*parameters", InputError),
        ("own_net.* cannot be imported", SpecError),
    ):
        sys.modules.pop("own_net", None)
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        with (
            pytest.warns(RuntimeWarning, match="built again"),
            pytest.raises(error, match=complaint),
        ):
            rebuild(run.path)
        (tmp_path / "own_net.py").unlink(missing_ok=True)
    sys.modules.pop("own_net", None)


class Mixes(nn.Linear):
    """Mixes the records of batches above a size."""

    def __init__(self, above: int) -> None:
        super().__init__(4, 3)
        self.above = above

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(0) if len(x) > self.above else x)


def test_records_are_checked_in_batches_of_twice_the_planned_size():
    def run(above: int) -> None:
        model = Mixes(above)
        raydpzv.run(raydpzv.horizontal(model, (X, Y), test=(X, Y), clients=3, updates=2, batch=16))

    with pytest.raises(InputError, match="depend on the other records"):
        run(31)
    run(32)
