"""A model that follows a ledger: equal updates from an equal start give equal bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from raydpzv.errors import RunError
from raydpzv.keys import Key, perturbation_seeds, shifted
from raydpzv.ledger.entries import Slice
from raydpzv.methods.model_averaging import ModelAverage
from raydpzv.zo.update import Descent, Rule, Step
from raydpzv.zo.vectors import Vector, as_array, assign, copied


class UpdateSource(Protocol):
    """A source of updates: a ledger, or a connection to one."""

    def since(self, version: int, until: int | None = None) -> Slice:
        """Return the updates after `version`, up to and including `until` (None: the newest)."""
        ...


class Replica:
    """Parameters (and what the rule keeps beside them, such as momentum) after the updates
    1..`version`.

    x: float32 [d], the model before the first update; it is changed in place. secret: of clients
    who shift every seed before they use it (DeComFL A.3), so that the ledger without it leads
    elsewhere. step_seeds: the ledger's seeds are those of steps, else of directions. party: follow
    this party's updates alone (None: all).
    """

    def __init__(
        self,
        x: Vector,
        rule: Rule,
        *,
        secret: Key | None = None,
        step_seeds: bool = False,
        party: int | None = None,
        threads: int = 1,
    ) -> None:
        self.descent = Descent(x, rule, threads=threads)
        self.version = 0
        self._secret, self._step_seeds, self._party, self._threads = (
            secret,
            step_seeds,
            party,
            threads,
        )

    @property
    def x(self) -> Vector:
        """The parameters, float32 [d]."""
        return self.descent.x

    def seeds(self, seeds: np.ndarray) -> np.ndarray:
        """Return directions' seeds as they are used: shifted, if there is a secret."""
        return seeds if self._secret is None else shifted(self._secret, seeds)

    def direction_seeds(self, updates: Slice) -> np.ndarray:
        """Return the seeds of the directions along which updates move the model, uint64 [N]."""
        seeds = updates.seed
        return self.seeds(
            perturbation_seeds(seeds, updates.perturbation) if self._step_seeds else seeds
        )

    def go_to(self, version: int, history: UpdateSource, tail: ModelAverage | None = None) -> None:
        """Replay what is missing up to `version`; RunError if the replica is past it.

        tail: takes the parameters after each update that it covers.
        """
        if version < self.version:
            raise RunError(
                f"a replica at update {self.version} cannot go back to {version}: replay from the "
                "start"
            )
        if version > self.version:
            self.follow(history.since(self.version, version), tail)

    def follow(self, updates: Slice, tail: ModelAverage | None = None) -> None:
        """Apply updates; they must begin where the replica is. tail: as in `go_to`."""
        if updates.first != self.version:
            raise RunError(
                f"a replica at update {self.version} got the updates after {updates.first}"
            )
        mine = updates if self._party is None else updates.of(self._party)
        if self._step_seeds:
            mine = replace(mine, seed=perturbation_seeds(mine.seed, mine.perturbation))
        for update in mine.each() if tail else (mine,):
            self._take(update)
            if tail and tail.covers(update.last):
                tail.add(as_array(self.x))
        self.version = updates.last

    def _take(self, updates: Slice) -> None:
        """Move the model by updates, whose seeds are those of directions."""
        self.apply_steps(list(self._steps(updates)))

    def _steps(self, updates: Slice) -> Iterator[Step]:
        """Yield the steps of updates; one that anchors takes all its pairs at the same model, so
        that they are one.
        """
        for update in updates.each() if self.descent.rule.epoch else (updates,):
            if len(update) and self.descent.rule.anchors(int(update.round[0])):
                yield Step(update.seed, update.scalar, float(update.lr[0]), anchor=True)
            else:
                yield from (Step(seeds, scalars, lr) for seeds, scalars, lr in update.steps())

    def apply_steps(self, steps: Sequence[Step]) -> None:
        """Apply steps that are not counted as updates of the ledger."""
        self.descent.apply(
            [s._replace(seeds=self.seeds(np.asarray(s.seeds, np.uint64))) for s in steps]
        )

    def state(self) -> np.ndarray:
        """Return a copy of the parameters and of the V vectors that the rule keeps: float32 [1 + V,
        d].
        """
        return np.stack([as_array(vector) for vector in (self.descent.x, *self.descent.kept)])

    def adopt(self, state: np.ndarray, version: int) -> None:
        """Take over the state of another replica."""
        for vector, values in zip((self.descent.x, *self.descent.kept), state, strict=True):
            assign(vector, values)
        self.version = version

    def twin(self) -> Replica:
        """Return a replica in the same state that continues by itself."""
        twin = Replica(
            self.x,
            self.descent.rule,
            secret=self._secret,
            step_seeds=self._step_seeds,
            party=self._party,
            threads=self._threads,
        )
        twin.descent, twin.version = self.descent.copy(), self.version
        return twin

    def fork(self) -> Descent:
        """Return a descent that continues alone from here, for local steps that are dropped
        afterwards.
        """
        return self.descent.copy()


