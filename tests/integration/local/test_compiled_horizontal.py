import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scenarios
from raydpzv.data.horizontal import batch_rows
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.experiment.rebuild import rebuild
from raydpzv.keys import Key, perturbation_seeds
from raydpzv.methods.horizontal.decomfl import decomfl_settings
from raydpzv.methods.horizontal.seeded import round_seeds
from raydpzv.records.run_folder import RunFolder
from raydpzv.zo import philox
from tests.helpers.small_horizontal import SEEDED, small

WITHOUT_TORCH = """
import pickle, sys
from functools import partial
from raydpzv.experiment.model_evaluator import WeightsEvaluator
from raydpzv.ledger.ledger import begin_ledger

for prepared in pickle.load(sys.stdin.buffer):
    ledger = begin_ledger(None, prepared.plan.header()) if prepared.seeded else None
    server, group = prepared.server(ledger), prepared.client_group(ledger)
    orders = server.first_orders()
    for _ in range(2):
        orders = [order for upload in group.process(orders) for order in server.receive(upload)]
    look = WeightsEvaluator(prepared, server, "cpu").evaluate
    if prepared.seeded:
        look = lambda version: prepared.held_out().scored(partial(group.evaluate, version))
    print(look(2).loss, "torch" in sys.modules)
"""


def test_servers_and_hosts_work_without_torch() -> None:
    kinds = ("decomfl", "adam", "per_client", "fedavg", "topk", "fedzo", "generated")
    specs = [small(kind, "model.engine=compiled") for kind in kinds]
    specs += [
        scenarios.load(name, ["data.train_rows=200"])
        for name in ("digits_users", "digits_users_zo")
    ]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        input=pickle.dumps([prepare_horizontal(spec) for spec in specs]),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    lines = [line.split() for line in done.stdout.decode().splitlines()]
    assert len(lines) == len(specs)
    for spec, (loss, kind) in zip(specs, lines, strict=True):
        assert 0 < float(loss) < 10, spec.method.name
        assert kind == "False", (
            f"{spec.method.name} used something of torch, which was imported for it"
        )


@pytest.mark.parametrize("kind", ["decomfl", "asynchronous", "fedavg", "fedzo"])
def test_auto_takes_it_and_its_ledger_rebuilds_the_same_bits(kind: str, tmp_path: Path) -> None:
    """That such runs go on to the same bits is in tests/integration/resume, for every method."""
    whole = scenarios.run(small(kind, "record.snapshots=5"), tmp_path / "whole")
    assert whole.summary["engine"] == "compiled"
    assert RunFolder.open(tmp_path / "whole").environment()["engine"] == "compiled"
    if kind in SEEDED:
        rebuilt = rebuild(tmp_path / "whole")
        assert rebuilt.verified
        assert np.array_equal(rebuilt.models["shared"], whole.models["shared"])
    torchs = scenarios.run(small(kind, "model.engine=torch"))
    assert torchs.summary["model_digest"] != whole.summary["model_digest"]
    moved = torchs.models["shared"] - prepare_horizontal(small(kind)).plan.initial()
    difference = torchs.models["shared"] - whole.models["shared"]
    assert np.linalg.norm(difference) < 1e-3 * np.linalg.norm(moved)


@pytest.mark.parametrize("kind", ["decomfl", "fedavg"])
def test_threads_and_the_rest_of_the_cohort_move_no_bits(kind: str) -> None:
    one, three = (scenarios.run(small(kind, f"resources.threads={n}")).summary for n in (1, 3))
    assert (one["digest"], one["model_digest"]) == (three["digest"], three["model_digest"])


def test_auto_leaves_larger_models_to_torch() -> None:
    spec = scenarios.load("digits_decomfl", ["model.hidden=[4000]", "data.train_rows=200"])
    assert prepare_horizontal(spec).engine == "torch"


