"""DeComFL's round as its paper and its authors' program have it: the baseline of `decomfl_round`.

Written from the paper (Li et al., ICLR 2025, Algorithms 1 to 4) and from what the authors' program
was seen to do:

- every client has a model of its own, a deep copy; one that was not sampled for a while replays all
  it missed
- a perturbation is made again whenever it is used, tensor by tensor, by torch.randn of a generator
  with its seed
- it is added in place before a forward pass and subtracted afterwards
- ReLU comes before nn.MaxPool2d; the loss is torch's own in float32

Their program holds more than this: 3.3 GB were seen with 1,206,590 parameters and 100 clients.
"""

# M clients, m of them in a cohort, P perturbations, B batch

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from raydpzv.data.horizontal import Parts, batch_rows
from raydpzv.keys import Key
from raydpzv.methods.horizontal.rounds import Cohorts
from raydpzv.models.bottoms import SlicedMaxPool

_NEARLY = 0.05


@dataclass(frozen=True)
class Constants:
    """P, the step size, the smoothing radius, B."""

    perturbations: int
    lr: float
    smoothing: float
    batch: int


def as_published(network: nn.Sequential) -> nn.Sequential:
    """Return the network with ReLU before torch's pooling, where it has ReLU after pooling by
    slices.
    """
    layers = list(network)
    for place, layer in enumerate(layers[:-1]):
        if isinstance(layer, SlicedMaxPool):
            layers[place : place + 2] = [layers[place + 1], nn.MaxPool2d(2, ceil_mode=True)]
    return nn.Sequential(*layers)


class Published:
    """All clients and their server; forward differences, one local step per round.

    x, y: training rows float32 [N, ...] and int64 [N]; network: the model before the first round.
    """

    def __init__(
        self,
        network: nn.Sequential,
        x: torch.Tensor,
        y: torch.Tensor,
        parts: Parts,
        cohorts: Cohorts,
        constants: Constants,
        key: Key,
    ) -> None:
        self._models = [copy.deepcopy(network) for _ in range(cohorts.clients)]
        self._x, self._y, self._parts, self._cohorts, self._key = x, y, parts, cohorts, key
        self._constants = constants
        self._past: dict[int, np.ndarray] = {}
        self._read = np.zeros(
            cohorts.clients, np.int64
        )  # rounds that each client's model has behind it

    @torch.no_grad()
    def round(self, number: int) -> np.ndarray:
        """Do round 1, 2, ... and return the mean scalars, float64 [P]."""
        cohort = self._cohorts.draw(number).tolist()
        mean_P = np.mean([self._take_part(client, number) for client in cohort], axis=0)
        self._past[number] = mean_P
        return mean_P

    def skip_to(self, number: int) -> None:
        """Make it as if the rounds before this one had been done, with small scalars: what is
        missed by whom counts.
        """
        for past in range(1, number):
            self._past[past] = 1e-3 * (self._key / "past" / past).generator().standard_normal(
                self._constants.perturbations
            )
        self._read = reads(self._cohorts, number)

    def parameters(self, client: int) -> torch.Tensor:
        """Return the parameters of a client's model, float32 [d]."""
        return torch.cat([p.detach().reshape(-1) for p in self._models[client].parameters()])

    @torch.no_grad()
    def loss(self, client: int, rows: np.ndarray) -> float:
        """Return the mean cross-entropy of a client's model on rows."""
        ids = torch.from_numpy(rows.astype(np.int64))
        return float(cross_entropy(self._models[client](self._x[ids]), self._y[ids]))

    def _take_part(self, client: int, number: int) -> np.ndarray:
        """Catch up, estimate, take the local step, and revert (Algorithm 2)."""
        model, constants = self._models[client], self._constants
        for past in range(int(self._read[client]) + 1, number):
            self._step(model, past, self._past[past])
        self._read[client] = number - 1
        before = copy.deepcopy(model.state_dict())
        rows = batch_rows(self._parts, self._key, client, number, 0, constants.batch)
        at_rest = self.loss(client, rows)
        values = np.zeros(constants.perturbations)
        for p, seed in enumerate(self._seeds(number)):
            _add(model, seed, constants.smoothing)
            values[p] = (self.loss(client, rows) - at_rest) / constants.smoothing
            _add(model, seed, -constants.smoothing)
        self._step(model, number, values)
        model.load_state_dict(before)
        return values

    def _step(self, model: nn.Module, number: int, values: np.ndarray) -> None:
        for seed, value in zip(self._seeds(number), values, strict=True):
            _add(model, seed, -self._constants.lr / len(values) * float(value))

    def _seeds(self, number: int) -> list[int]:
        generator = (self._key / "seeds" / number).generator()
        return generator.integers(1 << 32, size=self._constants.perturbations).tolist()


def reads(cohorts: Cohorts, number: int) -> np.ndarray:
    """Return how many rounds each client has replayed before a round, int64 [M]: up to the last one
    it took part in.
    """
    found = np.zeros(cohorts.clients, np.int64)
    for past in range(1, number):
        found[cohorts.draw(past)] = past - 1
    return found


def usual_rounds(cohorts: Cohorts, first: int) -> Iterator[int]:
    """Yield rounds from `first` on in which the cohort missed as much as it does on average, M
    rounds together.

    How much a cohort has to replay varies by a third from round to round, and few rounds can be
    timed.
    """
    read, number = reads(cohorts, first), first
    while True:
        cohort = cohorts.draw(number)
        missed = int((number - 1 - read[cohort]).sum())
        if abs(missed - cohorts.clients) <= _NEARLY * cohorts.clients:
            yield number
        read[cohort] = number - 1
        number += 1


def _add(model: nn.Module, seed: int, amount: float) -> None:
    """Add amount · z to every parameter, z made from the seed (in place, as published: not exactly
    reversible).
    """
    generator = torch.Generator()
    generator.manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=amount)
