import json
import shutil
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import raydpzv
from raydpzv.errors import DataError, InputError
from raydpzv.files import write_npz
from raydpzv.keys import Key

safetensors = pytest.importorskip(
    "safetensors", reason="the extra raydpzv[weights] is not installed"
)
from safetensors.torch import load_file  # noqa: E402

DRAW = (Key(0) / "rows to export").generator()
Y = DRAW.integers(0, 2, 60)
X = (DRAW.standard_normal((60, 6)) + 2 * Y[:, None]).astype(np.float32)


class Net(nn.Module):
    def __init__(self, inputs: int = 6) -> None:
        super().__init__()
        self.body = nn.ModuleDict({name: nn.Linear(inputs, 8) for name in ("query", "value")})
        self.classifier = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.tanh(self.body["query"](x)) * self.body["value"](x))


def base(inputs: int = 6) -> nn.Module:
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(5)
        return Net(inputs)


LORA = {"rank": 2, "alpha": 6, "targets": ["query", "value"], "modules_to_save": ["classifier"]}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> raydpzv.Run:
    scenario = raydpzv.horizontal(
        base(), (X, Y), clients=3, cohort=3, updates=30, lr=0.05, classes=[0, 1], lora=LORA
    )
    return raydpzv.run(scenario, out=tmp_path_factory.mktemp("export") / "run")


@pytest.fixture(scope="module")
def parties(tmp_path_factory) -> raydpzv.Run:
    scenario = raydpzv.vertical(
        [base(3), "linear"],
        {"bank": X[:, :3], "shop": X[:, 3:]},
        Y,
        updates=10,
        batch=8,
        embedding=2,
        classes=[0, 1],
        lora=LORA,
    )
    return raydpzv.run(scenario, out=tmp_path_factory.mktemp("export") / "parties")


def scores(module: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return module(torch.tensor(X))


def test_the_file_loads_into_the_users_module(run, tmp_path):
    shapes = raydpzv.export(run, tmp_path / "all.safetensors")
    found, there = load_file(tmp_path / "all.safetensors"), Net()
    there.load_state_dict(found, strict=True)
    assert shapes == {name: tuple(value.shape) for name, value in found.items()}
    model = run.prepared.flat_model("shared")
    with model.at(run.models["shared"]):
        torch.testing.assert_close(scores(there), scores(model.module), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(scores(there), scores(base()), atol=0.01)


def test_the_adapter_has_pefts_files_names_and_shapes(run, tmp_path):
    raydpzv.export(run, tmp_path / "adapter", format="peft")
    found = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    before = "base_model.model"
    wanted = {f"{before}.body.{n}.lora_A.weight": (2, 6) for n in ("query", "value")}
    wanted |= {f"{before}.body.{n}.lora_B.weight": (8, 2) for n in ("query", "value")}
    wanted |= {f"{before}.classifier.weight": (2, 8), f"{before}.classifier.bias": (2,)}
    assert {name: tuple(value.shape) for name, value in found.items()} == wanted
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA"
    assert (config["r"], config["lora_alpha"], config["bias"]) == (2, 6.0, "none")
    assert config["target_modules"] == ["body.query", "body.value"]
    assert config["modules_to_save"] == ["classifier"]
    assert sum(value.numel() for value in found.values()) == run.models["shared"].size


def test_peft_computes_what_the_run_does(run, tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    raydpzv.export(run, tmp_path / "adapter", format="peft")
    there = peft.PeftModel.from_pretrained(base(), str(tmp_path / "adapter")).eval()
    model = run.prepared.flat_model("shared")
    with model.at(run.models["shared"]):
        torch.testing.assert_close(scores(there), scores(model.module), atol=1e-6, rtol=1e-6)
    merged = there.merge_and_unload().state_dict()
    for name, value in run.state_dict().items():
        torch.testing.assert_close(merged[name], value, atol=1e-6, rtol=1e-6)


def test_an_earlier_model_is_rebuilt_from_the_ledger(run, tmp_path):
    raydpzv.export(run.path, tmp_path / "first.safetensors", at=0)
    found = load_file(tmp_path / "first.safetensors")
    assert all(torch.equal(found[name], value) for name, value in base().state_dict().items())


def test_a_partys_model_and_the_head_are_exported_by_name(parties, tmp_path):
    raydpzv.export(parties, tmp_path / "bank.safetensors", party="bank")
    assert load_file(tmp_path / "bank.safetensors").keys() == base(3).state_dict().keys()
    raydpzv.export(parties, tmp_path / "adapter", party="bank", format="peft", at=4)
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()
    raydpzv.export(parties, tmp_path / "head.safetensors", party="server")
    assert load_file(tmp_path / "head.safetensors").keys() == parties.state_dict("server").keys()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"party": None}, "each party has a model; name one of bank, shop, or server"),
        (
            {"party": "bnak"},
            'party: wanted bank, shop, or its number, got "bnak". Did you mean "bank"',
        ),
        ({"party": "shop", "format": "peft"}, "peft wants a run with adapters"),
        ({"party": "server", "at": 3}, "the ledger of .* cannot rebuild server"),
        ({"format": "onnx"}, "--format: wanted safetensors or peft, got 'onnx'"),
        ({"out": "weights.pt"}, r"--out: wanted a file NAME.safetensors, got .*weights.pt"),
    ],
)
def test_wrong_requests_are_refused(parties, tmp_path, given, complaint):
    with pytest.raises(InputError, match=complaint):
        raydpzv.export(parties, tmp_path / given.pop("out", "w.safetensors"), **given)
    assert not list(tmp_path.iterdir())


def test_a_run_without_a_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="export: wanted a run with a folder"):
        raydpzv.export(raydpzv.Run({}, None, {}, None), tmp_path / "w.safetensors")


def test_damaged_models_are_found(run, tmp_path):
    shutil.copytree(run.path, tmp_path / "run")
    write_npz(tmp_path / "run" / "models.npz", {"shared": run.models["shared"] + 1})
    with pytest.raises(DataError, match=r"models.npz is not what the run ended with"):
        raydpzv.export(tmp_path / "run", tmp_path / "w.safetensors")


def test_another_base_is_refused(run, tmp_path):
    shutil.copytree(run.path, tmp_path / "run")
    path = Path(tmp_path / "run" / "environment.json")
    facts = json.loads(path.read_text())
    other = deepcopy(facts)
    other["base_sha256"]["shared"] = "0" * 64
    path.write_text(json.dumps(other))
    with pytest.raises(InputError, match="the base of the adapters"):
        raydpzv.export(tmp_path / "run", tmp_path / "w.safetensors")
