"""Microseconds of CPU per draw of exact discrete Gaussian noise, beside the published sampler, one
draw at a time.

The baseline is Canonne, Kamath, Steinke (2020), Algorithms 1 to 3, in rational arithmetic, written
from the paper. Both draw from the operating system; deviation 5 · 65,535, that of a sum over users
on a grid of 16 bits with σ = 5.
"""

from __future__ import annotations

import random
import time
from fractions import Fraction

from common import environment, median, options, show, verdict, write

from raydpzv.privacy.discrete_gaussian import discrete_gaussian

SCALE = 5 * 65_535
COUNTS, QUICK = (650, 10_000, 20_000, 100_000), (650, 10_000)
BAR = 1.0
"""Microseconds a draw may take from 10,000 draws on."""
_system = random.SystemRandom()


def bernoulli_exp(gamma: Fraction) -> bool:
    """One coin of probability e^−γ (Algorithm 1)."""
    while gamma > 1:
        if not bernoulli_exp(Fraction(1)):
            return False
        gamma -= 1
    k = 1
    while _system.randrange(gamma.denominator * k) < gamma.numerator:
        k += 1
    return k % 2 == 1


def discrete_laplace(scale: int) -> int:
    """One draw with P(x) ∝ e^−|x|/t (Algorithm 2)."""
    while True:
        low = _system.randrange(scale)
        if not bernoulli_exp(Fraction(low, scale)):
            continue
        high = 0
        while bernoulli_exp(Fraction(1)):
            high += 1
        found, negative = low + scale * high, _system.randrange(2)
        if found or not negative:
            return -found if negative else found


def one_by_one(scale: int) -> int:
    """One draw of N_Z(0, s²) (Algorithm 3)."""
    t, square = scale + 1, scale * scale
    while True:
        found = discrete_laplace(t)
        if bernoulli_exp((abs(found) - Fraction(square, t)) ** 2 / (2 * square)):
            return found


def main() -> None:
    """Measure, print and write."""
    chosen = options(__doc__ or "").parse_args()
    repeats, slow = chosen.repeats or (1 if chosen.quick else 5), 200 if chosen.quick else 5000
    began = time.process_time()
    for _ in range(slow):
        one_by_one(SCALE)
    baseline = (time.process_time() - began) / slow * 1e6
    lines = []
    for count in QUICK if chosen.quick else COUNTS:
        discrete_gaussian(SCALE, count)
        calls, found = max(1, 100_000 // count), []
        for _ in range(repeats):
            began = time.process_time()
            for _ in range(calls):
                discrete_gaussian(SCALE, count)
            found.append((time.process_time() - began) / calls / count * 1e6)
        lines.append(
            {"draws": count, "microseconds": median(found), "ratio": baseline / median(found)}
        )
    rows = [
        [
            f"{line['draws']:,}",
            f"{line['microseconds']:.2f}",
            f"{line['ratio']:.0f}",
            verdict(line["microseconds"], BAR if line["draws"] >= 10_000 else None, at_most=True),
        ]
        for line in lines
    ]
    show(
        f"exact noise; one by one {baseline:.1f} µs",
        ("draws", "µs a draw", "ratio", "target"),
        rows,
    )
    result = {"scale": SCALE, "one_by_one_microseconds": baseline, "lines": lines}
    write("exact_noise", result | {"environment": environment()}, chosen.json)


if __name__ == "__main__":
    main()