class SeedSums:
    """What the updates of a ledger come to along each of a pool's seeds (FedKSeed's scalar gradient
    accumulators).

    seeds: uint64 [n], ascending. values: float32 [n]; each entry of the ledger adds the float32 of
    η s / P to its seed's, one after the other.
    """

    def __init__(self, seeds: np.ndarray) -> None:
        self.seeds, self.values = seeds, np.zeros(len(seeds), np.float32)

    def add(self, updates: Slice) -> None:
        """Add updates. Raises RunError for a seed outside the pool."""
        places = np.searchsorted(self.seeds, updates.seed)
        if not np.array_equal(self.seeds[places % len(self.seeds)], updates.seed):
            raise RunError(
                "the ledger has a seed that is not of this run's pool: it is the ledger of another "
                "run"
            )
        amounts = [
            lr * scalars.astype(np.float64) / len(scalars) for _, scalars, lr in updates.steps()
        ]
        np.add.at(self.values, places, np.concatenate([np.zeros(0), *amounts]).astype(np.float32))

    @property
    def step(self) -> Step:
        """The one step from the model before update 1: x_0 - Σ_j A_j u_j, over sums that are not 0,
        by ascending seed.

        Its size is the number of terms, by which a step is divided.
        """
        used = np.flatnonzero(self.values)
        return Step(self.seeds[used], self.values[used], float(len(used)))


class PooledReplica(Replica):
    """A model that is made again from its first values and the sums of a pool's seeds after every
    range of updates.

    Its bits depend on the sums alone, so that who has them needs none of the updates. pool: seeds,
    uint64 [n].
    """

    def __init__(self, x: Vector, rule: Rule, *, pool: np.ndarray, threads: int = 1) -> None:
        super().__init__(x, rule, threads=threads)
        self._first, self._sums = copied(x), SeedSums(pool)

    def _take(self, updates: Slice) -> None:
        self._sums.add(updates)
        assign(self.x, as_array(self._first))
        self.apply_steps([self._sums.step])

    def state(self) -> np.ndarray:
        """Return a copy of the parameters, and of the sums in as many rows as they fill: float32 [1
        + V, d].
        """
        sums, size = self._sums.values, len(self.x)
        rows = np.zeros((-(-len(sums) // size), size), np.float32)
        rows.ravel()[: len(sums)] = sums
        return np.concatenate([as_array(self.x)[None], rows])

    def adopt(self, state: np.ndarray, version: int) -> None:
        assign(self.x, state[0])
        self._sums.values[:] = state[1:].ravel()[: len(self._sums.values)]
        self.version = version

    def twin(self) -> PooledReplica:
        twin = PooledReplica(
            copied(self._first), self.descent.rule, pool=self._sums.seeds, threads=self._threads
        )
        twin.adopt(self.state(), self.version)
        return twin
