"""Your own method in one file: python examples/own_method.py

DeComFL with a normalised step, after FZOO (arXiv 2506.09034).
The step is divided by the spread of the scalars, so that it does not depend on the scale of the
loss. The server puts the divided scalars on the ledger: replay, resume and comparisons work as for
every method of the program.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

import raydpzv
from raydpzv.methods.descriptor import HorizontalServerParts
from raydpzv.methods.horizontal.decomfl import (
    DECOMFL,
    DecomflConfig,
    DecomflServer,
    decomfl_settings,
)
from raydpzv.methods.horizontal.rounds import cohorts
from raydpzv.methods.horizontal.seeded import Updates
from raydpzv.methods.roles import Upload


@dataclass(frozen=True)
class NormalisedConfig(DecomflConfig):
    """DeComFL whose step is divided by the standard deviation of the round's scalars."""

    name: str = "normalised"  # type: ignore[assignment]
    """The method."""
    lr: float = 0.1
    """Step size, in units of the scalars' spread."""
    perturbations: int = 10
    """Directions a round, P; the spread wants at least 2."""


class NormalisedServer(DecomflServer):
    """Divides the mean scalars [K, P] by their standard deviation over the P directions."""

    def _released(self, round: int, uploads: Sequence[Upload]) -> np.ndarray:
        scalars = super()._released(round, uploads)
        return scalars / max(float(scalars.std()), 1e-8)


def _server(parts: HorizontalServerParts, config: NormalisedConfig) -> NormalisedServer:
    assert parts.ledger is not None
    updates = Updates(parts.ledger, decomfl_settings(config, parts.key), len(parts.rows))
    return NormalisedServer(cohorts(parts, config.cohort), updates)


NORMALISED = replace(DECOMFL, config=NormalisedConfig, server=_server)

if __name__ == "__main__":
    scenario = raydpzv.load(
        "digits_decomfl",
        ["method.name=own_method:NORMALISED", "budget.updates=200", "method.lr=0.05"],
    )
    run = raydpzv.run(scenario)
    print(f"accuracy {run.accuracy:.3f} after {run.summary['updates']} rounds")
