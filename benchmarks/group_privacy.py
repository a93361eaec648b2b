"""ε of a user with k records in DP-SGD, by the Uldp-FL paper's conversions and exactly: its figure
2 anew.

σ = 5, rate .01, 100,000 steps, δ = 1e-5, add or remove a user. Lemma 9 converts Rényi divergences
of one record, as published (whose orders go below 2k, where the lemma does not hold) and over the
orders that it holds for; Lemma 8 converts (ε, δ) of one record; the exact ε is that of the loss
distribution of a mixture of Gaussians (`raydpzv.privacy.group_accountant`), with the Rényi
divergences of the same mixture beside it.
"""

from __future__ import annotations

import math
import time
from typing import Any

from common import environment, options, show, write

from raydpzv.privacy.group_accountant import (
    converted,
    group_epsilon,
    group_epsilon_rdp,
    lemma_9_epsilon,
    mixture_rdp,
)

SIGMA, RATE, STEPS, DELTA = 5.0, 0.01, 100_000, 1e-5
GROUPS = (1, 2, 4, 8, 16, 32, 64)
ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(11, 301))
"""Those of the published program, and more: k records want orders above k."""


def lemma_8(group: int, steps: int) -> float:
    """(ε, δ′) of a record is (kε, k e^((k−1)ε) δ′) of k: the ε of the largest δ′ for which that is
    δ, by bisection.
    """
    rho = [(order, steps * mixture_rdp(order, SIGMA, 1, RATE)) for order in ORDERS]

    def one(log_delta: float) -> float:
        return min(
            value + math.log1p(-1 / order) - (log_delta + math.log(order)) / (order - 1)
            for order, value in rho
        )

    low, high = -1e6, math.log(DELTA)
    for _ in range(100):
        middle = (low + high) / 2
        fits = math.log(group) + (group - 1) * one(middle) + middle <= math.log(DELTA)
        low, high = (middle, high) if fits else (low, middle)
    return group * one(low)


def line(group: int, steps: int) -> dict[str, Any]:
    """Return every ε for k records."""
    given = {"multiplier": SIGMA, "group": group, "rate": RATE, "steps": steps, "delta": DELTA}
    began = time.process_time()
    exact = group_epsilon(**given)
    seconds = time.process_time() - began
    record = min(
        converted(steps * mixture_rdp(order, SIGMA, 1, RATE), order, DELTA) for order in ORDERS
    )
    return {
        "k": group,
        "published": lemma_9_epsilon(**given, as_published=True),
        "lemma_9": lemma_9_epsilon(**given),
        "lemma_8": record if group == 1 else lemma_8(group, steps),
        "exact": exact,
        "exact_rdp": group_epsilon_rdp(**given),
        "cpu_seconds": seconds,
    }


def main() -> None:
    """Work out, print and write."""
    chosen = options(__doc__ or "").parse_args()
    groups, steps = (GROUPS[:2], 1000) if chosen.quick else (GROUPS, STEPS)
    lines = [line(group, steps) for group in groups]
    heads = (
        "k",
        "as published",
        "Lemma 9, α ≥ 2k",
        "Lemma 8",
        "exact (PLD)",
        "exact (RDP)",
        "CPU s",
    )
    show(
        f"ε for σ={SIGMA:g}, rate {RATE:g}, {steps:,} steps, δ={DELTA:g}",
        heads,
        [
            [
                f"{row['k']}",
                *(f"{row[name]:,.4g}" for name in list(row)[1:-1]),
                f"{row['cpu_seconds']:.2f}",
            ]
            for row in lines
        ],
    )
    result = {"sigma": SIGMA, "rate": RATE, "steps": steps, "delta": DELTA, "lines": lines}
    write("group_privacy", result | {"environment": environment()}, chosen.json)


if __name__ == "__main__":
    main()
