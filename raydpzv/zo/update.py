"""Steps along seeded directions: the one place where a zeroth-order update changes parameters."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from typing import Any, Literal, NamedTuple

import numpy as np

from raydpzv.errors import InputError
from raydpzv.zo import device, kernels
from raydpzv.zo.apply_seeds import in_pieces, replay, replay_products
from raydpzv.zo.directions import Direction, Law, base_of
from raydpzv.zo.spans import Groups, Shapes, Span, overlaps, spans_of
from raydpzv.zo.vectors import Vector, as_array, copied, on_cpu

_PIECE = 1 << 16
"""Elements whose parameters and velocity (512 KiB) stay in the second cache while many steps are
replayed.
"""


Optimizer = Literal["sgd", "signsgd", "adam", "svrg"]


@dataclass(frozen=True)
class Rule:
    """How (seed, scalar) pairs move a model: the law of the directions, and what is done with g =
    mean_p Δ_p u_p.

    sgd: w <- w - ηv with v <- βv + g, or, damped, v <- βv + (1-β)g (DeComFL Eq. (8)); β: momentum.
    signsgd (Liu et al. 2018a, Algorithm 1): w <- w - η sign(g). adam (Chen et al. 2019, Algorithm
    1): m <- βm + (1-β)g, v <- β₂v + (1-β₂)g², v̂ <- max(v̂, v), w <- w - ηm/√v̂; v0: what v and v̂
    begin with. svrg (Liu et al. 2018b, Algorithm 2): ĝ <- g and w̃ <- w in the first of every
    `epoch` updates, w <- w - η(g + ĝ) in the others, whose scalars are the differences between w
    and w̃.

    groups: step sizes and smoothing radii of some parameters; spans: what directions are on each
    parameter, of a model whose law or groups need it (`on`).
    """

    law: Law = "gaussian"
    momentum: float = 0.0
    damped: bool = False
    optimizer: Optimizer = "sgd"
    beta2: float = 0.0
    v0: float = 0.0
    epoch: int = 0
    groups: Groups = ()
    spans: tuple[Span, ...] = ()

    @property
    def shaped(self) -> bool:
        """Whether what directions are follows from the parameters' names and shapes, not from their
        number alone.
        """
        return self.law == "rank_one" or bool(self.groups)

    def on(self, shapes: Shapes) -> Rule:
        """Return the rule of a model with these parameters."""
        return replace(self, spans=spans_of(self.law, self.groups, shapes)) if self.shaped else self

    @property
    def vectors(self) -> int:
        """The number of vectors of the model's size that are kept beside it."""
        return {"sgd": int(self.momentum > 0), "signsgd": 0, "adam": 3, "svrg": 2}[self.optimizer]

    def anchors(self, update: int) -> bool:
        """Return whether update 1, 2, ... estimates the gradient at w̃ = w and leaves w as it is
        (svrg).
        """
        return self.optimizer == "svrg" and (update - 1) % self.epoch == 0


class Step(NamedTuple):
    """One descent step: g = mean_p Δ_p u_p with seeds uint64 [P] and scalars [P], and its step size
    η.

    anchor: it moves nothing but what svrg keeps, see `Rule.anchors`.
    """

    seeds: Sequence[int] | np.ndarray
    scalars: Sequence[float] | np.ndarray
    lr: float
    anchor: bool = False


@dataclass(frozen=True)
class Steps:
    """K steps of P directions each, in order: seeds uint64 [K, P], scalars float64 [K, P], step
    sizes float64 [K].
    """

    seeds: np.ndarray
    scalars: np.ndarray
    lrs: np.ndarray

    @classmethod
    def of(cls, *steps: Step) -> Steps:
        """Return one or more steps of as many directions each."""
        return cls(
            np.array([step.seeds for step in steps], np.uint64),
            np.array([step.scalars for step in steps], np.float64),
            np.array([step.lr for step in steps], np.float64),
        )

    def __len__(self) -> int:
        return len(self.lrs)

    def __getitem__(self, which: slice) -> Steps:
        return Steps(self.seeds[which], self.scalars[which], self.lrs[which])

    def __iter__(self) -> Iterator[Step]:
        return starmap(Step, zip(self.seeds, self.scalars, self.lrs.tolist(), strict=True))


