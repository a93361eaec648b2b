"""One outlier against privacy.mode = "proved": how far it moves a run's sums, with releases forced, over their noise.

μ realised is that of the best attacker who knows both tables. Scaling fitted on the table lets the outlier move every
other row; with the constants of the scenario it moves its own sums alone.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from raydpzv.config.scenario import VerticalScenario
from raydpzv.experiment import privacy_setting
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.privacy.integers import IntegerReleasePlan
from tests.helpers.sound_runs import sound, table, transcript

CHANGED = 3


def realised(one: VerticalScenario, two: VerticalScenario) -> tuple[float, float]:
    """Return μ of the sums that differ, and what is printed for the releases that the largest count bounds."""
    found = prepare_vertical(one).privacy.claims
    assert isinstance(found, IntegerReleasePlan)
    first = transcript(one)
    other = transcript(two, first)
    squared = sum(float(np.sum((s - other.slopes.sums[a]) ** 2)) for a, s in first.slopes.sums.items())
    counts = np.bincount(np.concatenate(list(first.ids.values())))
    return math.sqrt(squared) / found.scale, 2 * math.sqrt(int(counts.max())) / found.noise_multiplier


def test_it_moves_no_more_than_is_printed(tmp_path: Path) -> None:
    one, two = table(tmp_path / "one.csv"), table(tmp_path / "two.csv", CHANGED)
    moved, printed = realised(sound(one), sound(two))
    assert 0 < moved <= printed


def test_control_under_fitted_scaling_it_moves_far_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mode refuses such a scenario; here the refusal is taken away."""
    monkeypatch.setattr(privacy_setting, "_fitted", lambda data: ())
    one, two = (
        spec.model_copy(
            update={
                "data": spec.data.model_copy(update={"scale": "standard", "centre": None, "spread": None})
            }
        )
        for spec in (sound(table(tmp_path / "one.csv")), sound(table(tmp_path / "two.csv", CHANGED)))
    )
    moved, printed = realised(one, two)
    assert moved > 1.5 * printed
