"""Shared by all tests: small scenarios, and one Ray for the whole session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch

import scenarios
from raydpzv.config.scenario import VerticalScenario

# assertions in the helpers are explained like those of the tests
pytest.register_assert_rewrite("tests.helpers")

# before anything imports ray: no telemetry, no token file in HOME, no cluster of somebody else's
os.environ.update(
    RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="1"
)
os.environ.pop("RAY_ADDRESS", None)

# as in every run; with two threads small forward passes are many times slower on a busy machine
torch.set_num_threads(1)

SMALL = ("privacy.noise=seeded", "budget.updates=120", "evaluate.every=40")


@pytest.fixture(scope="session")
def small() -> Callable[..., VerticalScenario]:
    """digits_dpzv cut to 120 updates with reproducible noise; further overrides as arguments."""

    def make(*overrides: str) -> VerticalScenario:
        return scenarios.load("digits_dpzv", [*SMALL, *overrides])

    return make


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One local Ray for all tests."""
    from actors.cluster import connected

    with connected("local", num_cpus=2, num_gpus=0):
        yield