class Descent:
    """Parameters that steps move by a `Rule`; without momentum, sgd is w <- w - (η/P) Σ_p Δ_p u_p.

    DPZV (journal) Eq. (9), DeComFL Eq. (7) to (9). Each term is applied in order, one product and
    one sum per element, so that equal pairs give equal bits, however many steps are taken in one
    call.
    x: contiguous float32 [d], array or tensor, changed in place; kept: what the rule keeps beside
    x, likewise: [v] with momentum, [m, v, v̂] of adam, [w̃, ĝ] of svrg.
    """

    def __init__(self, x: Vector, rule: Rule, *, threads: int = 1) -> None:
        if rule.shaped and not rule.spans:
            raise InputError(
                "this rule depends on the parameters' shapes: give Descent(x, rule.on(shapes))"
            )
        self.x, self.rule = x, rule
        self.kept = [copied(x) for _ in range(rule.vectors)]
        for n, vector in enumerate(self.kept):
            vector[:] = rule.v0 if rule.optimizer == "adam" and n else 0.0
        self._threads = threads

    def direction(self, seed: int) -> Direction:
        """Return the direction of a seed, along which queries move the parameters."""
        return Direction(seed, len(self.x), self.rule.law, self.rule.spans)

    def copy(self) -> Descent:
        """Return a descent that continues from here on its own."""
        twin = Descent(copied(self.x), self.rule, threads=self._threads)
        twin.kept = [copied(vector) for vector in self.kept]
        return twin

    def apply(self, steps: Iterable[Step]) -> None:
        """Apply steps in order."""
        size, rule = len(self.x), self.rule
        found = [_Terms.of(step, rule, self.x) for step in steps]
        if not found:
            return
        if rule.optimizer != "sgd":
            piece = partial(_by_element, rule, found, [self.x, *self.kept])
            if on_cpu(self.x):
                in_pieces(size, 0, _PIECE, self._threads, _cut_small(piece))
            else:
                piece(0, size)
        elif not self.kept:
            seeds = np.concatenate([terms.seeds for terms in found])
            amounts = np.concatenate([terms.amounts for terms in found])
            _subtract(rule, self.x, seeds, amounts, threads=self._threads)
        elif on_cpu(self.x):
            work = partial(_with_momentum, rule, found, (as_array(self.x), as_array(self.kept[0])))
            in_pieces(size, 0, _PIECE, self._threads, _cut_small(work))
        else:
            velocity, plain = self.kept[0], not rule.spans and base_of(rule.law) == "gaussian"
            for terms in found:
                if plain and len(terms.seeds) == 1 and device.makes(self.x):
                    one = (rule.momentum, float(terms.amounts[0]), terms.lr)
                    device.triton().descend(self.x, velocity, terms.seeds[0], one)
                    continue
                velocity.mul_(rule.momentum)
                _subtract(rule, velocity, terms.seeds, terms.amounts)
                self.x.add_(velocity, alpha=-terms.lr)


@dataclass(frozen=True)
class _Terms:
    """What one step takes from each element: amount_p · z_p from x; or, without a step size, from a
    vector beside x.
    """

    seeds: np.ndarray
    amounts: np.ndarray
    lr: float
    anchor: bool

    @classmethod
    def of(cls, step: Step, rule: Rule, x: Vector) -> _Terms:
        scalars = np.asarray(step.scalars, np.float64)
        seeds = np.asarray(step.seeds, np.uint64)
        count = len(scalars)
        beside = rule.momentum or rule.optimizer != "sgd"
        amounts = -scalars / count if beside else step.lr * scalars / count
        if rule.momentum and rule.damped and rule.optimizer == "sgd":
            amounts = amounts * (1 - rule.momentum)
        if rule.law == "sphere":
            factors = [Direction(int(seed), len(x), "sphere").factor_for(x) for seed in seeds]
            amounts = amounts * np.array(factors)
        return cls(seeds, amounts, step.lr, step.anchor)


