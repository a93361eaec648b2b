"""Tests that share a Ray send it what they define by value, and leave it as they found it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.helpers import struck, struck_hosts

_BACK_WITHIN = 30.0
"""Seconds in which the resources of ended actors must be free again."""


def taken() -> dict[str, float]:
    """Return the processors that are not free in the connected Ray."""
    import ray

    free = ray.available_resources()
    lacks = {
        kind: ray.cluster_resources().get(kind, 0.0) - free.get(kind, 0.0)
        for kind in ("CPU", "GPU")
    }
    return {kind: lack for kind, lack in lacks.items() if lack > 1e-6}


@pytest.fixture(autouse=True)
def _resources_given_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a placement group.

    Where none is left and resources are missing, Ray has lost them. The next tests get another Ray
    in both cases.
    """
    yield
    if "ray_session" not in request.fixturenames:
        return
    until = time.monotonic() + _BACK_WITHIN
    while (lost := taken()) and time.monotonic() < until:
        time.sleep(0.1)
    if not lost:
        return
    from ray.util import placement_group_table

    # in a shared Ray, a placement group reserves all resources of ours
    left = [one for one in placement_group_table().values() if one["state"] != "REMOVED"]
    request.getfixturevalue("ray_session")()
    print(f"after {request.node.name} Ray lacked {lost}; there is another Ray now")
    assert left == []


@pytest.fixture(autouse=True)
def _by_value(request: pytest.FixtureRequest) -> None:
    """Send by value what workers cannot import."""
    if "ray_session" in request.fixturenames:
        import ray

        for module in (request.module, struck, struck_hosts):
            ray.cloudpickle.register_pickle_by_value(module)
