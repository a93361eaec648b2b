"""Shared by all tests: small scenarios, one Ray for each process that needs one, and who runs what."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import settings

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

# a developer's runs look for new examples, CI's are all alike: a failure there is the commit's, not the draw's
settings.register_profile("explore", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "explore")

SMALL = ("privacy.noise=seeded", "budget.updates=120", "evaluate.every=40")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the kernels once, before xdist's workers start."""
    if not hasattr(session.config, "workerinput") and not session.config.option.collectonly:
        from tests.helpers.kernels import compile_kernels

        compile_kernels()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on Ray first and all in one process (group "ray"), then what is slow, then the rest, file by file.

    A file stays in one process, so that what its tests share is made once; a slow test of its own may go anywhere.
    """
    for item in items:
        if item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.xdist_group("ray"))
        elif not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.xdist_group(item.location[0]))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    marks = [item.get_closest_marker(name) for name in ("ray", "slow")]
    return next((turn for turn, mark in enumerate(marks) if mark), len(marks))


@pytest.fixture(scope="session")
def small() -> Callable[..., VerticalScenario]:
    """digits_dpzv cut to 120 updates with reproducible noise; further overrides as arguments."""

    def make(*overrides: str) -> VerticalScenario:
        return scenarios.load("digits_dpzv", [*SMALL, *overrides])

    return make


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One local Ray for all tests of this process."""
    from actors.cluster import connected

    with connected("local", num_cpus=2, num_gpus=0):
        yield
