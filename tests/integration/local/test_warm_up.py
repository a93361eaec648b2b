"""What runs before t = 0: the whole cycle of every party, on nothing, and without a trace."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numba import typeof

import scenarios
from raydpzv.config.scenario import HorizontalScenario, VerticalScenario
from raydpzv.errors import Diverged
from raydpzv.experiment import client_warm_up, run_horizontal, warm_up
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.experiment.runner import run_local
from raydpzv.experiment.vertical import prepare_vertical as prepare
from raydpzv.methods.roles import Upload
from raydpzv.methods.vertical.vafl import VaflServer
from raydpzv.records.recorder import Recorder
from raydpzv.zo.kernels import Kernel

SHORT = ("budget.updates=12", "evaluate.every=6")
VERTICAL: dict[str, tuple[str, ...]] = {
    "dpzv, sphere": ("digits_dpzv", "privacy.noise=seeded"),
    "dpzv, signs, 3 directions": (
        "digits_dpzv",
        "method.direction=rademacher",
        "method.perturbations=3",
    ),
    "dpzv, no momentum, Poisson": ("digits_dpzv", "method.momentum=0", "method.batches=poisson"),
    "dpzv, zeroth-order head": ("digits_dpzv", "method.server=zo", "method.server_momentum=0.5"),
    "vafl": ("vafl",),
    "vafl, t-synchronous": ("vafl", "method.synchrony=t-synchronous", "method.wait_for=2"),
    "vafl, synchronous": ("vafl", "method.synchrony=synchronous"),
    "vafl, queries": ("vafl", "method.max_delay=4"),
    "zoo_vfl": ("zoo_vfl",),
    "zoo_vfl, one-sided head": ("zoo_vfl", "method.server=zo_one_sided"),
    "czofo": ("czofo", "method.upload_bits=4", "method.answer_bits=4"),
    "czofo, coordinates": ("czofo", "method.directions=coordinate"),
    "czofo, by rows": ("czofo", "method.variant=per_row"),
    "frozen": ("frozen",),
    "sgd": ("sgd",),
}
FEW = (
    "data.train_rows=150",
    "data.test_rows=60",
    "model.hidden=[6]",
    "split.clients=6",
    "method.batch=8",
    "budget.updates=6",
    "evaluate.every=3",
)
ROUNDS = (*FEW, "method.cohort=3")
HORIZONTAL: dict[str, tuple[str, ...]] = {
    "decomfl": ("digits_decomfl", *ROUNDS, "method.local_steps=2", "method.momentum=0.5"),
    "decomfl, signs": ("digits_decomfl", *ROUNDS, "method.direction=rademacher"),
    "decomfl, gradient projection": ("digits_decomfl", *ROUNDS, "method.estimate=projection"),
    "decomfl, own models": ("digits_decomfl", *ROUNDS, "method.replicas=per_client"),
    "decomfl, asynchronous": ("decomfl_async", *FEW, "clock.compute=0", "network.latency=0"),
    "decomfl, asynchronous, sphere, pulls": (
        "decomfl_async",
        *FEW,
        "clock.compute=0",
        "network.latency=0",
        "method.direction=sphere",
        "method.server_model=true",
        "method.pull_after=2",
    ),
    "mezo": ("digits_decomfl", *FEW, "split.clients=1", "method.name=mezo"),
    "feedsign": ("digits_decomfl", *ROUNDS, "method.name=feedsign"),
    "fzoo": ("digits_decomfl", *ROUNDS, "method.name=fzoo"),
    "fedkseed": ("digits_decomfl", *ROUNDS, "method.name=fedkseed"),
    "decomfl, torch": ("digits_decomfl", *ROUNDS, "method.direction=sphere", "model.engine=torch"),
    "fedavg": ("digits_decomfl", *ROUNDS, "method.name=fedavg"),
    "fedavg, torch": ("digits_decomfl", *ROUNDS, "method.name=fedavg", "model.engine=torch"),
    "fedcom": ("digits_decomfl", *ROUNDS, "method.name=fedcom"),
    "topk": ("digits_decomfl", *ROUNDS, "method.name=topk"),
    "fedzo": ("digits_decomfl", *ROUNDS, "method.name=fedzo", "method.local_steps=2"),
}


def vertical(kind: str, *more: str) -> VerticalScenario:
    name, *overrides = VERTICAL[kind]
    spec = scenarios.load(name, [*SHORT, *overrides, *more])
    assert isinstance(spec, VerticalScenario)
    return spec


def horizontal(kind: str, *more: str) -> HorizontalScenario:
    name, *overrides = HORIZONTAL[kind]
    spec = scenarios.load(name, [*overrides, *more])
    assert isinstance(spec, HorizontalScenario)
    return spec


Called = set[tuple[Any, ...]]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Called:
    """The kernels called, with what decides whether numba compiles another version: its types of
    the arguments.
    """
    found: Called = set()
    call = Kernel.__call__

    def noted(self: Kernel, *arguments: Any) -> Any:
        found.add((self._name, *map(typeof, arguments)))
        return call(self, *arguments)

    monkeypatch.setattr(Kernel, "__call__", noted)
    return found


@pytest.mark.parametrize("engine", ["torch", "compiled"])
@pytest.mark.parametrize("kind", VERTICAL)
def test_every_kernel_of_a_vertical_run_is_called_before_it_begins(
    kind: str, engine: str, called: Called
) -> None:
    spec = vertical(kind, f"model.engine={engine}")
    warm_up.warm_up(prepare(spec), "cpu")
    before = set(called)
    scenarios.run(spec)
    assert called == before
    assert bool(before) == (
        engine == "compiled" or kind.startswith(("dpzv", "zoo_vfl")) or kind == "czofo"
    )


@pytest.mark.parametrize("kind", HORIZONTAL)
def test_every_kernel_of_a_horizontal_run_is_called_before_it_begins(
    kind: str, called: Called
) -> None:
    spec = horizontal(kind)
    run_horizontal.warm_up(prepare_horizontal(spec), "cpu")
    before = set(called)
    scenarios.run(spec)
    assert called == before
    assert bool(before) == (kind != "fedavg, torch")


@pytest.mark.parametrize("kind", VERTICAL)
def test_every_client_applies_two_answers_and_is_evaluated(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained: list[Any] = []
    drain = Recorder.drain
    monkeypatch.setattr(Recorder, "drain", lambda self: drained.append(drain(self)) or drained[-1])
    experiment = prepare(vertical(kind))
    warm_up.warm_up(experiment, "cpu")
    (rows,) = drained
    applied = [
        row["client"] for row in rows["service"].to_pylist() if not math.isnan(row["applied"])
    ]
    assert all(applied.count(m) >= 2 for m in range(len(experiment.clients)))
    assert rows["evaluation"].num_rows == 1


def test_the_parties_of_a_warm_up_see_neither_features_nor_labels_nor_releases_on_record() -> None:
    experiment = prepare(vertical("dpzv, sphere"))
    for recipe in experiment.clients:
        bare = client_warm_up.client_without_data(recipe)
        assert not bare.x_train.any()
        assert not bare.x_held_out.any()
        # two batches, whatever the table's size
        assert bare.x_train.shape == (128, *recipe.x_train.shape[1:])
    server = experiment.with_record({(0, 0, 0): 1.0}, continues=True).server
    assert server.noise.recorded
    bare_server = warm_up.server_without_data(server)
    assert not bare_server.y_train.any()
    assert not bare_server.y_held_out.any()
    assert (bare_server.noise.recorded, bare_server.noise.continues) == (None, False)


def test_nothing_else_than_zeros_is_sent_through_the_clients_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[torch.Tensor] = []
    experiment = prepare(vertical("dpzv, sphere", "model.engine=torch"))
    rows = experiment.clients[0].x_train.shape[1:]
    forward = torch.nn.Module.__call__

    def watched(self: torch.nn.Module, x: torch.Tensor, *more: Any) -> Any:
        if x.shape[1:] == rows:
            seen.append(x)
        return forward(self, x, *more)

    monkeypatch.setattr(torch.nn.Module, "__call__", watched)
    warm_up.warm_up(experiment, "cpu")
    assert len(seen) >= 2 * 2 * len(experiment.clients)
    assert not any(x.any() for x in seen)


def test_nothing_else_than_zeros_is_sent_through_compiled_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[np.ndarray] = []
    call = Kernel.__call__

    def watched(self: Kernel, *arguments: Any) -> Any:
        if self._name in ("embed", "embed_along"):
            seen.append(arguments[0])
        return call(self, *arguments)

    monkeypatch.setattr(Kernel, "__call__", watched)
    experiment = prepare(vertical("dpzv, sphere", "model.engine=compiled"))
    warm_up.warm_up(experiment, "cpu")
    assert len(seen) >= 2 * len(experiment.clients)
    assert not any(x.any() for x in seen)


def _global_randomness() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())  # noqa: NPY002


@pytest.mark.parametrize(
    "kind", ["dpzv, sphere", "dpzv, zeroth-order head", "vafl, queries", "sgd"]
)
def test_a_vertical_run_is_the_same_with_a_warm_up_and_without(kind: str, tmp_path: Path) -> None:
    experiment = prepare(vertical(kind, *_seeded(kind)))
    _is_the_same(
        experiment.spec,
        tmp_path,
        lambda: warm_up.warm_up(experiment, "cpu"),
        lambda out: run_local(experiment, RunOptions(out)),
    )


@pytest.mark.parametrize(
    "kind", ["decomfl", "decomfl, own models", "decomfl, asynchronous", "fedcom"]
)
def test_a_horizontal_run_is_the_same_with_a_warm_up_and_without(kind: str, tmp_path: Path) -> None:
    prepared = prepare_horizontal(horizontal(kind))
    _is_the_same(
        prepared.spec,
        tmp_path,
        lambda: run_horizontal.warm_up(prepared, "cpu"),
        lambda out: run_local(prepared, RunOptions(out)),
    )


def _seeded(kind: str) -> tuple[str, ...]:
    return ("privacy.noise=seeded",) if kind.startswith("dpzv") else ()


def _is_the_same(
    spec: Any, folder: Path, warmed: Callable[[], None], run: Callable[[Path], Any]
) -> None:
    cold = run(folder / "cold").summary
    before = _global_randomness()
    warmed()
    assert _global_randomness() == before
    warm = run(folder / "warm").summary
    digests = ("digest", "model_digest", "ledger")
    assert [warm.get(name) for name in digests] == [cold.get(name) for name in digests]
    assert _files(folder / "warm") == _files(folder / "cold")


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_what_diverges_on_nothing_is_left_to_the_run_to_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def diverge(self: VaflServer, upload: Upload) -> None:
        raise Diverged("a gradient must be finite")

    monkeypatch.setattr(VaflServer, "receive", diverge)
    warm_up.warm_up(prepare(vertical("vafl")), "cpu")
    with pytest.raises(Diverged):
        scenarios.run(vertical("vafl", "clock.kind=wall", "arrivals.rate=200"))


def test_a_wall_clock_run_counts_from_its_own_first_upload(tmp_path: Path) -> None:
    run = scenarios.run(
        vertical("dpzv, sphere", "clock.kind=wall", "arrivals.rate=200"), out=tmp_path / "run"
    )
    services = run.rows("service").to_pylist()
    assert len(services) == run.summary["updates"] == run.summary["ledger"]["updates"] == 12
    for m in {row["client"] for row in services}:
        steps = [row["step"] for row in services if row["client"] == m]
        assert steps == list(range(len(steps)))
