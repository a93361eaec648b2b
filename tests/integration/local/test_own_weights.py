import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import raydpzv
from raydpzv.errors import DataError, InputError, SpecError
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.rebuild import rebuild
from raydpzv.experiment.resuming import continued
from raydpzv.keys import Key
from raydpzv.records.run_folder import RunFolder
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import stop_after

DRAW = (Key(0) / "own weights").generator()
X = DRAW.standard_normal((60, 4)).astype(np.float32)
Y = np.arange(60) % 3
SETTINGS = {"clients": 3, "cohort": 3, "updates": 6}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def weights(shift: float = 0.0) -> dict[str, torch.Tensor]:
    drawn = (Key(1) / "weights").generator()
    found = net().state_dict()
    for name, value in found.items():
        if value.is_floating_point():
            draws = drawn.standard_normal(tuple(value.shape)).astype(np.float32)
            found[name] = torch.from_numpy(np.abs(draws) + 0.5)
    return found | {"3.bias": found["3.bias"] + shift}


def file(folder: Path, given: dict[str, torch.Tensor]) -> Path:
    torch.save(given, folder / "first.pt")
    return folder / "first.pt"


def test_a_state_dict_and_its_file_start_the_same_run(tmp_path):
    runs = [
        raydpzv.run(
            raydpzv.horizontal(net, (X, Y), weights=given, **SETTINGS), out=tmp_path / str(i)
        )
        for i, given in enumerate(
            (weights(), file(tmp_path, weights()), str(tmp_path / "first.pt"))
        )
    ]
    first = runs[0].state_dict(at=0)
    assert all(torch.equal(first[name], value) for name, value in weights().items())
    for run in runs[1:]:
        np.testing.assert_array_equal(run.models["shared"], runs[0].models["shared"])
    (tmp_path / "first.pt").unlink()
    assert rebuild(tmp_path / "1").verified  # the record holds what the file held


def test_models_of_the_program_start_from_weights_too(tmp_path):
    given = {"1.weight": torch.full((3, 4), 0.5), "1.bias": torch.ones(3)}
    run = raydpzv.run(
        raydpzv.horizontal("logistic", (X, Y), weights=given, **SETTINGS), out=tmp_path / "run"
    )
    first = run.state_dict(at=0)
    assert all(torch.equal(first[name], value) for name, value in given.items())
    assert rebuild(tmp_path / "run").verified
    with pytest.raises(SpecError, match=r'model.engine: wanted "torch" with model.weights'):
        raydpzv.horizontal("logistic", (X, Y), weights=given, model__engine="compiled", **SETTINGS)


def parties(given: object, **settings: object) -> object:
    views = {"bank": X[:, :2], "shop": X[:, 2:]}
    return raydpzv.vertical(
        "linear",
        views,
        Y,
        head="linear",
        weights=given,
        updates=6,
        batch=8,
        embedding=2,
        **settings,
    )


BANK = {"1.weight": torch.eye(2), "1.bias": torch.zeros(2)}
HEAD = {"weight": torch.ones(3, 4), "bias": torch.zeros(3)}


@pytest.mark.parametrize(
    "given", [{"bank": BANK, "server": HEAD}, {0: BANK, "server": HEAD}, [BANK, None]]
)
def test_each_party_starts_from_its_own_weights(tmp_path, given):
    run = raydpzv.run(parties(given), out=tmp_path / "run")
    assert all(
        torch.equal(run.state_dict("bank", at=0)[name], value) for name, value in BANK.items()
    )
    drawn = raydpzv.run(parties(None, model__engine="torch"), out=tmp_path / "drawn")
    assert torch.equal(
        run.state_dict("shop", at=0)["1.weight"], drawn.state_dict("shop", at=0)["1.weight"]
    )
    assert rebuild(tmp_path / "run", client=0).verified
    moved = (run.models["server"] - drawn.models["server"]).any()
    assert moved


@pytest.mark.parametrize(
    ("given", "settings", "complaint"),
    [
        ({"bnak": BANK}, {}, r'wanted bank, shop or server, got "bnak". Did you mean "bank"'),
        ({"bank": BANK}, {"model__initial": "zero_last"}, 'model.initial: wanted "random"'),
        (
            {"shop": HEAD},
            {},
            "the bottom model of shop: .*missing: 1.weight, 1.bias; unexpected: weight",
        ),
        ({"server": BANK}, {}, "the head: .*missing: weight, bias"),
        (BANK, {}, "wanted a table of files by party"),
    ],
)
def test_weights_that_fit_no_party_are_refused(given, settings, complaint):
    with pytest.raises(InputError, match=complaint):
        raydpzv.run(parties(given, **settings))


SCENARIO = """
[data]
source = "tests.helpers.own_parts:rows"
scale = "none"
[split]
how = "iid"
clients = 3
[model]
kind = "tests.helpers.own_parts:whole"
weights = "first.pt"
[method]
name = "decomfl"
cohort = 3
[budget]
updates = 6
"""


def test_a_stopped_run_resumes_with_the_same_weights_alone(tmp_path):
    from tests.helpers.own_parts import whole_weights

    (tmp_path / "own.toml").write_text(SCENARIO)
    file(tmp_path, whole_weights())
    whole = raydpzv.run(raydpzv.load(str(tmp_path / "own.toml")))
    raydpzv.run(raydpzv.load(str(tmp_path / "own.toml")), tmp_path / "run", **stop_after(2))
    assert set(RunFolder.open(tmp_path / "run").environment()["weights"]) == {
        f"shared: {name}" for name in whole_weights()
    }
    file(tmp_path, whole_weights() | {"2.bias": torch.ones(3)})
    with pytest.raises(
        InputError, match=r"the weights \(model.weights\) of shared: 2.bias changed"
    ):
        continued(tmp_path / "run")
    file(tmp_path, whole_weights()).rename(tmp_path / "moved.pt")
    moved = [f'model.weights="{tmp_path / "moved.pt"}"']
    prepared, folder, _ = continued(tmp_path / "run", moved)
    resumed = run_prepared(prepared, folder, runner="local")
    np.testing.assert_array_equal(resumed.models["shared"], whole.models["shared"])


def test_a_file_that_differs_on_another_machine_is_named(tmp_path):
    path = file(tmp_path, weights())
    sent = pickle.dumps(raydpzv.horizontal(net, (X, Y), weights=path, **SETTINGS))
    assert prepare(pickle.loads(sent)).flat_model("shared").size > 0
    file(tmp_path, weights(shift=1.0))
    with pytest.raises(
        DataError, match=r'first.pt" differs on .* copy the same file to every machine'
    ):
        prepare(pickle.loads(sent))


@pytest.mark.parametrize("given", [[BANK], ["bank.pt"], {"bank": BANK}, nn.Linear(4, 3)])
def test_one_model_wants_one_file_or_state_dict(given):
    with pytest.raises(
        SpecError, match=r"model.weights: wanted one file \(.safetensors, .pt\) or one state_dict"
    ):
        raydpzv.horizontal(net, (X, Y), weights=given, **SETTINGS)
