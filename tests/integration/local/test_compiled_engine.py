import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import scenarios
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.rebuild import rebuild, replay
from raydpzv.experiment.resuming import resuming
from raydpzv.records.run_folder import RunFolder
from scenarios.cli import app
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import stop_after

SMALL = (
    "data.train_rows=300",
    "data.test_rows=60",
    "evaluate.every=20",
    "method.batch=16",
    "budget.updates=60",
)
METHODS = {
    "dpzv": ("privacy.noise=seeded", "method.perturbations=2"),
    "vafl": ("privacy.mode=none",),
    "zoo_vfl": ("privacy.noise=seeded",),
    "czofo": ("privacy.noise=seeded", "method.upload_bits=8", "method.answer_bits=8"),
    "frozen": ("privacy.mode=none",),
    "sgd": ("privacy.mode=none",),
}
WITHOUT_TORCH = """
import pickle, sys
for clients, server in pickle.load(sys.stdin.buffer):
    clients, server = [factory.make() for factory in clients], server.make()
    waiting = list(server.first_orders())
    for _ in range(12):
        order = waiting.pop(0)
        waiting += server.receive(clients[order.client].process(order))
    loss = server.evaluate([client.evaluate().body.values for client in clients]).loss
    print(loss, "torch" in sys.modules)
"""


def loaded(method: str, engine: str, *more: str):
    overrides = [f"method.name={method}", *SMALL, *METHODS[method], f"model.engine={engine}", *more]
    return scenarios.load("digits_dpzv", overrides)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_replayed_and_continued_to_the_same_bits(method: str, tmp_path: Path) -> None:
    spec = loaded(method, "auto")
    whole = scenarios.run(spec, tmp_path / "whole")
    assert whole.summary["engine"] == "compiled"
    assert RunFolder.open(tmp_path / "whole").environment()["engine"] == "compiled"
    again = replay(tmp_path / "whole")
    assert again.verified
    assert all(np.array_equal(again.models[party], x) for party, x in whole.models.items())
    scenarios.run(spec, tmp_path / "run", **stop_after(25))
    experiment, folder, _ = resuming(tmp_path / "run")
    continued = run_prepared(experiment, folder, runner="local").summary
    for name in ("digest", "model_digest", "engine"):
        assert continued[name] == whole.summary[name]
    assert (
        scenarios.run(loaded(method, "torch")).summary["model_digest"]
        != whole.summary["model_digest"]
    )


def test_a_client_is_rebuilt_from_the_ledger_to_the_same_bits(tmp_path: Path) -> None:
    run = scenarios.run(loaded("dpzv", "compiled"), tmp_path / "run")
    for client in range(4):
        rebuilt = rebuild(tmp_path / "run", client=client)
        assert rebuilt.verified
        assert np.array_equal(rebuilt.models[f"client {client}"], run.models[f"client {client}"])


def test_the_parties_work_without_torch() -> None:
    prepared = [prepare(loaded(method, "auto")) for method in METHODS]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        input=pickle.dumps([(experiment.clients, experiment.server) for experiment in prepared]),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    lines = [line.split() for line in done.stdout.decode().splitlines()]
    assert len(lines) == len(METHODS)
    for method, (loss, kind) in zip(METHODS, lines, strict=True):
        assert 0 < float(loss) < 10, method
        assert kind == "False", f"{method} used something of torch, which was imported for it"


