import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import raydpzv
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import InputError, SpecError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.rebuild import rebuild
from raydpzv.experiment.runner import run_local
from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from tests.helpers.kills import kill_at

DRAW = (Key(0) / "rows for adapters").generator()
Y = DRAW.integers(0, 3, 120)
X = (DRAW.standard_normal((120, 8)) + np.eye(3, 8)[Y] * 2).astype(np.float32)


class Net(nn.Module):
    def __init__(self, outputs: int = 3, inputs: int = 8) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(inputs, 16), nn.Linear(16, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x.flatten(1))))


def base(*sizes: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(5)
        return Net(*sizes)


LORA = {"rank": 2, "alpha": 4, "targets": ["body"], "modules_to_save": ["head"]}
SIZE = 2 * (8 + 16) + 16 * 3 + 3


def horizontal(model: Any = None, lora: dict[str, Any] | None = None, **given: Any) -> AnyScenario:
    settings = {"clients": 4, "cohort": 4, "updates": 40, "lr": 0.05, "classes": [0, 1, 2], **given}
    return raydpzv.horizontal(model or base(), (X, Y), lora=lora or LORA, **settings)


def vertical(**given: Any) -> AnyScenario:
    bottoms, views = [base(2, 4), "linear"], {"bank": X[:, :4], "shop": X[:, 4:]}
    settings = {
        "lora": LORA,
        "updates": 40,
        "lr": 0.05,
        "embedding": 2,
        "classes": [0, 1, 2],
        **given,
    }
    return raydpzv.vertical(bottoms, views, Y, **settings)


def digests(run: raydpzv.Run) -> dict[str, str]:
    assert run.path is not None
    return json.loads((run.path / "environment.json").read_text())["base_sha256"]


def test_only_adapters_and_head_are_in_vector_and_ledger(tmp_path):
    run = raydpzv.run(horizontal(), out=tmp_path / "run")
    with Ledger.open(tmp_path / "run" / "ledger") as ledger:
        assert run.models["shared"].size == ledger.header.models["shared"].parameters == SIZE
    assert rebuild(tmp_path / "run").verified
    before, after = base().state_dict(), run.state_dict()
    assert after.keys() == before.keys()
    assert torch.equal(after["body.bias"], before["body.bias"])
    change = after["body.weight"] - before["body.weight"]
    assert torch.linalg.matrix_rank(change, rtol=1e-3) == 2
    assert not torch.equal(after["head.weight"], before["head.weight"])


@pytest.mark.parametrize("method", ["fedavg", "decomfl"])
def test_a_run_learns_with_the_base_unchanged(tmp_path, method):
    scenario = horizontal(method=method, lr=0.1, updates=60)
    model = prepare(scenario).flat_model("shared")
    before = deepcopy(model.constant)
    run = raydpzv.run(scenario, out=tmp_path / "run")
    assert digests(run) == digests(raydpzv.run(scenario, out=tmp_path / "again"))
    assert all(torch.equal(model.constant[name], value) for name, value in before.items())
    start = run.rows("evaluation")["accuracy"][0].as_py()
    assert run.accuracy > start + 0.1


def test_initial_npz_holds_adapters_alone(tmp_path):
    raydpzv.run(horizontal(), out=tmp_path / "run")
    assert np.load(tmp_path / "run" / "initial.npz")["shared"].size == SIZE


def test_a_stopped_run_resumes_to_the_same_bits(tmp_path):
    scenario = horizontal()
    whole = raydpzv.run(scenario)
    run_local(prepare(scenario), RunOptions(tmp_path / "run", until=15))
    resumed = raydpzv.resume(tmp_path / "run")
    assert resumed.summary["model_digest"] == whole.summary["model_digest"]


@pytest.mark.parametrize("method", ["decomfl", "feedsign"])
def test_a_killed_run_of_adapters_resumes_to_the_same_bits(tmp_path, method):
    own = {"lr": 0.02, "updates": 24, "record": {"checkpoint_updates": 1}}
    scenario = horizontal("tests.integration.local.test_lora:Net", method=method, **own)
    whole, folder = raydpzv.run(scenario), tmp_path / "run"
    for updates in (9, 17):
        kill_at(updates, scenario, folder)
    resumed = raydpzv.resume(folder)
    for name in ("model_digest", "digest", "bytes_up", "bytes_down"):
        assert resumed.summary[name] == whole.summary[name], name
    assert rebuild(folder).verified


def test_another_base_is_refused_by_resume(tmp_path):
    run_local(
        prepare(horizontal("tests.integration.local.test_lora:Net")),
        RunOptions(tmp_path / "run", until=15),
    )
    path = tmp_path / "run" / "environment.json"
    facts = json.loads(path.read_text())
    facts["base_sha256"]["shared"] = "0" * 64
    path.write_text(json.dumps(facts))
    with pytest.raises(InputError, match=r"the base of the adapters \(model.lora\) changed"):
        raydpzv.resume(tmp_path / "run")


def test_own_bottoms_get_adapters_and_others_learn_whole(tmp_path):
    run = raydpzv.run(vertical(), out=tmp_path / "run")
    assert run.models["client 0"].size == 2 * (4 + 16) + 16 * 2 + 2
    assert run.models["client 1"].size == 4 * 2 + 2
    assert digests(run).keys() == {"client 0"}
    assert rebuild(tmp_path / "run", client=0).verified
    assert run.state_dict("bank").keys() == base(2, 4).state_dict().keys()


def test_weights_of_a_file_are_the_base(tmp_path):
    weights = {name: torch.full_like(value, 0.1) for name, value in base().state_dict().items()}
    torch.save(weights, tmp_path / "base.pt")
    run = raydpzv.run(horizontal(Net, weights=tmp_path / "base.pt"), out=tmp_path / "run")
    assert torch.equal(run.state_dict(at=0)["body.weight"], weights["body.weight"])
    assert torch.equal(run.state_dict()["body.bias"], weights["body.bias"])


@pytest.mark.parametrize(
    ("lora", "complaint"),
    [
        ({"rank": 0}, "model.lora.rank: wanted greater than or equal to 1, got 0"),
        ({"alpha": float("nan")}, "model.lora.alpha: wanted a finite number, got nan"),
        ({"alpha": float("inf")}, "model.lora.alpha: wanted a finite number, got inf"),
        ({"targets": []}, "model.lora.targets: wanted at least 1 value"),
        ({"targets": ["bdoy"]}, 'no layer of the model is named "bdoy". Did you mean "body"'),
        ({"rnak": 3}, "model.lora.rnak: unknown setting.*Did you mean .model.lora.rank"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_written(tmp_path, lora, complaint):
    with pytest.raises(SpecError, match=complaint):
        raydpzv.run(horizontal(lora=LORA | lora), out=tmp_path / "run")
    assert not Path(tmp_path / "run").exists()


def test_models_that_are_not_your_own_are_refused():
    with pytest.raises(SpecError, match=r'model.lora: wanted a model of your own .*got "mlp"'):
        horizontal("mlp")
    with pytest.raises(
        SpecError, match=r'model.initial: wanted "random" with model.lora, got "zero_last"'
    ):
        vertical(model__initial="zero_last")