def _subtract(
    rule: Rule, x: Vector, seeds: np.ndarray, amounts: np.ndarray, start: int = 0, threads: int = 1
) -> None:
    """x -= Σ_j amounts[j] · z_j[start : start + n], of parameters in groups times their factors.

    1 / smoothing makes of a direction's query an estimate of the gradient; the step size's factor
    goes with it where steps are linear in the estimate (sgd).
    """
    law = base_of(rule.law)
    if not rule.spans:
        replay(x, seeds, amounts, start=start, law=law, threads=threads)
    for span, first, last in overlaps(rule.spans, start, start + len(x)):
        factor = (span.lr if rule.optimizer == "sgd" else 1.0) / span.smoothing
        place = start + first - span.start
        if span.rows:
            replay_products(
                x[first:last], seeds, amounts * factor, span, start=place, threads=threads
            )
        else:
            replay(
                x[first:last],
                seeds,
                amounts * factor,
                start=span.drawn + place,
                law=law,
                threads=threads,
            )


def _with_momentum(
    rule: Rule,
    steps: Sequence[_Terms],
    vectors: tuple[np.ndarray, np.ndarray],
    first: int,
    last: int,
) -> None:
    """Take all steps on one piece of the parameters and their velocity."""
    x_piece, v_piece = (vector[first:last] for vector in vectors)
    momentum = np.float32(rule.momentum)
    for terms in steps:
        v_piece *= momentum
        _subtract(rule, v_piece, terms.seeds, terms.amounts, first)
        kernels.add_scaled(x_piece, v_piece, np.float32(-terms.lr))


def _by_element(
    rule: Rule, steps: Sequence[_Terms], vectors: Sequence[Vector], first: int, last: int
) -> None:
    """Take all steps of a rule other than sgd on one piece of x and of what is kept beside it."""
    here = on_cpu(vectors[0])
    pieces = [(as_array(v) if here else v)[first:last] for v in vectors]
    of: Any = np if here else importlib.import_module("torch")
    cuts = list(overlaps(rule.spans or (Span(0, last, 0),), first, last))
    for terms in steps:
        gradient = of.zeros_like(pieces[0])
        _subtract(rule, gradient, terms.seeds, terms.amounts, first)
        for span, begin, end in cuts:
            x, *kept = (piece[begin:end] for piece in pieces)
            own = terms if span.lr == 1 else replace(terms, lr=terms.lr * span.lr)
            _MOVES[rule.optimizer](of, rule, own, gradient[begin:end], x, kept)


# Vectors are numpy's on the CPU (`of` is numpy), where each operation rounds once and correctly, so
# that the bits are the same on every machine: torch's square root there is not of that kind. On an
# accelerator they are torch's.


def _signed(of: Any, rule: Rule, terms: _Terms, g: Any, w: Any, kept: Sequence[Any]) -> None:
    w -= of.sign(g) * _rounded(terms.lr)


def _adaptive(of: Any, rule: Rule, terms: _Terms, g: Any, w: Any, kept: Sequence[Any]) -> None:
    m, v, largest = kept
    m *= _rounded(rule.momentum)
    m += g * _rounded(1 - rule.momentum)
    v *= _rounded(rule.beta2)
    v += g * g * _rounded(1 - rule.beta2)
    of.maximum(largest, v, out=largest)
    w -= m / of.sqrt(largest) * _rounded(terms.lr)


def _variance_reduced(
    of: Any, rule: Rule, terms: _Terms, g: Any, w: Any, kept: Sequence[Any]
) -> None:
    anchor, mean = kept
    if terms.anchor:
        anchor[:] = w
        mean[:] = g
    else:
        w -= (g + mean) * _rounded(terms.lr)


_MOVES: dict[str, Callable[..., None]] = {
    "signsgd": _signed,
    "adam": _adaptive,
    "svrg": _variance_reduced,
}


def _rounded(value: float) -> float:
    """Return the float32 that a factor of a float32 vector is."""
    return float(np.float32(value))


def _cut_small(work: Callable[[int, int], None]) -> Callable[[int, int], None]:
    def body(first: int, last: int) -> None:
        for start in range(first, last, _PIECE):
            work(start, min(start + _PIECE, last))

    return body