@pytest.mark.parametrize(
    ("shares", "engine"),
    [
        ((), "compiled"),
        (("resources.client_gpus=0.5",), "compiled_head"),
        (("resources.client_gpus=0.5", "resources.server_gpus=0.5"), "torch"),
    ],
)
def test_the_head_stays_on_the_cpu_where_only_clients_ask_for_a_gpu(
    shares: tuple[str, ...], engine: str
) -> None:
    assert prepare(loaded("dpzv", "auto", *shares)).engine == engine


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        (
            "digits_dpzv",
            ("compiled", "model.bottom=cnn", "model.hidden=[4]"),
            'cannot run model.bottom = "cnn"',
        ),
        ("digits_dpzv", ("compiled", "resources.server_gpus=0.5"), "cannot run on a GPU"),
        (
            "digits_dpzv",
            ("compiled", "resources.client_gpus=[0.5, 0, 0, 0]"),
            "cannot run on a GPU",
        ),
        ("digits_dpzv", ("compiled_head", "resources.server_gpus=0.5"), "cannot run on a GPU"),
        ("digits_dpzv", ("fast",), "wanted 'auto', 'torch', 'compiled' or 'compiled_head'"),
        (
            "digits_decomfl",
            ("compiled", "model.kind=cnn_mnist"),
            'cannot run model.kind = "cnn_mnist"; it runs model.kind = "mlp" or "logistic"',
        ),
        (
            "digits_decomfl",
            ("compiled", "resources.host_gpus=0.5"),
            "cannot run on a GPU (resources.host_gpus)",
        ),
    ],
)
def test_an_engine_that_cannot_run_the_model_ends_with_status_2(
    name: str, overrides: tuple[str, ...], words: str
) -> None:
    engine, *rest = overrides
    options = [
        item for override in (f"model.engine={engine}", *rest) for item in ("--set", override)
    ]
    result = CliRunner().invoke(app, ["run", name, *options])
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())
    assert "model.engine" in result.output


def test_the_summary_says_which_engine_ran(tmp_path: Path) -> None:
    scenarios.run(loaded("frozen", "auto", "model.hidden=[60000]"), tmp_path / "large")
    stated = json.loads((tmp_path / "large" / "summary.json").read_text())
    assert stated["engine"] == "compiled_head", "a bottom of more than 1,000,000 parameters"


@pytest.mark.parametrize("method", METHODS)
def test_the_head_is_compiled_whatever_the_bottoms_are(method: str) -> None:
    of_torch = ("model.bottom=cnn", "model.hidden=[4]")
    auto, torchs = (
        scenarios.run(loaded(method, engine, *of_torch)) for engine in ("auto", "torch")
    )
    assert (auto.summary["engine"], torchs.summary["engine"]) == ("compiled_head", "torch")
    ours, theirs = (run.rows("service")["loss"].to_numpy() for run in (auto, torchs))
    assert np.isfinite(ours[:20]).any()
    assert ours[:20] == pytest.approx(theirs[:20], rel=1e-3, nan_ok=True)
    assert (
        auto.summary["digest"]
        == scenarios.run(loaded(method, "compiled_head", *of_torch)).summary["digest"]
    )


def test_a_run_with_a_compiled_head_resumes_to_the_same_digest(tmp_path: Path) -> None:
    spec = loaded("vafl", "auto", "model.bottom=cnn", "model.hidden=[4]")
    whole = scenarios.run(spec)
    run_prepared(prepare(spec), tmp_path / "run", until=25)
    experiment, folder, _ = resuming(tmp_path / "run")
    assert run_prepared(experiment, folder).summary["digest"] == whole.summary["digest"]


@pytest.mark.parametrize("method", METHODS)
def test_every_loss_is_that_of_torch(method: str) -> None:
    """To what rounding leaves: of a step a hundredth too long, most losses differ by more."""
    auto, torchs = (scenarios.run(loaded(method, engine)) for engine in ("auto", "torch"))
    assert (auto.summary["engine"], torchs.summary["engine"]) == ("compiled", "torch")
    ours, theirs = (run.rows("service")["loss"].to_numpy() for run in (auto, torchs))
    assert np.isfinite(ours).sum() > 10
    assert ours == pytest.approx(theirs, rel=1e-5, nan_ok=True)


def test_runs_in_threads_of_one_process_have_the_bits_of_runs_alone() -> None:
    specs = [
        loaded(method, "compiled", f"seed={seed}") for method in ("dpzv", "vafl") for seed in (0, 1)
    ]
    with ThreadPoolExecutor(len(specs)) as threads:
        together = [run.summary["digest"] for run in threads.map(scenarios.run, specs)]
    assert together == [scenarios.run(spec).summary["digest"] for spec in specs]
    assert len(set(together)) == len(specs)
