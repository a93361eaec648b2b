"""What a proof supposes of a run beside its noise: where it fails, no row holds, and the note says what fails."""

from __future__ import annotations

import dataclasses

import pytest

import raydpzv
from raydpzv.experiment.privacy_filter import final_setting
from raydpzv.experiment.privacy_setting import privacy_setting
from raydpzv.privacy.statements import AnySetting, claims, verdict
from raydpzv.sim.interfaces import Spent

MEAN = ("privacy={mode='paper', sigma=1.0, delta=1e-5, clip=1.0}",)
FROZEN = ("digits_dpzv", *MEAN, "method.server=frozen")
HIDDEN = ("digits_dpzv", *MEAN)
ZOO = ("zoo_vfl", *MEAN)
GRADIENT = ("vafl", *MEAN, "method.noise_on=gradient")


def setting(scenario: str, *changes: str) -> AnySetting:
    found = privacy_setting(raydpzv.load(scenario, changes), 1000).claims
    assert found is not None
    return found


@pytest.mark.parametrize("scenario", [FROZEN, HIDDEN, ZOO, GRADIENT])
def test_the_epsilon_of_one_update_is_no_bound_of_a_run_of_unknown_length(scenario: tuple[str, ...]) -> None:
    planned = setting(*scenario)
    unplanned = setting(*scenario, "budget={seconds=60}")
    assert any(c.holds for c in claims(planned)), "control"
    assert not any(c.holds for c in claims(unplanned))
    held = [c for c in claims(dataclasses.replace(unplanned, planned=True)) if c.holds]
    assert all(
        "ONE update" in c.note for c in claims(unplanned) if c.adversary in {h.adversary for h in held}
    )
    assert "ONE update" in verdict(unplanned)[1]
    made = final_setting(unplanned, Spent(releases=6, counted=4, largest_batch=64, rows=384, uploads=6))
    assert made is not None
    assert any(c.holds for c in claims(made)), "what was counted is no plan"
