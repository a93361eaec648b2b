"""DeComFL's Algorithms 3 and 4 written down a second time, with torch's own optimiser, beside a run
of the program.

From the run come the initial model, cohorts, batches and directions, by their addresses, and
nothing else: every client is a model and a `torch.optim.SGD` of its own, as in the authors'
program, and catches up by what it missed.
"""

# M clients, K local steps, P perturbations, d parameters

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import raydpzv
from raydpzv.config.scenario import HorizontalScenario
from raydpzv.data.horizontal import batch_rows
from raydpzv.experiment.horizontal import PreparedHorizontal, prepare_horizontal
from raydpzv.keys import Key, perturbation_seeds
from raydpzv.methods.horizontal.decomfl import decomfl_settings
from raydpzv.methods.horizontal.rounds import Cohorts
from raydpzv.methods.horizontal.seeded import round_seeds
from raydpzv.zo.directions import Direction
from raydpzv.zo.vectors import as_array

ROUNDS = 15
SMALL = (
    "data.train_rows=120",
    "data.test_rows=40",
    "model.hidden=[6]",
    "split.clients=8",
    "method.cohort=3",
    "method.batch=8",
    "method.perturbations=4",
    f"budget.updates={ROUNDS}",
    f"evaluate.every={ROUNDS}",
    "method.local_steps=3",
    "method.lr=0.005",
    "method.momentum=0.5",
    "method.dampening=false",
)


class Client:
    """A model in float64 and its optimiser; t: the last round it took part in, which it has still
    to replay.
    """

    def __init__(self, initial: np.ndarray, how: Any) -> None:
        self.x = torch.tensor(initial.astype(np.float64), requires_grad=True)
        self.optimiser = torch.optim.SGD([self.x], lr=how.lr, momentum=how.momentum)
        self.t = 1

    def step(self, z_PD: np.ndarray, scalars_P: np.ndarray) -> None:
        """Algorithm 4, lines 8 and 21, with torch's momentum."""
        self.x.grad = torch.from_numpy(scalars_P @ z_PD / len(z_PD))
        self.optimiser.step()


class Published:
    """Server and clients of Algorithms 3 and 4, rounds from 1."""

    def __init__(self, prepared: PreparedHorizontal) -> None:
        spec = prepared.spec
        self._how, self._key, self._prepared = spec.method, Key(spec.seed), prepared
        self._settings = decomfl_settings(spec.method, self._key)
        self._cohorts = Cohorts(spec.split.clients, spec.method.cohort, self._key)
        initial = as_array(prepared.plan.initial())
        self._clients = [Client(initial, spec.method) for _ in range(spec.split.clients)]
        self._module = prepared.plan.module().double()
        self._x, self._y = (torch.tensor(np.asarray(a)) for a in prepared.split.train.arrays)
        self._g: list[np.ndarray] = []

    def run(self, rounds: int, *, skip_own: bool = False) -> np.ndarray:
        """Return the model after so many rounds; skip_own: as if a client need not replay the round
        it took part in.
        """
        for round in range(1, rounds + 1):
            found = [
                self._take_part(i, round, skip_own) for i in self._cohorts.draw(round).tolist()
            ]
            self._g.append(np.mean(found, axis=0))
        last = self._clients[0]
        self._rebuild(last, rounds + 1)
        return last.x.detach().numpy()

    def _take_part(self, i: int, round: int, skip_own: bool) -> np.ndarray:
        client = self._clients[i]
        self._rebuild(client, round)
        kept = copy.deepcopy((client.x.detach(), client.optimiser.state_dict()))
        g_KP = np.zeros((self._how.local_steps, self._how.perturbations))
        for k in range(self._how.local_steps):
            rows = batch_rows(self._prepared.parts, self._key, i, round, k, self._how.batch).copy()
            z_PD, here = self._directions(round, k), client.x.detach().numpy()
            base = self._loss(here, rows)
            g_KP[k] = [
                (self._loss(here + self._how.smoothing * z, rows) - base) / self._how.smoothing
                for z in z_PD
            ]
            client.step(z_PD, g_KP[k])
        with torch.no_grad():
            client.x.copy_(kept[0])
        client.optimiser.load_state_dict(kept[1])
        client.t = round + 1 if skip_own else round
        return g_KP

    def _rebuild(self, client: Client, round: int) -> None:
        """Algorithm 4, ClientRebuildModel: rounds t to round - 1."""
        for past in range(client.t, round):
            for k in range(self._how.local_steps):
                client.step(self._directions(past, k), self._g[past - 1][k])
        client.t = max(client.t, round)

    def _directions(self, round: int, k: int) -> np.ndarray:
        seeds = perturbation_seeds(
            round_seeds(self._settings, round)[k], np.arange(self._how.perturbations)
        )
        size = self._clients[0].x.numel()
        return np.stack([Direction(int(s), size).values().astype(np.float64) for s in seeds])

    def _loss(self, x: np.ndarray, rows: np.ndarray) -> float:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(x), self._module.parameters())
        with torch.no_grad():
            return float(
                functional.cross_entropy(self._module(self._x[rows].double()), self._y[rows])
            )


@pytest.mark.parametrize("engine", ["compiled", "torch"])
def test_a_run_is_the_published_algorithm(engine: str) -> None:
    spec = raydpzv.load("digits_decomfl", [*SMALL, f"model.engine={engine}"])
    assert isinstance(spec, HorizontalScenario)
    prepared = prepare_horizontal(spec)
    start = as_array(prepared.plan.initial()).astype(np.float64)
    ours = raydpzv.run(spec).models["shared"]
    theirs = Published(prepared).run(ROUNDS)
    moved = np.linalg.norm(theirs - start)
    assert np.linalg.norm(ours - theirs) < 1e-4 * moved
    # the control: who does not replay the round it took part in ends elsewhere
    wrong = Published(prepared).run(ROUNDS, skip_own=True)
    assert np.linalg.norm(ours - wrong) > 0.3 * moved