class Slow:
    """A run's model and data in numpy: scores in float32, term by term in the kernels' order;
    losses in float64.
    """

    def __init__(self, *overrides: str) -> None:
        self.spec: Any = scenarios.load(
            "digits_decomfl",
            [
                "data.train_rows=150",
                "data.test_rows=30",
                "model.hidden=[5]",
                "model.engine=compiled",
                "split.clients=8",
                "method.batch=9",
                "method.cohort=3",
                "method.smoothing=0.01",
                "budget.updates=1",
                *overrides,
            ],
        )
        self.prepared = prepare_horizontal(self.spec)
        train = self.prepared.split.train
        self.x, self.y = train.x.reshape(len(train.x), -1), train.y
        self.start = self.prepared.plan.initial()
        self.run = scenarios.run(self.spec)

    def cohort(self) -> list[int]:
        return sorted({row["client"] for row in self.run.rows("service").to_pylist()})

    def rows(self, client: int, step: int) -> np.ndarray:
        return batch_rows(
            self.prepared.parts, Key(self.spec.seed), client, 1, step, self.spec.method.batch
        )

    def layers(self, w: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        found, at = [], 0
        for inputs, outputs in ((self.x.shape[1], 5), (5, 10)):
            weights = w[at : at + inputs * outputs].reshape(outputs, inputs)
            found.append((weights, w[at + inputs * outputs : at + (inputs + 1) * outputs]))
            at += (inputs + 1) * outputs
        return found

    def loss(self, w: np.ndarray, ids: np.ndarray) -> float:
        h = self.x[ids]
        for layer, (weights, biases) in enumerate(self.layers(w)):
            sums = np.repeat(biases[None], len(ids), 0)
            for i in range(weights.shape[1]):
                sums = sums + weights[:, i][None] * h[:, i][:, None]
            h = np.maximum(sums, 0) if layer == 0 else sums
        scores = h.astype(np.float64)
        return float(
            (np.log(np.exp(scores).sum(1)) - scores[np.arange(len(ids)), self.y[ids]]).mean()
        )

    def gradient(self, w: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """By hand in float64."""
        (w1, b1), (w2, b2) = self.layers(w)
        x = self.x[ids].astype(np.float64)
        h = np.maximum(x @ w1.T + b1, 0)
        soft = np.exp(h @ w2.T + b2)
        d2 = (soft / soft.sum(1, keepdims=True) - np.eye(10)[self.y[ids]]) / len(ids)
        d1 = (d2 @ w2) * (h > 0)
        return np.concatenate([(d1.T @ x).ravel(), d1.sum(0), (d2.T @ h).ravel(), d2.sum(0)])


def test_a_round_of_decomfl_is_the_papers() -> None:
    slow = Slow("method.perturbations=4", "method.lr=0.5")
    w, d = slow.start, slow.start.size
    (seed,) = round_seeds(decomfl_settings(slow.spec.method, Key(slow.spec.seed)), 1)
    directions = [philox.normals(int(s), 0, d) for s in perturbation_seeds(seed, np.arange(4))]
    slopes = [
        [(slow.loss(w + np.float32(0.01) * z, ids) - slow.loss(w, ids)) / 0.01 for z in directions]
        for ids in (slow.rows(client, 0) for client in slow.cohort())
    ]
    mean = np.mean(np.array(slopes, np.float32).astype(np.float64), axis=0).astype(np.float32)
    for z, slope in zip(directions, mean, strict=True):
        w = w - np.float32(0.5 * float(slope) / 4) * z
    moved = np.abs(w - slow.start).max()
    assert np.abs(slow.run.models["shared"] - w).max() < 1e-6 * moved
    assert np.abs(slow.run.models["shared"] - slow.start).max() > 0.5 * moved, "control"


def test_a_round_of_fedavg_is_the_papers() -> None:
    slow = Slow(
        "method.name=fedavg", "method.local_steps=3", "method.lr=0.5", "method.momentum=0.5"
    )
    ends = []
    for client in slow.cohort():
        w, v = slow.start.astype(np.float64), np.zeros(slow.start.size)
        for step in range(3):
            v = 0.5 * v + slow.gradient(w, slow.rows(client, step))
            w = w - 0.5 * v
        ends.append(w)
    found, wanted = slow.run.models["shared"] - slow.start, np.mean(ends, axis=0) - slow.start
    assert np.linalg.norm(found - wanted) < 1e-6 * np.linalg.norm(wanted)
