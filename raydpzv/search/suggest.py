"""Points of a space chosen by what earlier ones came to: Optuna's tree-structured Parzen estimator
(TPE).

Bergstra, Bardenet, Bengio, Kégl 2011, "Algorithms for hyper-parameter optimization".
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raydpzv.errors import SpecError, missing
from raydpzv.keys import Key
from raydpzv.search.space import MOST_TRIALS, Dimension, literal, rounded

RANDOM_FIRST = 10
"""Points that Optuna draws at random before it learns from results: its own default."""
_MOST_REFUSED = 200
"""Points that may be no new scenario before no more are asked for."""

Outcome = tuple[Mapping[str, Any], float | None]
"""The values of a trial's settings, and its metric; None: it came to none."""


def require_optuna() -> Any:
    """Return the module. Raises InputError with the command that installs it."""
    try:
        return importlib.import_module("optuna")
    except ImportError:
        raise missing("Optuna", "optuna", ", or draw at random: leave out --search") from None


def check_space(space: Sequence[Dimension], samples: int) -> None:
    """Raise SpecError for a dimension that is not drawn, or too many trials."""
    if samples > MOST_TRIALS:
        raise SpecError(f"--samples: wanted at most {MOST_TRIALS:,} trials, got {samples:,}")
    for dimension in space:
        if dimension.kind == "grid":
            raise SpecError(
                f"{dimension.setting}: wanted a setting that is drawn, since --search optuna "
                "chooses all values, got a grid; make it a choice, or leave out --search"
            )


def suggested(
    space: Sequence[Dimension],
    outcomes: Sequence[Outcome],
    count: int,
    seed: int,
    *,
    higher: bool,
    accepts: Callable[[tuple[str, ...]], bool],
) -> list[tuple[str, ...]]:
    """Return the settings of the next `count` trials, "key=value" each; the same for the same
    outcomes and seed.

    higher: is more of the metric better? accepts: whether settings are a new scenario; where they
    are not others are chosen. Fewer are returned where the space has no more.
    """
    optuna = require_optuna()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    key = Key(seed) / "search" / "optuna" / len(outcomes)
    sampler = optuna.samplers.TPESampler(
        n_startup_trials=RANDOM_FIRST,
        seed=int(key.generator().integers(2**31)),
        constant_liar=True,  # trials of one batch are to differ
    )
    study = optuna.create_study(sampler=sampler, direction="maximize" if higher else "minimize")
    known = {dimension.setting: _distribution(optuna, dimension) for dimension in space}
    states = optuna.trial.TrialState
    for values, value in outcomes:
        study.add_trial(
            optuna.trial.create_trial(
                params={d.setting: _parameter(d, values[d.setting]) for d in space},
                distributions=known,
                value=value,
                state=states.FAIL if value is None else states.COMPLETE,
            )
        )
    found, refused = list[tuple[str, ...]](), 0
    while len(found) < count and refused < _MOST_REFUSED:
        asked = study.ask(known)
        point = tuple(f"{d.setting}={_literal(d, asked.params[d.setting])}" for d in space)
        if point not in found and accepts(point):
            found.append(point)
        else:
            study.tell(asked, state=states.FAIL)
            refused += 1
    return found


def _distribution(optuna: Any, dimension: Dimension) -> Any:
    kinds = optuna.distributions
    if dimension.kind == "choice":
        return kinds.CategoricalDistribution([literal(value) for value in dimension.values])
    low, high = dimension.values
    if dimension.kind == "randint":
        return kinds.IntDistribution(low, high)
    return kinds.FloatDistribution(low, high, log=dimension.kind == "loguniform")


def _parameter(dimension: Dimension, value: Any) -> Any:
    return literal(value) if dimension.kind == "choice" else value


def _literal(dimension: Dimension, parameter: Any) -> str:
    if dimension.kind == "choice":
        return str(parameter)
    if dimension.kind == "randint":
        return literal(parameter)
    return literal(rounded(parameter, *dimension.values))
