import json
import os
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

import raydpzv
from raydpzv.errors import InputError
from raydpzv.experiment.runner import run_local
from raydpzv.limits import free_threads
from raydpzv.preflight import check, first_weights
from raydpzv.sim.executor import LocalExecutor
from tests.helpers.commands import call, stdout_of

X = np.linspace(-1, 1, 240, dtype=np.float32).reshape(60, 4)
Y = np.arange(60) % 3


class ByProcess(nn.Linear):
    """Weights that differ from process to process."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.shift = nn.Parameter(torch.full((3,), float(os.getpid())))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 0 * self.shift


@pytest.fixture
def one_process(monkeypatch):
    """Take this process for the other one, which imports for seconds; three tests start it."""
    monkeypatch.setattr("raydpzv.preflight._elsewhere", first_weights)


def scenario(model, **settings):
    return raydpzv.horizontal(model, (X, Y), clients=4, updates=50, **settings)


def test_the_cost_of_an_update_is_foretold():
    found = check(scenario("logistic"))
    assert found.models == {"shared": 15}
    assert "another process starts from the same weights" in found.lines()
    whole = raydpzv.run(scenario("logistic")).summary
    assert found.cost.bytes_up == pytest.approx(whole["bytes_up"] / 50)
    assert found.cost.bytes_down == pytest.approx(whole["bytes_down"] / 50, rel=0.2)
    assert found.updates == 50
    assert any("50 updates cost about" in line for line in found.lines())


def test_seconds_of_an_update_leave_out_the_start(one_process, monkeypatch):
    now = time.perf_counter

    def slow_start(prepared, options):
        monkeypatch.setattr(time, "perf_counter", lambda: now() + 9000)
        return run_local(prepared, options)

    monkeypatch.setattr("raydpzv.preflight.run_local", slow_start)
    assert check(scenario("logistic")).cost.seconds < 100


def test_seconds_of_an_update_are_those_of_all_works_in_their_order(one_process, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr("raydpzv.limits.cores", lambda: 2)
    monkeypatch.setattr("raydpzv.sim.executor._WORTH_A_THREAD", 0.0)
    workers, do = set(), LocalExecutor._process

    def process(self, order, before=None):
        workers.add(threading.get_ident())
        return do(self, order, before)

    monkeypatch.setattr(LocalExecutor, "_process", process)
    check(raydpzv.load("digits_dpzv", ["privacy.mode=none"]))
    assert workers == {threading.get_ident()}
    assert free_threads() == 2


@pytest.mark.usefixtures("one_process")
def test_every_party_and_its_constants_are_counted():
    frozen = nn.Linear(2, 2).requires_grad_(False)
    bottom = lambda: nn.Sequential(frozen, nn.Linear(2, 3))  # noqa: E731
    found = check(
        raydpzv.vertical(
            bottom, [X[:, :2], X[:, 2:]], Y, updates=20, embedding=3, batch=8, head="linear"
        )
    )
    assert found.models == {"server": 6 * 3 + 3, "client 0": 9, "client 1": 9}
    assert found.constants["client 1"] == 6


class Gate(nn.Linear):
    def forward(self, x):
        scores = super().forward(x)
        return scores.clamp(-9, 9) if (scores.abs() > 9).any() else scores


class Branching(nn.Module):
    def __init__(self, clients, embedding, classes):
        super().__init__()
        self.gate = Gate(clients * embedding, classes)

    def forward(self, x):
        return self.gate(x)


def branching_loss(scores, y):
    values = nn.functional.cross_entropy(scores, y, reduction="none")
    return values if values.max() < 99 else values.clamp(max=99)


def private(head, loss, server="dp_sgd"):
    """A proved run whose head learns by the clipped gradients of single records."""
    own = {"trust": ["model"]} if loss is None else {"trust": ["loss"]}
    clips = {"clip": 0.1} | ({"head_clip": 0.5} if server == "dp_sgd" else {})
    proved = {
        "data": {"split": "plain"},
        "privacy": {"mode": "proved", "epsilon": 1.0, **clips, **own},
    }
    return raydpzv.vertical(
        "linear",
        [X[:, :2], X[:, 2:]],
        Y,
        head=head,
        loss=loss,
        server=server,
        updates=5,
        batch="all",
        classes=[0, 1, 2],
        model__targets=loss and "classes",
        **proved,
    )


@pytest.mark.parametrize("look", [raydpzv.check, raydpzv.run])
@pytest.mark.parametrize(
    ("head", "loss", "place"),
    [
        (
            Branching,
            None,
            r'model\.head: its layer "gate" \(Gate\), line \d+ of test_preflight\.py, cannot',
        ),
        ("linear", branching_loss, r"model\.loss: your loss cannot"),
    ],
)
def test_a_branch_on_data_is_named_where_records_have_gradients_of_their_own(
    look, head, loss, place
):
    with pytest.raises(
        InputError, match=rf"{place} be mapped over records.*torch\.where in place of if"
    ):
        look(private(head, loss))


def test_a_branch_on_data_is_nothing_to_a_head_that_needs_no_gradients():
    assert raydpzv.run(private(Branching, None, "joint")).summary["updates"] == 5


def test_weights_that_differ_between_processes_are_refused():
    own = scenario(ByProcess)
    assert first_weights(own) == first_weights(own)
    with pytest.raises(InputError, match="first weights differ between two processes"):
        check(own)


@pytest.mark.usefixtures("one_process")
def test_a_run_under_the_wall_clock_is_not_timed():
    found = check(raydpzv.load("digits_dpzv", ["clock.kind=wall"]))
    assert found.cost is None
    assert not any("an update costs" in line for line in found.lines())


@pytest.mark.usefixtures("one_process")
def test_the_command_prints_sentences_or_json():
    stdout = stdout_of(call("check", "digits_dpzv"))
    assert "models: 5, of " in stdout
    assert "another process starts from the same weights" in stdout
    told = json.loads(call("check", "digits_dpzv", "--json").stdout)
    assert told["updates"] == 2000
    assert told["models"]["client 0"] == 610


class Faulty(nn.Linear):
    """A layer from 4 numbers to 3 scores with one fault."""

    def __init__(self, fault: str) -> None:
        super().__init__(4, 3)
        self.fault = fault
        self.register_buffer("calls", torch.zeros(1))
        self.norm = nn.BatchNorm1d(4, track_running_stats=fault != "batch statistics")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fault == "live dropout":
            x = nn.functional.dropout(x, 0.5, training=True)
        if self.fault == "changing buffer":
            self.calls += 1
        if self.fault == "other records":
            x = x - x.mean(0)
        scores = super().forward(self.norm(x))
        return scores[:, :2] if self.fault == "wrong shape" else scores


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("live dropout", "two forward calls on the same records differ"),
        ("batch statistics", "BatchNorm without statistics of its own"),
        ("changing buffer", "changes a buffer"),
        ("other records", "depend on the other records"),
        ("wrong shape", r"wanted scores \[48, 3\] of 48 records, got \(48, 2\)"),
    ],
)
def test_a_fault_of_a_model_is_found(fault, complaint):
    with pytest.raises(InputError, match=complaint):
        check(scenario(lambda: Faulty(fault), test=(X[:48], Y[:48])))


def test_a_model_that_cannot_travel_is_found(tmp_path, monkeypatch):
    (tmp_path / "own_helpers.py").write_text("def width():\n    return 3\n")
    (tmp_path / "own_model_file.py").write_text(
        "from torch import nn\nfrom own_helpers import width\ndef made():\n    return nn.Linear(4, "
        "width())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        InputError, match=r"started in another process .*cannot import .*own_helpers"
    ):
        check(scenario("own_model_file:made"))
