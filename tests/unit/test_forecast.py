import gc
import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import raydpzv
from raydpzv.errors import InputError
from raydpzv.forecast import Forecast, _rate, forecast
from raydpzv.limits import free_threads
from raydpzv.models import initial_weights
from raydpzv.preflight import check, first_weights, foretell
from tests.helpers.commands import call, stdout_of

X = np.linspace(-1, 1, 960, dtype=np.float32).reshape(240, 4)
Y = np.arange(240) % 3
WIDTH = 300


class Net(nn.Module):
    def __init__(self, inputs: int = 4, outputs: int = 3) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(inputs, WIDTH), nn.Linear(WIDTH, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.body(x)))


NUMBERS = 4 * WIDTH + WIDTH + WIDTH * 3 + 3
FLOPS = 2 * (4 * WIDTH + WIDTH * 3)


@pytest.fixture(autouse=True, scope="module")
def _quick():
    """Measure for a moment: seconds are only to be there. Take this process for the other one, of
    test_preflight.py.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raydpzv.forecast._SECONDS", 0.1)
        patch.setattr("raydpzv.forecast._rate", cache(_rate))
        patch.setattr("raydpzv.preflight._elsewhere", first_weights)
        yield


@pytest.fixture(autouse=True)
def _few_objects():
    """Search for copies among what a test makes, and not among all that libraries have loaded."""
    gc.freeze()


def horizontal(model=Net, **settings):
    usual = {"clients": 4, "updates": 50, "batch": 8, "method": "decomfl", "lr": 1e-3}
    return raydpzv.horizontal(model, (X, Y), **(usual | settings))


@pytest.fixture(scope="module")
def seeded() -> Forecast:
    return forecast(horizontal(perturbations=3))


def test_the_models_numbers_are_counted_by_their_shapes(seeded):
    assert (seeded.trained, seeded.constant, seeded.models, seeded.updates) == (NUMBERS, 0, 1, 50)


def test_bytes_of_scalars_are_those_of_a_run_and_do_not_grow_with_the_model(seeded):
    whole = raydpzv.run(horizontal(perturbations=3)).summary
    assert seeded.bytes == pytest.approx((whole["bytes_up"] + whole["bytes_down"]) / 50, rel=0.05)


def test_work_is_the_records_of_every_forward_call(seeded):
    # forward differences: 1 + P calls on each of 4 clients' batches of 8
    assert seeded.flops == pytest.approx(4 * 8 * (1 + 3) * FLOPS)
    assert seeded.seconds > 0


def test_a_backward_pass_counts_as_two_forward_passes():
    found = forecast(horizontal(method="fedavg", local_steps=2))
    assert found.flops == pytest.approx(4 * 8 * 2 * 3 * FLOPS)


def test_bytes_of_weights_grow_with_the_model():
    found = forecast(horizontal(method="fedavg"))
    whole = raydpzv.run(horizontal(method="fedavg")).summary
    assert found.bytes == pytest.approx((whole["bytes_up"] + whole["bytes_down"]) / 50, rel=0.05)
    assert found.bytes > 4 * NUMBERS


def test_an_agent_alone_sends_nothing_and_one_update_is_enough():
    found = forecast(horizontal(method="mezo", clients=1, updates=1, perturbations=1))
    assert found.bytes == 0
    assert found.flops == pytest.approx(8 * 2 * FLOPS)


def test_copies_are_those_that_a_process_holds(seeded):
    shared = forecast(horizontal(perturbations=3, replicas="per_client"))
    assert seeded.copies >= 1
    assert shared.copies == pytest.approx(seeded.copies + 4, abs=1)
    assert seeded.memory == pytest.approx(
        4 * (seeded.copies * NUMBERS + 4 * WIDTH + WIDTH), rel=1e-3
    )


def test_adapters_leave_the_rest_constant_and_save_memory():
    given = {"lora": {"rank": 2, "targets": ["body"]}}
    found = forecast(horizontal(**given))
    assert (found.trained, found.constant) == (2 * (4 + WIDTH), NUMBERS)


def test_every_partys_model_is_counted():
    bottoms = [lambda: Net(2, 2), lambda: Net(2, 2)]
    found = forecast(
        raydpzv.vertical(bottoms, [X[:, :2], X[:, 2:]], Y, updates=8, batch=16, embedding=2)
    )
    assert (found.trained, found.models) == (2 * WIDTH + WIDTH + 2 * WIDTH + 2, 2)
    assert found.flops == pytest.approx(
        2 * 16 * 2 * (2 * WIDTH + 2 * WIDTH)
    )  # both ends of a direction
    assert found.copies >= 1


def test_threads_of_a_run_change_no_forecast(monkeypatch):
    monkeypatch.setattr("raydpzv.limits.cores", lambda: 2)
    monkeypatch.setattr("raydpzv.sim.executor._WORTH_A_THREAD", 0.0)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    spec = raydpzv.load(
        "digits_dpzv",
        ["privacy.mode=none", "model.engine=torch", "split.how=columns", "split.clients=8"],
    )
    found = forecast(spec)
    assert found.flops == pytest.approx(
        2 * 64 * 2 * (8 * 32 + 32 * 2)
    )  # rows, both ways, a product and a sum
    assert free_threads() == 2


def test_no_weight_is_read(monkeypatch):
    def read(word: str) -> None:
        raise AssertionError(f"{word} was read")

    monkeypatch.setattr(initial_weights, "read_weights", read)
    found = foretell(horizontal(weights="nowhere.safetensors"))
    assert found.trained == NUMBERS
    with pytest.raises(AssertionError, match="was read"):  # the control
        check(horizontal(weights="nowhere.safetensors"))


def test_a_model_that_does_not_fit_is_refused_before_its_weights_are_read():
    class Wide(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 3)
            self.body = nn.Linear(200_000, 200_000, bias=False)

    with pytest.raises(InputError, match=r"the models need about \d+ GiB .*this machine has"):
        check(horizontal(Wide, weights="nowhere.safetensors"))


class Looks(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if float(x.sum()) > 0 else x * 1)


def test_a_model_that_looks_at_numbers_has_no_work_foretold():
    found = forecast(horizontal(Looks))
    assert math.isnan(found.flops)
    assert found.trained == NUMBERS
    assert any("without the model's own work" in line for line in found.lines())


def test_the_command_prints_the_forecast(tmp_path, monkeypatch):
    found = forecast(raydpzv.load("digits_decomfl"))
    monkeypatch.setattr("raydpzv.forecast.forecast", lambda spec: found)
    said = stdout_of(call("check", "digits_decomfl", "--forecast"))
    assert said.startswith("forecast: the model has 2,410 trained and 0 constant numbers")
    told = json.loads(call("check", "digits_decomfl", "--forecast", "--json").stdout)
    assert told["trained"] == 2410
    assert not list(Path(tmp_path).iterdir())


def test_check_shows_the_forecast_before_what_it_measured(tmp_path):
    torch.save(Net().state_dict(), tmp_path / "base.pt")
    found = check(horizontal(weights=tmp_path / "base.pt"))
    assert found.foretold is not None
    assert found.lines()[0].startswith("forecast: the model has")
    assert found.models == {"shared": NUMBERS}


def test_updates_that_take_minutes_are_foretold_alone(tmp_path, monkeypatch):
    torch.save(Net().state_dict(), tmp_path / "base.pt")
    monkeypatch.setattr("raydpzv.preflight._LONGEST", 0.0)
    found = check(horizontal(weights=tmp_path / "base.pt"))
    assert found.cost is None
    assert any("an update costs about" in line for line in found.lines())
